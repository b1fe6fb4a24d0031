"""leases.py and permits.py: several permits in one trip, none more than was granted, none served late."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock, StoreError
from sluicegate.clock import MICROSECOND, Clock
from sluicegate.plan import Check, Outcome, Plan
from sluicegate.stores import AsyncStore, Store
from sluicegate.stores.leases import AsyncLeases, Leases
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.permits import hold_us
from sluicegate.stores.stack import Stack
from sluicegate.testing import Awaited, StoreExam
from sluicegate.testing.scenarios import examples
from sluicegate.testing.store import NAMES
from tests.stores.breakable import Breakable, Called, Colour, allowed, check

KINDS = (Leases, AsyncLeases)


class TestExam(StoreExam):
    """Rules that do not lease see nothing of it."""

    examples = 5

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return Leases(MemoryStore(clock=clock), clock=clock)


class TestExamAsync(StoreExam):
    examples = 5

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return AsyncLeases(Awaited(MemoryStore(clock=clock)), clock=clock)


def leased(colour: Colour, clock: ManualClock, **options: Any) -> tuple[Called, Breakable]:
    inside = Breakable(clock)
    return colour.around(inside, KINDS, clock=clock, **options), inside


def trips(store: Called, inside: Breakable, *checks: Check, times: int) -> list[int]:
    """How many trips each of so many requests costs."""
    told = []
    for _ in range(times):
        calls = inside.calls
        store.run(*checks)
        told.append(inside.calls - calls)
    return told


# How many permits


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        (1, [1] * 10),
        (2, [1, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
        (4, [1, 1, 0, 1, 0, 0, 0, 1, 0, 0]),
        (100, [1, 1, 0, 1, 0, 0, 0, 1, 0, 0]),
    ],
)
def test_each_trip_asks_for_twice_as_many(colour: Colour, clock: ManualClock, lease: int, expected: list[int]) -> None:
    store, inside = leased(colour, clock)
    assert trips(store, inside, check("1000/minute", lease=lease), times=10) == expected


def test_a_steady_client_costs_few_trips(colour: Colour, clock: ManualClock) -> None:
    """A hundred requests a second: one trip in a hundred, but for the beginning."""
    store, inside = leased(colour, clock)
    one = check("100000/minute", lease=100)
    for _ in range(10):
        for _ in range(100):
            store.run(one)
            clock.advance(0.01)
    assert inside.calls <= 30


def test_who_comes_now_and_then_takes_one_at_a_time(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    for _ in range(20):
        assert store.run(check("1000/minute", lease=100))[0].allowed
        clock.advance(2.5)
    assert inside.calls == 20
    assert inside.run(Plan((check("1000/minute", cost=0),)))[0].remaining == 980


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("lease", [2, 3, 50])
def test_exactly_the_limit_and_the_numbers_of_one_by_one(
    colour: Colour, clock: ManualClock, algorithm: str, lease: int
) -> None:
    store, inside = leased(colour, clock)
    one = check("50/hour", algorithm=algorithm, lease=lease)
    told = [store.run(one)[0] for _ in range(60)]
    assert [outcome.allowed for outcome in told] == [True] * 50 + [False] * 10
    assert [outcome.remaining for outcome in told] == [*range(49, -1, -1), *[0] * 10]
    assert inside.refunds == []


@pytest.mark.parametrize("algorithm", NAMES)
def test_so_in_any_story(algorithm: str) -> None:
    """Two processes and one that leases nothing never get more than the store would have granted."""

    @examples(40)
    @given(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 3_000_000)), max_size=80),
        st.integers(1, 30),
        st.integers(2, 30),
    )
    def tell(acts: list[tuple[int, int, int]], limit: int, lease: int) -> None:
        clock = ManualClock()
        inside = Granting(clock)
        stores: list[Store] = [Leases(inside, clock=clock), Leases(inside, clock=clock), inside]
        served = 0
        for who, cost, wait in acts:
            clock.advance_us(wait)
            one = check(f"{limit}/10 seconds", algorithm=algorithm, lease=min(lease, limit), cost=cost)
            [outcome] = stores[who].run(Plan((one,)))
            served += cost * outcome.allowed
            assert 0 <= outcome.remaining <= limit
            assert served <= inside.granted
        for store in stores[:2]:
            store.close()
        assert served == inside.granted - inside.returned

    tell()


class Granting(Breakable):
    """Counts the units that were granted, and those that came back."""

    granted = returned = 0

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        outcomes = super().run(plan)
        if plan.charge and allowed(outcomes):
            self.granted += plan.checks[0].cost
        return outcomes

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        self.returned += plan.checks[0].cost
        super().refund(plan, outcomes)


def test_when_several_are_not_to_be_had_it_asks_for_one(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    one = check("100/hour", lease=50)
    assert trips(store, inside, one, times=2) == [1, 1]
    store.run(one)
    inside.run(Plan((check("100/hour", cost=96),)))  # another process
    assert trips(store, inside, one, times=3) == [2, 1, 1], "four, no: one; then none"
    assert not allowed(store.run(one))


def test_when_none_is_to_be_had_it_does_not_insist(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    one = check("100/hour", lease=50)
    for _ in range(3):
        store.run(one)
    inside.run(Plan((check("100/hour", cost=97),)))
    assert trips(store, inside, one, times=3) == [2, 1, 1]


def test_one_asks_for_several_and_who_comes_meanwhile_for_one(clock: ManualClock) -> None:
    class Overheard(Breakable):
        asked: list[int]

        def run(self, plan: Plan) -> tuple[Outcome, ...]:
            self.asked.append(plan.checks[0].cost)
            return super().run(plan)

    inside = Overheard(clock)
    inside.asked = []
    store, plan = Leases(inside, clock=clock), Plan((check("100/hour", lease=50),))
    for _ in range(3):
        store.run(plan)

    def meanwhile() -> None:
        inside.before = lambda: None
        store.run(plan)

    inside.before = meanwhile
    for _ in range(5):
        store.run(plan)
    assert inside.asked == [1, 2, 4, 1, 8]
    assert inside.refunds == []


def test_a_single_permit_that_comes_late_takes_nobody_elses(clock: ManualClock) -> None:
    inside = Breakable(clock)
    store, plan = Leases(inside, clock=clock), Plan((check("100/hour", lease=50),))

    def meanwhile() -> None:
        inside.before = lambda: None
        for _ in range(4):  # of 1, 2 and 4: three are left
            store.run(plan)

    inside.before = meanwhile
    store.run(plan)
    calls = inside.calls
    for _ in range(3):
        store.run(plan)
    assert inside.calls == calls


def test_it_never_asks_for_more_than_was_left(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    inside.run(Plan((check("100/hour", cost=90),)))
    assert trips(store, inside, check("100/hour", lease=50), times=12) == [1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("rules", "leases"),
    [
        ([{"lease": 9}, {"lease": 9}], True),
        ([{"lease": 9}, {}], False),
        ([{}, {"lease": 9}], False),
        ([{"lease": 9, "cost": 0}, {"lease": 9, "cost": 0}], False),
        ([{"lease": 9, "cost": 0}, {"lease": 9, "cost": 3}], True),
    ],
)
def test_all_rules_of_a_plan_must_lease(
    colour: Colour, clock: ManualClock, rules: list[dict[str, Any]], leases: bool
) -> None:
    store, inside = leased(colour, clock)
    checks = [check("1000/hour", scope=f"rule{number}", **rule) for number, rule in enumerate(rules)]
    assert (0 in trips(store, inside, *checks, times=10)) is leases
    told = store.run(*checks)
    assert [outcome.remaining for outcome in told] == [1000 - 11 * one.cost for one in checks]


# For how long


@pytest.mark.parametrize(
    ("quota", "algorithm", "us"),
    [
        ("10/second", "sliding-window", 100_000),
        ("10 per 5 seconds", "fixed-window", 500_000),
        ("10/minute", "sliding-window", MICROSECOND),
        ("10/second burst 2", "gcra", 20_000),
        ("10 per 9 microseconds", "sliding-window", 0),
    ],
)
def test_how_long_a_permit_is_held(quota: str, algorithm: str, us: int) -> None:
    assert hold_us((check(quota, algorithm=algorithm), check("10/day"))) == us


@pytest.mark.parametrize(("waits", "served"), [(999_999, True), (1_000_000, False)])
def test_no_permit_is_served_later_than_that(colour: Colour, clock: ManualClock, waits: int, served: bool) -> None:
    store, inside = leased(colour, clock)
    one = check("100/minute", lease=2)
    store.run(one)
    inside.before = lambda: clock.advance_us(300_000)  # the trip takes that long, and counts
    store.run(one)
    inside.before = lambda: None
    calls = inside.calls
    clock.advance_us(waits - 300_000)
    store.run(one)
    assert (inside.calls == calls) is served


def test_late_use_is_bounded(clock: ManualClock) -> None:
    """The bound of the docs: in any window, at most the limit and what two processes held when it began."""
    inside, limit, lease = Breakable(clock), 100, 20
    stores = [Leases(inside, clock=clock), Leases(inside, clock=clock)]
    one = check(f"{limit} per 20 seconds", lease=lease)
    passed: list[int] = []
    for turn in range(4000):
        if stores[turn % 2].run(Plan((one,)))[0].allowed:
            passed.append(clock.now_us())
        clock.advance_us(7_001 if (turn // 90) % 3 else 997_003)
    window = one.terms.window_us
    most = max(sum(start <= moment < start + window for moment in passed) for start in passed)
    assert limit <= most <= limit + 2 * (lease - 1)


# What comes back


def test_what_nobody_used_goes_back_with_the_next_trip(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    one = check("100/minute", lease=8)
    for _ in range(5):  # of 1, 2 and 4
        store.run(one)
    clock.advance(1)
    assert store.run(one)[0].remaining == 94
    assert inside.refunds == [("a", 2)]
    assert inside.run(Plan((check("100/minute", cost=0),)))[0].remaining == 94 - 1, "two of them were used: two again"


def test_closing_gives_back_what_is_held(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    for identity in "ab":
        for _ in range(4):
            store.run(check("100/minute", identity, lease=8, cost=2))
    store.close()
    store.close()
    assert sorted(inside.refunds) == [("a", 6), ("b", 6)]
    assert inside.closed == 2


def test_a_refund_that_fails_stops_nothing(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    for _ in range(4):
        store.run(check("100/minute", lease=8))
    inside.down = True
    store.close()
    assert inside.closed == 1


def test_identities_are_bounded_and_what_makes_room_goes_back(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock, size=2)
    for identity in "ab":
        for _ in range(4):
            store.run(check("100/minute", identity, lease=8))
    store.run(check("100/minute", "c", lease=8))
    assert inside.refunds == [("a", 3)]
    assert set(store.store._permits._leases) == {(check("100/minute", identity, lease=8),) for identity in "bc"}


def test_forgetting_gives_back_and_begins_anew(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    one = (check("100/minute", lease=8), check("100/minute", "all", scope="all", lease=8))
    for _ in range(4):
        store.run(*one)
    store.forget(one[0].terms.rule_id, "nobody")
    assert inside.refunds == []
    store.forget(one[0].terms.rule_id, "a")
    assert inside.refunds == [("a", 3), ("all", 3)]
    assert [outcome.remaining for outcome in store.run(*one)] == [99, 95]


def test_a_peek_sees_what_is_held_as_free(colour: Colour, clock: ManualClock) -> None:
    store, _ = leased(colour, clock)
    one = check("7/minute", lease=7)
    for _ in range(4):  # and holds three, all that is left
        store.run(one)
    for _ in range(3):
        assert store.run(one, charge=False)[0][:4] == (True, 7, 3, 0)
    assert [store.run(one)[0].allowed for _ in range(4)] == [True, True, True, False]
    assert not allowed(store.run(one, charge=False))


def test_a_served_permit_can_be_refunded(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    one = check("100/minute", lease=8)
    for _ in range(5):
        told = store.run(one)
        clock.advance(0.1)
    store.refund(Plan((one,)), told)
    store.close()
    assert inside.run(Plan((check("100/minute", cost=0),)))[0].remaining == 96


# Trouble


def test_what_the_store_did_not_grant_is_not_held(colour: Colour, clock: ManualClock) -> None:
    class Degraded(Breakable):
        degraded = False

        def run(self, plan: Plan) -> tuple[Outcome, ...]:
            source: Any = "local" if self.degraded else "store"
            return tuple(outcome._replace(source=source) for outcome in super().run(plan))

        def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
            super().refund(plan, tuple(outcome._replace(source="store") for outcome in outcomes))

    inside = Degraded(clock)
    store = colour.around(inside, KINDS, clock=clock)
    one = check("100/minute", lease=8)
    for _ in range(3):
        store.run(one)
    inside.degraded = True
    [asked_for_four, *_] = [store.run(one)[0] for _ in range(3)]
    assert (asked_for_four.remaining, asked_for_four.source) == (96, "local")
    assert inside.refunds[0] == ("a", 3)
    assert inside.run(Plan((check("100/minute", cost=0),)))[0].remaining == 94


def test_what_a_policy_allows_has_no_more_left_than_the_limit(clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = Stack(on_store_failure="allow", clock=clock).around(inside, owned=True)
    plan = Plan((check("100/minute", lease=8),))
    for _ in range(3):
        store.run(plan)
    inside.down = True
    told = [store.run(plan)[0] for _ in range(9)]
    assert {(outcome.source, outcome.remaining) for outcome in told} == {("policy", 100)}


def test_permits_are_served_while_the_store_is_down(colour: Colour, clock: ManualClock) -> None:
    store, inside = leased(colour, clock)
    one = check("100/minute", lease=8)
    for _ in range(4):
        store.run(one)
    inside.down = True
    assert [store.run(one)[0].source for _ in range(3)] == ["store"] * 3
    for _ in range(2):
        with pytest.raises(StoreError):
            store.run(one)
        clock.advance(5)
    inside.down = False
    assert trips(store, inside, one, times=3) == [1, 1, 0], "a trip that failed holds nobody up"


def test_no_two_threads_serve_one_permit(clock: ManualClock) -> None:
    inside = MemoryStore(clock=clock)
    store = Leases(inside, clock=clock)
    together = threading.Barrier(8)

    def work(_: int) -> int:
        together.wait()
        return sum(allowed(store.run(Plan((check("1000/hour", lease=16),)))) for _ in range(300))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 1000


def test_no_two_tasks_serve_one_permit(clock: ManualClock) -> None:
    class Slow(Awaited):
        async def run(self, plan: Plan) -> tuple[Outcome, ...]:
            await asyncio.sleep(0)
            outcomes = await super().run(plan)
            await asyncio.sleep(0)
            return outcomes

    async def main() -> None:
        inside = Granting(clock)
        store = AsyncLeases(Slow(inside), clock=clock)

        async def work() -> int:
            return sum([allowed(await store.run(Plan((check("1000/hour", lease=16),)))) for _ in range(100)])

        assert sum(await asyncio.gather(*[work() for _ in range(16)])) <= 1000
        await store.close()
        assert inside.granted - inside.returned == min(1000, inside.granted)

        task = asyncio.create_task(store.run(Plan((check("1000/hour", "b", lease=16),))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert allowed(await store.run(Plan((check("1000/hour", "b", lease=16),))))

    asyncio.run(main())


@pytest.mark.parametrize("what", ["forget", "evict"])
def test_a_grant_that_comes_when_its_lease_is_gone_goes_back(clock: ManualClock, what: str) -> None:
    inside = Breakable(clock)
    store = Leases(inside, clock=clock, size=1)
    one = check("100/minute", lease=8)
    for _ in range(3):
        store.run(Plan((one,)))

    def meanwhile() -> None:
        inside.before = lambda: None
        if what == "forget":
            store.forget("nobody", "x")
            list(store._permits.given_up(one.terms.rule_id, "a"))
        else:
            store.run(Plan((check("100/minute", "b", lease=8),)))

    inside.before = meanwhile
    store.run(Plan((one,)))
    assert inside.refunds == [("a", 3)]


def test_a_forked_process_serves_nothing_of_its_parent(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = Breakable(clock)
    store = Leases(inside, clock=clock)
    one = check("100/minute", lease=8)
    for _ in range(4):
        store.run(Plan((one,)))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    store.close()
    assert inside.refunds == [], "the parent gives them back"
    monkeypatch.setattr(os, "getpid", lambda: -2)
    calls = inside.calls
    store.run(Plan((one,)))
    assert inside.calls == calls + 1


def test_the_systems_clock_is_the_default() -> None:
    store = Leases(Breakable())
    assert all(allowed(store.run(Plan((check(lease=5),)))) for _ in range(5))
    assert repr(store) == "Leases(StoreInside)"
