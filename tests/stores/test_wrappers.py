"""wrappers.py: the wrappers of a store, their order, and what limiters do with them."""

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
from sluicegate.stores.wrappers import StoreOptions
from sluicegate.testing import AsyncAdapter, StoreExam
from tests.stores.breakable import Breakable, Mode, check


class TestExam(StoreExam):
    """All wrappers around a working store, in one process: they change nothing."""

    examples = 30

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return StoreOptions(clock=clock).wrap(_Inside(clock), owned=True)


class TestExamAsync(StoreExam):
    examples = 10

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return StoreOptions(clock=clock).wrap_async(AsyncAdapter(_Inside(clock)), owned=True)


class _Inside:
    """A memory store that is not a MemoryStore."""

    def __init__(self, clock: Clock | None) -> None:
        store = MemoryStore(clock=clock)
        self.run, self.refund, self.renew = store.run, store.refund, store.renew
        self.forget, self.close = store.forget, store.close


def test_any_other_store_has_a_guard() -> None:
    for limiter in (Limiter(_Shown()), AsyncLimiter(_ShownLater(_Shown()))):
        assert repr(limiter.store).replace("Async", "") == "GuardedStore(StoreInside)"


def test_a_request_enters_few_functions() -> None:
    """Only the functions of the wrappers are counted."""
    limiter, entered = Limiter(_Shown()), [0]
    plan = Plan((check("100/minute"),))
    limiter.run(plan)

    def count(frame: Any, event: str, _: object) -> None:
        # Before Python 3.12 a comprehension has a frame of its own.
        is_function = event == "call" and frame.f_code.co_name != "<listcomp>"
        entered[0] += is_function and frame.f_code.co_filename.endswith(WRAPPERS)

    sys.setprofile(count)
    try:
        limiter.run(plan)
    finally:
        sys.setprofile(None)
    assert entered[0] <= 7


WRAPPERS = tuple(f"stores/{name}.py" for name in ("deny_cache", "guard", "local_fallback"))


class _Shown(_Inside):
    def __init__(self) -> None:
        super().__init__(None)

    def __repr__(self) -> str:
        return "StoreInside"


class _ShownLater(AsyncAdapter):
    def __repr__(self) -> str:
        return "StoreInside"


def test_a_memory_store_has_no_wrappers() -> None:
    store, async_store = MemoryStore(), AsyncMemoryStore(MemoryStore())
    assert StoreOptions().wrap(store, owned=True) is store
    assert StoreOptions().wrap_async(async_store, owned=True) is async_store
    assert isinstance(Limiter().store, MemoryStore)
    assert isinstance(AsyncLimiter().store, AsyncMemoryStore)


def test_a_memory_store_imports_no_wrappers() -> None:
    """It does not import asyncio either, which takes longer to import than all of sluicegate."""
    script = (
        "import sys, sluicegate; sluicegate.Limiter().hit('1/second', 'a'); "
        "print('asyncio' in sys.modules, 'sluicegate.stores.guard' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert printed.stdout.split() == ["False", "False"]


class Calls:
    """A sync or an async limiter over a Breakable, called without await."""

    def __init__(self, mode: Mode, clock: ManualClock) -> None:
        self.inside, self._mode = Breakable(clock), mode
        self.limiter: Any = None

    def make(self, **options: Any) -> Any:
        store: Any = self.inside
        if self._mode.is_async:
            store = AsyncAdapter(self.inside)
            store.clock = self.inside.clock
        self.limiter = (AsyncLimiter if self._mode.is_async else Limiter)(store, **options)
        return self

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.limiter, name)
        return partial(self._mode.called(None).answer, call)


@pytest.fixture
def calls(mode: Mode, clock: ManualClock) -> Calls:
    return Calls(mode, clock)


def test_a_limiter_without_its_store_continues_and_calls_the_hook(calls: Calls) -> None:
    changes: list[StoreChange] = []
    calls.make(on_store_change=changes.append)
    calls.hit("3/hour", "alice")
    calls.inside.down = True
    results = [calls.hit("3/hour", "alice") for _ in range(3)]
    assert [(decision.allowed, decision.degraded) for decision in results] == [
        (True, True),
        (True, True),
        (False, True),
    ]
    assert [change.available for change in changes] == [False]
    assert isinstance(changes[0].error, StoreError)


@pytest.mark.parametrize(
    ("policy", "results"),
    [("local", (True, True, False)), ("allow", (True, True, False)), ("deny", (False, True, True))],
)
def test_policies_of_a_limiter(calls: Calls, policy: str, results: tuple[bool, ...]) -> None:
    calls.make(on_store_failure=policy)
    calls.inside.down = True
    decision = calls.hit("3/hour", "alice")
    assert (decision.allowed, decision.degraded, decision.unavailable) == results
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


def test_the_clock_of_a_store_object_is_the_clock_of_its_wrappers(calls: Calls, clock: ManualClock) -> None:
    """A refusal that was remembered by another clock would hold after this one has moved."""
    calls.make()
    assert [calls.hit("1/hour", "alice").allowed for _ in range(2)] == [True, False]
    clock.advance(3600)
    assert calls.hit("1/hour", "alice").allowed


def test_a_store_that_was_opened_is_closed() -> None:
    inside = Breakable()
    StoreOptions().wrap(inside, owned=True).close()
    asyncio.run(StoreOptions().wrap_async(AsyncAdapter(inside), owned=True).close())
    assert inside.closed == 2
