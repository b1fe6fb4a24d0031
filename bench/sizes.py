"""The bytes for one identity: on both servers, by their own report, and in this process.

On a server it is the sum of MEMORY USAGE over all keys that the hits created, names and expiry included. In the process
it is the memory allocated for many identities, without the identities' own strings.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import redis

from bench.budgets import PROCESS
from bench.figures import Figure
from bench.memory import role_of
from bench.peers import PATIENCE, Limit, memory_makers, redis_makers
from bench.race import Course
from sluicegate import Limiter, ManualClock
from tests.servers import redis_server, valkey_server

NAME = "user:12345678"
TEN = Limit(10, "minute")
LOGS = ("limits moving-window", "pyrate-limiter log")  # their size grows with the limit
Fill = Callable[[], object]


class Window(NamedTuple):
    """A sluicegate budget, filled by hits over one period. Uneven times between hits take the most bytes."""

    limit: Limit
    hits: int
    cost: int = 1
    algorithm: str = "sliding-window"

    def fill(self, url: str) -> None:
        clock = ManualClock()
        with Limiter(url, clock=clock, algorithm=self.algorithm, deadline=PATIENCE) as limiter:
            for each in range(self.hits):
                if not limiter.hit(self.limit.text, NAME, cost=self.cost).allowed:
                    raise RuntimeError(f"hit {each} of {self.limit.text} was refused")
                clock.advance(self.limit.seconds / (self.hits + 1) + (each % 7) * 1e-5)


WINDOWS = {
    "sluicegate 10/minute, one hit": Window(TEN, hits=1),
    "sluicegate 10/minute, full": Window(TEN, hits=10),
    "sluicegate 100/hour, full": Window(Limit(100, "hour"), hits=100),
    # Above a limit of 100, a window distinguishes a hundred moments: 220 hits put more than one in each.
    "sluicegate 1000/hour, full": Window(Limit(1_000, "hour"), hits=220, cost=4),
    "sluicegate 1000000/hour, full": Window(Limit(1_000_000, "hour"), hits=220, cost=4_545),
    "sluicegate gcra": Window(Limit(1_000_000, "hour"), hits=20, cost=4_545, algorithm="gcra"),
    "sluicegate fixed-window": Window(TEN, hits=10, algorithm="fixed-window"),
    "sluicegate sliding-counter": Window(TEN, hits=10, algorithm="sliding-counter"),
}


def measure(course: Course) -> list[Figure]:
    """Measure on both servers and in this process."""
    return [*_servers(course), *_process(course)]


def _servers(course: Course) -> list[Figure]:
    figures = []
    for make in (valkey_server, redis_server):
        with make() as server, redis.Redis(port=server.port) as client:
            topic = f"bytes in {server.name}"
            for name, fill in _fills(server.url):
                client.flushall()
                course.attempt(f"{topic}: {name}", fill)
                size = sum(client.memory_usage(key) or 0 for key in client.scan_iter(count=1000))
                if size:
                    figures.append(Figure(topic, "bytes", name, role_of(name), (float(size),)))
    return figures


def _fills(url: str) -> Iterator[tuple[str, Fill]]:
    for name, window in WINDOWS.items():
        yield name, partial(window.fill, url)
    for name, maker in redis_makers(url).items():
        if role_of(name) == "peer":
            for limit in (TEN, Limit(100, "hour"), Limit(1_000, "hour")) if name in LOGS else (TEN,):
                yield f"{name} {limit.text}, full", partial(_repeat, maker((limit,)).hit, limit.count)


def _repeat(hit: Callable[[str], object], count: int) -> None:
    for _ in range(count):
        hit(NAME)


def _process(course: Course) -> list[Figure]:
    figures = []
    count = course.effort.checks
    names = [f"user:{each}" for each in range(count)]
    for name, maker in memory_makers().items():
        hit = maker((Limit(10, "minute"),)).hit
        hit("somebody")  # one-time allocations are not counted
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for each in names:
            hit(each)
        gc.collect()
        size = (tracemalloc.get_traced_memory()[0] - before) / count
        tracemalloc.stop()
        figures.append(Figure(PROCESS, "bytes", name, role_of(name), (size,)))
    return figures
