"""What is held, and what is owed, through everything that stands around a store."""

from __future__ import annotations

from typing import Any

import pytest

from sluicegate import Concurrency, ManualClock, StoreError
from sluicegate.plan import Check, Plan
from sluicegate.stores.deny_cache import AsyncDenyCache, DenyCache, Refusals
from sluicegate.stores.fallback import AsyncFallback, Fallback
from sluicegate.stores.leases import AsyncLeases, Leases
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.standin import Standin
from sluicegate.terms import make_terms
from sluicegate.testing.store import NAMES
from tests.stores.breakable import DEADLINE, Breakable, Called, Colour, allowed, check
from tests.stores.test_fallback import guards

DOWN = StoreError("breakable", "it hangs")


def place(limit: int = 2, identity: str = "a", *, scope: str = "held", lease: float = 60, **more: Any) -> Check:
    """A check of so many at once."""
    [terms] = make_terms(scope, Concurrency(limit, lease), algorithm="gcra", **more)
    return Check(terms, identity, 1)


def fallback(inside: Breakable, colour: Colour, clock: ManualClock, **options: Any) -> Called:
    more: dict[str, Any] = {"deadline": DEADLINE} if colour.later else {"launch": lambda work: work()}
    return colour.around(inside, (Fallback, AsyncFallback), **guards(clock, **options), **more)


# The deny cache


def cached(inside: Breakable, colour: Colour, clock: ManualClock) -> Called:
    return colour.around(inside, (DenyCache, AsyncDenyCache), refusals=Refusals(staleness=1, clock=clock))


def test_a_refusal_for_want_of_a_place_is_asked_again(colour: Colour, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store, elsewhere, one = cached(inside, colour, clock), colour.around(inside, (_itself, _itself)), place(1)
    taken = elsewhere.run(one)
    assert not allowed(store.run(one))
    elsewhere.refund(Plan((one,)), taken)
    assert allowed(store.run(one)), "another process has released it"


@pytest.mark.parametrize(("limit", "asked"), [(1, 4), (9, 1)])
def test_a_refusal_by_another_rule_is_remembered_unless_a_place_was_wanting_too(
    colour: Colour, clock: ManualClock, limit: int, asked: int
) -> None:
    inside = Breakable(clock)
    store = cached(inside, colour, clock)
    store.run(place(limit))
    for _ in range(5):
        store.run(check("5/minute"))
    calls = inside.calls
    assert not any(allowed(store.run(check("5/minute"), place(limit))) for _ in range(4))
    assert inside.calls - calls == asked


def test_what_is_owed_is_charged_and_makes_what_was_refused_wait_longer(colour: Colour, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store, one = cached(inside, colour, clock), check("5/minute")
    for _ in range(6):
        [before] = store.run(one)
    clock.advance(0.5)
    store.answer(store.store.run, Plan((one._replace(cost=5),), forced=True))
    [after] = store.run(one)
    assert before.retry_after == after.retry_after == 60_000_000


def _itself(store: Any) -> Any:
    return store


# Leases


def test_what_is_owed_is_no_permit(colour: Colour, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = colour.around(inside, (Leases, AsyncLeases), clock=clock)
    one = check("100/hour", lease=50)
    for _ in range(20):
        store.run(one)
    calls = inside.calls
    store.answer(store.store.run, Plan((one,), forced=True))
    assert inside.calls == calls + 1


# The fallback


def test_a_place_is_renewed_and_released_where_it_was_taken(colour: Colour, clock: ManualClock) -> None:
    inside, one = Breakable(clock), place(2, lease=3)
    store, plan = fallback(inside, colour, clock), Plan((one,))
    there = store.run(one)
    inside.down = True
    here = store.run(one)
    assert [there[0].source, here[0].source] == ["store", "local"]
    for _ in range(3):
        clock.advance(1)
        unchanged, here = store.renew(plan, there), store.renew(plan, here)
        assert unchanged == there, "nobody knows what the store has made of it"
    assert here[0].at == clock.now_us()
    assert store.run(one)[0].remaining == 0, "one here, and this one; what the store counts is its own"
    assert not allowed(store.run(one))
    store.refund(plan, here)
    assert allowed(store.run(one))
    inside.down = False
    while (found := store.run(one._replace(cost=0)))[0].source != "store":
        clock.advance(1)
    assert found[0].remaining == 2, "it was over there before it could be renewed"


def test_a_renewal_that_fails_opens_the_breaker_and_is_no_error(colour: Colour, clock: ManualClock) -> None:
    inside, one = Breakable(clock), place()
    store, plan = fallback(inside, colour, clock), Plan((one,))
    taken = store.run(one)
    inside.down, calls = True, inside.calls
    for _ in range(3):
        assert store.renew(plan, taken) == taken
    assert inside.calls == calls + 1


@pytest.mark.parametrize("policy", ["allow", "deny", "local"])
def test_of_a_policy_there_is_nothing_to_release(colour: Colour, clock: ManualClock, policy: str) -> None:
    inside, one = Breakable(clock), place(on_store_failure=policy)
    store = fallback(inside, colour, clock)
    inside.down = True
    for _ in range(5):
        told = store.run(one)
        assert allowed(told) == (policy != "deny")
        store.refund(Plan((one,)), store.renew(Plan((one,)), told))


def test_an_outage_does_not_begin_with_places_that_were_left_long_ago(clock: ManualClock) -> None:
    """The note says that all were taken, a moment ago; nobody notes when they were released."""
    standin, inside = Standin(policy="local", clock=clock), MemoryStore(clock=clock)
    plan = Plan((place(1), check("5/minute")))
    taken = inside.run(plan)
    standin.note(plan, taken)
    inside.refund(Plan(plan.checks[:1]), taken[:1])
    held, counted = standin.answer(plan, DOWN)
    assert (held.allowed, counted.remaining) == (True, 3), "of what is counted the store's answer is remembered"


@pytest.mark.parametrize(("replicas", "admitted"), [(1, 8), (4, 2), (100, 1)])
def test_each_process_has_its_share_of_the_places(clock: ManualClock, replicas: int, admitted: int) -> None:
    standin, one = Standin(policy="local", replicas=replicas, clock=clock), Plan((place(8),))
    told = [standin.answer(one, DOWN) for _ in range(10)]
    assert sum(map(allowed, told)) == admitted
    standin.refund(one, standin.renew(one, told[0]))
    assert [allowed(standin.answer(one, DOWN)) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("denied", [False, True])
def test_what_is_owed_is_owed_to_the_stand_in_too(clock: ManualClock, algorithm: str, denied: bool) -> None:
    standin, one = Standin(policy="local", clock=clock), check("5/minute", cost=4, algorithm=algorithm)
    checks = (one, check(scope="other", on_store_failure="deny")) if denied else (one,)
    standin.answer(Plan((one,)), DOWN)
    standin.answer(Plan(checks, forced=True), DOWN)
    assert standin.answer(Plan((one,), charge=False), DOWN)[0].remaining == 0


# Memory


def test_newcomers_to_a_full_store_share_places_and_give_them_back(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=2, clock=clock)
    full = [place(1, who, scope="full") for who in "ab"]
    assert all(allowed(store.run(Plan((one,)))) for one in full)
    newcomers = [Plan((place(2, who),), network=lambda: "203.0.113.0") for who in "cdefgh"]
    for first, second, third in zip(newcomers, newcomers[1:], newcomers[2:], strict=False):
        taken = [store.run(first), store.run(second)]
        clock.advance(1)
        taken[1] = store.renew(second, taken[1])
        assert not allowed(store.run(third))
        store.refund(first, taken[0])
        again = store.run(third)
        assert allowed(again)
        for plan, told in ((second, taken[1]), (third, again)):
            store.refund(plan, told)
        assert [allowed(store.run(Plan((one,)))) for one in full] == [False, False], "who is refused is not freed"
    assert len(store) == 2
    rate = Plan((check("2/minute", "z"),))
    assert [allowed(store.run(rate)) for _ in range(3)] == [True, True, False]
    assert allowed(store.run(newcomers[0])), "places are no budget of requests, though the numbers be the same"


def test_a_place_in_use_is_never_freed_to_make_room(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=3, clock=clock)
    one = Plan((place(1, lease=60),))
    taken = store.run(one)
    for second in range(200):
        clock.advance(1)
        if second % 20 == 0:
            taken = store.renew(one, taken)
        store.run(Plan((check("5/hour", f"{second}"),)))
        assert not allowed(store.run(one._replace(charge=False)))
    store.refund(one, taken)
    assert allowed(store.run(one))
