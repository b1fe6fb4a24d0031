"""Held slots and forced charges, through all wrappers of a store."""

from __future__ import annotations

from typing import Any

import pytest

from sluicegate import Concurrency, ManualClock, StoreError
from sluicegate.plan import Check, Plan
from sluicegate.rules.terms import make_terms
from sluicegate.stores.deny_cache import Refusals
from sluicegate.stores.local_fallback import LocalFallback
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.store import NAMES
from tests.stores.breakable import DEADLINE, Breakable, Called, Mode, allowed, check
from tests.stores.guards import CACHES, FALLBACKS
from tests.stores.test_fallback import guards

DOWN = StoreError("breakable", "it hangs")


def place(limit: int = 2, identity: str = "a", *, scope: str = "held", lease: float = 60, **more: Any) -> Check:
    """A check of a concurrency limit."""
    [terms] = make_terms(scope, Concurrency(limit, lease), algorithm="gcra", **more)
    return Check(terms, identity, 1)


def fallback(inside: Breakable, mode: Mode, clock: ManualClock, **options: Any) -> Called:
    more: dict[str, Any] = {"deadline": DEADLINE} if mode.is_async else {"launch": lambda work: work()}
    return mode.around(inside, FALLBACKS, **guards(clock, **options), **more)


# The deny cache


def cached(inside: Breakable, mode: Mode, clock: ManualClock) -> Called:
    return mode.around(inside, CACHES, refusals=Refusals(staleness=1, clock=clock))


def test_a_refusal_by_a_concurrency_limit_is_not_remembered(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store, other, one = cached(inside, mode, clock), mode.around(inside, (_itself, _itself)), place(1)
    taken = other.run(one)
    assert not allowed(store.run(one))
    other.refund(Plan((one,)), taken)
    assert allowed(store.run(one)), "another process has released the slot"


@pytest.mark.parametrize(("limit", "calls_of_store"), [(1, 4), (9, 1)])
def test_a_refusal_by_another_rule_is_remembered_unless_a_concurrency_limit_refused_too(
    mode: Mode, clock: ManualClock, limit: int, calls_of_store: int
) -> None:
    inside = Breakable(clock)
    store = cached(inside, mode, clock)
    store.run(place(limit))
    for _ in range(5):
        store.run(check("5/minute"))
    calls = inside.calls
    assert not any(allowed(store.run(check("5/minute"), place(limit))) for _ in range(4))
    assert inside.calls - calls == calls_of_store


def test_a_forced_charge_makes_a_refused_client_wait_longer(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store, one = cached(inside, mode, clock), check("5/minute")
    for _ in range(6):
        [before] = store.run(one)
    clock.advance(0.5)
    store.answer(store.store.run, Plan((one._replace(cost=5),), forced=True))
    [after] = store.run(one)
    assert before.retry_after == after.retry_after == 60_000_000


def _itself(store: Any) -> Any:
    return store


# The fallback


def test_a_slot_is_renewed_and_released_where_it_was_taken(mode: Mode, clock: ManualClock) -> None:
    inside, one = Breakable(clock), place(2, lease=3)
    store, plan = fallback(inside, mode, clock), Plan((one,))
    there = store.run(one)
    inside.down = True
    here = store.run(one)
    assert [there[0].source, here[0].source] == ["store", "local"]
    for _ in range(3):
        clock.advance(1)
        unchanged, here = store.renew(plan, there), store.renew(plan, here)
        assert unchanged == there, "it is not known whether the store has renewed it"
    assert here[0].at == clock.now_us()
    assert store.run(one)[0].remaining == 0, "two slots are taken here; the store counts separately"
    assert not allowed(store.run(one))
    store.refund(plan, here)
    assert allowed(store.run(one))
    inside.down = False
    while (found := store.run(one._replace(cost=0)))[0].source != "store":
        clock.advance(1)
    assert found[0].remaining == 2, "the slot had expired there before it could be renewed"


def test_a_renewal_that_fails_opens_the_breaker_and_is_no_error(mode: Mode, clock: ManualClock) -> None:
    inside, one = Breakable(clock), place()
    store, plan = fallback(inside, mode, clock), Plan((one,))
    taken = store.run(one)
    inside.down, calls = True, inside.calls
    for _ in range(3):
        assert store.renew(plan, taken) == taken
    assert inside.calls == calls + 1


@pytest.mark.parametrize("policy", ["allow", "deny", "local"])
def test_an_outcome_of_a_policy_releases_nothing(mode: Mode, clock: ManualClock, policy: str) -> None:
    inside, one = Breakable(clock), place(on_store_failure=policy)
    store = fallback(inside, mode, clock)
    inside.down = True
    for _ in range(5):
        results = store.run(one)
        assert allowed(results) == (policy != "deny")
        store.refund(Plan((one,)), store.renew(Plan((one,)), results))


def test_notes_take_no_slots(clock: ManualClock) -> None:
    """The note has all slots taken. Releases are not noted."""
    local_fallback, inside = LocalFallback(policy="local", clock=clock), MemoryStore(clock=clock)
    plan = Plan((place(1), check("5/minute")))
    taken = inside.run(plan)
    local_fallback.note(plan.checks, taken)
    inside.refund(Plan(plan.checks[:1]), taken[:1])
    held, counted = local_fallback.answer(plan, DOWN)
    assert (held.allowed, counted.remaining) == (True, 3), "the note of a counted rule is used"


@pytest.mark.parametrize(("replicas", "admitted"), [(1, 8), (4, 2), (100, 1)])
def test_each_process_has_its_part_of_the_slots(clock: ManualClock, replicas: int, admitted: int) -> None:
    local_fallback, one = LocalFallback(policy="local", replicas=replicas, clock=clock), Plan((place(8),))
    results = [local_fallback.answer(one, DOWN) for _ in range(10)]
    assert sum(map(allowed, results)) == admitted
    local_fallback.refund(one, local_fallback.renew(one, results[0]))
    assert [allowed(local_fallback.answer(one, DOWN)) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("denied", [False, True])
def test_a_forced_plan_is_charged_in_the_local_fallback_too(clock: ManualClock, algorithm: str, denied: bool) -> None:
    local_fallback, one = LocalFallback(policy="local", clock=clock), check("5/minute", cost=4, algorithm=algorithm)
    checks = (one, check(scope="other", on_store_failure="deny")) if denied else (one,)
    local_fallback.answer(Plan((one,)), DOWN)
    local_fallback.answer(Plan(checks, forced=True), DOWN)
    assert local_fallback.answer(Plan((one,), charge=False), DOWN)[0].remaining == 0


# Memory


def test_new_identities_in_a_full_store_share_slots_and_release_them(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=2, clock=clock)
    full = [place(1, identity, scope="full") for identity in "ab"]
    assert all(allowed(store.run(Plan((one,)))) for one in full)
    newcomers = [Plan((place(2, identity),), network=lambda: "203.0.113.0") for identity in "cdefgh"]
    for first, second, third in zip(newcomers, newcomers[1:], newcomers[2:], strict=False):
        taken = [store.run(first), store.run(second)]
        clock.advance(1)
        taken[1] = store.renew(second, taken[1])
        assert not allowed(store.run(third))
        store.refund(first, taken[0])
        again = store.run(third)
        assert allowed(again)
        for plan, results in ((second, taken[1]), (third, again)):
            store.refund(plan, results)
        assert [allowed(store.run(Plan((one,)))) for one in full] == [False, False], "a refused identity is not evicted"
    assert len(store) == 2
    rate = Plan((check("2/minute", "z"),))
    assert [allowed(store.run(rate)) for _ in range(3)] == [True, True, False]
    assert allowed(store.run(newcomers[0])), "slots are no budget of requests, even with the same numbers"


def test_a_slot_in_use_is_never_evicted(clock: ManualClock) -> None:
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
