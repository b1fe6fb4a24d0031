"""Connections for threads: what redis-py has opened, we write to and read from.

A link carries one command at a time. When anything goes wrong on it, it is closed, so that no reply can reach another
request, and a LinkError says whether the command may have been run. This module knows addresses and packed commands;
nothing of plans.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from collections import deque
from threading import Condition
from typing import Any, Final
from weakref import WeakSet

import hiredis
from redis.exceptions import RedisError

from sluicegate.clock import monotonic
from sluicegate.stores.redis.asks import Address, Ask, LinkError
from sluicegate.stores.redis.commands import AnyCommand, Together
from sluicegate.stores.redis.drivers import Driver
from sluicegate.stores.redis.servers import Servers

_CHUNK: Final = 65536
BUSY: Final = 0.001  # seconds: a link that was used so lately is not looked at before it is used again


class Link:
    """One open connection. Where the kernel can keep the deadline, a command and its answer are two calls to it."""

    __slots__ = ("_by_kernel", "_connection", "_limited", "_reader", "_recv", "_send", "_sock", "_used", "_watch")

    def __init__(self, connection: Any) -> None:
        connection.connect()
        self._connection = connection  # closes the socket when it is collected, so it is kept
        self._sock = connection._sock
        self._send, self._recv = self._sock.sendall, self._sock.recv
        self._reader = hiredis.Reader()
        self._watch = watcher(self._sock)
        self._limited = 0.0  # seconds that a call to the kernel may take at present
        self._used = 0.0  # when it was last written to, or read from
        self._by_kernel = type(self._sock) is socket.socket and os.name == "posix"  # not TLS, nor a greenlet's
        if self._by_kernel:
            self._sock.settimeout(None)

    def there(self) -> bool:
        """Whether the server still holds its end. What it says unasked can only be a farewell."""
        if monotonic() - self._used < BUSY or not self._watch():
            return True
        return isinstance(self._sock, ssl.SSLSocket) and _only_tls(self._sock)

    def call(self, command: AnyCommand, until: float) -> Any:
        """The reply, which may be an error reply. OSError or a protocol error when there is none."""
        reader, missing = self._reader, command.replies
        reply: Any = False
        try:
            self._limit(until)
            self._send(command.frame)
            while True:
                data = self._recv(_CHUNK)
                if not data:
                    raise ConnectionError("the server closed the connection")
                reader.feed(data)
                while missing and (reply := reader.gets()) is not False:
                    missing -= 1
                if not missing:
                    break
                self._limit(until)  # rare: a reply in pieces
        except BlockingIOError as error:
            raise TimeoutError("no answer within the deadline") from error
        check_tag(command, reply)
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _limit(self, until: float) -> None:
        """Wait no longer than until then. The kernel is told anew only when it would be off by a tenth."""
        self._used = now = monotonic()
        left = until - now
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        if 0.9 * left <= self._limited <= 1.1 * left:
            return
        self._limited = left
        if not self._by_kernel:
            self._sock.settimeout(left)
            return
        time = struct.pack("@ll", int(left), int(left % 1 * 1_000_000) + 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time)


def check_tag(command: AnyCommand | Together, reply: Any) -> None:
    """Refuse a reply that belongs to another command: something between here and the server has lost one."""
    if command.tag is not None and type(reply) is list and reply[0] != command.tag:
        raise ConnectionError("the reply is to another command")


def watcher(sock: Any) -> Any:
    """A function that says at once whether there is anything to read."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return lambda: poll.poll(0)
    return lambda: select.select([sock], [], [], 0)[0]


def _only_tls(sock: ssl.SSLSocket) -> bool:
    """Whether all there is to read is of the TLS layer's own, such as a ticket."""
    limit = sock.gettimeout()
    sock.settimeout(0)
    try:
        sock.recv(1)
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False
    finally:
        sock.settimeout(limit)
    return False


class _Pool:
    """The links to one address: idle ones, the last used on top, and how many there are in all."""

    def __init__(self, most: int) -> None:
        self._idle: deque[Link] = deque()
        self._most = most
        self._open = 0
        self._waiting = 0
        self._freed = Condition()

    def wait(self, until: float) -> Link | None:
        """A link that is given back; None when the caller may open one. TimeoutError when all stay busy."""
        if self._reserve():
            return None
        with self._freed:
            self._waiting += 1
            try:
                while (link := self.idle()) is None and not self._reserve():
                    if not self._freed.wait(until - monotonic()):
                        raise TimeoutError(f"all {self._most} connections are busy")
                return link
            finally:
                self._waiting -= 1

    def give(self, link: Link) -> None:
        """Put a link back on top."""
        self._idle.append(link)  # before the look at who waits: whoever comes to wait after it finds the link
        if self._waiting:
            with self._freed:
                self._freed.notify()

    def lose(self) -> None:
        """Count one link less."""
        with self._freed:
            self._open -= 1
            self._freed.notify()

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()
            self.lose()

    def idle(self) -> Link | None:
        """An idle link whose server is there, if there is one."""
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return None
            if link.there():
                return link
            link.close()
            self.lose()

    def _reserve(self) -> bool:
        with self._freed:
            if self._open >= self._most:
                return False
            self._open += 1
            return True


class Links(Driver):
    """The connections of one store to all its servers, opened when needed."""

    def __init__(self, servers: Servers, *, deadline: float) -> None:
        self._servers = servers
        self._deadline = deadline
        self._pools: dict[Address, _Pool] = {}
        _ALL.add(self)

    def until(self) -> float:
        """When a call that begins now must be over."""
        return monotonic() + self._deadline

    def ask(self, ask: Ask, until: float) -> Any:
        """The reply, or the LinkError there is instead."""
        pool = self._pools.get(ask.address)
        if pool is None:
            pool = self._pools.setdefault(ask.address, _Pool(self._servers.connections))
        link = pool.idle()
        if link is None:
            try:
                link = self._link(ask, pool, until=until)
            except LinkError as error:
                return error
        try:
            reply = link.call(ask.command, until)
        except BaseException as error:
            link.close()
            pool.lose()
            if isinstance(error, (OSError, hiredis.HiredisError)):
                return LinkError(ask.address, error, sent=True)
            raise  # an interrupt, or a greenlet's timeout
        pool.give(link)
        return reply

    def leave(self, address: Address) -> None:
        """Close what is not in use."""
        self._pools[address].close()

    def close(self) -> None:
        """Close what is not in use."""
        for pool in self._pools.values():
            pool.close()

    def forsake(self) -> None:
        """Forget all links without a word to their servers: after a fork they are the parent's."""
        self._pools = {}

    def _link(self, ask: Ask, pool: _Pool, *, until: float) -> Link:
        try:
            link = pool.wait(until)
        except TimeoutError as error:
            raise LinkError(ask.address, error, sent=False) from error
        if link is not None:
            return link
        try:
            if self._servers.prepare is not None:
                self._servers.prepare()
            timeout = until - monotonic()
            if timeout <= 0:
                raise TimeoutError("no time left to connect")
            return Link(self._servers.connection(ask.address, timeout=timeout, later=False, sentinel=ask.sentinel))
        except BaseException as error:
            pool.lose()
            if not isinstance(error, (RedisError, OSError)):
                raise
            failed = self._servers.shown(error)
        raise LinkError(ask.address, failed, sent=False) from failed


_ALL: Final[WeakSet[Links]] = WeakSet()


def _after_fork() -> None:
    for links in list(_ALL):
        links.forsake()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
