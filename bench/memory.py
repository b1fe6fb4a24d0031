"""Checks in this process's memory: one identity, a thousand, a hundred thousand, and a refused identity."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from random import Random

from bench.budgets import DICT, FLOORS, MEMORY
from bench.figures import Figure, Role
from bench.peers import PROOF, Limit, Maker, memory_makers, prove
from bench.race import Contender, Course, Turn, checks

PLENTY = Limit(10_000, "hour")
Keys = Callable[[int, int], Sequence[str]]
"""The keys of one turn, from the number of the round and how many are wanted."""


class Table:
    """The floor: a method that takes a lock and looks up a key. A thread-safe limiter does at least this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}

    def hit(self, key: str) -> int:
        with self._lock:
            return self._rows.setdefault(key, 0)


def measure(course: Course) -> list[Figure]:
    """Measure all four cases."""
    proven = {}
    for name, maker in memory_makers().items():
        prove(maker(PROOF), name)
        proven[name] = maker
    figures = _case(course, "memory, one identity", proven, keys=_one)
    figures += _case(course, MEMORY, proven, keys=_many(1_000))
    figures += _case(course, "memory, 100,000 identities", proven, keys=_many(100_000), limit=Limit(100, "minute"))
    figures += _case(course, "memory, refused", proven, keys=_refused, limit=Limit(1, "hour"))
    return figures


def _case(course: Course, topic: str, makers: dict[str, Maker], *, keys: Keys, limit: Limit = PLENTY) -> list[Figure]:
    contenders = [Contender(topic, DICT, "floor", _turn(course, Table().hit, keys))]
    for name, maker in makers.items():
        hit = maker((limit,)).hit
        contenders.append(Contender(topic, name, role_of(name), _turn(course, hit, keys)))
    return course.race(contenders)


def role_of(name: str) -> Role:
    if name in FLOORS:
        return "floor"
    return "sluicegate" if name.startswith("sluicegate") else "peer"


def _turn(course: Course, hit: Callable[[str], object], keys: Keys) -> Turn:
    def turn(number: int) -> dict[str, float]:
        _join_timers()
        wanted = keys(number, course.effort.checks)
        hit(wanted[0])
        # CPU of all threads: nothing here waits, so this is the time on an idle machine.
        return {"time": checks(hit, wanted, clock=time.process_time)}

    return turn


def _join_timers() -> None:
    """Wait for timer threads (limits starts one for each hit), or they would run in the turn of the next contender."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(1)


def _one(number: int, count: int) -> Sequence[str]:
    return [f"user:{number}"] * count  # a new identity each round, so none is refused


def _refused(number: int, count: int) -> Sequence[str]:
    return ["user:refused"] * count


def _many(identities: int) -> Keys:
    """All identities to warm up, then some in random order, so that they are spread in memory as in production."""
    names = [f"user:{each}" for each in range(identities)]
    mixed = Random(1).sample(names, identities)

    def keys(number: int, count: int) -> Sequence[str]:
        if number == 0:
            return names
        return [mixed[each % identities] for each in range(number * count, (number + 1) * count)]

    return keys
