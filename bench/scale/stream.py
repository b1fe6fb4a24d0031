"""A load generator that sends prepared checks from one process over several connections, so that the server is full.

A connection sends `depth` checks in one write and waits for their answers. Sending and reading cost this process one or
two microseconds for each check, a tenth of the server's cost. The figures include how busy the server was.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import hiredis

from sluicegate.clock import Clock
from sluicegate.plan import Check, Plan, Terms
from sluicegate.rules.rule import Rule
from sluicegate.stores.redis.encoding import Encoder, decode
from sluicegate.stores.wrappers import PREFIX
from tests.servers import HOST, PATIENCE, Server

_CHUNK = 1 << 18


class Account(NamedTuple):
    """What a server reports: its seconds of CPU, and the number of scripts that it ran."""

    cpu: float
    trips: int

    def since(self, earlier: Account) -> Account:
        return Account(self.cpu - earlier.cpu, self.trips - earlier.trips)


def account(*servers: Server) -> Account:
    """The sums over these servers."""
    used = [info(server, "cpu") for server in servers]
    counts = [info(server, "commandstats") for server in servers]
    calls = [each[name] for each in counts for name in ("cmdstat_evalsha", "cmdstat_eval") if name in each]
    return Account(
        cpu=sum(float(each["used_cpu_user"]) + float(each["used_cpu_sys"]) for each in used),
        trips=sum(int(call.partition("calls=")[2].partition(",")[0]) for call in calls),
    )


def cpu_seconds() -> float:
    """Seconds of CPU that all processes of this machine have used, over all cores."""
    user, nice, system, _, _, interrupts, soft, stolen, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def info(server: Server, section: str) -> dict[str, str]:
    """One section of INFO."""
    lines = server.command(f"INFO {section}").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


class Words:
    """The frames that a store sends for checks of these rules."""

    def __init__(self, quota: str, algorithm: str, *, scope: str = "scale", clock: Clock | None = None) -> None:
        self._encoder = Encoder(prefix=PREFIX, clock=clock, split=False)
        self._terms: tuple[Terms, ...] = Rule(name=scope, quota=quota).terms(algorithm)

    def frame(self, identity: str) -> bytes:
        return self._encoder.run(self._plan(identity)).frame

    def load(self, server: Server) -> None:
        """Load the script into the server."""
        stream(server, self, [self._encoder.run(self._plan("somebody")).with_text().frame])

    def allowed(self, reply: list[int] | bytes) -> bool:
        """True if the reply to a frame allowed it."""
        return all(outcome.allowed for outcome in decode(self._plan(""), reply))

    def _plan(self, identity: str) -> Plan:
        return Plan(tuple(Check(terms, identity, 1) for terms in self._terms))


class Answers(NamedTuple):
    """The number of answered checks, how many were allowed, and the seconds."""

    checks: int
    allowed: int
    seconds: float


class Stream(ExitStack):
    """Open connections to a server."""

    def __init__(self, server: Server, words: Words, *, connections: int = 1) -> None:
        super().__init__()
        self._server = server
        self._words = words
        self._poll = self.enter_context(select.epoll())
        self._lines: dict[int, _Line] = {}
        for _ in range(connections):
            connected = self.enter_context(socket.create_connection((HOST, server.port), timeout=PATIENCE))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines[connected.fileno()] = _Line(connected)
            self._poll.register(connected, select.EPOLLIN)

    def send(self, frames: Iterable[bytes], *, depth: int) -> Answers:
        """Send all frames, `depth` at a time on each connection. Raises on the first error reply."""
        left = iter(frames)
        began = time.perf_counter()
        waiting = sum(line.send(left, depth) for line in self._lines.values())
        checks = allowed = 0
        while waiting:
            ready = self._poll.poll(PATIENCE)
            if not ready:
                raise TimeoutError(f"{self._server!r} does not answer")
            for descriptor, _ in ready:
                line = self._lines[descriptor]
                answered, passed = line.read(self._words)
                checks, allowed, waiting = checks + answered, allowed + passed, waiting - answered
                if not line.waiting:
                    waiting += line.send(left, depth)
        return Answers(checks, allowed, time.perf_counter() - began)


def stream(server: Server, words: Words, frames: Iterable[bytes], *, connections: int = 1, depth: int = 1) -> Answers:
    """Connect, send all frames, and disconnect."""
    with Stream(server, words, connections=connections) as opened:
        return opened.send(frames, depth=depth)


class _Line:
    """One connection, and the number of answers that it waits for."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = hiredis.Reader()
        self.waiting = 0

    def send(self, frames: Iterator[bytes], depth: int) -> int:
        batch = list(islice(frames, depth))
        if batch:
            self._socket.sendall(b"".join(batch))
        self.waiting = len(batch)
        return self.waiting

    def read(self, words: Words) -> tuple[int, int]:
        """Read the answers that have arrived: how many, and how many of them allowed."""
        chunk = self._socket.recv(_CHUNK)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        self._reader.feed(chunk)
        checks = allowed = 0
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, Exception):
                raise RuntimeError(f"a check was answered with {reply!r}")
            checks += 1
            allowed += words.allowed(reply)
        self.waiting -= checks
        return checks, allowed
