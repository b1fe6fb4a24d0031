"""deny_cache.py: a refusal is repeated exactly as the store would return it, for as long as that is certain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

from sluicegate import Ban, Concurrency, ManualClock, StoreError
from sluicegate.clock import MICROSECOND, Clock
from sluicegate.plan import NEVER, Check, Outcome, Plan
from sluicegate.rules.ban import with_bans
from sluicegate.rules.rollout import shadows
from sluicegate.rules.terms import make_terms
from sluicegate.stores import AsyncStore, Store, deny_cache
from sluicegate.stores.deny_cache import Refusals
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import AsyncAdapter, StoreExam
from sluicegate.testing.store import NAMES
from tests.stores import guards
from tests.stores.breakable import Breakable, Called, Mode, allowed, check
from tests.stores.test_clock_back import Skewed

SECOND = MICROSECOND
LOST = StoreError("breakable", "no answer", concerns="plan")  # opens no circuit


class TestExam(StoreExam):
    """With one process it returns exactly the outcomes of the store inside, for any staleness."""

    examples = 60

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return guards.cached(MemoryStore(clock=clock), Refusals(staleness=10**9, clock=clock))


class TestExamAsync(StoreExam):
    examples = 20

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return guards.async_cached(AsyncAdapter(MemoryStore(clock=clock)), Refusals(staleness=1, clock=clock))


def cached(mode: Mode, clock: Clock, **options: Any) -> tuple[Called, Breakable]:
    inside = Breakable(clock)
    refusals = Refusals(**{"staleness": 1, "clock": clock, **options})
    return mode.around(inside, guards.CACHES, refusals=refusals), inside


@pytest.mark.parametrize("algorithm", NAMES)
def test_a_flood_is_refused_without_the_store(mode: Mode, clock: ManualClock, algorithm: str) -> None:
    store, inside = cached(mode, clock, staleness=100)
    one = check(algorithm=algorithm)
    results = [store.run(one)[0] for _ in range(1000)]
    assert sum(outcome.allowed for outcome in results) == 5
    assert inside.calls == 6


def test_the_waits_count_down(mode: Mode, clock: ManualClock) -> None:
    store, inside = cached(mode, clock, staleness=100)
    for _ in range(6):
        [refused] = store.run(check())
    clock.advance(20)
    [after] = store.run(check())
    assert after == counted_down(refused, elapsed=20 * SECOND)
    assert inside.calls == 6


def counted_down(outcome: Outcome, *, elapsed: int) -> Outcome:
    assert outcome.retry_after is not None
    return outcome._replace(
        retry_after=outcome.retry_after - elapsed,
        reset_after=outcome.reset_after - elapsed,
        next_after=outcome.next_after - elapsed,
        at=outcome.at + elapsed,
    )


@pytest.mark.parametrize(
    ("quota", "waits", "calls_store"),
    [
        ("1/minute", 0.999999, False),
        ("1/minute", 1, True),  # the staleness
        ("2 per 800 milliseconds", 0.399999, False),
        ("2 per 800 milliseconds", 0.4, True),  # one of the two is free
    ],
)
def test_until_a_number_changes_or_the_staleness(
    mode: Mode, clock: ManualClock, quota: str, waits: float, calls_store: bool
) -> None:
    store, inside = cached(mode, clock)
    store.run(check(quota))
    clock.advance(0.4)
    store.run(check(quota))
    refused = check(quota, cost=2 if quota.startswith("2") else 1)
    assert not allowed(store.run(refused))
    calls = inside.calls
    clock.advance(waits)
    store.run(refused)
    assert (inside.calls > calls) is calls_store


def test_the_staleness_starts_before_the_call_and_waits_start_after_it(mode: Mode, clock: ManualClock) -> None:
    """The store decided at a time between the two: no client is refused too long, and no wait is too short."""
    store, inside = cached(mode, clock, staleness=100)
    store.run(check("1 per 10 seconds"))
    inside.before = lambda: clock.advance(3)
    assert store.run(check("1 per 10 seconds"))[0].retry_after == 7 * SECOND
    clock.advance(3)
    assert store.run(check("1 per 10 seconds"))[0].retry_after == 4 * SECOND
    assert inside.calls == 2
    clock.advance(1)
    store.run(check("1 per 10 seconds"))
    assert inside.calls == 3, "seven seconds after it was sent"


@pytest.mark.parametrize("step", [50, 1, 0])
@pytest.mark.parametrize("refused", [check(), check(cost=6), check(algorithm="gcra")])
def test_a_clock_that_steps_back_makes_no_refusal_last_longer(
    mode: Mode, monkeypatch: pytest.MonkeyPatch, step: int, refused: Check
) -> None:
    """The staleness is measured by the process's monotonic clock too. Waits are those of the store."""
    clock, passed = Skewed(1000 * SECOND), [0.0]
    monkeypatch.setattr(deny_cache, "monotonic", lambda: passed[0])
    store, inside = cached(mode, clock)
    store.run(refused._replace(cost=5))
    assert not allowed(store.run(refused))
    clock.moment -= step * SECOND
    assert store.run(refused) == inside.run(Plan((refused,), charge=False))
    passed[0] += 0.999
    calls = inside.calls
    store.run(refused)
    assert inside.calls == calls
    passed[0] += 0.001
    store.run(refused)
    assert inside.calls == calls + 1


REFUSED: list[tuple[str, list[Check], bool]] = [
    ("the same", [check(), check(scope="other", cost=2)], True),
    ("dearer", [check(cost=2), check(scope="other", cost=2)], False),  # another wait
    ("cheaper", [check(cost=0), check(scope="other", cost=2)], False),
    ("cheaper elsewhere", [check(), check(scope="other")], False),
    ("less", [check()], False),
    ("another identity", [check(identity="b"), check(scope="other", cost=2)], False),
    ("a raised limit", [check("6/minute"), check(scope="other", cost=2)], False),
]


@pytest.mark.parametrize(("checks", "known"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_refusal_is_repeated_for_the_same_checks_only(
    mode: Mode, clock: ManualClock, checks: list[Check], known: bool
) -> None:
    store, inside = cached(mode, clock)
    inside.run(Plan((check(cost=5),)))
    assert not allowed(store.run(check(), check(scope="other", cost=2)))
    calls = inside.calls
    store.run(*checks)
    assert (inside.calls == calls) is known


def test_a_refusal_without_an_end_is_repeated_until_the_staleness(mode: Mode, clock: ManualClock) -> None:
    store, inside = cached(mode, clock)
    for _ in range(10):
        assert store.run(check(cost=6))[0].retry_after is NEVER
        clock.advance(0.25)
    assert inside.calls == 3


@pytest.mark.parametrize(
    ("charge", "options"),
    [(False, {}), (True, {"counted": True})],
)
def test_what_is_not_remembered(mode: Mode, clock: ManualClock, charge: bool, options: dict[str, Any]) -> None:
    store, inside = cached(mode, clock)
    one = check(**options)
    store.run(one._replace(cost=5))
    for number in range(3):
        assert not allowed(store.run(one, charge=charge))
        assert inside.calls == number + 2


def test_a_peek_reaches_the_store_even_if_a_refusal_is_remembered(mode: Mode, clock: ManualClock) -> None:
    store, inside = cached(mode, clock)
    store.run(check(cost=5))
    assert [store.run(check(), charge=charge) for charge in (True, False)]
    assert inside.calls == 3


@pytest.mark.parametrize("source", ["local", "policy"])
def test_outcomes_of_another_source_are_not_remembered(mode: Mode, clock: ManualClock, source: Any) -> None:
    class Degraded(Breakable):
        def run(self, plan: Plan) -> tuple[Outcome, ...]:
            return tuple(outcome._replace(source=source) for outcome in super().run(plan))

    inside = Degraded(clock)
    store = mode.around(inside, guards.CACHES, refusals=Refusals(staleness=1, clock=clock))
    for _ in range(9):
        store.run(check())
    assert inside.calls == 9


@pytest.mark.parametrize("what", ["forget", "refund"])
def test_a_refund_or_a_reset_drops_the_refusal(mode: Mode, clock: ManualClock, what: str) -> None:
    store, inside = cached(mode, clock, staleness=100)
    taken = store.run(check(cost=5), check(identity="b", scope="other"))
    for identity in "ab":
        inside.run(Plan((check(identity=identity, cost=5),)))
        assert not allowed(store.run(check(identity=identity)))
    if what == "forget":
        store.forget(check().terms.rule_id, "a")
    else:
        store.refund(Plan((check(cost=5), check(identity="b", scope="other"))), taken)
    calls = inside.calls
    assert allowed(store.run(check()))
    assert inside.calls == calls + 1


def test_a_smaller_charge_that_passes_drops_a_larger_refusal(mode: Mode, clock: ManualClock) -> None:
    """The remembered refusal is 10 seconds and 2 left; now 50 seconds and 0 are true."""
    store, _ = cached(mode, clock, staleness=100)
    one, two, three = (check("3/minute", cost=cost, algorithm="gcra") for cost in (1, 2, 3))
    assert allowed(store.run(one))
    clock.advance(10)
    assert shown(store.run(three)) == (2, 10 * SECOND)
    assert allowed(store.run(two))
    assert shown(store.run(three)) == (0, 50 * SECOND)
    assert shown(store.run(three)) == (0, 50 * SECOND)


def shown(outcomes: tuple[Outcome, ...]) -> tuple[int, int | None]:
    [outcome] = outcomes
    assert not outcome.allowed
    return outcome.remaining, outcome.retry_after


SHADOW = check("5/minute", scope="shadow")._replace(terms=shadows((check("5/minute", scope="shadow").terms,))[0])
STRIKER = check("1/hour", scope="striker", ban=Ban(after=9, within=60, duration=60).terms)
REMEMBERED = (check(cost=4), check(scope="other"), check(identity="b"), SHADOW, *with_bans([STRIKER])[1:])
CHANGES: list[tuple[str, tuple[Check, ...], bool, bool]] = [
    ("the same budget", (check(),), False, True),
    ("a raised limit on it", (check("9/minute"),), False, True),
    ("a budget of another rule", (check(scope="other"),), False, True),
    ("a budget of another identity", (check(identity="b"),), False, True),
    ("one of several", (check(scope="third"), check(identity="b")), False, True),
    ("the budget of a shadow rule", (SHADOW,), False, True),
    ("forced", (check(scope="other", cost=5),), True, True),
    ("a refusal that is counted", (check("1/minute", scope="other", counted=True),), False, True),
    ("a strike towards its ban", with_bans([STRIKER]), False, True),
    ("another rule", (check(scope="third"),), False, False),
    ("another identity", (check(identity="c"),), False, False),
    ("nothing", (check(cost=0), check(scope="other", cost=0)), False, False),
    ("a refusal", (check(cost=5),), False, False),
]


@pytest.mark.parametrize(("checks", "forced", "ends"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_any_change_of_one_of_its_budgets_drops_a_refusal(
    mode: Mode, clock: ManualClock, checks: tuple[Check, ...], forced: bool, ends: bool
) -> None:
    store, inside = cached(mode, clock, staleness=100)
    inside.run(Plan((check(cost=2), check("1/minute", scope="other"), STRIKER)))
    store.run(*REMEMBERED)
    store.answer(store.store.run, Plan(checks, forced=forced))
    calls = inside.calls
    results = store.run(*REMEMBERED)
    assert (inside.calls > calls) is ends
    assert results == inside.run(Plan(REMEMBERED))


@pytest.mark.parametrize("how", ["refund", "renew", "forget"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_possible_change_of_a_budget_drops_a_refusal(mode: Mode, clock: ManualClock, how: str, fails: bool) -> None:
    """Also if the store failed, because it may have changed the budget all the same."""
    store, inside = cached(mode, clock, staleness=100)
    held = Plan((make_held(),))
    taken = store.answer(store.store.run, held)
    refused = (check(cost=6), *held.checks)
    store.run(*refused)
    clock.advance(1)

    def lose() -> None:
        if fails:
            raise LOST

    inside.before = lose
    with pytest.raises(StoreError) if fails and how == "forget" else nullcontext():
        if how == "forget":
            store.forget(held.checks[0].terms.rule_id, held.checks[0].identity)
        else:
            store.answer(getattr(store.store, how), held, taken)
    inside.before = lambda: None
    calls = inside.calls
    assert store.run(*refused) == inside.run(Plan(refused))
    assert inside.calls == calls + 2


def make_held() -> Check:
    [terms] = make_terms("held", Concurrency(3, lease=60), algorithm="sliding-window")
    return Check(terms, "a", 1)


@pytest.mark.parametrize("error", [LOST, KeyboardInterrupt()])
def test_a_charge_without_a_reply_drops_a_refusal(mode: Mode, clock: ManualClock, error: BaseException) -> None:
    store, inside = cached(mode, clock, staleness=100)
    store.run(check(cost=3))
    store.run(check(cost=4))

    def fail() -> None:
        inside.before = lambda: None
        inside.run(Plan((check(),)))
        raise error

    inside.before = fail
    with pytest.raises(type(error)):
        store.run(check())
    assert store.run(check(cost=4))[0].remaining == 1


@pytest.mark.parametrize(
    ("between", "remembered"),
    [
        (check(), False),
        (check(scope="other"), False),
        (check(identity="b"), False),
        (check(identity="c"), True),
    ],
)
def test_a_refusal_from_before_a_charge_is_not_remembered(clock: ManualClock, between: Check, remembered: bool) -> None:
    """A charge of another identity does not matter: otherwise a busy process would remember nothing."""
    inside = Breakable(clock)
    refusals = Refusals(staleness=1, clock=clock)
    store = guards.cached(Answered(inside, lambda: store.run(Plan((between,)))), refusals)
    store.run(Plan((check(cost=6), check(identity="b"))))
    assert bool(refusals.kept) is remembered


class Answered:
    """A store that calls `between` before it returns its first outcome."""

    def __init__(self, store: Breakable, between: Callable[[], object]) -> None:
        self.refund, self.renew, self.forget, self.close = store.refund, store.renew, store.forget, store.close
        self._store, self._between = store, [between]

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        outcomes = self._store.run(plan)
        if self._between:
            self._between.pop()()
        return outcomes


def test_under_load_refusals_are_remembered() -> None:
    """Busy threads whose requests pass, and one that is refused: nearly always without the store."""
    inside = Breakable()
    refusals = Refusals(staleness=60)
    store, together = guards.cached(inside, refusals), threading.Barrier(5)

    def busy(number: int) -> int:
        together.wait()
        return sum([allowed(store.run(Plan((check("1000/hour", f"{number} {n % 100}"),)))) for n in range(2000)])

    def flood() -> None:
        together.wait()
        for _ in range(2000):
            assert not allowed(store.run(Plan((check("1/hour", "flood", cost=2),))))

    with ThreadPoolExecutor(5) as pool:
        flooded, running = pool.submit(flood), [pool.submit(busy, number) for number in range(4)]
        assert [each.result() for each in running] == [2000] * 4
        flooded.result()
    assert inside.calls < 8000 + 200


def test_threads_never_get_a_refusal_from_before_a_charge(clock: ManualClock) -> None:
    """After the reply to a charge, no earlier refusal is repeated to any thread."""
    inside = MemoryStore(clock=clock)
    store = guards.cached(inside, Refusals(staleness=100, clock=clock))
    together, size = threading.Barrier(4), 2000

    def spend(number: int) -> None:
        """Charge one unit at a time; larger refusals on the same budget come from all threads."""
        together.wait()
        for turn in range(size):
            mine = f"{turn % 7}"
            results = store.run(Plan((check("100000/hour", mine),)))[0]
            after = store.run(Plan((check("100000/hour", mine, cost=100_001),)))[0]
            assert after.remaining <= results.remaining

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(spend, range(4)))


def test_a_refusal_from_before_a_reset_is_not_remembered(mode: Mode, clock: ManualClock) -> None:
    store, inside = cached(mode, clock)
    store.run(check(cost=5))

    def reset() -> None:
        inside.before = lambda: None
        store.store.refusals.drop(check().terms.rule_id, "a")  # as forget does, when the store has dropped the budget

    inside.before = reset
    store.run(check())
    assert not store.store.refusals.kept


def test_it_is_bounded_and_the_oldest_is_evicted_first(mode: Mode, clock: ManualClock) -> None:
    store, inside = cached(mode, clock, size=3)
    for identity in "abcd":
        store.run(check(identity=identity, cost=6), check(identity="z", scope="other"))
    calls = inside.calls
    refusals = store.store.refusals
    assert len(refusals.kept) == 3
    assert {identity for _, identity in refusals.index} == {*"bcd", "z"}
    for identity in "dcb":
        store.run(check(identity=identity, cost=6), check(identity="z", scope="other"))
    assert inside.calls == calls
    clock.advance(1)
    for identity in "dcb":
        refusals.repeat((check(identity=identity, cost=6), check(identity="z", scope="other")))
    assert (dict(refusals.kept), refusals.index) == ({}, {})


def test_threads(clock: ManualClock) -> None:
    inside = MemoryStore(clock=clock)
    store = guards.cached(inside, Refusals(staleness=100, clock=clock, size=5))
    together = threading.Barrier(8)

    def flood(number: int) -> int:
        together.wait()
        admitted = 0
        for turn in range(300):
            identity = str(turn % 10)
            admitted += allowed(store.run(Plan((check("5/hour", identity),))))
            if number == 0 and turn % 50 == 49:
                store.forget("nobody", identity)
        return admitted

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(flood, range(8))) == 50
    kept = store.refusals.kept
    assert len(kept) <= 5
    assert set(store.refusals.index) == {(checks[0].terms.rule_id, checks[0].identity) for checks in kept}


def test_it_closes_the_store_inside(mode: Mode, clock: ManualClock) -> None:
    store, inside = cached(mode, clock)
    store.close()
    assert inside.closed == 1
    assert "GuardedStore(" in repr(store.store)


def test_the_system_clock_is_the_default() -> None:
    inside = Breakable()
    store = guards.cached(inside, Refusals(staleness=60))
    for _ in range(9):
        store.run(Plan((check(),)))
    assert inside.calls == 6
