"""Requests of threads and of tasks for some identities, one after the other, and what became of each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, Self

from sluicegate import AsyncLimiter, Limiter
from sluicegate.stores import StoreChange

DEADLINE = 0.5  # long enough for a busy machine
SLACK = 0.7  # beyond the deadline: a thread that is not run for a while
BACK = 2.0  # seconds in which the store must be used again
QUOTA = "1000000/day"
WORKERS = 3


class Request(NamedTuple):
    """One request."""

    who: str
    begun: float
    ended: float
    degraded: bool


class Load:
    """Requests of a Limiter in threads, or of an AsyncLimiter in tasks, while the block runs."""

    def __init__(self, url: str, how: str, people: Iterable[str]) -> None:
        self.requests: list[Request] = []
        self.changes: list[StoreChange] = []
        self.errors: list[BaseException] = []
        self._people = sorted(people)
        self._how = how
        kind: Any = Limiter if how == "threads" else AsyncLimiter
        self._limiter = kind(url, deadline=DEADLINE, on_store_change=self.changes.append)
        self._stop = threading.Event()
        work = [self._loop] if how == "tasks" else [self._worker] * WORKERS
        self._pool = ThreadPoolExecutor(len(work))
        self._work = work

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(each) for each in self._work]
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        self.errors += filter(None, [each.exception() for each in self._running])
        if self._how == "threads":
            self._limiter.close()

    def run_for(self, seconds: float) -> float:
        """Let it run. Returns the time at the end."""
        threading.Event().wait(seconds)
        return monotonic()

    def degraded(self, *, since: float = 0.0, until: float = float("inf")) -> set[str]:
        """The identities that the store did not decide about in one of the requests that began in this time."""
        return {each.who for each in self.requests if each.degraded and since <= each.begun < until}

    def longest(self) -> float:
        """The seconds of the longest request."""
        return max([each.ended - each.begun for each in self.requests])

    def check(self, *, disturbed: set[str], names: set[str], back_at: float) -> None:
        """The laws: no exception, at most the deadline, only disturbed identities are degraded, and not for long after
        `back_at`. Each server that was reported as down has that name and is reported as up.
        """
        assert self.errors == []
        assert self.longest() < DEADLINE + SLACK
        assert self.degraded() <= disturbed, "healthy nodes are affected"
        assert self.degraded(since=back_at) == set()
        assert {each.who for each in self.requests if each.begun >= back_at} >= disturbed, "the load went on"
        by_name: dict[str, list[bool]] = {}
        for change in self.changes:
            by_name.setdefault(change.store, []).append(change.available)
        assert set(by_name) <= names
        for available in by_name.values():
            assert available == [False, True] * (len(available) // 2)

    def decided(self, who: str) -> int:
        """How many requests of an identity the store has decided."""
        return sum([each.who == who and not each.degraded for each in self.requests])

    def _worker(self) -> None:
        while True:
            for who in self._people:
                begun = monotonic()
                decision = self._limiter.hit(QUOTA, who)
                self.requests.append(Request(who, begun, monotonic(), decision.degraded))
                if self._stop.wait(0.002):
                    return

    def _loop(self) -> None:
        asyncio.run(self._tasks())

    async def _tasks(self) -> None:
        async with self._limiter as limiter, asyncio.TaskGroup() as group:
            for number in range(WORKERS * 3):
                group.create_task(self._task(limiter, self._people[number:] + self._people[:number]))

    async def _task(self, limiter: Any, people: list[str]) -> None:
        while True:
            for who in people:
                begun = monotonic()
                decision = await limiter.hit(QUOTA, who)
                self.requests.append(Request(who, begun, monotonic(), decision.degraded))
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), 0.005)
                if self._stop.is_set():
                    return
