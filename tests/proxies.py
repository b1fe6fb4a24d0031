"""Proxies between a client and a server, in the process of the test, with faults that a test switches on and off.

A `Proxy` parses RESP far enough to separate requests and replies, so that a fault can affect the reply to one command:
`with Proxy(server.port) as proxy: proxy.lose(to="EVALSHA")`. It does nothing that a network cannot do: after a loss on
a connection, no later data arrives on that connection. So no reply can be mistaken for the reply to another command.

A `Wire` parses nothing: it carries bytes, late, slowly or not at all. It stands in front of a `Proxy` if the bytes are
TLS: `with Proxy(server.port, tls=context) as proxy, Wire(proxy.port) as wire: wire.slow(latency=0.05)`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from abc import ABC, abstractmethod
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Any, Generic, Protocol, Self, TypeVar

from tests.servers import HOST, PATIENCE, held_port

_CHUNK = 65536
_PIECE = 100  # bytes: what a wire with a bandwidth carries at a time
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST


@dataclass
class _Fault:
    """A fault of the next replies to a command; None means every command."""

    times: int
    to: str | None
    close: bool
    cut: bool = False  # the start of the reply is sent:
    at: int | None = None  # this many bytes of it; None for half of them

    def strikes(self, command: str) -> bool:
        if self.times == 0 or self.to not in (None, command):
            return False
        self.times -= 1
        return True

    def left_of(self, frame: bytes) -> bytes:
        """The part of the reply that is sent."""
        if not self.cut:
            return b""
        return frame[: len(frame) // 2 if self.at is None else self.at]


@dataclass
class Counts:
    """The traffic, counted by the proxy."""

    connections: int = 0  # accepted in all
    open: int = 0  # open now
    requests: Counter[str] = field(default_factory=Counter)  # by command, also those that were not forwarded
    replies: int = 0  # from the server, forwarded or not
    lost: int = 0  # how many of them a fault dropped or cut in half
    bytes_in: int = 0  # from clients
    bytes_out: int = 0  # to clients


def frames_of(buffer: bytearray) -> Iterator[bytes]:
    """Remove every complete RESP value from the start of the buffer."""
    while (end := _end(buffer, 0)) is not None:
        yield bytes(buffer[:end])
        del buffer[:end]


def _end(buffer: bytearray, start: int) -> int | None:
    """Return the end of the value that starts here; None while a part of it is missing."""
    line = buffer.find(b"\r\n", start)
    if line < 0:
        return None
    kind, rest, after = buffer[start : start + 1], buffer[start + 1 : line], line + 2
    if kind in b"$=!":
        end = after + (int(rest) + 2 if int(rest) >= 0 else 0)
        return end if end <= len(buffer) else None
    if kind in b"*~>%|":
        for _ in range(int(rest) * (2 if kind in b"%|" else 1)):
            if (inner := _end(buffer, after)) is None:
                return None
            after = inner
    return after  # a simple value, or an inline command


def command_of(frame: bytes) -> str:
    """Return the name of the command in a request."""
    words = frame.split(b"\r\n", 3)
    return (words[2] if frame.startswith(b"*") else words[0].split(b" ")[0]).decode().upper()


class _Accepted(Protocol):
    """A connection of a client."""

    async def run(self) -> None: ...

    def close(self) -> None: ...


_A = TypeVar("_A", bound=_Accepted)


class _Listener(ABC, Generic[_A]):
    """A free port of 127.0.0.1, an event loop in a thread, and the connections that were accepted there."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.port, self._release_port = held_port(self)
        self._connections: dict[asyncio.Task[None], _A] = {}
        self._listening: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=repr(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} on port {self.port} for {self.upstream}>"

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *failure: object) -> None:
        self._call(self._refuse())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def cut(self) -> None:
        """Close every connection now, and accept new ones."""
        self._call(self._cut())

    def refuse(self) -> None:
        """Close every connection now, and the port."""
        self._call(self._refuse())

    @abstractmethod
    def _made(self, accepted: socket.socket) -> _A: ...

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        # Not asyncio's server, which may still be opening a connection when it is closed, and then leaves it open.
        if self._listening is None:
            self._listening = socket.create_server((HOST, self.port), backlog=100)
            self._listening.setblocking(False)
            self._release_port()
            self._loop.add_reader(self._listening, self._accept, self._listening)

    async def _refuse(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        await self._cut()

    async def _cut(self) -> None:
        for connection in self._connections.values():
            connection.close()
        await asyncio.gather(*self._connections)

    def _accept(self, listening: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):  # a client that has closed the connection already
            accepted, _ = listening.accept()
            # asyncio does so only where a socket names TCP. Without it, a reply may wait for the next request.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self._made(accepted)
            task = self._loop.create_task(connection.run())
            self._connections[task] = connection
            task.add_done_callback(self._connections.pop)


class Proxy(_Listener["_Connection"]):
    """A proxy that listens on a free port of 127.0.0.1 and forwards everything to a server, until a fault is switched
    on.

    Each method returns when its fault is in effect. `waiting` is the number of faults that have not happened yet. With
    a context for `tls`, clients connect to the proxy with TLS. The proxy connects to the server without TLS.
    """

    def __init__(self, upstream: int, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(upstream)
        self.tls = tls
        self.counts = Counts()
        self.fault: _Fault = _Fault(0, None, close=False)
        self.late = 0.0
        self.hole = False
        self.frames_left: int | None = None  # until a connection is killed; None for never
        self.reset = False  # whether it is killed by RST

    @property
    def url(self) -> str:
        return f"redis{'s' if self.tls else ''}://{HOST}:{self.port}/0"

    @property
    def waiting(self) -> int:
        return self.fault.times

    def lose(self, times: int = 1, *, to: str | None = None, close: bool = False) -> None:
        """Drop the next replies, of commands that have run. The connection then stays silent, or closes."""
        self.fault = _Fault(times, to, close)

    def truncate(self, times: int = 1, *, to: str | None = None, close: bool = True, at: int | None = None) -> None:
        """Send half of the next replies, or their first `at` bytes. The connection then closes, or stays silent."""
        self.fault = _Fault(times, to, close, cut=True, at=at)

    def kill(self, after: int, *, reset: bool = False) -> None:
        """Close a connection, by RST if `reset`: the one on which the last of the next `after` frames passes.

        Frames are requests and replies, of all connections. With 0 the next connection is closed when it is accepted.
        """
        self.frames_left, self.reset = after, reset

    def delay(self, seconds: float) -> None:
        """Delay every reply by `seconds`."""
        self.late = seconds

    def black_hole(self) -> None:
        """Accept and read, but forward no request and send no reply. A connection that lost a request stays silent."""
        self.hole = True

    def forget(self) -> None:
        """Pass nothing more on the connections of now, and close none: as a firewall does with those idle for long."""
        for connection in self._connections.values():
            connection.silent = True

    def heal(self) -> None:
        """Switch every fault off."""
        self.fault, self.late, self.hole = _Fault(0, None, close=False), 0.0, False
        self.frames_left = None
        self._call(self._listen())

    def kills(self, frames: int = 1) -> bool:
        """Count frames that pass. True if the connection on which they pass is to be killed."""
        if self.frames_left is None:
            return False
        self.frames_left -= frames
        if self.frames_left > 0:
            return False
        self.frames_left = None
        return True

    def _made(self, accepted: socket.socket) -> _Connection:
        self.counts.connections += 1
        return _Connection(self, accepted)


class _Connection:
    """A connection of a client, and its connection to the server."""

    def __init__(self, proxy: Proxy, accepted: socket.socket) -> None:
        self._proxy = proxy
        self._accepted = accepted
        self._writers: list[StreamWriter] = []  # to the client, and to the server if there is one
        self._closed = False
        self._pending: deque[str] = deque()  # the commands without a reply yet
        self.silent = False  # a reply was dropped, so nothing more arrives
        self._ending = False
        self._due = 0.0  # when the last delayed reply is sent

    async def run(self) -> None:
        self._proxy.counts.open += 1
        replies: asyncio.Task[None] | None = None
        try:
            with suppress(OSError):  # if the server is down too: then the client's connection is closed
                if self._proxy.frames_left == 0 and self._proxy.kills():
                    self._kill(self._accepted)
                    self._accepted.close()
                    return
                requests = await self._greet()
                if not self._proxy.hole:
                    replies = asyncio.create_task(self._pass_replies(await self._open(HOST, self._proxy.upstream)))
                await self._pass_requests(requests)
        finally:
            self.close()
            if replies is not None:
                await replies
            self._proxy.counts.open -= 1

    def close(self) -> None:
        self._closed = True
        for writer in self._writers:
            writer.transport.abort()

    def _kill(self, accepted: socket.socket) -> None:
        """Pass nothing more. If it is to be reset, closing it sends RST."""
        self.silent = self._ending = True
        if self._proxy.reset:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    async def _greet(self) -> StreamReader:
        loop, reader = asyncio.get_running_loop(), StreamReader()
        protocol = StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, self._accepted, ssl=self._proxy.tls)
        return self._keep(reader, StreamWriter(transport, protocol, reader, loop))

    async def _open(self, *where: Any) -> StreamReader:
        return self._keep(*await asyncio.open_connection(*where))

    def _keep(self, reader: StreamReader, writer: StreamWriter) -> StreamReader:
        self._writers.append(writer)
        if self._closed:
            self.close()
        return reader

    async def _pass_requests(self, reader: StreamReader) -> None:
        server = self._writers[1] if len(self._writers) == 2 else None
        buffer = bytearray()
        while data := await reader.read(_CHUNK):
            self._proxy.counts.bytes_in += len(data)
            buffer += data
            for frame in frames_of(buffer):
                command = command_of(frame)
                self._proxy.counts.requests[command] += 1
                self.silent |= self._proxy.hole
                if server is not None and not self.silent:
                    self._pending.append(command)
                    server.write(frame)
                    if self._proxy.kills():
                        self._kill(self._accepted)
                        self._send(b"")

    async def _pass_replies(self, reader: StreamReader) -> None:
        buffer = bytearray()
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                buffer += data
                self._send(b"".join([self._left_of(frame) for frame in frames_of(buffer)]))
        self._ending = True
        self._send(b"")

    def _left_of(self, frame: bytes) -> bytes:
        """Return the part of a reply that the faults let through."""
        proxy, fault = self._proxy, self._proxy.fault
        proxy.counts.replies += 1
        command = "" if frame.startswith(b">") else self._pending.popleft()
        if self.silent:
            return b""
        if proxy.hole or fault.strikes(command):
            proxy.counts.lost += 1
            self.silent = True
            self._ending = fault.close and not proxy.hole
            return b"" if proxy.hole else fault.left_of(frame)
        if proxy.kills():
            self._kill(self._accepted)
        return frame

    def _send(self, data: bytes) -> None:
        """Send to the client, now or delayed, and never before an earlier delayed reply."""
        loop = asyncio.get_running_loop()
        if not self._proxy.late and self._due < loop.time():
            self._deliver(data, ending=self._ending)
        else:
            self._due = max(self._due + 1e-6, loop.time() + self._proxy.late)
            loop.call_at(self._due, partial(self._deliver, data, ending=self._ending))

    def _deliver(self, data: bytes, *, ending: bool) -> None:
        self._proxy.counts.bytes_out += len(data)
        self._writers[0].write(data)
        if ending:
            self._writers[0].close()


class Wire(_Listener["_Wired"]):
    """Listens on a free port of 127.0.0.1 and carries bytes to a server's port and back, as a bad network does.

    Every method returns once it holds. The delays of one connection and direction follow from `seed` alone.
    """

    def __init__(self, upstream: int, *, seed: int = 0) -> None:
        super().__init__(upstream)
        self.seed = seed
        self.connections = 0  # accepted in all
        self.latency = self.jitter = self.bandwidth = self.accepting = 0.0
        self.handshake = 2.0  # times the latency, until the first bytes of a connection arrive
        self.held = False
        self.deaf_to: Callable[[str], bool] = _nobody  # whether it loses the bytes of connections from an address
        self._full: list[socket.socket] = []

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def __exit__(self, *failure: object) -> None:
        self._call(self._unfill())
        super().__exit__(*failure)

    def slow(
        self, *, latency: float = 0.0, jitter: float = 0.0, bandwidth: float = 0.0, handshake: bool = True
    ) -> None:
        """Delay every byte by `latency` to `latency + jitter` seconds in each direction; 0 for no delay.

        `bandwidth` is in bytes per second, for each connection and direction; 0 for no bound. A new connection delays
        its first bytes by the round trip of TCP's `handshake` as well, unless a proxy answers in the server's place.
        """
        self.handshake = 2.0 if handshake else 0.0
        self.latency, self.jitter, self.bandwidth = latency, jitter, bandwidth

    def accept_late(self, seconds: float) -> None:
        """Let new connections wait before anything is read from them."""
        self.accepting = seconds

    def hold(self) -> None:
        """Hold all bytes back until `heal`: packets are lost, and then sent again."""
        self.held = True

    def vanish(self) -> None:
        """Lose all bytes of the connections that are open now, for good, and close none: the peer is gone without FIN.

        New connections work.
        """
        self._call(self._lose_all(lambda source: True))

    def partition(self, *sources: str) -> None:
        """`vanish`, and new connections are accepted and lose all bytes as well, until `heal`. With `sources`, only the
        connections that come from one of these addresses, in addition to those of an earlier call.
        """
        earlier = self.deaf_to
        self.deaf_to = lambda source: not sources or source in sources or earlier(source)
        self._call(self._lose_all(self.deaf_to))

    def fill(self) -> None:
        """`vanish`, and no new connection is accepted: the kernel drops the packets that would open one."""
        self.vanish()
        self._call(self._fill())

    def heal(self) -> None:
        """Switch every fault off. What is on its way arrives now, and what was lost stays lost."""
        self.latency = self.jitter = self.bandwidth = self.accepting = 0.0
        self.held, self.deaf_to = False, _nobody
        self._call(self._release())
        self._call(self._unfill())
        self._call(self._listen())

    async def _lose_all(self, of: Callable[[str], bool]) -> None:
        for connection in self._connections.values():
            if of(connection.source):
                connection.lose()

    async def _release(self) -> None:
        for connection in self._connections.values():
            connection.release()

    async def _fill(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None
            self._full = [socket.create_server((HOST, self.port), backlog=0)]
            for _ in range(2):  # the kernel keeps one more than the backlog
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex((HOST, self.port))
                self._full.append(filler)

    async def _unfill(self) -> None:
        for each in self._full:
            each.close()
        self._full = []

    def _made(self, accepted: socket.socket) -> _Wired:
        self.connections += 1
        return _Wired(self, accepted, self.connections)


def _nobody(source: str) -> bool:
    return False


class _Wired:
    """A connection through a wire: what arrives at one end leaves at the other end later."""

    def __init__(self, wire: Wire, accepted: socket.socket, number: int) -> None:
        self._wire = wire
        self._accepted = accepted
        self._number = number
        self._closing = asyncio.Event()
        self._writers: list[StreamWriter] = []
        self._ways: list[Way] = []
        self.source = ""
        with suppress(OSError):  # it is closed already
            self.source = accepted.getpeername()[0]
        self._lost = wire.deaf_to(self.source)

    async def run(self) -> None:
        began = asyncio.get_running_loop().time()
        back: asyncio.Task[None] | None = None
        try:
            if self._wire.accepting:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), self._wire.accepting)
            with suppress(OSError):  # also if the server is down
                from_client, to_client = await self._keep(asyncio.open_connection(sock=self._accepted))
                if self._lost:
                    while await from_client.read(_CHUNK):
                        pass
                    return
                from_server, to_server = await self._keep(asyncio.open_connection(HOST, self._wire.upstream))
                self._ways = [
                    Way(
                        self._wire,
                        to_server,
                        f"{self._number} there",
                        ready=began + self._wire.handshake * self._wire.latency,
                    ),
                    Way(self._wire, to_client, f"{self._number} back"),
                ]
                if self._lost:
                    self.lose()
                back = asyncio.create_task(self._ways[1].carry_all(from_server))
                await self._ways[0].carry_all(from_client)  # ends too when the end of the way back closes the client
        finally:
            self.close()
            if not self._writers:
                self._accepted.close()
            if back is not None:
                await back

    def close(self) -> None:
        self._closing.set()
        self.lose()
        for writer in self._writers:
            writer.transport.abort()

    def lose(self) -> None:
        """Carry nothing more."""
        self._lost = True
        for way in self._ways:
            way.lose()

    def release(self) -> None:
        """Let go what was held back."""
        for way in self._ways:
            way.release()

    async def _keep(self, opening: Awaitable[tuple[StreamReader, StreamWriter]]) -> tuple[StreamReader, StreamWriter]:
        reader, writer = await opening
        self._writers.append(writer)
        if self._closing.is_set():
            self.close()
        return reader, writer


class Way:
    """One direction of a connection through a wire. Bytes keep their order."""

    def __init__(self, wire: Wire, writer: StreamWriter, name: str, *, ready: float = 0.0) -> None:
        self._wire = wire
        self._writer = writer
        self._random = random.Random(f"{wire.seed} {name}")
        self._ready = ready  # when the next byte may leave
        self._due = 0.0  # when the last byte arrives
        self._coming: deque[tuple[asyncio.TimerHandle, bytes]] = deque()
        self._held: list[bytes] = []
        self._lost = False
        self._ended = asyncio.Event()  # the end of the bytes has arrived, or nothing arrives any more

    async def carry_all(self, reader: StreamReader) -> None:
        """Carry everything that comes from the reader, and then the end of it."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                self._carry(data)
        self._carry(b"")
        await self._ended.wait()

    def delay(self) -> float:
        """The latency of the next bytes."""
        return self._wire.latency + self._wire.jitter * self._random.random()

    def lose(self) -> None:
        """Let nothing more arrive."""
        self._lost = True
        self._ended.set()
        for timer, _ in self._coming:
            timer.cancel()

    def release(self) -> None:
        """Let everything arrive now: what was held back, and what is on its way."""
        held, self._held = self._held, []
        coming, self._coming = self._coming, deque()
        self._ready = self._due = 0.0
        for piece in held:
            self._deliver(piece)
        for timer, piece in coming:
            timer.cancel()
            self._deliver(piece)

    def _carry(self, data: bytes) -> None:
        wire, loop = self._wire, asyncio.get_running_loop()
        step = _PIECE if wire.bandwidth else _CHUNK
        for start in range(0, max(1, len(data)), step):
            piece = data[start : start + step]
            self._ready = max(self._ready, loop.time()) + (len(piece) / wire.bandwidth if wire.bandwidth else 0.0)
            self._due = max(self._due + 1e-6, self._ready + self.delay())
            self._coming.append((loop.call_at(self._due, self._arrive), piece))

    def _arrive(self) -> None:
        _, piece = self._coming.popleft()
        if self._wire.held:
            self._held.append(piece)
        else:
            self._deliver(piece)

    def _deliver(self, piece: bytes) -> None:
        if self._lost:
            return
        if piece:
            self._writer.write(piece)
        else:
            self._writer.close()
            self._ended.set()
