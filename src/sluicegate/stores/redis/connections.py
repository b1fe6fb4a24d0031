"""Connections for threads and greenlets. redis-py opens them, encrypts, authenticates and reads the replies.

This module has the pool, the looks and the ownership. A connection carries one command at a time, for one thread.
After any error it is closed, so that no reply can reach another request. A NoReplyError says whether the server may
have run the command. A second thread opens a new connection. The request waits for it while the opening makes progress
(see `patience`). If the opening takes longer, a later request uses the connection.
"""

from __future__ import annotations

# The first connection would import it, and a fork in the middle of an import leaves the import locked in the child.
import encodings.idna  # noqa: F401  # pyright: ignore[reportUnusedImport]
import os
import select
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from threading import Lock, RLock
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import hiredis
import redis.connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sluicegate.clock import monotonic
from sluicegate.errors import SluicegateError
from sluicegate.runtime import fork
from sluicegate.stores.redis.commands import Fields, SingleCheck, pack
from sluicegate.stores.redis.drivers import Driver
from sluicegate.stores.redis.patience import PART, Patience
from sluicegate.stores.redis.steps import MALFORMED, Address, Concerns, NoReplyError, Send
from sluicegate.stores.redis.url import OPENING, STUCK, Servers
from sluicegate.stores.threads import start_thread

_CHUNK: Final = 16384  # bytes that are read from a socket at once
_USUAL: Final = 400  # bytes of the first read: Python allocates so few without `malloc`, and most replies are shorter
BUSY: Final = 0.001  # seconds: a connection that was used more recently is not checked before it is used again
_PING: Final = pack("PING")
_TURNED_AWAY: Final = {"NOAUTH", "DENIED", "ERR"}  # no password, protected mode, too many clients
_CLOSED: Final = (ConnectionResetError, BrokenPipeError, RedisConnectionError, ssl.SSLEOFError)
NOT_SENT: Final = object()
_SOCKET: Final = "_sock"
_READER: Final = "_reader"
_DefaultParser: Any = redis.connection.DefaultParser
_read_from_socket: Final = _DefaultParser.read_from_socket


class _Parser(_DefaultParser):  # type: ignore[misc]
    """The parser of redis-py, which waits look by look. Each system call takes one look at most.

    `progress` is called for each step of the opening.
    """

    def __init__(self, patience: Patience, *, looks: float, progress: Callable[[], object]) -> None:
        super().__init__(socket_read_size=_CHUNK)
        self._patience = patience
        self.left = looks  # of the opening; later of the present command
        self._progress = progress
        self.opened = False
        self.used = -inf  # when the last answered command began

    def on_connect(self, connection: Any, **options: Any) -> None:
        """Start to read from the socket of this connection."""
        super().on_connect(connection, **options)
        self._progress()
        file, write, self._send, receive, set_timeout, self.is_readable = _socket(connection)
        set_timeout(self._patience.look)
        reader = getattr(self, _READER, None)
        if reader is None:  # no reply comes in one piece
            self.wire: _Wire = file, write, _no_bytes, len, bool, False
        else:
            self.wire = file, write, receive, reader.feed, reader.gets, reader.gets()

    def parse_error(self, response: str) -> Exception:
        """Return an error reply, with the whole text of the server. The opening of redis-py needs its own classes."""
        if self.opened:
            return hiredis.ReplyError(response)
        error: Exception = super().parse_error(response)
        error.args = (response,)
        return error

    def read_from_socket(self, **options: Any) -> Any:
        """Read a piece of a reply. After the last look, take what is here: the server was in time."""
        while self.left > 0 or self.is_readable():
            began = monotonic()
            try:
                piece = _read_from_socket(self, **options)
            except (TimeoutError, RedisTimeoutError):
                continue
            finally:  # a piece costs its time too, or a server that sends a byte now and then never fails
                self.left -= self._patience.cost(monotonic() - began)
            if not self.opened:
                self._progress()
            return piece
        raise TimeoutError("no answer within the deadline")

    def send_all(self, frame: bytes) -> None:
        """Write what the socket has no room for yet."""
        while frame:
            try:
                frame = frame[self._send(frame) :]
            except TimeoutError:
                self.left -= 1.0
                if self.left <= 0:
                    raise


_Wire = tuple[Callable[[], int], Callable[[int, bytes], int], Callable[[int], bytes], Callable[[bytes], Any], Any, Any]
"""What each call uses: `file`, `write` and `receive` of the socket; `feed` and `gets` of the reader of replies, and
what `gets` returns before a reply is whole.
"""


class _Socket(NamedTuple):
    """What this module does with a socket of redis-py."""

    file: Callable[[], int]
    write: Callable[[int, bytes], int]  # to the file descriptor, without waiting: how many bytes were written
    send: Callable[[bytes], int]  # waits for room: how many bytes were written
    receive: Callable[[int], bytes]  # at most so many bytes
    set_timeout: Callable[[float], object]
    is_readable: Callable[[], object]  # without waiting: true if there is data to read


def _socket(redis_connection: Any) -> _Socket:
    """Return the socket of a connection. Only this function and `on_connect` use a private name of redis-py.

    Versions that do not have the names have the public methods, which cost more.
    """
    sock = getattr(redis_connection, _SOCKET, None)
    if sock is None:

        def send(frame: bytes) -> int:
            redis_connection.send_packed_command((frame,), check_health=False)
            return len(frame)

        limit = redis_connection.update_current_socket_timeout
        return _Socket(
            int,
            _nothing_yet,
            send,
            receive=_no_bytes,
            set_timeout=limit,
            is_readable=partial(_can_read, redis_connection),
        )
    watch, tls = watcher(sock), isinstance(sock, ssl.SSLSocket)
    direct = os.name == "posix" and not tls  # elsewhere a socket is no file
    return _Socket(
        sock.fileno,
        os.write if direct else _nothing_yet,
        sock.send,
        receive=sock.recv,
        set_timeout=sock.settimeout,
        is_readable=(lambda: watch() and not _only_tls(sock)) if tls else watch,
    )


def _nothing_yet(file: int, frame: bytes) -> int:
    """Write nothing: `send` writes the frame."""
    return 0


def _no_bytes(size: int) -> bytes:
    """Read nothing: `read_response` of redis-py reads the reply."""
    return b""


def _can_read(redis_connection: Any) -> bool:
    try:
        return bool(redis_connection.can_read(timeout=0))
    except RedisError:  # the server has closed the connection
        return True


class Connection:
    """One open connection. Raises OSError or RedisError if it cannot be opened in so many seconds."""

    __slots__ = ("__weakref__", "_redis", "parser")

    def __init__(
        self, servers: Servers, step: Send, patience: Patience, *, seconds: float, progress: Callable[[], object]
    ) -> None:
        self.parser = parser = _Parser(patience, looks=seconds / patience.look, progress=progress)

        def the_parser(**options: Any) -> _Parser:
            return parser

        self._redis = servers.connection(
            step.address,
            timeout=seconds,
            asynchronous=False,
            sentinel=step.sentinel,
            parser_class=the_parser,
        )
        self._redis.connect()
        parser.opened = True
        if not (self._redis.username or self._redis.password or self._redis.db):
            self._greet()

    def close(self) -> None:
        """Close the connection."""
        self._redis.disconnect()

    def _greet(self) -> None:
        """Ask for one reply, because redis-py has asked for none: does the server answer, and does it serve us?"""
        self.parser.send_all(_PING)
        reply = self.parser.read_response()
        if str(reply).partition(" ")[0] in _TURNED_AWAY:
            self.close()
            raise ConnectionError(str(reply))


def check_tag(tag: int | None, reply: Any) -> None:
    """Raise ConnectionError for a reply to another command: something on the way to the server has lost a reply."""
    if tag is None or isinstance(reply, Exception):
        return
    first = reply[0] if type(reply) is list and reply else reply
    if first[:6] != b"%d" % tag if type(first) is bytes else first != tag:
        raise ConnectionError("the reply is to another command")


def failure_of(error: BaseException) -> Exception | None:
    """Return the failure of a connection (network error, unreadable reply); None for our own error or an interrupt."""
    if isinstance(error, (OSError, RedisError)):
        return error
    if isinstance(error, MALFORMED) and not isinstance(error, SluicegateError):
        return ConnectionError(f"{type(error).__name__}: {error}")  # the parser of redis-py or hiredis, and socket
    return None


def concerns_of(error: BaseException | None, *, answered: bool) -> Concerns:
    """Return what the loss of a connection concerns. One that was closed after it has `answered` a command says nothing
    about the server: a proxy or `CLIENT KILL` has closed it, or the server ends, and then none can be opened.
    """
    closed = error is None or isinstance(error, _CLOSED)
    return "connection" if closed and answered else "server"


def watcher(sock: Any) -> Any:
    """Return a function that says, without waiting, whether there is data to read."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return lambda: poll.poll(0)
    return lambda: select.select([sock], [], [], 0)[0]


def _only_tls(sock: ssl.SSLSocket) -> bool:
    """True if the data to read belongs to TLS only, such as a session ticket."""
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

    def wait(self, step: Send, looks: float) -> Connection:
        """Wait for a connection: one that is put back, perhaps closed by the server, or one that is opened.

        A thread starts one opening. It starts another one only if no opening is younger than `STUCK`, and its first
        one is not over or another thread has taken the connection.

        Raises NoReplyError after so many looks without progress (half of them under Sentinel or in a cluster, while no
        connection is open), after `patience.longest` looks in all, if an opening failed and no connection is open or
        may soon be, and in a signal handler of a thread that holds the lock. Raises an error of `prepare` as it is.
        """
        if self._lock._is_owned():  # the thread that opens a connection needs the lock
            cause = TimeoutError("a signal handler or finalizer cannot wait for the connection that its thread opens")
            raise NoReplyError(step.address, cause, sent=False, concerns="plan")
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
                        raise self._no_connection(step.address, failed=failed != self._failed)
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

    def ask(self, command: Fields, looks: float, connection: Connection | None = None) -> Any:
        """Send a command over this connection, or an idle one, and put the connection back. Return the reply or a
        NoReplyError; NOT_SENT if no connection is idle, or if the server has closed the connection: then there is data
        to read that belongs to no command.
        """
        if connection is None:
            try:
                connection = self._idle.pop()
            except IndexError:
                return NOT_SENT
        parser, now = connection.parser, monotonic()
        try:
            if now - parser.used >= BUSY and parser.is_readable():  # the server has closed it
                self.discard(connection)
                return NOT_SENT
            parser.left = looks
            frame, tag, _, replies = command
            file, write, receive, feed, gets, nothing = parser.wire
            # A socket with a timeout does not block, so write at once: `sendall` would first wait for its buffer.
            # The file descriptor is read each time: that of a closed socket may belong to another file now.
            try:
                sent = write(file(), frame)
            except BlockingIOError:
                sent = 0
            if sent != len(frame):
                parser.send_all(frame[sent:])
            try:  # nearly always one piece has the reply
                feed(receive(_USUAL))
                reply = gets()
            except TimeoutError:  # `read_from_socket` looks again
                parser.left, reply = looks - 1.0, nothing
            if reply is nothing:
                reply = parser.read_response()
            if replies > 1:
                for _ in range(1, replies):
                    reply = parser.read_response()
            if type(reply) is not bytes or tag is None or reply[:6] != b"%d" % tag:
                check_tag(tag, reply)
            parser.used = now
        except BaseException as error:  # noqa: BLE001  # `_lost` raises it again
            return self._lost(connection, error, began=now)
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
        failure = failure_of(error)
        if failure is None:
            raise error  # an interrupt, or the timeout of a greenlet
        concerns = concerns_of(error, answered=connection.parser.used > -inf)
        for idle in list(self._idle) if concerns == "server" else ():
            # A firewall that has forgotten this connection has forgotten all that were idle when the command began.
            if idle.parser.used < began:
                with suppress(ValueError):  # another thread has taken it
                    self._idle.remove(idle)
                    self.discard(idle)
        return NoReplyError(self.address, failure, sent=True, concerns=concerns)

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

    def _step(self, opening: _Opening) -> None:
        """Note a step of an opening."""
        opening.steps += 1
        if opening.steps > self._furthest:
            self._furthest = opening.steps
            self._progress += 1

    def _connect(self, opening: _Opening, step: Send, *, seconds: float) -> None:
        """Open a connection and give it to a thread that waits, or to the next request."""
        step_done = partial(self._step, opening)
        step_done()
        connection: Connection | None = None
        failure: Exception = ConnectionError("the opening was interrupted")
        try:
            if self._servers.prepare is not None:
                self._servers.prepare()
            connection = Connection(self._servers, step, self._patience, seconds=seconds, progress=step_done)
        except Exception as error:  # noqa: BLE001  # the request that waits raises an error of `prepare`
            found = failure_of(error)
            failure = error if found is None else self._servers.shown(found)
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

    def _no_connection(self, address: Address, *, failed: bool) -> Exception:
        """Return the error of a request without a connection. It concerns the server if no connection is open."""
        cause = self._failure if failed else None
        if cause is None and self._open:
            most = len(self._open) >= self._servers.connections
            more = "" if most else ", and no further one could be opened in time"
            cause = TimeoutError(f"all {len(self._open)} connections are busy{more}")
        elif cause is None:
            cause = TimeoutError("no connection within the deadline")
        elif not isinstance(cause, (RedisError, OSError)):
            return cause
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

    def send(self, step: Send, looks: float) -> Any:
        """Send a command. Return the reply, or a NoReplyError."""
        pool = self.pools.get(step.address)
        if pool is None:
            pool = _Pool(self._servers, step.address, self.patience, closed=self._closed)
            pool = self.pools.setdefault(step.address, pool)
        command = step.command
        whole = command.whole if isinstance(command, SingleCheck) else command
        reply = pool.ask(whole, looks)
        while reply is NOT_SENT:
            try:
                connection = pool.wait(step, looks)
            except NoReplyError as error:
                return error
            reply = pool.ask(whole, looks, connection)
        return reply

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

    def after_fork(self) -> None:
        """Drop all connections without closing them: after fork() the sockets belong to the parent."""
        self.pools = {}
