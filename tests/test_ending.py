"""The end of a request, in both colours: everything once, whatever fails, and whoever is cancelled."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from sluicegate import Concurrency, ManualClock, Rule
from sluicegate.after import Response, owed
from sluicegate.ending import AsyncEnding, Ending, run_apart
from sluicegate.errors import StoreError
from sluicegate.limiter import conclude
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.testing.after import Watched, wrong

COLOURS = pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
LOGIN = Rule(name="login", quota="5/minute", charge_when=wrong).terms("sliding-window")[0]
HELD = Rule(name="held", quota="1 at once").terms("sliding-window")[0]


class Case:
    """One request: its store, its clock, and its ending. In either colour a call is the same."""

    def __init__(self, *rules: Terms, later: bool = False) -> None:
        self.clock = ManualClock()
        self.store = Watched(self.clock)
        self.ending: Any = (AsyncEnding if later else Ending)(self.store.of_colour(later=later), self.clock.now_us)
        self.rules = rules
        if not later:
            self.let_in()

    def let_in(self) -> None:
        plan = Plan(tuple([Check(each, "alice", 1) for each in self.rules]))
        self.ending.add(owed(conclude(plan, self.store.run(plan))))

    def left(self, terms: Terms) -> int:
        return self.store.run(Plan((Check(terms, "alice", 0),)))[0].remaining

    @property
    def said(self) -> list[str]:
        return [name for name, _ in self.store.log if name != "run"]


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    answer = function(*arguments)
    return await answer if inspect.isawaitable(answer) else answer


def play(later: bool, rules: tuple[Terms, ...], story: Callable[[Case], Any]) -> Case:
    """A story of one request, on a loop."""

    async def main() -> Case:
        case = Case(*rules, later=later)
        if later:
            case.let_in()
        await story(case)
        return case

    return asyncio.run(main())


@COLOURS
@pytest.mark.parametrize(
    ("statuses", "left"), [([200], 5), ([401], 4), ([401, 401], 4), ([200, 200], 5), ([401, 500], 5)]
)
def test_a_charge_is_given_back_once_by_the_first_response_that_does(
    later: bool, statuses: list[int], left: int
) -> None:
    async def story(case: Case) -> None:
        given = [len(await call(case.ending.answered, Response(status))) for status in statuses]
        assert sum(given) == left - 4
        await call(case.ending.over, None)

    assert play(later, (LOGIN,), story).left(LOGIN) == left


@COLOURS
@pytest.mark.parametrize(
    ("error", "left"),
    [(None, 5), (RuntimeError(), 5), (asyncio.CancelledError(), 4), (GeneratorExit(), 4), (KeyboardInterrupt(), 4)],
    ids=repr,
)
def test_what_is_over_without_a_response_counts_as_500_unless_it_was_cancelled(
    later: bool, error: BaseException | None, left: int
) -> None:
    async def story(case: Case) -> None:
        await call(case.ending.over, error)
        assert case.said == ["release"]

    assert play(later, (LOGIN, HELD), story).left(LOGIN) == left


@COLOURS
def test_what_is_held_is_released_once(later: bool) -> None:
    async def story(case: Case) -> None:
        await call(case.ending.answered, Response(200))
        assert case.left(HELD) == 0
        for _ in range(3):
            await call(case.ending.ended)
            await call(case.ending.over, None)

    case = play(later, (HELD,), story)
    assert case.said == ["release"]
    assert case.left(HELD) == 1


@COLOURS
def test_what_is_held_is_renewed_when_a_third_of_its_lease_has_passed(later: bool) -> None:
    async def story(case: Case) -> None:
        for seconds, renewals in ((19.9, 0), (0.1, 1), (19.9, 1), (25, 2), (0, 2), (59, 3)):
            case.clock.advance(seconds)
            await call(case.ending.going_on)
            assert case.said == ["renew"] * renewals
        assert case.left(HELD) == 0
        await call(case.ending.ended)
        case.clock.advance(100)
        await call(case.ending.going_on)

    case = play(later, (HELD,), story)
    assert case.said == ["renew"] * 3 + ["release"]
    assert case.left(HELD) == 1


class Broken(Watched):
    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        super().refund(plan, outcomes)
        raise StoreError("broken", "it is down")

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        super().renew(plan, outcomes)
        raise StoreError("broken", "it is down")


@COLOURS
def test_a_store_that_does_not_answer_is_no_error_of_the_request(later: bool) -> None:
    async def story(case: Case) -> None:
        case.store.__class__ = Broken
        assert await call(case.ending.answered, Response(200)) == []
        case.clock.advance(30)
        await call(case.ending.going_on)
        await call(case.ending.over, None)

    assert play(later, (LOGIN, HELD), story).said == ["renew", "release"]


# ---- on a loop ---------------------------------------------------------------------------------------------------


class Slow:
    """A store whose refunds and renewals take until the test lets them."""

    def __init__(self, store: Watched) -> None:
        self._store = store
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        await self._wait()
        self._store.refund(plan, outcomes)

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        renewed = self._store.renew(plan, outcomes)  # at once at the server; its reply is what takes long
        await self._wait()
        return renewed

    async def _wait(self) -> None:
        self.asked.set()
        await self.go.wait()


async def slow_case() -> tuple[Case, Slow]:
    case = Case(HELD, later=True)
    store = Slow(case.store)
    case.ending = AsyncEnding(store, case.clock.now_us)
    case.let_in()
    return case, store


@pytest.mark.parametrize("cancelled", [1, 2, 5])
def test_a_release_survives_every_cancellation(cancelled: int) -> None:
    async def main() -> None:
        case, store = await slow_case()
        task = asyncio.create_task(case.ending.ended())
        await store.asked.wait()
        for _ in range(cancelled):
            task.cancel()
            await asyncio.sleep(0)
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: case.left(HELD) == 1)

    asyncio.run(main())


def test_a_release_waits_for_a_renewal_that_was_cancelled_midway() -> None:
    """The reply of the renewal says what is to be released: without it the new charge would be nobody's."""

    async def main() -> None:
        case, store = await slow_case()
        case.clock.advance(30)
        task = asyncio.create_task(case.ending.going_on())
        await store.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        over = asyncio.create_task(case.ending.over(asyncio.CancelledError()))
        await asyncio.sleep(0)
        store.go.set()
        await over
        assert case.said == ["renew", "release"]
        assert case.left(HELD) == 1

    asyncio.run(main())


def test_what_was_charged_for_a_request_that_is_gone_is_released() -> None:
    """The store has charged, and its reply comes when nobody waits for it any more."""

    async def main() -> None:
        case, store = await slow_case()
        plan = Plan((Check(HELD, "bob", 1),))

        async def run(plan: Plan) -> Any:
            outcomes = case.store.run(plan)
            await store.go.wait()
            return conclude(plan, outcomes)

        task = asyncio.create_task(run_apart(run, plan, AsyncEnding(store, case.clock.now_us)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.go.set()
        await until(lambda: case.said == ["release"])

    asyncio.run(main())


def test_in_an_anyio_scope_that_was_cancelled_too() -> None:
    async def main() -> None:
        case, store = await slow_case()
        with anyio.CancelScope() as scope:
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                store.go.set()
                await case.ending.over(asyncio.CancelledError())
        await until(lambda: case.left(HELD) == 1)

    asyncio.run(main())


def test_a_silent_application_keeps_what_it_holds() -> None:
    """By the loop's timer: the lease is 60 ms long, and nothing is sent meanwhile."""
    brief = Rule(name="brief", quota=Concurrency(1, lease=0.06)).terms("sliding-window")[0]

    async def main() -> None:
        case = Case(brief, later=True)
        case.let_in()
        await until(lambda: case.said == ["renew"] * 3)
        await case.ending.ended()
        assert case.said == ["renew"] * 3 + ["release"]
        assert len(asyncio.all_tasks()) == 1  # nothing of it is left

    asyncio.run(main())


def test_on_trio_it_works_without_tasks() -> None:
    async def main() -> None:
        case = Case(HELD, later=True)
        case.let_in()
        case.clock.advance(30)
        await case.ending.going_on()
        await case.ending.over(None)
        assert case.said == ["renew", "release"]

    anyio.run(main, backend="trio")


async def until(true: Callable[[], bool]) -> None:
    """Give the loop its turns until it is so."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110  # what is waited for is a task that nobody has a name of
            await asyncio.sleep(0)
