"""Sync and async settlements: each charge is refunded or released once, also after failures and cancellations."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from sluicegate import Concurrency, ManualClock, Rule
from sluicegate.errors import StoreError
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.rules.response import Response
from sluicegate.stores.completion import complete
from sluicegate.testing.charges import Watched, wrong
from sluicegate.web.charges import owed
from sluicegate.web.settlement import AsyncSettlement, Settlement
from tests.decided import conclude

MODES = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
LOGIN = Rule(name="login", quota="5/minute", charge_when=wrong).terms("sliding-window")[0]
HELD = Rule(name="held", quota="1 at once").terms("sliding-window")[0]


class Case:
    """One request with its store, its clock and its settlement. Calls are the same for sync and async."""

    def __init__(self, *rules: Terms, is_async: bool = False) -> None:
        self.clock = ManualClock()
        self.store = Watched(self.clock)
        self.settlement: Any = (AsyncSettlement if is_async else Settlement)(
            self.store.for_mode(is_async=is_async), self.clock.now_us
        )
        self.rules = rules
        if not is_async:
            self.admit()

    def admit(self) -> None:
        plan = Plan(tuple([Check(each, "alice", 1) for each in self.rules]))
        self.settlement.add(owed(conclude(plan.checks, self.store.run(plan))))

    def left(self, terms: Terms) -> int:
        return self.store.run(Plan((Check(terms, "alice", 0),)))[0].remaining

    @property
    def called(self) -> list[str]:
        return [name for name, _ in self.store.log if name != "run"]


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    answer = function(*arguments)
    return await answer if inspect.isawaitable(answer) else answer


def play(is_async: bool, rules: tuple[Terms, ...], story: Callable[[Case], Any]) -> Case:
    """Play the story of one request, on an event loop."""

    async def main() -> Case:
        case = Case(*rules, is_async=is_async)
        if is_async:
            case.admit()
        await story(case)
        return case

    return asyncio.run(main())


@MODES
@pytest.mark.parametrize(
    ("statuses", "left"), [([200], 5), ([401], 4), ([401, 401], 4), ([200, 200], 5), ([401, 500], 5)]
)
def test_the_first_response_that_refunds_a_charge_refunds_it_once(
    is_async: bool, statuses: list[int], left: int
) -> None:
    async def story(case: Case) -> None:
        given = [len(await call(case.settlement.answered, Response(status))) for status in statuses]
        assert sum(given) == left - 4
        await call(case.settlement.over, None)

    assert play(is_async, (LOGIN,), story).left(LOGIN) == left


@MODES
@pytest.mark.parametrize(
    ("error", "left"),
    [(None, 5), (RuntimeError(), 5), (asyncio.CancelledError(), 4), (GeneratorExit(), 4), (KeyboardInterrupt(), 4)],
    ids=repr,
)
def test_a_request_without_a_response_counts_as_500_unless_it_was_cancelled(
    is_async: bool, error: BaseException | None, left: int
) -> None:
    async def story(case: Case) -> None:
        await call(case.settlement.over, error)
        assert case.called == ["release"]

    assert play(is_async, (LOGIN, HELD), story).left(LOGIN) == left


@MODES
def test_held_charges_are_released_once(is_async: bool) -> None:
    async def story(case: Case) -> None:
        await call(case.settlement.answered, Response(200))
        assert case.left(HELD) == 0
        for _ in range(3):
            await call(case.settlement.ended)
            await call(case.settlement.over, None)

    case = play(is_async, (HELD,), story)
    assert case.called == ["release"]
    assert case.left(HELD) == 1


@MODES
def test_a_slot_that_is_taken_after_the_end_is_released(is_async: bool) -> None:
    async def story(case: Case) -> None:
        await call(case.settlement.ended)
        case.admit()
        await until(lambda: case.called == ["release", "release"])

    case = play(is_async, (HELD,), story)
    assert case.left(HELD) == 1


@MODES
def test_held_charges_are_renewed_when_a_third_of_their_lease_has_passed(is_async: bool) -> None:
    async def story(case: Case) -> None:
        for seconds, renewals in ((19.9, 0), (0.1, 1), (19.9, 1), (25, 2), (0, 2), (59, 3)):
            case.clock.advance(seconds)
            await call(case.settlement.going_on)
            assert case.called == ["renew"] * renewals
        assert case.left(HELD) == 0
        await call(case.settlement.ended)
        case.clock.advance(100)
        await call(case.settlement.going_on)

    case = play(is_async, (HELD,), story)
    assert case.called == ["renew"] * 3 + ["release"]
    assert case.left(HELD) == 1


class Broken(Watched):
    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        super().refund(plan, outcomes)
        raise StoreError("broken", "it is down")

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        super().renew(plan, outcomes)
        raise StoreError("broken", "it is down")


@MODES
def test_a_store_that_does_not_answer_raises_nothing(is_async: bool) -> None:
    async def story(case: Case) -> None:
        case.store.__class__ = Broken
        assert await call(case.settlement.answered, Response(200)) == []
        case.clock.advance(30)
        await call(case.settlement.going_on)
        await call(case.settlement.over, None)

    assert play(is_async, (LOGIN, HELD), story).called == ["renew", "release"]


class Halved(Watched):
    """Its debts fail, and not as a store's unavailability does."""

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        if plan.forced:
            raise ArithmeticError
        return super().run(plan)


DEAR = Rule(name="dear", quota="9/minute", cost_after=lambda _: 5).terms("sliding-window")[0]
CHEAP = Rule(name="cheap", quota="9/minute", cost_after=lambda _: 0).terms("sliding-window")[0]


@MODES
def test_a_debt_that_fails_loses_no_refund_and_no_slot(is_async: bool) -> None:
    async def story(case: Case) -> None:
        case.store.__class__ = Halved
        with pytest.raises(ArithmeticError):
            await call(case.settlement.over, None)

    case = play(is_async, (DEAR, CHEAP, HELD), story)
    assert [case.left(terms) for terms in (DEAR, CHEAP, HELD)] == [8, 9, 1]


@MODES
def test_the_child_of_a_fork_settles_nothing_of_its_parent(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(case: Case) -> None:
        monkeypatch.setattr("sluicegate.runtime.fork._Process.generation", 1_000)
        await call(case.settlement.over, None)

    case = play(is_async, (LOGIN, DEAR, CHEAP, HELD), story)
    assert [case.left(terms) for terms in (LOGIN, DEAR, CHEAP, HELD)] == [4, 8, 8, 0]


# ---- on an event loop -----------------------------------------------------------------------------------------------


class Slow:
    """A store whose refunds and renewals wait until the test sets `go`."""

    def __init__(self, store: Watched) -> None:
        self._store = store
        self.called, self.go = asyncio.Event(), asyncio.Event()

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        await self._wait()
        self._store.refund(plan, outcomes)

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        renewed = self._store.renew(plan, outcomes)  # the server renews at once, and only its reply is late
        await self._wait()
        return renewed

    async def _wait(self) -> None:
        self.called.set()
        await self.go.wait()


async def slow_case() -> tuple[Case, Slow]:
    case = Case(HELD, is_async=True)
    store = Slow(case.store)
    case.settlement = AsyncSettlement(store, case.clock.now_us)
    case.admit()
    return case, store


@pytest.mark.parametrize("cancelled", [1, 2, 5])
def test_a_release_survives_every_cancellation(cancelled: int) -> None:
    async def main() -> None:
        case, store = await slow_case()
        task = asyncio.create_task(case.settlement.ended())
        await store.called.wait()
        for _ in range(cancelled):
            task.cancel()
            await asyncio.sleep(0)
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: case.left(HELD) == 1)

    asyncio.run(main())


def test_a_release_waits_for_a_renewal_that_was_cancelled_midway() -> None:
    """The release needs the reply of the renewal: it says which charge to release."""

    async def main() -> None:
        case, store = await slow_case()
        case.clock.advance(30)
        task = asyncio.create_task(case.settlement.going_on())
        await store.called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        over = asyncio.create_task(case.settlement.over(asyncio.CancelledError()))
        await asyncio.sleep(0)
        store.go.set()
        await over
        assert case.called == ["renew", "release"]
        assert case.left(HELD) == 1

    asyncio.run(main())


def test_a_charge_for_a_cancelled_request_is_released() -> None:
    """The store has charged, and its reply comes after the cancellation."""

    async def main() -> None:
        case, store = await slow_case()
        plan = Plan((Check(HELD, "bob", 1),))

        async def run(plan: Plan) -> Any:
            outcomes = case.store.run(plan)
            await store.go.wait()
            return conclude(plan.checks, outcomes)

        settlement = AsyncSettlement(store, case.clock.now_us)
        task = asyncio.create_task(complete(run(plan), settlement.release_late))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.go.set()
        await until(lambda: case.called == ["release"])

    asyncio.run(main())


def test_a_cancelled_anyio_scope_releases() -> None:
    async def main() -> None:
        case, store = await slow_case()
        with anyio.CancelScope() as scope:
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                store.go.set()
                await case.settlement.over(asyncio.CancelledError())
        await until(lambda: case.left(HELD) == 1)

    asyncio.run(main())


def test_held_charges_are_renewed_while_the_application_sends_nothing() -> None:
    """The loop's timer renews. The lease is 60 ms."""
    brief = Rule(name="brief", quota=Concurrency(1, lease=0.06)).terms("sliding-window")[0]

    async def main() -> None:
        case = Case(brief, is_async=True)
        case.admit()
        await until(lambda: case.called == ["renew"] * 3)
        await case.settlement.ended()
        assert case.called == ["renew"] * 3 + ["release"]
        assert len(asyncio.all_tasks()) == 1  # the settlement has left no task

    asyncio.run(main())


def test_on_trio_it_works_without_tasks() -> None:
    async def main() -> None:
        case = Case(HELD, is_async=True)
        case.admit()
        case.clock.advance(30)
        await case.settlement.going_on()
        await case.settlement.over(None)
        assert case.called == ["renew", "release"]

    anyio.run(main, backend="trio")


async def until(true: Callable[[], bool]) -> None:
    """Let the event loop run until the condition is true."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110  # no reference to the task to wait for
            await asyncio.sleep(0)
