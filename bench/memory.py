"""Checks in this process's memory: one key, many by a zipf law, a hundred thousand, a refused one; and the slowest.

A turn counts the CPU of its own thread. So other processes do not count, nor the thread with which limits removes
expired keys. sluicegate removes them in the checks.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

from bench.budgets import BY_HAND, FLOORS, MEMORY, NEW_KEYS, ONE_KEY, OURS, WORST, WORST_NEW
from bench.figures import Figure, Role
from bench.peers import PROOF, SLUICEGATE, Gate, Limit, Maker, memory_makers, prove, sluicegate, with_stats
from bench.race import Contender, Course, Turn, checks

PLENTY = Limit(10_000, "hour")
LIVE = 100_000  # keys, which is also how many a store of sluicegate's keeps by default
Keys = Callable[[int, int], Sequence[str]]
"""The keys of one turn, from the number of the round and how many are wanted."""


class Answer(NamedTuple):
    allowed: bool
    limit: int
    remaining: int
    retry_after: float


def gcra_by_hand(wanted: Sequence[Limit]) -> Gate:
    """The floor: the shortest limiter in Python that is safe between threads and says what remains and how long to
    wait. It never forgets a key.
    """
    ((count, _),) = wanted
    interval = wanted[0].seconds * 1_000_000_000 // count
    burst = interval * count
    busy_until: dict[str, int] = {}
    lock = threading.Lock()

    def hit(key: str) -> Answer:
        with lock:
            now = time.time_ns()
            until = max(now, busy_until.get(key, 0)) + interval
            ahead = until - now
            if ahead > burst:
                return Answer(False, count, 0, (ahead - burst) / 1e9)
            busy_until[key] = until
            return Answer(True, count, (burst - ahead) // interval, 0.0)

    return Gate(hit, lambda answer: answer.allowed)


def measure(course: Course) -> list[Figure]:
    """Measure all cases."""
    makers: dict[str, Maker] = {BY_HAND: gcra_by_hand, **memory_makers(), **with_stats("memory://")}
    for name, maker in makers.items():
        prove(maker(PROOF), name)
    figures = _case(course, ONE_KEY, makers, keys=_one)
    figures += _case(course, MEMORY, makers, keys=_zipf(10_000))
    figures += _case(course, "memory, 100,000 identities", makers, keys=_many(LIVE), limit=Limit(100, "minute"))
    figures += _case(course, NEW_KEYS, makers, keys=_new)
    figures += _case(course, "memory, refused", makers, keys=_refused, limit=Limit(1, "hour"))
    return figures


def measure_worst(course: Course) -> list[Figure]:
    """Measure the slowest check among many, with a hundred thousand live keys."""
    live = [f"user:{each}" for each in range(LIVE)]
    mixed = Random(1).choices(live, k=course.effort.checks)
    new = [f"new:{each}" for each in range(LIVE)]  # so many that each store copies its dictionary once
    makers = {BY_HAND: gcra_by_hand, OURS: sluicegate("memory://", SLUICEGATE[0])}  # full at a hundred thousand
    figures = []
    for topic, keys in ((WORST, mixed), (WORST_NEW, new)):
        turns = {name: _worst(maker, live, keys) for name, maker in makers.items()}
        figures += course.race([Contender(topic, name, role_of(name), turn) for name, turn in turns.items()])
    return figures


def _case(course: Course, topic: str, makers: dict[str, Maker], *, keys: Keys, limit: Limit = PLENTY) -> list[Figure]:
    contenders = [
        Contender(topic, name, role_of(name), _turn(course, maker((limit,)).hit, keys))
        for name, maker in makers.items()
    ]
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
        return {"time": checks(hit, wanted, clock=time.thread_time)}

    return turn


def _worst(maker: Maker, live: Sequence[str], keys: Sequence[str]) -> Turn:
    """The slowest check of these keys, in a store full of live keys.

    Two new stores get the same checks, and each check counts by the faster of the two. What a store does once in a
    while comes at the same check in both; what the machine does, such as an interrupt, does not.
    """

    def turn(number: int) -> dict[str, float]:
        if number == 0:  # every turn fills new stores, so there is nothing to warm up
            return {}
        first, second = _times(maker, live, keys), _times(maker, live, keys)
        return {"worst": max(map(min, first, second)) / 1e6}

    return turn


def _times(maker: Maker, live: Sequence[str], keys: Sequence[str]) -> list[int]:
    """Nanoseconds of CPU of each check of the keys, in a new store full of live keys."""
    hit, clock, times = maker((PLENTY,)).hit, time.thread_time_ns, []
    for key in live:
        hit(key)
    gc.disable()
    try:
        for key in keys:
            began = clock()
            hit(key)
            times.append(clock() - began)
    finally:
        gc.enable()
    return times


def _join_timers() -> None:
    """Wait for timer threads (limits starts one for each hit), or they would run in the turn of the next contender."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(1)


def _one(number: int, count: int) -> Sequence[str]:
    return [f"user:{number}"] * count  # a new identity each round, so none is refused


def _new(number: int, count: int) -> Sequence[str]:
    return [f"new:{number}:{each}" for each in range(count)]


def _refused(number: int, count: int) -> Sequence[str]:
    return ["user:refused"] * count


def _zipf(identities: int) -> Keys:
    """All identities to warm up, then by a zipf law: the n-th is n times as rare as the first."""
    names = [f"user:{each}" for each in range(identities)]
    weights = list(accumulate(1 / rank for rank in range(1, identities + 1)))

    def keys(number: int, count: int) -> Sequence[str]:
        return names if number == 0 else Random(number).choices(names, cum_weights=weights, k=count)

    return keys


def _many(identities: int) -> Keys:
    """All identities to warm up, then some in random order, so that they are spread in memory as in production."""
    names = [f"user:{each}" for each in range(identities)]
    mixed = Random(1).sample(names, identities)

    def keys(number: int, count: int) -> Sequence[str]:
        if number == 0:
            return names
        return [mixed[each % identities] for each in range(number * count, (number + 1) * count)]

    return keys
