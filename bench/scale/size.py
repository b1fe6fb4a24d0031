"""The bytes that a server needs for very many identities: its reported memory, minus that of an empty server.

A ManualClock times the checks. So a full window has its hits at uneven times, and no key expires during the fill. Every
step of a fill is stored, because the memory of a hash table grows in jumps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from bench.figures import Figure
from bench.race import Course
from bench.scale.model import SIZES, STEPS, Size
from bench.scale.stream import Words, info, stream
from sluicegate import ManualClock
from tests.servers import Server, redis_server, valkey_server

SERVERS: dict[str, Callable[[], Server]] = {"Valkey": valkey_server, "Redis 6.2": redis_server}
_PERIOD = 60.0


def measure(course: Course) -> list[Figure]:
    """Measure every size, each on a new server."""
    figures = []
    hits = {size: size.hits * min(size.most, course.effort.checks) for size in SIZES}
    for size in SIZES:
        seconds = course.effort.seconds * hits[size] / sum(hits.values())
        with SERVERS[size.server]() as server:
            figures += _fill(course, server, size, seconds=seconds)
    return figures


class _Clocked(NamedTuple):
    """The frames of checks, and the clock in them."""

    words: Words
    clock: ManualClock

    def hit(self, server: Server, first: int, last: int) -> int:
        frames = (self.words.frame(f"user:{each:09d}") for each in range(first, last))
        return stream(server, self.words, frames, connections=4, depth=64).allowed


def _fill(course: Course, server: Server, size: Size, *, seconds: float) -> list[Figure]:
    """Fill the server step by step, and skip the steps that would take too long."""
    clock = ManualClock()
    clocked = _Clocked(Words("10/minute", size.algorithm, clock=clock), clock)
    clocked.words.load(server)
    server.flush()
    empty, done, began, figures = int(info(server, "memory")["used_memory"]), 0, time.monotonic(), []
    for step in STEPS:
        wanted = int(min(size.most, course.effort.checks) * step)
        spent = time.monotonic() - began
        if done and spent * wanted / done > seconds:
            course.trouble(f"{size.name} on {size.server}: {done:,} identities, for {wanted:,} would take too long")
            break
        passed = 0
        for hit in range(size.hits):
            passed += clocked.hit(server, done, wanted)
            if hit < size.hits - 1:
                clock.advance(_PERIOD / (size.hits + 1) + hit % 7 * 1e-5)
        keys = int(server.command("DBSIZE"))
        if passed != (wanted - done) * size.hits or keys != wanted:
            raise RuntimeError(f"{passed} hits were allowed and {keys} keys are there, of {wanted}")
        done, used = wanted, int(info(server, "memory")["used_memory"])
        figures.append(Figure(size.topic, "bytes", f"{done}", "sluicegate", ((used - empty) / done,)))
    return figures
