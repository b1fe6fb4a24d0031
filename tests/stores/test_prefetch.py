"""prefetch.py and permits.py: several permits in one trip, none more than was granted, none served late."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Limiter, ManualClock, StoreError
from sluicegate.clock import MICROSECOND, Clock
from sluicegate.plan import Check, Outcome, Plan
from sluicegate.stores import AsyncStore, Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.permits import hold_us
from sluicegate.stores.prefetch import AsyncPrefetch, Prefetch
from sluicegate.testing import AsyncAdapter, StoreExam
from sluicegate.testing.scenarios import examples
from sluicegate.testing.store import NAMES
from tests.stores.breakable import Breakable, Called, Mode, allowed, check

KINDS = (Prefetch, AsyncPrefetch)


class TestExam(StoreExam):
    """For rules without prefetch it changes nothing."""

    examples = 5

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return Prefetch(MemoryStore(clock=clock), clock=clock)


class TestExamAsync(StoreExam):
    examples = 5

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return AsyncPrefetch(AsyncAdapter(MemoryStore(clock=clock)), clock=clock)


def prefetching(mode: Mode, clock: ManualClock, **options: Any) -> tuple[Called, Breakable]:
    inside = Breakable(clock)
    return mode.around(inside, KINDS, clock=clock, **options), inside


def trips(store: Called, inside: Breakable, *checks: Check, times: int) -> list[int]:
    """The number of trips of each request."""
    results = []
    for _ in range(times):
        calls = inside.calls
        store.run(*checks)
        results.append(inside.calls - calls)
    return results


# How many permits


@pytest.mark.parametrize(
    ("prefetch", "expected"),
    [
        (1, [1] * 10),
        (2, [1, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
        (4, [1, 1, 0, 1, 0, 0, 0, 1, 0, 0]),
        (100, [1, 1, 0, 1, 0, 0, 0, 1, 0, 0]),
    ],
)
def test_each_trip_asks_for_twice_as_many(mode: Mode, clock: ManualClock, prefetch: int, expected: list[int]) -> None:
    store, inside = prefetching(mode, clock)
    assert trips(store, inside, check("1000/minute", prefetch=prefetch), times=10) == expected


def test_a_steady_client_costs_few_trips(mode: Mode, clock: ManualClock) -> None:
    """A hundred requests a second: one trip in a hundred, except at the beginning."""
    store, inside = prefetching(mode, clock)
    one = check("100000/minute", prefetch=100)
    for _ in range(10):
        for _ in range(100):
            store.run(one)
            clock.advance(0.01)
    assert inside.calls <= 30


def test_an_identity_that_comes_rarely_takes_one_permit_at_a_time(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    for _ in range(20):
        assert store.run(check("1000/minute", prefetch=100))[0].allowed
        clock.advance(2.5)
    assert inside.calls == 20
    assert inside.run(Plan((check("1000/minute", cost=0),)))[0].remaining == 980


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("prefetch", [2, 3, 50])
def test_exactly_the_limit_and_the_numbers_of_one_by_one(
    mode: Mode, clock: ManualClock, algorithm: str, prefetch: int
) -> None:
    store, inside = prefetching(mode, clock)
    one = check("50/hour", algorithm=algorithm, prefetch=prefetch)
    results = [store.run(one)[0] for _ in range(60)]
    assert [outcome.allowed for outcome in results] == [True] * 50 + [False] * 10
    assert [outcome.remaining for outcome in results] == [*range(49, -1, -1), *[0] * 10]
    assert inside.refunds == []


@pytest.mark.parametrize("algorithm", NAMES)
def test_never_more_than_the_store_grants(algorithm: str) -> None:
    """Two processes and one without prefetch never get more than the store would have granted."""

    @examples(40)
    @given(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 3_000_000)), max_size=80),
        st.integers(1, 30),
        st.integers(2, 30),
    )
    def run_story(acts: list[tuple[int, int, int]], limit: int, prefetch: int) -> None:
        clock = ManualClock()
        inside = Granting(clock)
        stores: list[Store] = [Prefetch(inside, clock=clock), Prefetch(inside, clock=clock), inside]
        served = 0
        for process, cost, wait in acts:
            clock.advance_us(wait)
            one = check(f"{limit}/10 seconds", algorithm=algorithm, prefetch=min(prefetch, limit), cost=cost)
            [outcome] = stores[process].run(Plan((one,)))
            served += cost * outcome.allowed
            assert 0 <= outcome.remaining <= limit
            assert served <= inside.granted
        for store in stores[:2]:
            store.close()
        assert served == inside.granted - inside.returned

    run_story()


class Granting(Breakable):
    """Counts the granted and the refunded units."""

    granted = returned = 0

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        outcomes = super().run(plan)
        if plan.charge and allowed(outcomes):
            self.granted += plan.checks[0].cost
        return outcomes

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        self.returned += plan.checks[0].cost
        super().refund(plan, outcomes)


def test_when_several_are_refused_it_asks_for_one(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    one = check("100/hour", prefetch=50)
    assert trips(store, inside, one, times=2) == [1, 1]
    store.run(one)
    inside.run(Plan((check("100/hour", cost=96),)))  # another process
    assert trips(store, inside, one, times=3) == [2, 1, 1], "four are refused, one is granted; then none"
    assert not allowed(store.run(one))


def test_after_a_refusal_it_asks_for_one_at_a_time(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    one = check("100/hour", prefetch=50)
    for _ in range(3):
        store.run(one)
    inside.run(Plan((check("100/hour", cost=97),)))
    assert trips(store, inside, one, times=3) == [2, 1, 1]


def test_while_one_request_asks_for_several_others_ask_for_one(clock: ManualClock) -> None:
    class Overheard(Breakable):
        costs: list[int]

        def run(self, plan: Plan) -> tuple[Outcome, ...]:
            self.costs.append(plan.checks[0].cost)
            return super().run(plan)

    inside = Overheard(clock)
    inside.costs = []
    store, plan = Prefetch(inside, clock=clock), Plan((check("100/hour", prefetch=50),))
    for _ in range(3):
        store.run(plan)

    def interrupt() -> None:
        inside.before = lambda: None
        store.run(plan)

    inside.before = interrupt
    for _ in range(5):
        store.run(plan)
    assert inside.costs == [1, 2, 4, 1, 8]
    assert inside.refunds == []


def test_a_single_permit_that_comes_late_replaces_no_other_permits(clock: ManualClock) -> None:
    inside = Breakable(clock)
    store, plan = Prefetch(inside, clock=clock), Plan((check("100/hour", prefetch=50),))

    def interrupt() -> None:
        inside.before = lambda: None
        for _ in range(4):  # grants of 1, 2 and 4: three permits are left
            store.run(plan)

    inside.before = interrupt
    store.run(plan)
    calls = inside.calls
    for _ in range(3):
        store.run(plan)
    assert inside.calls == calls


def test_it_never_asks_for_more_than_was_left(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    inside.run(Plan((check("100/hour", cost=90),)))
    assert trips(store, inside, check("100/hour", prefetch=50), times=12) == [1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("rules", "prefetch"),
    [
        ([{"prefetch": 9}, {"prefetch": 9}], True),
        ([{"prefetch": 9}, {}], False),
        ([{}, {"prefetch": 9}], False),
        ([{"prefetch": 9, "cost": 0}, {"prefetch": 9, "cost": 0}], False),
        ([{"prefetch": 9, "cost": 0}, {"prefetch": 9, "cost": 3}], True),
    ],
)
def test_all_rules_of_a_plan_must_prefetch(
    mode: Mode, clock: ManualClock, rules: list[dict[str, Any]], prefetch: bool
) -> None:
    store, inside = prefetching(mode, clock)
    checks = [check("1000/hour", scope=f"rule{number}", **rule) for number, rule in enumerate(rules)]
    assert (0 in trips(store, inside, *checks, times=10)) is prefetch
    results = store.run(*checks)
    assert [outcome.remaining for outcome in results] == [1000 - 11 * one.cost for one in checks]


# How long permits are held


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
def test_no_permit_is_served_later_than_that(mode: Mode, clock: ManualClock, waits: int, served: bool) -> None:
    store, inside = prefetching(mode, clock)
    one = check("100/minute", prefetch=2)
    store.run(one)
    inside.before = lambda: clock.advance_us(300_000)  # the time of the trip counts
    store.run(one)
    inside.before = lambda: None
    calls = inside.calls
    clock.advance_us(waits - 300_000)
    store.run(one)
    assert (inside.calls == calls) is served


def test_late_use_is_bounded(clock: ManualClock) -> None:
    """The bound of the docs: in any window, at most the limit and what two processes held when it began."""
    inside, limit, prefetch = Breakable(clock), 100, 20
    stores = [Prefetch(inside, clock=clock), Prefetch(inside, clock=clock)]
    one = check(f"{limit} per 20 seconds", prefetch=prefetch)
    passed: list[int] = []
    for turn in range(4000):
        if stores[turn % 2].run(Plan((one,)))[0].allowed:
            passed.append(clock.now_us())
        clock.advance_us(7_001 if (turn // 90) % 3 else 997_003)
    window = one.terms.window_us
    most = max(sum(start <= moment < start + window for moment in passed) for start in passed)
    assert limit <= most <= limit + 2 * (prefetch - 1)


# Refunds


def test_unused_permits_are_refunded_with_the_next_trip(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    one = check("100/minute", prefetch=8)
    for _ in range(5):  # grants of 1, 2 and 4
        store.run(one)
    clock.advance(1)
    assert store.run(one)[0].remaining == 94
    assert inside.refunds == [("a", 2)]
    assert inside.run(Plan((check("100/minute", cost=0),)))[0].remaining == 94 - 1, (
        "two permits were used, so two are fetched"
    )


def test_close_refunds_all_permits(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    for identity in "ab":
        for _ in range(4):
            store.run(check("100/minute", identity, prefetch=8, cost=2))
    store.close()
    store.close()
    assert sorted(inside.refunds) == [("a", 6), ("b", 6)]
    assert inside.closed == 2


def test_a_refund_that_fails_stops_nothing(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    for _ in range(4):
        store.run(check("100/minute", prefetch=8))
    inside.down = True
    store.close()
    assert inside.closed == 1


def test_identities_are_bounded_and_evicted_permits_are_refunded(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock, size=2)
    for identity in "ab":
        for _ in range(4):
            store.run(check("100/minute", identity, prefetch=8))
    store.run(check("100/minute", "c", prefetch=8))
    assert inside.refunds == [("a", 3)]
    assert set(store.store._permits._stocks) == {(check("100/minute", identity, prefetch=8),) for identity in "bc"}


def test_forget_refunds_the_permits_and_starts_again(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    one = (check("100/minute", prefetch=8), check("100/minute", "all", scope="all", prefetch=8))
    for _ in range(4):
        store.run(*one)
    store.forget(one[0].terms.rule_id, "nobody")
    assert inside.refunds == []
    store.forget(one[0].terms.rule_id, "a")
    assert inside.refunds == [("a", 3), ("all", 3)]
    assert [outcome.remaining for outcome in store.run(*one)] == [99, 95]


def test_a_peek_counts_permits_as_free(mode: Mode, clock: ManualClock) -> None:
    store, _ = prefetching(mode, clock)
    one = check("7/minute", prefetch=7)
    for _ in range(4):  # it then holds three permits, all that are left
        store.run(one)
    for _ in range(3):
        assert store.run(one, charge=False)[0][:4] == (True, 7, 3, 0)
    assert [store.run(one)[0].allowed for _ in range(4)] == [True, True, True, False]
    assert not allowed(store.run(one, charge=False))


def test_a_served_permit_can_be_refunded(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    one = check("100/minute", prefetch=8)
    for _ in range(5):
        results = store.run(one)
        clock.advance(0.1)
    store.refund(Plan((one,)), results)
    store.close()
    assert inside.run(Plan((check("100/minute", cost=0),)))[0].remaining == 96


# Failures


def test_permits_of_another_source_are_not_kept(mode: Mode, clock: ManualClock) -> None:
    class Degraded(Breakable):
        degraded = False

        def run(self, plan: Plan) -> tuple[Outcome, ...]:
            source: Any = "local" if self.degraded else "store"
            return tuple(outcome._replace(source=source) for outcome in super().run(plan))

        def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
            super().refund(plan, tuple(outcome._replace(source="store") for outcome in outcomes))

    inside = Degraded(clock)
    store = mode.around(inside, KINDS, clock=clock)
    one = check("100/minute", prefetch=8)
    for _ in range(3):
        store.run(one)
    inside.degraded = True
    [asked_for_four, *_] = [store.run(one)[0] for _ in range(3)]
    assert (asked_for_four.remaining, asked_for_four.source) == (96, "local")
    assert inside.refunds[0] == ("a", 3)
    assert inside.run(Plan((check("100/minute", cost=0),)))[0].remaining == 94


def test_an_outcome_of_allow_has_at_most_the_limit_left(clock: ManualClock) -> None:
    inside = Breakable(clock)
    limiter, plan = Limiter(inside, on_store_failure="allow"), Plan((check("100/minute", prefetch=8),))
    limiter.accept(plan.checks[0].terms)
    for _ in range(3):
        limiter.run(plan)
    inside.down = True
    outcomes = [limiter.run(plan).outcomes[0] for _ in range(9)]
    assert {(outcome.source, outcome.remaining) for outcome in outcomes} == {("policy", 100)}


def test_permits_are_served_while_the_store_is_down(mode: Mode, clock: ManualClock) -> None:
    store, inside = prefetching(mode, clock)
    one = check("100/minute", prefetch=8)
    for _ in range(4):
        store.run(one)
    inside.down = True
    assert [store.run(one)[0].source for _ in range(3)] == ["store"] * 3
    for _ in range(2):
        with pytest.raises(StoreError):
            store.run(one)
        clock.advance(5)
    inside.down = False
    assert trips(store, inside, one, times=3) == [1, 1, 0], "a failed trip delays no other request"


def test_no_two_threads_serve_one_permit(clock: ManualClock) -> None:
    inside = MemoryStore(clock=clock)
    store = Prefetch(inside, clock=clock)
    together = threading.Barrier(8)

    def work(_: int) -> int:
        together.wait()
        return sum(allowed(store.run(Plan((check("1000/hour", prefetch=16),)))) for _ in range(300))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 1000


def test_no_two_tasks_serve_one_permit(clock: ManualClock) -> None:
    class Slow(AsyncAdapter):
        async def run(self, plan: Plan) -> tuple[Outcome, ...]:
            await asyncio.sleep(0)
            outcomes = await super().run(plan)
            await asyncio.sleep(0)
            return outcomes

    async def main() -> None:
        inside = Granting(clock)
        store = AsyncPrefetch(Slow(inside), clock=clock)

        async def work() -> int:
            return sum([allowed(await store.run(Plan((check("1000/hour", prefetch=16),)))) for _ in range(100)])

        assert sum(await asyncio.gather(*[work() for _ in range(16)])) <= 1000
        await store.close()
        assert inside.granted - inside.returned == min(1000, inside.granted)

        task = asyncio.create_task(store.run(Plan((check("1000/hour", "b", prefetch=16),))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert allowed(await store.run(Plan((check("1000/hour", "b", prefetch=16),))))

    asyncio.run(main())


@pytest.mark.parametrize("what", ["forget", "evict"])
def test_a_grant_for_a_dropped_stock_is_refunded(clock: ManualClock, what: str) -> None:
    inside = Breakable(clock)
    store = Prefetch(inside, clock=clock, size=1)
    one = check("100/minute", prefetch=8)
    for _ in range(3):
        store.run(Plan((one,)))

    def interrupt() -> None:
        inside.before = lambda: None
        if what == "forget":
            store.forget("nobody", "x")
            list(store._permits.give_back(one.terms.rule_id, "a"))
        else:
            store.run(Plan((check("100/minute", "b", prefetch=8),)))

    inside.before = interrupt
    store.run(Plan((one,)))
    assert inside.refunds == [("a", 3)]


def test_a_forked_process_serves_no_permit_of_its_parent(clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = Prefetch(inside, clock=clock)
    one = check("100/minute", prefetch=8)
    for _ in range(4):
        store.run(Plan((one,)))
    store._permits.after_fork()
    store.close()
    assert inside.refunds == [], "the parent refunds them"
    store._permits.after_fork()
    calls = inside.calls
    store.run(Plan((one,)))
    assert inside.calls == calls + 1


def test_the_system_clock_is_the_default() -> None:
    store = Prefetch(Breakable())
    assert all(allowed(store.run(Plan((check(prefetch=5),)))) for _ in range(5))
    assert repr(store) == "Prefetch(StoreInside)"
