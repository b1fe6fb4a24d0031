"""Traffic: volleys of requests through a sync or an async limiter, and what each of them got.

A volley is one request for each identity, all at the same time: on threads, or as tasks of one turn of the event loop.
Beside them a control measures what the machine itself steals: how late a thread, and a task of the same loop, wake up.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import Any, NamedTuple, NoReturn, Self

from sluicegate import AsyncLimiter, Decision, Limiter
from tests.faults.site import TooSlow
from tests.servers import PATIENCE

PAUSE = 0.005  # seconds between two volleys
_TICK = 0.01
_HOPS = 2  # a busy machine lets a request wait twice: its asker, and the wire, the proxy or the server


class Asker(NamedTuple):
    """One identity, with a cost and a quota of its own. `used` units were charged before the test."""

    identity: str
    quota: str
    cost: int
    used: int


class Answer(NamedTuple):
    """The decision about one request, or the exception that the application got."""

    asker: Asker
    began: float
    ended: float
    decision: Decision | None
    error: BaseException | None

    @property
    def by_store(self) -> bool:
        return self.decision is not None and not self.decision.degraded


def judge(problem: str, *, stolen: float, excused: float) -> NoReturn:
    """Fail: with TooSlow, which is tried again, if the machine has stolen more than the excused seconds."""
    raise (TooSlow if stolen > excused else AssertionError)(f"{problem}; {stolen:.3f} s may be stolen")


class Stolen:
    """The time that the machine stole, as seen by a thread and a task that only wake up every hundredth of a second."""

    def __init__(self) -> None:
        self._by_thread: list[tuple[float, float]] = []  # the end of each tick, and how late it was
        self._by_task: list[tuple[float, float]] = []
        self._over = Event()
        self._thread = Thread(target=self._tick, name="control")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def between(self, began: float, ended: float) -> float:
        """The seconds that the machine may have stolen from a request in an interval, with the tick after it."""

        def lost(ticks: list[tuple[float, float]]) -> float:
            return sum([late for at, late in list(ticks) if began <= at and at - late - _TICK <= ended])

        return _HOPS * max(lost(self._by_thread), lost(self._by_task))

    async def tick_in_the_loop(self) -> None:
        """Measure how late the running event loop is, until cancelled."""
        never = asyncio.Event()
        while True:
            began = monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(never.wait(), _TICK)
            self._by_task.append(_tick_since(began))

    def _tick(self) -> None:
        began = monotonic()
        while not self._over.wait(_TICK):
            self._by_thread.append(_tick_since(began))
            began = monotonic()


def _tick_since(began: float) -> tuple[float, float]:
    now = monotonic()
    return now, now - began - _TICK


class Traffic(ABC):
    """Volleys from a thread, one after the other, until the `with` block ends."""

    def __init__(self, url: str, askers: list[Asker], **options: Any) -> None:
        self.askers = askers
        self.answers: list[Answer] = []
        self.volleys: list[list[Answer]] = []
        self.stolen = Stolen()
        self._url, self._options = url, options
        self._over = Event()
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._guard, name="traffic")

    def __enter__(self) -> Self:
        self.stolen.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join(2 * PATIENCE)
        self.stolen.__exit__(*failure)
        assert not self._thread.is_alive(), "a request or `close` hangs"
        if self._failure is not None:
            raise self._failure

    def run(self, seconds: float) -> None:
        """Let volleys go on for `seconds`."""
        self._over.wait(seconds)

    def run_until(self, what: str, done: Callable[[], object], *, patience: float) -> None:
        """Let volleys go on until `done` returns true. AssertionError after `patience`."""
        began = monotonic()
        while not done():
            assert self._thread.is_alive(), self._failure
            if (now := monotonic()) > began + patience:
                last = [(answer.by_store, round(answer.ended - answer.began, 3)) for answer in self.answers[-7:]]
                message = f"{what}: not within {patience} seconds; by the store, and seconds: {last}"
                judge(message, stolen=self.stolen.between(began, now), excused=patience / 2)
            self._over.wait(PAUSE)

    def run_until_whole(self, *, patience: float, times: int = 3) -> int:
        """Let volleys go on until the store decided each request of the last volleys. Returns the number of volleys."""

        def whole() -> bool:
            last = self.volleys[-times:]
            return len(last) == times and all([answer.by_store for volley in last for answer in volley])

        before = len(self.volleys)
        self.run_until(
            "the store to decide", lambda: len(self.volleys) >= before + times and whole(), patience=patience
        )
        return len(self.volleys)

    def _guard(self) -> None:
        try:
            self._drive()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the `with` block ends
            self._failure = error

    def _end(self, answers: list[Answer]) -> None:
        self.answers += answers
        self.volleys.append(answers)

    @abstractmethod
    def _drive(self) -> None:
        """Send volleys until it is over, and close the limiter."""


class SyncTraffic(Traffic):
    """Traffic on threads, one for each asker."""

    def _drive(self) -> None:
        with Limiter(self._url, **self._options) as limiter, ThreadPoolExecutor(len(self.askers)) as threads:

            def ask(asker: Asker) -> Answer:
                began, decision, failure = monotonic(), None, None
                try:
                    decision = limiter.hit(asker.quota, asker.identity, cost=asker.cost)
                except BaseException as error:  # noqa: BLE001 - whatever reaches the application is what we look for
                    failure = error
                return Answer(asker, began, monotonic(), decision, failure)

            while not self._over.wait(PAUSE):
                self._end(list(threads.map(ask, self.askers)))


class AsyncTraffic(Traffic):
    """Traffic on one event loop. `hog(turns, seconds)` lets the next volley meet a busy loop."""

    def __init__(self, url: str, askers: list[Asker], **options: Any) -> None:
        super().__init__(url, askers, **options)
        self.hogs: list[tuple[int, float]] = []
        self.left: set[asyncio.Task[Any]] = set()  # the tasks that ran after `close`

    def hog(self, turns: int, seconds: float) -> None:
        """Keep the loop busy for `seconds`, once, this many turns after the requests of a volley have begun."""
        self.hogs.append((turns, seconds))

    def _drive(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        control = asyncio.create_task(self.stolen.tick_in_the_loop())
        async with AsyncLimiter(self._url, **self._options) as limiter:

            async def ask(asker: Asker) -> Answer:
                began, decision, failure = monotonic(), None, None
                try:
                    decision = await limiter.hit(asker.quota, asker.identity, cost=asker.cost)
                except BaseException as error:  # noqa: BLE001 - whatever reaches the application is what we look for
                    failure = error
                return Answer(asker, began, monotonic(), decision, failure)

            while not self._over.is_set():
                volley = asyncio.gather(*map(ask, self.askers))
                if self.hogs:
                    self._block(*self.hogs.pop())
                self._end(await volley)
                await _pause()
        control.cancel()
        await asyncio.wait([control])
        ends = monotonic() + PATIENCE
        while (left := asyncio.all_tasks() - {asyncio.current_task()}) and monotonic() < ends:
            await _pause()
        self.left = left

    def _block(self, turns: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._block, turns - 1, seconds)
            return

        def block() -> None:
            ends = monotonic() + seconds
            while monotonic() < ends:
                pass

        loop.call_soon(block)


async def _pause() -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), PAUSE)


TRAFFIC: dict[str, type[Traffic]] = {"sync": SyncTraffic, "async": AsyncTraffic}


@contextmanager
def traffic(mode: str, url: str, askers: list[Asker], **options: Any) -> Iterator[Any]:
    """Traffic of one of the two modes."""
    with TRAFFIC[mode](url, askers, **options) as running:
        yield running
