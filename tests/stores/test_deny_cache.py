"""deny_cache.py: a refusal is repeated exactly as the store would tell it, for as long as that is certain."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate import ManualClock
from headgate.clock import MICROSECOND, Clock
from headgate.plan import NEVER, Check, Outcome, Plan
from headgate.stores import AsyncStore, Store
from headgate.stores.deny_cache import AsyncDenyCache, DenyCache
from headgate.stores.memory import MemoryStore
from headgate.testing import Awaited, StoreExam
from headgate.testing.store import NAMES
from tests.stores.breakable import Breakable, Called, Colour, allowed, check

KINDS = (DenyCache, AsyncDenyCache)
SECOND = MICROSECOND


class TestExam(StoreExam):
    """With one process it cannot be told from the store inside, however long it remembers."""

    examples = 60

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return DenyCache(MemoryStore(clock=clock), staleness=10**9, clock=clock)


class TestExamAsync(StoreExam):
    examples = 20

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return AsyncDenyCache(Awaited(MemoryStore(clock=clock)), staleness=1, clock=clock)


def cached(colour: Colour, clock: ManualClock, **options: Any) -> tuple[Called, Breakable]:
    inside = Breakable(clock)
    return colour.around(inside, KINDS, **{"staleness": 1, "clock": clock, **options}), inside


@pytest.mark.parametrize("algorithm", NAMES)
def test_a_flood_is_refused_without_the_store(colour: Colour, clock: ManualClock, algorithm: str) -> None:
    store, inside = cached(colour, clock)
    one = check(algorithm=algorithm)
    told = [store.run(one)[0] for _ in range(1000)]
    assert sum(outcome.allowed for outcome in told) == 5
    assert inside.calls == 6


def test_the_waits_count_down(colour: Colour, clock: ManualClock) -> None:
    store, inside = cached(colour, clock, staleness=100)
    for _ in range(6):
        [refused] = store.run(check())
    clock.advance(20)
    [later] = store.run(check())
    assert later == counted_down(refused, gone=20 * SECOND)
    assert inside.calls == 6


def counted_down(outcome: Outcome, *, gone: int) -> Outcome:
    assert outcome.retry_after is not None
    return outcome._replace(
        retry_after=outcome.retry_after - gone,
        reset_after=outcome.reset_after - gone,
        next_after=outcome.next_after - gone,
        at=outcome.at + gone,
    )


@pytest.mark.parametrize(
    ("quota", "waits", "asks"),
    [
        ("1/minute", 0.999999, False),
        ("1/minute", 1, True),  # the staleness
        ("2 per 800 milliseconds", 0.399999, False),
        ("2 per 800 milliseconds", 0.4, True),  # one of the two is free
    ],
)
def test_until_a_number_changes_or_the_staleness(
    colour: Colour, clock: ManualClock, quota: str, waits: float, asks: bool
) -> None:
    store, inside = cached(colour, clock)
    store.run(check(quota))
    clock.advance(0.4)
    store.run(check(quota))
    refused = check(quota, cost=2 if quota.startswith("2") else 1)
    assert not allowed(store.run(refused))
    calls = inside.calls
    clock.advance(waits)
    store.run(refused)
    assert (inside.calls > calls) is asks


def test_it_counts_from_before_the_call_and_tells_waits_from_after(colour: Colour, clock: ManualClock) -> None:
    """The store decided at some moment between the two: nobody is refused too long, nor told too short a wait."""
    store, inside = cached(colour, clock, staleness=100)
    store.run(check("1 per 10 seconds"))
    inside.before = lambda: clock.advance(3)
    assert store.run(check("1 per 10 seconds"))[0].retry_after == 7 * SECOND
    clock.advance(3)
    assert store.run(check("1 per 10 seconds"))[0].retry_after == 4 * SECOND
    assert inside.calls == 2
    clock.advance(1)
    store.run(check("1 per 10 seconds"))
    assert inside.calls == 3, "seven seconds after it was sent"


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
def test_a_refusal_speaks_for_the_same_checks_only(
    colour: Colour, clock: ManualClock, checks: list[Check], known: bool
) -> None:
    store, inside = cached(colour, clock)
    inside.run(Plan((check(cost=5),)))
    assert not allowed(store.run(check(), check(scope="other", cost=2)))
    calls = inside.calls
    store.run(*checks)
    assert (inside.calls == calls) is known


def test_what_can_never_pass_is_known_until_the_staleness(colour: Colour, clock: ManualClock) -> None:
    store, inside = cached(colour, clock)
    for _ in range(10):
        assert store.run(check(cost=6))[0].retry_after is NEVER
        clock.advance(0.25)
    assert inside.calls == 3


@pytest.mark.parametrize(
    ("charge", "options"),
    [(False, {}), (True, {"counted": True})],
)
def test_what_is_not_remembered(colour: Colour, clock: ManualClock, charge: bool, options: dict[str, Any]) -> None:
    store, inside = cached(colour, clock)
    one = check(**options)
    store.run(one._replace(cost=5))
    for number in range(3):
        assert not allowed(store.run(one, charge=charge))
        assert inside.calls == number + 2


def test_a_peek_is_asked_though_a_refusal_is_known(colour: Colour, clock: ManualClock) -> None:
    store, inside = cached(colour, clock)
    store.run(check(cost=5))
    assert [store.run(check(), charge=charge) for charge in (True, False)]
    assert inside.calls == 3


@pytest.mark.parametrize("source", ["local", "policy"])
def test_what_the_store_did_not_say_is_not_remembered(colour: Colour, clock: ManualClock, source: Any) -> None:
    class Degraded(Breakable):
        def run(self, plan: Plan) -> tuple[Outcome, ...]:
            return tuple(outcome._replace(source=source) for outcome in super().run(plan))

    inside = Degraded(clock)
    store = colour.around(inside, KINDS, staleness=1, clock=clock)
    for _ in range(9):
        store.run(check())
    assert inside.calls == 9


@pytest.mark.parametrize("what", ["forget", "refund"])
def test_what_gives_back_ends_the_refusal(colour: Colour, clock: ManualClock, what: str) -> None:
    store, inside = cached(colour, clock, staleness=100)
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


def test_an_answer_from_before_a_reset_is_not_remembered(colour: Colour, clock: ManualClock) -> None:
    store, inside = cached(colour, clock)
    store.run(check(cost=5))

    def reset() -> None:
        inside.before = lambda: None
        store.store._refusals.drop("a")  # as forget does, when the store has dropped the budget

    inside.before = reset
    store.run(check())
    assert not store.store._refusals.kept


def test_it_is_bounded_and_the_oldest_goes_first(colour: Colour, clock: ManualClock) -> None:
    store, inside = cached(colour, clock, size=3)
    for identity in "abcd":
        store.run(check(identity=identity, cost=6), check(identity="z", scope="other"))
    calls = inside.calls
    refusals = store.store._refusals
    assert len(refusals.kept) == 3
    assert set(refusals._of) == {*"bcd", "z"}
    for identity in "dcb":
        store.run(check(identity=identity, cost=6), check(identity="z", scope="other"))
    assert inside.calls == calls
    clock.advance(1)
    for identity in "dcb":
        refusals.repeat(
            Plan((check(identity=identity, cost=6), check(identity="z", scope="other"))),
            next(iter(refusals.kept.values())),
        )
    assert (dict(refusals.kept), refusals._of) == ({}, {})


def test_threads(clock: ManualClock) -> None:
    inside = MemoryStore(clock=clock)
    store = DenyCache(inside, staleness=100, clock=clock, size=5)
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
    kept = store._refusals.kept
    assert len(kept) <= 5
    assert set(store._refusals._of) == {checks[0].identity for checks in kept}


def test_it_closes_the_store_inside(colour: Colour, clock: ManualClock) -> None:
    store, inside = cached(colour, clock)
    store.close()
    assert inside.closed == 1
    assert "DenyCache(" in repr(store.store)


def test_the_systems_clock_is_the_default() -> None:
    inside = Breakable()
    store = DenyCache(inside, staleness=60)
    for _ in range(9):
        store.run(Plan((check(),)))
    assert inside.calls == 6
