"""Worker processes that check as fast as they can, in threads or tasks: the cost of a check for worker and server.

A check is made as an adapter makes it: a plan of the rules' terms, the limiter's whole stack, a decision. Every
decision is tested: a worker raises unless the server answered. Processes start once and keep their limiters, so
only checks are timed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import cycle
from typing import NamedTuple, Self

from bench.race import Turn
from bench.scale.model import DEFAULT
from bench.scale.stream import account, cpu_seconds
from sluicegate import AsyncLimiter, Limiter, Rule
from sluicegate.plan import Check, Plan, Terms
from tests.servers import Server

MOST = 2  # processes: as many as there are cores


class Load(NamedTuple):
    """What one process does: checks from `tasks` of one event loop, or else from `threads`."""

    url: str
    quota: str
    tasks: int = 0
    threads: int = 1
    identities: int = 1_000
    apart: bool = False  # whether the second rule counts a different identity
    deny_cache: float = 1.0
    allowed: bool = True  # the expected outcome of every check


class Work(NamedTuple):
    """The work of one process: its checks, its seconds, and its seconds of CPU."""

    checks: int
    seconds: float
    cpu: float


class Fleet:
    """Up to two processes. They start when they are first needed, and end with the block."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(MOST, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def turn(self, load: Load, servers: Sequence[Server], *, seconds: float, processes: int = 1) -> Turn:
        def turn(number: int) -> dict[str, float]:
            before, all_before, began = account(*servers), cpu_seconds(), time.perf_counter()
            started = [self._pool.submit(drive, load, seconds) for _ in range(processes)]
            works = [each.result() for each in started]
            used = account(*servers).since(before)
            cores = (time.perf_counter() - began) * (os.cpu_count() or 1)
            checks, cpu = sum(work.checks for work in works), sum(work.cpu for work in works)
            return {
                "rate": sum(work.checks / work.seconds for work in works),
                "worker": cpu / checks * 1e6,
                "server": used.cpu / checks * 1e6,
                "trips": used.trips / checks * 1_000,
                "others": (cpu_seconds() - all_before - used.cpu - cpu) / cores * 100,
            }

        return turn


def drive(load: Load, seconds: float) -> Work:
    """Check for `seconds`, in this process."""
    work = _by_tasks if load.tasks else _by_threads
    cpu, began = time.process_time(), time.perf_counter()
    checks = work(load, began + seconds)
    return Work(checks, time.perf_counter() - began, time.process_time() - cpu)


def _by_threads(load: Load, until: float) -> int:
    counts: list[int] = []

    def work(offset: int) -> None:
        counts.append(_check(load, until, offset))

    others = [threading.Thread(target=work, args=(each,)) for each in range(1, load.threads)]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    if len(counts) < load.threads:
        raise RuntimeError("a thread raised an error")
    return sum(counts)


def _check(load: Load, until: float, offset: int) -> int:
    limiter, plan, checks = _limiter(load), _plans(load), 0
    for name in _names(load, offset):
        made = plan(name)
        _expect(load, limiter.run(made).allowed)
        checks += 1
        if time.perf_counter() >= until:
            break
    return checks


def _by_tasks(load: Load, until: float) -> int:
    return sum(_runner().run(_gather(load, until)))


async def _gather(load: Load, until: float) -> list[int]:
    return await asyncio.gather(*[_check_async(load, until, each) for each in range(load.tasks)])


async def _check_async(load: Load, until: float, offset: int) -> int:
    limiter, plan, checks = _async_limiter(load), _plans(load), 0
    for name in _names(load, offset):
        made = plan(name)
        _expect(load, (await limiter.run(made)).allowed)
        checks += 1
        if time.perf_counter() >= until:
            break
        await asyncio.sleep(0)  # let other tasks run, as when the next request is read
    return checks


def _expect(load: Load, allowed: object) -> None:
    if allowed is not load.allowed:
        raise RuntimeError(f"a check was {'allowed' if allowed else 'refused'}")


def _names(load: Load, offset: int) -> Iterator[str]:
    """The identities; each thread or task starts at another one."""
    names = [f"user:{each}" for each in range(load.identities)]
    start = offset * 37 % load.identities
    return cycle(names[start:] + names[:start])


def _plans(load: Load) -> Callable[[str], Plan]:
    terms = _terms(load)
    if not load.apart:
        return lambda name: Plan(tuple([Check(each, name, 1) for each in terms]))
    own, shared = terms
    return lambda name: Plan((Check(own, name, 1), Check(shared, f"company:{name[-1]}", 1)))


def _terms(load: Load) -> tuple[Terms, ...]:
    return Rule(name="scale", quota=load.quota).terms(DEFAULT)


@cache
def _limiter(load: Load) -> Limiter:
    return Limiter(load.url, on_store_failure="raise", deadline=5, deny_cache=load.deny_cache)


@cache
def _async_limiter(load: Load) -> AsyncLimiter:
    return AsyncLimiter(load.url, on_store_failure="raise", deadline=5, deny_cache=load.deny_cache)


@cache
def _runner() -> asyncio.Runner:
    """One event loop for all checks of this process, so that connections stay open."""
    return asyncio.Runner()
