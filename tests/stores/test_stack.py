"""stack.py: what stands around a store, in which order, and what limiters do with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from sluicegate import AsyncLimiter, Limiter, ManualClock, StoreError
from sluicegate.clock import Clock
from sluicegate.plan import Plan
from sluicegate.stores import AsyncStore, Store, StoreChange
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from sluicegate.stores.stack import Stack
from sluicegate.testing import Awaited, StoreExam
from tests.stores.breakable import Breakable, Colour, check


class TestExam(StoreExam):
    """All of it around a store that answers, in one process, for rules that do not lease: nothing is to be seen."""

    examples = 30

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return Stack(clock=clock).around(_Inside(clock), owned=True)


class TestExamAsync(StoreExam):
    examples = 10

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return Stack(clock=clock).around_async(Awaited(_Inside(clock)), owned=True)


class _Inside:
    """A memory store that is not taken for one."""

    def __init__(self, clock: Clock | None) -> None:
        store = MemoryStore(clock=clock)
        self.run, self.refund, self.renew = store.run, store.refund, store.renew
        self.forget, self.close = store.forget, store.close


ALL = "DenyCache(Leases(Fallback(StoreInside)))"


@pytest.mark.parametrize(("options", "shown"), [({}, ALL), ({"deny_cache": 0}, "Leases(Fallback(StoreInside))")])
def test_the_order(options: dict[str, Any], shown: str) -> None:
    inside = _Shown()
    assert repr(Stack(**options).around(inside, owned=True)) == shown
    later = repr(Stack(**options).around_async(_ShownLater(inside), owned=True))
    assert later.replace("Async", "") == shown


class _Shown(_Inside):
    def __init__(self) -> None:
        super().__init__(None)

    def __repr__(self) -> str:
        return "StoreInside"


class _ShownLater(Awaited):
    def __repr__(self) -> str:
        return "StoreInside"


def test_a_memory_store_stands_alone() -> None:
    store, later = MemoryStore(), AsyncMemoryStore(MemoryStore())
    assert Stack().around(store, owned=True) is store
    assert Stack().around_async(later, owned=True) is later
    assert isinstance(Limiter().store, MemoryStore)
    assert isinstance(AsyncLimiter().store, AsyncMemoryStore)


def test_a_memory_store_needs_nothing_of_the_stack() -> None:
    """Nor of asyncio, which takes longer to import than all of sluicegate."""
    script = (
        "import sys, sluicegate; sluicegate.Limiter().hit('1/second', 'a'); "
        "print('asyncio' in sys.modules, 'sluicegate.stores.fallback' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert printed.stdout.split() == ["False", "False"]


class Calls:
    """A limiter of either colour around a Breakable, called plainly."""

    def __init__(self, colour: Colour, clock: ManualClock) -> None:
        self.inside, self._colour = Breakable(clock), colour
        self.limiter: Any = None

    def make(self, **options: Any) -> Any:
        store: Any = self.inside
        if self._colour.later:
            store = Awaited(self.inside)
            store.clock = self.inside.clock
        self.limiter = (AsyncLimiter if self._colour.later else Limiter)(store, **options)
        return self

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.limiter, name)
        return partial(self._colour.called(None).answer, call)


@pytest.fixture
def calls(colour: Colour, clock: ManualClock) -> Calls:
    return Calls(colour, clock)


def test_a_limiter_without_its_store_goes_on_and_says_so(calls: Calls) -> None:
    changes: list[StoreChange] = []
    calls.make(on_store_change=changes.append)
    calls.hit("3/hour", "alice")
    calls.inside.down = True
    told = [calls.hit("3/hour", "alice") for _ in range(3)]
    assert [(decision.allowed, decision.degraded) for decision in told] == [(True, True), (True, True), (False, True)]
    assert [change.available for change in changes] == [False]
    assert isinstance(changes[0].error, StoreError)


@pytest.mark.parametrize(
    ("policy", "told"),
    [("local", (True, True, False)), ("allow", (True, True, False)), ("deny", (False, True, True))],
)
def test_policies_of_a_limiter(calls: Calls, policy: str, told: tuple[bool, ...]) -> None:
    calls.make(on_store_failure=policy)
    calls.inside.down = True
    decision = calls.hit("3/hour", "alice")
    assert (decision.allowed, decision.degraded, decision.unavailable) == told
    assert decision.retry_after == (1 if policy == "deny" else 0)


def test_a_limiter_may_raise(calls: Calls) -> None:
    calls.make(on_store_failure="raise")
    calls.inside.down = True
    for _ in range(2):
        with pytest.raises(StoreError, match="SG020"):
            calls.hit("3/hour", "alice")
    assert calls.inside.calls == 1


def test_a_flood_stays_in_the_process_and_a_reset_ends_it(calls: Calls) -> None:
    calls.make()
    for _ in range(100):
        calls.hit("3/hour", "alice")
    assert calls.inside.calls == 4
    calls.reset("3/hour", "alice")
    assert calls.hit("3/hour", "alice").allowed


def test_the_clock_of_a_store_that_was_handed_in_is_everybodys(calls: Calls, clock: ManualClock) -> None:
    """A refusal that was remembered by another clock would hold on when this one has moved."""
    calls.make()
    assert [calls.hit("1/hour", "alice").allowed for _ in range(2)] == [True, False]
    clock.advance(3600)
    assert calls.hit("1/hour", "alice").allowed


def test_a_store_that_was_handed_in_gets_its_permits_back_and_stays_open(calls: Calls, colour: Colour) -> None:
    calls.make()
    for _ in range(4):
        colour.called(calls.limiter.store).run(check("100/minute", lease=8))
    calls.close()
    assert calls.inside.refunds == [("a", 3)]
    assert calls.inside.closed == 0


def test_a_store_that_was_opened_is_closed() -> None:
    inside = Breakable()
    Stack().around(inside, owned=True).close()
    asyncio.run(Stack().around_async(Awaited(inside), owned=True).close())
    assert inside.closed == 2


def test_permits_are_served_before_the_store_is_known_to_be_back(clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = Stack(clock=clock).around(inside, owned=True)
    plan = Plan((check("100/minute", lease=8),))
    for _ in range(4):
        store.run(plan)
    inside.down = True
    told = [store.run(plan)[0].source for _ in range(5)]
    assert told == ["store"] * 3 + ["local"] * 2
