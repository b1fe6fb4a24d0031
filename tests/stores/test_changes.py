"""A quota that changes on live state: what is kept and what starts again, in memory and on Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from sluicegate import ManualClock
from sluicegate.clock import MICROSECOND
from sluicegate.plan import Check, Plan
from sluicegate.stores.deny_cache import Refusals
from sluicegate.testing.driver import Driver
from sluicegate.testing.store import terms
from tests.stores.breakable import Breakable, Mode
from tests.stores.guards import CACHES
from tests.stores.places import memory, memory_async, real, real_async

WINDOWS = ("sliding-window", "sliding-log", "sliding-counter", "fixed-window")
BUCKETS = ("gcra", "token-bucket", "leaky-bucket")

# used under one quota; then, after so many seconds, another: what remains of it, and how long cost 1 has to wait
Row = tuple[str, int, float, str, int, float]
RAISED: list[Row] = [
    ("5/minute", 5, 0, "8/minute", 3, 0),
    ("5/minute", 2, 20, "6/minute", 4, 0),
    ("100/minute", 100, 0, "1000/minute", 900, 0),
]
LOWERED: list[Row] = [
    ("8/minute", 3, 0, "5/minute", 2, 0),
    ("8/minute", 5, 0, "5/minute", 0, 60),
    ("8/minute", 8, 20, "5/minute", 0, 40),
]
NEW_BUDGET: list[Row] = [
    ("5/minute", 5, 0, "5/hour", 5, 0),
    ("5/hour", 5, 0, "5/minute", 5, 0),
]
SAME: list[Row] = [("5/minute", 5, 0, "5 per 60 seconds", 0, 60)]
TABLE = [(name, row) for name in WINDOWS for row in RAISED + LOWERED + NEW_BUDGET + SAME if name != "sliding-counter"]
TABLE += [("sliding-counter", row) for row in RAISED + NEW_BUDGET + [("8/minute", 3, 0, "5/minute", 2, 0)]]
TABLE += [
    (name, row)
    for name in BUCKETS
    for row in [
        ("1/second burst 10", 10, 0, "1/second burst 15", 5, 0.0),
        ("1/second burst 10", 10, 4, "1/second burst 15", 9, 0.0),
        ("1/second burst 10", 10, 0, "1/second burst 5", 0, 6.0),
        ("1/second burst 10", 2, 0, "1/second burst 5", 3, 0.0),
        ("60/minute", 60, 0, "1/second burst 60", 0, 1.0),
        ("60/minute", 60, 0, "120/minute", 120, 0.0),
        ("60/minute", 60, 0, "60/hour", 60, 0.0),
    ]
]


@pytest.fixture(params=[memory, memory_async, real("valkey"), real_async("valkey")], ids=lambda place: place.__name__)
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Driver]:
    with (
        request.param(request) as place,
        asyncio.Runner() as runner,
        closing(Driver(place.make(clock), runner)) as driver,
    ):
        yield driver


@pytest.mark.parametrize(("algorithm", "row"), TABLE)
def test_a_quota_that_changes(store: Driver, clock: ManualClock, algorithm: str, row: Row) -> None:
    before, used, wait, after, remaining, retry = row
    assert store.run(Plan((Check(terms(algorithm, before), "a", used),)))[0].allowed
    clock.advance(wait)
    changed = Plan((Check(terms(algorithm, after), "a", 1),), charge=False)
    [outcome] = store.run(changed)
    assert (outcome.allowed, outcome.remaining) == (remaining > 0, remaining)
    assert outcome.retry_after == retry * MICROSECOND
    if outcome.retry_after:
        clock.advance_us(outcome.retry_after - 1)
        assert not store.run(changed)[0].allowed
        clock.advance_us(1)
        assert store.run(changed)[0].allowed


@pytest.mark.parametrize(("before", "after"), [("gcra", "sliding-window"), ("fixed-window", "sliding-counter")])
def test_a_changed_algorithm_starts_with_a_full_budget(store: Driver, before: str, after: str) -> None:
    assert store.run(Plan((Check(terms(before, "5/minute"), "a", 5),)))[0].allowed
    assert store.run(Plan((Check(terms(after, "5/minute"), "a", 1),)))[0].remaining == 4
    assert not store.run(Plan((Check(terms(before, "5/minute"), "a", 1),)))[0].allowed, "and the other is still there"


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_there_and_back(store: Driver, clock: ManualClock, algorithm: str) -> None:
    """Lowering a limit loses nothing: after it is raised again, the earlier budget is there."""
    assert store.run(Plan((Check(terms(algorithm, "8/minute"), "a", 6),)))[0].allowed
    assert not store.run(Plan((Check(terms(algorithm, "5/minute"), "a", 1),)))[0].allowed
    assert store.run(Plan((Check(terms(algorithm, "8/minute"), "a", 1),)))[0].remaining == 1


def test_a_refusal_that_is_remembered_does_not_outlive_its_limit(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = mode.around(inside, CACHES, refusals=Refusals(staleness=60, clock=clock))
    low, high = (Check(terms("sliding-window", quota), "a", 1) for quota in ("1/minute", "2/minute"))
    assert [store.run(check)[0].allowed for check in (low, low, low, high, high)] == [True, False, False, True, False]
