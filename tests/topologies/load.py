"""Requests of threads and of tasks for some identities, one after the other, and what became of each."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from time import monotonic
from typing import Any, NamedTuple, Self

import pytest

from sluicegate import AsyncLimiter, Limiter
from sluicegate.stores import StoreChange
from tests.faults.site import TooSlow, retry_if_slow
from tests.servers import MAKERS, wait_until

DEADLINE = 0.5  # long enough for a busy machine
BUSY = 0.1  # seconds: after a pause that was longer by so much, the machine was busy
SLACK = 0.7  # beyond the deadline: a thread that is not run for a while
BACK = 2.0  # seconds in which the store must be used again
QUOTA = "1000000/day"
SCARCE = "30/day"  # used up in each load
WORKERS = 3
# Each kind of server, with threads and with tasks. Only Valkey has a run for each: together they take half of the time.
RUNS = [("valkey", "threads"), ("valkey", "tasks"), *[(kind, "threads+tasks") for kind in MAKERS if kind != "valkey"]]
_LINE = re.compile(
    r"sluicegate: store (.+?)(?:: .*circuit (open): .*| recovered: circuit (closed)| replaced by (.+): circuit closed)"
)


def retried(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test up to three times if the machine was too busy for its laws."""

    @wraps(test)
    def run(caplog: pytest.LogCaptureFixture, **arguments: Any) -> None:
        def attempt() -> None:
            caplog.clear()
            test(caplog=caplog, **arguments)

        retry_if_slow(attempt)

    return run


class Request(NamedTuple):
    """One request."""

    who: str
    begun: float
    ended: float
    allowed: bool
    degraded: bool


class Load:
    """Requests of a Limiter in threads, or of an AsyncLimiter in tasks, while the block runs. The quota of the
    identities in `scarce` is soon used up.
    """

    def __init__(self, url: str, how: str, people: Iterable[str], *, scarce: Collection[str] = ()) -> None:
        self.requests: list[Request] = []
        self.changes: list[StoreChange] = []
        self.errors: list[BaseException] = []
        self.paused = 0.0  # how much longer a pause between two requests has taken than it should: a busy machine
        self._people = sorted(people)
        self._scarce = scarce
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
        self.law(self.longest() < DEADLINE + SLACK, f"a request took {self.longest():.2f} s")
        healthy = [each for each in self.requests if each.degraded and each.who not in disturbed]
        self.law(not healthy, f"healthy nodes are affected; changes: {self.changes}")
        self.law(not self.degraded(since=back_at), "the store is not used again")
        by_name: dict[str, list[bool]] = {}
        for change in self.changes:
            by_name.setdefault(change.store, []).append(change.available)
        self.law(set(by_name) <= names, f"reported as down: {sorted(by_name)}")
        for available in by_name.values():
            assert available == [False, True] * (len(available) // 2)

    def law(self, holds: object, figures: str) -> None:
        """Assert that something holds. It may fail if the machine was busy, which is told apart."""
        if not holds:
            raise (TooSlow if self.paused > BUSY else AssertionError)(f"{figures}; {self.paused:.2f} s of no progress")

    def quota_of(self, who: str) -> str:
        return SCARCE if who in self._scarce else QUOTA

    def admitted(self, who: str) -> int:
        """How many requests of an identity the store has allowed."""
        return sum([each.who == who and each.allowed and not each.degraded for each in self.requests])

    def lost(self, who: str) -> int:
        """How many requests of an identity the store may have charged without a reply."""
        return sum([each.who == who and each.degraded for each in self.requests])

    def _worker(self) -> None:
        while True:
            for who in self._people:
                begun = monotonic()
                decision = self._limiter.hit(self.quota_of(who), who)
                self.requests.append(Request(who, begun, monotonic(), decision.allowed, decision.degraded))
                paused = monotonic() + 0.002
                if self._stop.wait(0.002):
                    return
                self.paused = max(self.paused, monotonic() - paused)

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
                decision = await limiter.hit(self.quota_of(who), who)
                self.requests.append(Request(who, begun, monotonic(), decision.allowed, decision.degraded))
                paused = monotonic() + 0.005
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), 0.005)
                self.paused = max(self.paused, monotonic() - paused)
                if self._stop.is_set():
                    return


def run_on(loads: list[Load], people: set[str]) -> float:
    """Let the loads run for `BACK` seconds, and then until each of these identities has been asked again. Returns the
    time between the two.
    """
    back_at = loads[0].run_for(BACK)
    for load in loads:
        asked = lambda load=load: {each.who for each in load.requests if each.begun >= back_at} >= people  # noqa: E731
        wait_until("each identity to be asked again", asked)
    return back_at


def check_counts(loads: list[Load], remaining: Callable[[str, str], int], people: Iterable[str]) -> None:
    """The law of the counts: the store has counted each request that it allowed, and allowed no more than the limit.

    `remaining(quota, who)` is what the store has left for an identity.
    """
    for who in people:
        quota = loads[0].quota_of(who)
        limit = int(quota.partition("/")[0])
        used, admitted = limit - remaining(quota, who), sum([load.admitted(who) for load in loads])
        assert admitted <= used <= min(limit, admitted + sum([load.lost(who) for load in loads]))


def check_lines(loads: list[Load], lines: Iterable[str], names: set[str]) -> None:
    """The law of the log: one line for each change, with the same server. The line may name another server that has
    replaced that one.
    """
    changes = Counter([(change.store, change.available) for load in loads for change in load.changes])
    logged: Counter[tuple[str, bool]] = Counter()
    for line in lines:
        if found := _LINE.fullmatch(line):
            store, opened, _, other = found.groups()
            logged[store, not opened] += 1
            assert other is None or other == "another server" or other in names - {store}
        else:
            assert line.startswith("sluicegate: rule "), line
    assert logged == changes
