"""A proxy between a client and a server, in the test's own process, whose faults a test switches on and off.

It reads RESP as far as it takes to tell one request and one reply from the next, so that a fault can strike the reply
to one command: `with Proxy(server.port) as proxy: proxy.lose(to="EVALSHA")`. What a network cannot do it does not do:
once something is lost on a connection, nothing that comes later on it arrives, so no reply is taken for another's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from collections import Counter, deque
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Any, Self

from tests.servers import HOST, PATIENCE, free_port

_CHUNK = 65536


@dataclass
class _Fault:
    """What befalls the next replies to a command; None stands for every command."""

    times: int
    to: str | None
    close: bool
    half: bool = False  # the first half of the reply is sent

    def strikes(self, command: str) -> bool:
        if self.times == 0 or self.to not in (None, command):
            return False
        self.times -= 1
        return True


@dataclass
class Counts:
    """What went through, counted by the proxy."""

    connections: int = 0  # ever accepted
    open: int = 0  # now
    requests: Counter[str] = field(default_factory=Counter)  # by command, also those that went no further
    replies: int = 0  # that came from the server, forwarded or not
    lost: int = 0  # of those, how many a fault kept back, or half of them
    bytes_in: int = 0  # from clients
    bytes_out: int = 0  # to clients


def _frames(buffer: bytearray) -> Iterator[bytes]:
    """Take every complete RESP value off the front of the buffer."""
    while (end := _end(buffer, 0)) is not None:
        yield bytes(buffer[:end])
        del buffer[:end]


def _end(buffer: bytearray, start: int) -> int | None:
    """Where the value that starts here ends; None while a part of it is missing."""
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


def _command(frame: bytes) -> str:
    """The name of the command in a request."""
    words = frame.split(b"\r\n", 3)
    return (words[2] if frame.startswith(b"*") else words[0].split(b" ")[0]).decode().upper()


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes everything on to a server's, until a fault is switched on.

    Every method returns once it holds. `waiting` says how many faults have not struck yet. With a context for `tls`
    clients speak to it in TLS; with the server it never does.
    """

    def __init__(self, upstream: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.upstream = upstream
        self.tls = tls
        self.port = free_port()
        self.counts = Counts()
        self.fault: _Fault = _Fault(0, None, close=False)
        self.late = 0.0
        self.hole = False
        self._links: dict[asyncio.Task[None], _Link] = {}
        self._listening: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=repr(self))

    def __repr__(self) -> str:
        return f"<proxy on port {self.port} for {self.upstream}>"

    @property
    def url(self) -> str:
        return f"redis{'s' if self.tls else ''}://{HOST}:{self.port}/0"

    @property
    def waiting(self) -> int:
        return self.fault.times

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *failure: object) -> None:
        self._call(self._refuse())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def lose(self, times: int = 1, *, to: str | None = None, close: bool = False) -> None:
        """Swallow the next replies, of commands that have run. The connection falls silent, or closes."""
        self.fault = _Fault(times, to, close)

    def truncate(self, times: int = 1, *, to: str | None = None, close: bool = True) -> None:
        """Send half of the next replies. The connection closes then, or falls silent."""
        self.fault = _Fault(times, to, close, half=True)

    def delay(self, seconds: float) -> None:
        """Hold every reply back for so long."""
        self.late = seconds

    def black_hole(self) -> None:
        """Accept, read and never answer: requests go no further, and a connection that lost one stays silent."""
        self.hole = True

    def cut(self) -> None:
        """Close every connection now; new ones are welcome."""
        self._call(self._cut())

    def refuse(self) -> None:
        """Close every connection now, and the port."""
        self._call(self._refuse())

    def heal(self) -> None:
        """Switch every fault off."""
        self.fault, self.late, self.hole = _Fault(0, None, close=False), 0.0, False
        self._call(self._listen())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        # Not asyncio's server, which may still be opening a connection when it is closed, and then leaves it open.
        if self._listening is None:
            self._listening = socket.create_server((HOST, self.port), backlog=100)
            self._listening.setblocking(False)
            self._loop.add_reader(self._listening, self._accept, self._listening)

    async def _refuse(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        await self._cut()

    async def _cut(self) -> None:
        for link in self._links.values():
            link.close()
        await asyncio.gather(*self._links)

    def _accept(self, listening: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):  # a client that has left already
            accepted, _ = listening.accept()
            # asyncio does so only where a socket names TCP. Without it, a reply may wait for the next request.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(self, accepted)
            self.counts.connections += 1
            task = self._loop.create_task(link.run())
            self._links[task] = link
            task.add_done_callback(self._links.pop)


class _Link:
    """A client's connection, and its twin to the server."""

    def __init__(self, proxy: Proxy, accepted: socket.socket) -> None:
        self._proxy = proxy
        self._accepted = accepted
        self._writers: list[StreamWriter] = []  # to the client, and to the server if there is one
        self._closed = False
        self._asked: deque[str] = deque()  # the commands whose replies have not come
        self._silent = False  # something was lost here, so nothing more arrives
        self._ending = False
        self._due = 0.0  # when the last reply that was held back is sent

    async def run(self) -> None:
        self._proxy.counts.open += 1
        replies: asyncio.Task[None] | None = None
        try:
            with suppress(OSError):  # also a server that is not there: then the client is turned away
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
            for frame in _frames(buffer):
                command = _command(frame)
                self._proxy.counts.requests[command] += 1
                self._silent |= self._proxy.hole
                if server is not None and not self._silent:
                    self._asked.append(command)
                    server.write(frame)

    async def _pass_replies(self, reader: StreamReader) -> None:
        buffer = bytearray()
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                buffer += data
                self._send(b"".join([self._left_of(frame) for frame in _frames(buffer)]))
        self._ending = True
        self._send(b"")

    def _left_of(self, frame: bytes) -> bytes:
        """What the faults leave of a reply."""
        proxy, fault = self._proxy, self._proxy.fault
        proxy.counts.replies += 1
        command = "" if frame.startswith(b">") else self._asked.popleft()
        if self._silent or not (proxy.hole or fault.strikes(command)):
            return b"" if self._silent else frame
        proxy.counts.lost += 1
        self._silent = True
        self._ending = fault.close and not proxy.hole
        return frame[: len(frame) // 2] if fault.half and not proxy.hole else b""

    def _send(self, data: bytes) -> None:
        """To the client, now or late, and never before what is late already."""
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
