"""Connections for threads and greenlets. redis-py opens them, encrypts, authenticates and reads the replies.

This module has the pool, the looks and the ownership. A connection carries one command at a time, for one thread.
After any error it is closed, so that no reply can reach another request. A NoReplyError says whether the server may
have run the command. A second thread opens a new connection. The request waits for it while the opening makes progress
(see `patience`). If the opening takes longer, a later request uses the connection.
"""

from __future__ import annotations

# The first connection would import it, and a fork in the middle of an import leaves the import locked in the child.
import encodings.idna  # noqa: F401  # pyright: ignore[reportUnusedImport]
import select
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from socket import socket
from threading import Lock, RLock
from typing import Any, Final
from weakref import WeakSet

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError

from sluicegate.clock import monotonic
from sluicegate.runtime import fork
from sluicegate.stores.redis.commands import Fields
from sluicegate.stores.redis.drivers import Driver
from sluicegate.stores.redis.patience import PART, Patience
from sluicegate.stores.redis.steps import MALFORMED, Address, Concerns, NoReplyError, Send
from sluicegate.stores.redis.url import OPENING, STUCK, Servers, is_silent
from sluicegate.stores.threads import start_thread

_CHUNK: Final = 16384  # bytes that are read from a socket at once
_USUAL: Final = 400  # bytes of the first read: Python allocates so few without `malloc`, and most replies are shorter
BUSY: Final = 0.001  # seconds: a connection that was used more recently is not checked before it is used again
_CLOSED: Final = (ConnectionResetError, BrokenPipeError, RedisConnectionError, ssl.SSLEOFError)


class Connection:
    """One open connection. Raises OSError or RedisError if it cannot be opened in so many seconds."""

    __slots__ = ("__weakref__", "_patience", "_reader", "_redis", "_socket", "is_readable", "used")

    def __init__(
        self, servers: Servers, step: Send, patience: Patience, *, seconds: float, progress: Callable[[], object]
    ) -> None:
        self._redis = opened = servers.connection(
            step.address, timeout=seconds, asynchronous=False, sentinel=step.sentinel, progress=progress
        )
        opened.connect()
        if is_silent(opened):
            opened.send_command("PING")
            with suppress(NoPermissionError):
                opened.read_response()
        self._socket: socket = opened._sock  # redis-py has no public name for it
        self._socket.settimeout(patience.look)
        self._reader = hiredis.Reader()
        self._patience = patience
        self.is_readable = watcher(self._socket)
        self.used = -inf  # when the last answered command began

    def close(self) -> None:
        """Close the connection."""
        self._redis.disconnect()

    def exchange(self, command: Fields, looks: float) -> object:
        """Send a command, and return its reply. After an exception a reply may still come: close the connection."""
        frame, tag, _, replies = command
        reader, sock = self._reader, self._socket
        while frame:
            try:
                frame = frame[sock.send(frame) :]
            except TimeoutError:
                looks -= 1.0
                if looks <= 0:
                    raise
        try:  # nearly always one piece has the reply
            reader.feed(sock.recv(_USUAL))
        except TimeoutError:
            looks -= 1.0
        while (reply := reader.gets()) is False or replies > 1:
            if reply is False:
                looks -= self._read(looks)
            else:
                replies -= 1
        if type(reply) is not bytes or tag is None or reply[:6] != b"%d" % tag:
            check_tag(tag, reply)
        return reply

    def _read(self, looks: float) -> float:
        """Read a piece of a reply. Return the looks that it took. After the last look, take what is here: the server
        was in time.
        """
        if looks <= 0 and not self.is_readable():
            raise TimeoutError("no answer within the deadline")
        began = monotonic()
        with suppress(TimeoutError):
            piece = self._socket.recv(_CHUNK)
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(piece)
        # A piece costs its time too, or a server that sends a byte now and then never fails.
        return self._patience.cost(monotonic() - began)


def check_tag(tag: int | None, reply: object) -> None:
    """Raise ConnectionError for a reply to another command: something on the way to the server has lost a reply."""
    if tag is None or isinstance(reply, Exception):
        return
    first = reply[0] if type(reply) is list and reply else reply
    if first[:6] != b"%d" % tag if type(first) is bytes else first != tag:
        raise ConnectionError("the reply is to another command")


def failure_of(error: Exception) -> Exception:
    """Return an error as the failure of a connection: a network error, or one of a parser, a library or a thread."""
    return error if isinstance(error, (OSError, RedisError)) else ConnectionError(f"{type(error).__name__}: {error}")


def concerns_of(error: BaseException | None, *, answered: bool) -> Concerns:
    """Return what the loss of a connection concerns. One that was closed after it has `answered` a command says nothing
    about the server: a proxy or `CLIENT KILL` has closed it, or the server ends, and then none can be opened.
    """
    closed = error is None or isinstance(error, _CLOSED)
    return "connection" if closed and answered else "server"


def watcher(sock: socket) -> Callable[[], object]:
    """Return a function that says, without waiting, whether there is data to read."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return lambda: poll.poll(0)
    return lambda: select.select([sock], [], [], 0)[0]


class _Opening:
    """A place in a pool for a connection that a thread opens."""

    def __init__(self) -> None:
        self.began = monotonic()
        self.steps = 0  # that it has done
        self.is_done = False  # the connection is open. Another thread may have taken it


class _Pool:
    """The connections to one address.

    The sets of open connections and of openings are weak: if the owner of a connection ends without a word (a thread, a
    greenlet), the connection is closed and does not count any more.

    A signal handler may raise between any two steps. So the lock is one of the interpreter, taken only by `with`: a
    Condition takes its lock in Python code, and an exception there leaves the lock taken for ever.
    """

    def __init__(self, servers: Servers, address: Address, patience: Patience, *, closed: bool) -> None:
        self._servers = servers
        self._patience = patience
        self.address = address
        self._idle: deque[Connection] = deque()  # the last used one at the end
        self._open: WeakSet[Connection] = WeakSet()
        self._openings: WeakSet[_Opening] = WeakSet()
        self._failed = 0  # openings that failed
        self._failure: Exception | None = None  # of the last one
        self._progress = 0  # steps of openings, and connections that were put back: they let a call wait on
        self._furthest = 0  # steps of the opening that is furthest: the first steps of many do not add up to progress
        self._waiting: deque[Lock] = deque()  # one for each thread that waits; releasing it wakes the thread
        self._closed = closed
        # A signal handler or finalizer may need a connection in a thread that holds it.
        self._lock: Any = RLock()  # the stubs lack `_is_owned`

    def wait(self, step: Send, looks: float) -> Connection | NoReplyError:
        """Wait for a connection: one that is put back, perhaps closed by the server, or one that is opened.

        A thread starts one opening. It starts another one only if no opening is younger than `STUCK`, and its first
        one is not over or another thread has taken the connection.

        Returns a NoReplyError after so many looks without progress (fewer under Sentinel or in a cluster, while no
        connection is open), after `patience.longest` looks in all, if an opening failed and no connection is open or
        may soon be, and in a signal handler of a thread that holds the lock.
        """
        if self._lock._is_owned():  # the thread that opens a connection needs the lock
            cause = TimeoutError("a signal handler or finalizer cannot wait for the connection that its thread opens")
            return NoReplyError(step.address, cause, sent=False, concerns="plan")
        failed, seen, patience = self._failed, self._progress, self._patience
        silent = waited = 0.0  # looks: since the last progress, and in all
        own: _Opening | None = None
        # A node that does not let us connect must leave time to ask where its keys are now.
        others = self._servers.kind in {"sentinel", "cluster"} and step.part == 1
        woken = Lock()
        woken.acquire()
        try:
            self._waiting.append(woken)
            while True:
                with suppress(IndexError):
                    return self._idle.pop()
                with self._lock:  # no greenlet switches here, so none is killed while it waits for the lock
                    if self._idle:
                        continue
                    again = own is None or ((own.is_done or own in self._openings) and not self._fresh())
                    opening = self._reserve() if again else None
                    most = looks * PART if others and not self._open else looks
                    over = silent >= most or waited >= patience.longest
                    refused = failed != self._failed and not self._open and not self._fresh()
                    if opening is None and (over or refused):
                        return self._no_connection(step.address, failed=failed != self._failed)
                if opening is not None:
                    own = opening
                    self._start(opening, step)
                    continue
                began = monotonic()
                if woken.acquire(timeout=min(patience.look, STUCK)):
                    self._waiting.append(woken)  # before the next look at `_idle`
                look = patience.cost(monotonic() - began)
                silent, seen = look + (silent if seen == self._progress else 0.0), self._progress
                waited += look
        finally:
            with suppress(ValueError):  # it was woken
                self._waiting.remove(woken)
            if self._idle:  # this thread may have been woken for it, and then interrupted
                self._wake()

    def send(self, step: Send, looks: float) -> object:
        """Send a command over an idle connection, and put the connection back. Return the reply or a NoReplyError."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = None
            if connection is None:
                found = self.wait(step, looks)
                if isinstance(found, NoReplyError):
                    return found
                connection = found
            now = monotonic()
            try:
                if now - connection.used >= BUSY and connection.is_readable():
                    self.discard(connection)  # the server has closed it: the data to read belongs to no command
                    continue
                reply = connection.exchange(step[1], looks)
                connection.used = now
            except BaseException as error:  # noqa: BLE001  # `_lost` raises it again
                return self._lost(connection, error, began=now)
            break
        self._idle.append(connection)  # before `_waiting` is read: a thread that begins to wait later finds it
        if self._waiting:
            self._progress += 1
            self._wake()
        elif self._closed:
            self.close()
        return reply

    def _lost(self, connection: Connection, error: BaseException, *, began: float) -> NoReplyError:
        """Close a connection without a reply. Return the failure. Raises another error."""
        self.discard(connection)
        if not isinstance(error, (OSError, RedisError, hiredis.HiredisError, *MALFORMED)):
            raise error  # an interrupt, or the timeout of a greenlet
        concerns = concerns_of(error, answered=connection.used > -inf)
        for idle in list(self._idle) if concerns == "server" else ():
            # A firewall that has forgotten this connection has forgotten all that were idle when the command began.
            if idle.used < began:
                with suppress(ValueError):  # another thread has taken it
                    self._idle.remove(idle)
                    self.discard(idle)
        return NoReplyError(self.address, failure_of(error), sent=True, concerns=concerns)

    def discard(self, connection: Connection) -> None:
        """Close a connection."""
        connection.close()
        with self._lock:
            self._open.discard(connection)
        self._wake()

    def close(self) -> None:
        """Close the idle connections, and each other one as soon as it is idle."""
        self._closed = True
        while self._idle:
            with suppress(IndexError):  # another thread has taken it
                self.discard(self._idle.pop())

    def _wake(self) -> None:
        """Wake the thread that has waited longest, if one waits."""
        with suppress(IndexError):
            self._waiting.popleft().release()

    def _fresh(self) -> int:
        """Return how many openings may end soon."""
        now = monotonic()
        return sum([now - opening.began < STUCK for opening in self._openings])

    def _reserve(self) -> _Opening | None:
        """Return a place for one more connection, if fewer are being opened than threads wait."""
        if len(self._open) + len(self._openings) >= self._servers.connections or self._fresh() >= len(self._waiting):
            return None
        opening = _Opening()
        self._openings.add(opening)
        return opening

    def _start(self, opening: _Opening, step: Send) -> None:
        deadline = self._patience.deadline
        try:
            start_thread("opening", partial(self._connect, opening, step, seconds=max(OPENING, deadline)))
        except RuntimeError:
            self._connect(opening, step, seconds=deadline)
        except BaseException:  # of a signal handler: `threading` keeps a thread for ever that it has not quite started
            self._openings.discard(opening)
            raise

    def _step(self, opening: _Opening, seconds: float) -> None:
        """Note a step of an opening. redis-py bounds each of its reads, but not all of them together."""
        if monotonic() - opening.began > seconds:
            raise TimeoutError("the connection was not open in time")
        opening.steps += 1
        if opening.steps > self._furthest:
            self._furthest = opening.steps
            self._progress += 1

    def _connect(self, opening: _Opening, step: Send, *, seconds: float) -> None:
        """Open a connection and give it to a thread that waits, or to the next request."""
        step_done = partial(self._step, opening, seconds)
        connection: Connection | None = None
        failure: Exception = ConnectionError("the opening was interrupted")
        try:
            step_done()
            if self._servers.host is not None:
                self._servers.host.ensure(self._patience.deadline)
            connection = Connection(self._servers, step, self._patience, seconds=seconds, progress=step_done)
        except Exception as error:  # noqa: BLE001  # the request that waits gets it
            failure = self._servers.shown(failure_of(error))
        finally:
            with self._lock:
                self._openings.discard(opening)
                self._furthest = 0
                if connection is None:
                    self._failed, self._failure = self._failed + 1, failure
                else:
                    opening.is_done = True
                    self._progress += 1
                    self._open.add(connection)
                    self._idle.append(connection)
            unwanted = self._closed and not self._waiting
            for _ in range(len(self._waiting)):
                self._wake()
        if unwanted:
            self.close()

    def _no_connection(self, address: Address, *, failed: bool) -> NoReplyError:
        """Return the error of a request without a connection. It concerns the server if no connection is open."""
        cause = self._failure if failed else None
        if cause is None and self._open:
            most = len(self._open) >= self._servers.connections
            more = "" if most else ", and no further one could be opened in time"
            cause = TimeoutError(f"all {len(self._open)} connections are busy{more}")
        elif cause is None:
            cause = TimeoutError("no connection within the deadline")
        error = NoReplyError(address, cause, sent=False, concerns="plan" if self._open else "server")
        error.__cause__ = cause
        return error


class Connections(Driver):
    """The connections of one store to all its servers. They are opened when needed."""

    def __init__(self, servers: Servers, *, deadline: float) -> None:
        self._servers = servers
        self.patience = Patience(deadline)
        self.pools: dict[Address | None, _Pool] = {}
        self._closed = False
        fork.renew(self)

    def send(self, step: Send, looks: float) -> object:
        """Send a command. Return the reply, or a NoReplyError."""
        pool = self.pools.get(step[0])
        if pool is None:
            pool = _Pool(self._servers, step.address, self.patience, closed=self._closed)
            pool = self.pools.setdefault(step.address, pool)
        return pool.send(step, looks)

    def retire(self, address: Address) -> None:
        """Close the connections to an address: the idle ones now, the others after their reply."""
        pool = self.pools.pop(address, None)
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Close the connections: the idle ones now, the others after their reply. A later call opens one for itself."""
        self._closed = True
        for pool in list(self.pools.values()):
            pool.close()
        if self._servers.host is not None:
            self._servers.host.leave()

    def after_fork(self) -> None:
        """Drop all connections without closing them: after fork() the sockets belong to the parent."""
        self.pools = {}
