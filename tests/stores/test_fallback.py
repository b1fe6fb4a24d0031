"""fallback.py and local_fallback.py: requests while the store is unavailable, and the cost of an outage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock, Quota, StoreError
from sluicegate.algorithms import ALGORITHMS
from sluicegate.clock import MICROSECOND, Clock
from sluicegate.plan import NEVER, Check, Outcome, Plan
from sluicegate.rules.terms import make_terms
from sluicegate.stores import AsyncStore, Store, StoreChange
from sluicegate.stores.breaker import Breaker, Breakers
from sluicegate.stores.deny_cache import Refusals
from sluicegate.stores.guard import GuardedStore
from sluicegate.stores.local_fallback import NOTES, LocalFallback
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import AsyncAdapter, StoreExam
from sluicegate.testing.scenarios import examples, quotas
from sluicegate.testing.store import NAMES
from tests.stores.breakable import DEADLINE, Breakable, Called, Mode, allowed, check
from tests.stores.guards import AsyncFallback, Fallback

SECOND = MICROSECOND
DOWN = StoreError("there:6379", "it hangs")


def at_once(work: Callable[[], None]) -> None:
    work()


def guards(clock: Clock | None, policy: str = "local", replicas: int = 1) -> dict[str, Any]:
    return {
        "breakers": Breakers(partial(Breaker, deadline=DEADLINE, clock=clock, jitter=lambda: 1)),
        "local_fallback": LocalFallback(policy=policy, replicas=replicas, clock=clock),
    }


def around(store: Store, mode: Mode, clock: ManualClock, **options: Any) -> Called:
    given = guards(clock, **options)
    if mode.is_async:
        return mode.called(AsyncFallback(AsyncAdapter(store), deadline=DEADLINE, **given))
    return mode.called(Fallback(store, launch=at_once, **given))


class TestHealthy(StoreExam):
    """With a working store, the wrapper changes nothing."""

    examples = 10

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return Fallback(MemoryStore(clock=clock), **guards(clock))


class TestHealthyAsync(StoreExam):
    examples = 5

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return AsyncFallback(AsyncAdapter(MemoryStore(clock=clock)), deadline=DEADLINE, **guards(clock))


class TestLocal(StoreExam):
    """With a store that always fails, the local fallback meets the contract of a store, except for the source."""

    examples = 10

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return _Relabelled(clock)


class _Relabelled(GuardedStore):
    """Return the outcomes of the local fallback with the source "store", so that the exam can compare them."""

    def __init__(self, clock: Clock | None) -> None:
        super().__init__(_Dead(), refusals=Refusals(staleness=0), **guards(clock), launch=lambda work: None)

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        outcomes = super().run(plan)
        assert {outcome.source for outcome in outcomes} <= {"local"}
        return tuple(outcome._replace(source="store") for outcome in outcomes)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        back = {"store": "local"}
        super().refund(plan, tuple(each._replace(source=back.get(each.source, "policy")) for each in outcomes))  # type: ignore[arg-type]

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        back = {"store": "local"}
        counted = tuple(each._replace(source=back.get(each.source, "policy")) for each in outcomes)  # type: ignore[arg-type]
        renewed = super().renew(plan, counted)
        return tuple(each._replace(at=new.at) for each, new in zip(outcomes, renewed, strict=True))

    def forget(self, rule_id: str, identity: str) -> None:
        with pytest.raises(StoreError):
            super().forget(rule_id, identity)


class _Dead:
    """A store that always fails."""

    def _fail(self, *arguments: Any) -> Any:
        raise StoreError("dead", "it is gone")

    run = refund = renew = forget = _fail

    def close(self) -> None:
        """Nothing was opened."""


# What an outage costs


def test_an_outage_costs_only_the_first_request_a_deadline_and_some_probes(mode: Mode, clock: ManualClock) -> None:
    """1000 requests in 10 seconds while the store hangs: the first one waits, later only probes do."""
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    inside.down, waited = True, []
    for number in range(1000):
        calls = inside.calls
        store.run(check("1000000/minute", f"client {number}"))
        waited.append(inside.calls - calls)
        clock.advance(0.01)
    assert inside.calls <= 1 + 5 + 11, "one request, five quick probes, then one a second"
    assert waited[0] == 1


def test_no_request_waits_for_a_probe() -> None:
    called, answer = threading.Event(), threading.Event()

    class Hanging(Breakable):
        def _come(self) -> None:
            if threading.current_thread().name == "sluicegate-probe":
                called.set()
                assert answer.wait(60)
            super()._come()

    clock = ManualClock()
    inside = Hanging(clock)
    store = Fallback(inside, **guards(clock))
    inside.down = True
    store.run(Plan((check(),)))
    clock.advance(1)
    assert store.run(Plan((check(),)))[0].source == "local", "and this request started the probe"
    assert called.wait(60)
    assert store.run(Plan((check(),)))[0].source == "local"
    inside.down = False
    answer.set()
    while store.run(Plan((check(cost=0),)))[0].source == "local":  # until the thread of the probe has ended
        pass


def test_no_task_waits_for_a_probe_and_closing_ends_it() -> None:
    class Hanging(AsyncAdapter):
        ended = False

        async def run(self, plan: Plan) -> tuple[Outcome, ...]:
            if not plan.charge:
                try:
                    await asyncio.Event().wait()
                finally:
                    self.ended = True
            return await super().run(plan)

    async def main() -> None:
        clock = ManualClock()
        inside = Breakable(clock)
        hanging = Hanging(inside)
        store = AsyncFallback(hanging, deadline=60, **guards(clock))
        inside.down = True
        for _ in range(3):
            assert (await store.run(Plan((check(),))))[0].source == "local"
            clock.advance(1)
            await asyncio.sleep(0)
        assert not hanging.ended
        await store.close()
        await asyncio.sleep(0)
        assert hanging.ended

    asyncio.run(main())


@pytest.mark.slow
def test_a_probe_that_hangs_ends_at_the_deadline() -> None:
    class Hanging(AsyncAdapter):
        async def run(self, plan: Plan) -> tuple[Outcome, ...]:
            if not plan.charge:
                await asyncio.Event().wait()
            return await super().run(plan)

    async def main() -> None:
        clock = ManualClock()
        inside = Breakable(clock)
        given = guards(clock)
        store = AsyncFallback(Hanging(inside), deadline=0.001, **given)
        inside.down = True
        await store.run(Plan((check(),)))
        clock.advance(1)
        await store.run(Plan((check(),)))
        await asyncio.gather(*store._probes)
        assert given["breakers"].whole.wait_us == SECOND // 10

    asyncio.run(main())


def test_probes_run_in_the_context_of_no_request() -> None:
    """Else they add their time to its event, and keep it alive for the whole outage."""
    request: ContextVar[str | None] = ContextVar("request", default=None)
    seen: list[tuple[bool, str | None]] = []

    async def main() -> None:
        probed = asyncio.Event()

        class Seeing(AsyncAdapter):
            async def run(self, plan: Plan) -> tuple[Outcome, ...]:
                seen.append((plan.charge, request.get()))
                if len(seen) > 3:
                    probed.set()
                return await super().run(plan)

        request.set("alice's")
        for clock in (None, ManualClock()):  # probes by a timer, and by the next request
            inside = Breakable(clock)
            store = AsyncFallback(Seeing(inside), deadline=60, **guards(clock))
            inside.down = True
            await store.run(Plan((check(),)))
            if clock is None:
                async with asyncio.timeout(60):
                    await probed.wait()
            else:
                clock.advance(1)
                await store.run(Plan((check(),)))
                await asyncio.gather(*store._probes)
            await store.close()

    asyncio.run(main())
    assert set(seen) == {(True, "alice's"), (False, None)}
    assert seen.count((True, "alice's")) == 2


def test_it_recovers_within_two_seconds_at_ten_requests_a_second(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    inside.down = True
    for _ in range(100):
        store.run(check("1000/minute"))
        clock.advance(0.1)
    inside.down = False
    back = clock.now_us()
    while store.run(check("1000/minute"))[0].source != "store":
        clock.advance(0.1)
    assert clock.now_us() - back <= 2 * SECOND
    assert inside.run(Plan((check("1000/minute", cost=0),)))[0].remaining == 999, "a probe charges nothing"


def test_a_full_server_does_not_flap(mode: Mode, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """The server replies to every probe and refuses every charge."""
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    inside.full = True
    sources = set()
    for _ in range(200):
        sources.add(store.run(check("1000/minute"))[0].source)
        store.run(check("1000/minute"), charge=False)
        clock.advance(0.05)
    assert sources == {"local"}
    assert len(caplog.records) == 1
    assert inside.calls < 50


@pytest.mark.parametrize("by", ["peek", "reset"])
@pytest.mark.parametrize("opened_by", ["charge", "peek", "reset"])
def test_calls_that_charge_nothing_close_the_circuit(mode: Mode, clock: ManualClock, by: str, opened_by: str) -> None:
    """Also if no other calls come: else a status page shows the local fallback for ever."""
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    one = check("5/hour")
    inside.run(Plan((one,)))

    def called(call: str) -> bool:
        """True if the store answered."""
        try:
            if call != "reset":
                return store.run(one, charge=call == "charge")[0].source == "store"
            store.forget(one.terms.rule_id, "a")
        except StoreError:
            return False
        return True

    inside.down = True
    assert not called(opened_by)
    clock.advance(1)
    assert not called(by)  # it begins a probe, or is one
    inside.down = False
    clock.advance(1)
    results = [called(by) for _ in range(3)]
    assert results[1:] == [True, True]
    assert called("charge"), "the circuit is closed"


def test_another_exception_is_raised_and_opens_no_circuit(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)

    def slip() -> None:
        raise KeyError("a mistake in a store")

    inside.before = slip
    with pytest.raises(KeyError):
        store.run(check())
    inside.before = lambda: None
    assert store.run(check())[0].source == "store"


def test_a_cancelled_request_is_no_failure_and_returns_its_trial() -> None:
    async def main() -> None:
        clock = ManualClock()
        inside, gate = Breakable(clock), asyncio.Event()

        class Slow(AsyncAdapter):
            async def run(self, plan: Plan) -> tuple[Outcome, ...]:
                if plan.charge and not inside.down:
                    await gate.wait()
                return await super().run(plan)

        store = AsyncFallback(Slow(inside), deadline=DEADLINE, **guards(clock))

        async def cancelled() -> None:
            task = asyncio.create_task(store.run(Plan((check(),))))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        await cancelled()
        inside.down = True
        assert (await store.run(Plan((check(),))))[0].source == "local", (
            "the first failure, because the breaker was still closed"
        )
        inside.down = False
        for _ in range(2):  # a probe, and then the trial
            clock.advance(1)
            await store.run(Plan((check(),), charge=False))
            for _ in range(5):
                await asyncio.sleep(0)
            await cancelled()
        gate.set()
        while (await store.run(Plan((check(cost=0),))))[0].source != "store":
            clock.advance(1)
            for _ in range(5):
                await asyncio.sleep(0)

    asyncio.run(main())


def test_two_event_loops_one_after_the_other() -> None:
    """A probe that was lost with the first loop does not keep the second from finding the store again."""

    class Slow(AsyncAdapter):
        async def run(self, plan: Plan) -> tuple[Outcome, ...]:
            for _ in range(0 if plan.charge else 4):
                await asyncio.sleep(0)
            return await super().run(plan)

    clock = ManualClock()
    inside = Breakable(clock)
    store = AsyncFallback(Slow(inside), deadline=60, **guards(clock))

    async def request() -> str:
        return (await store.run(Plan((check("1000/minute"),))))[0].source

    inside.down = True
    assert asyncio.run(request()) == "local"
    inside.down = False
    for _ in range(6):
        clock.advance(1.2)
        results = asyncio.run(request())  # the loop ends before its probe begins
    assert results == "local"

    async def run() -> str:
        while await request() != "store":
            clock.advance(0.1)
            for _ in range(5):
                await asyncio.sleep(0)
        return "store"

    assert asyncio.run(run()) == "store"


def test_if_no_thread_can_start_requests_are_decided_and_find_the_store_again(clock: ManualClock) -> None:
    def none_left(work: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    inside = Breakable(clock)
    store = Fallback(inside, **guards(clock), launch=none_left)
    inside.down = True
    for _ in range(3):
        assert store.run(Plan((check(),)))[0].source == "local"
        clock.advance(1)
    inside.down = False
    sources = []
    for _ in range(10):
        sources.append(store.run(Plan((check("1000/minute"),)))[0].source)
        clock.advance(1)
    assert sources[-1] == "store"


# The policies

LOCAL, ALLOW, DENY = ({"on_store_failure": policy} for policy in ("local", "allow", "deny"))


@pytest.mark.parametrize(
    ("policy", "rules", "results"),
    [
        ("local", [{}], [(True, "local", 4), (True, "local", 3), (True, "local", 2)]),
        ("allow", [{}], [(True, "policy", 5)] * 3),
        ("deny", [{}], [(False, "policy", 0)] * 3),
        ("raise", [LOCAL], [(True, "local", 4), (True, "local", 3), (True, "local", 2)]),
        ("deny", [LOCAL], [(True, "local", 4), (True, "local", 3), (True, "local", 2)]),
        ("local", [ALLOW], [(True, "policy", 5)] * 3),
        ("local", [DENY], [(False, "policy", 0)] * 3),
    ],
)
def test_policies(mode: Mode, clock: ManualClock, policy: str, rules: list[dict[str, Any]], results: list[Any]) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock, policy=policy)
    inside.down = True
    checks = [check(scope=f"rule{number}", **rule) for number, rule in enumerate(rules)]
    answers = [store.run(*checks) for _ in range(3)]
    assert [(one.allowed, one.source, one.remaining) for [one] in answers] == results
    assert all(one.limit == 5 for [one] in answers)


def test_raise_raises_at_once_while_open(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock, policy="raise")
    inside.down = True
    for _ in range(3):
        with pytest.raises(StoreError, match="breakable"):
            store.run(check())
    assert inside.calls == 1


def test_a_refusal_by_deny_charges_no_other_rule(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    inside.down = True
    local, deny = check(scope="local"), check(scope="deny", on_store_failure="deny")
    for _ in range(9):
        assert [outcome.allowed for outcome in store.run(local, deny)] == [True, False]
    assert store.run(local)[0].remaining == 4


def test_a_local_refusal_refuses_even_if_other_rules_allow(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    inside.down = True
    local, allow = check("1/minute", scope="local"), check(scope="allow", on_store_failure="allow")
    results = [store.run(local, allow) for _ in range(2)]
    assert [[outcome.allowed for outcome in outcomes] for outcomes in results] == [[True, True], [False, True]]


def test_the_wait_of_deny_lasts_until_the_next_probe(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock, policy="deny")
    inside.down = True
    for _ in range(10):
        [outcome] = store.run(check())
        assert outcome.retry_after == SECOND
        clock.advance(1)


# The budgets of the local fallback


@pytest.mark.parametrize(
    ("quota", "algorithm", "replicas", "admitted"),
    [
        ("8/minute", "sliding-window", 1, 8),
        ("8/minute", "sliding-window", 4, 2),
        ("9/minute", "fixed-window", 4, 2),
        ("2/minute", "sliding-log", 4, 1),
        ("8/minute", "sliding-counter", 4, 2),
        ("8/minute", "gcra", 4, 2),
        ("1/second burst 20", "gcra", 4, 5),
        ("1/second burst 2", "gcra", 4, 1),
        ("4 per 36500 days", "sliding-window", 2, 2),
        ("4 per 36500 days", "gcra", 2, 2),
        ("1000000 per 36500 days", "gcra", 3, 1),  # a third would not be exact
    ],
)
def test_a_process_has_its_part_of_the_limit(
    clock: ManualClock, quota: str, algorithm: str, replicas: int, admitted: int
) -> None:
    local_fallback = LocalFallback(policy="local", replicas=replicas, clock=clock)
    one = check(quota, algorithm=algorithm)
    results = [local_fallback.answer(Plan((one,)), DOWN)[0] for _ in range(30)]
    assert sum(outcome.allowed for outcome in results) == results[0].limit == admitted


def test_a_buckets_rate_is_divided_and_not_only_its_burst(clock: ManualClock) -> None:
    local_fallback = LocalFallback(policy="local", replicas=4, clock=clock)
    plan, admitted = Plan((check("1/second burst 4", algorithm="gcra"),)), 0
    for _ in range(40):
        admitted += local_fallback.answer(plan, DOWN)[0].allowed
        clock.advance(1)
    assert admitted == 10


@pytest.mark.parametrize(
    ("cost", "results"),
    [(1, (True, 1, 0)), (2, (True, 0, 0)), (8, (True, 0, 0)), (9, (False, 2, NEVER))],
)
def test_a_cost_above_the_part_takes_all_of_it(clock: ManualClock, cost: int, results: tuple[Any, ...]) -> None:
    local_fallback = LocalFallback(policy="local", replicas=4, clock=clock)
    [outcome] = local_fallback.answer(Plan((check("8/minute", cost=cost),)), DOWN)
    assert (outcome.allowed, outcome.remaining, outcome.retry_after) == results


@pytest.mark.parametrize("algorithm", NAMES)
def test_every_quota_can_be_divided(algorithm: str) -> None:
    @examples(60)
    @given(quotas(ALGORITHMS[algorithm]), st.integers(1, 1000))
    def divide(quota: Quota, replicas: int) -> None:
        [terms] = make_terms("exam", (quota,), algorithm=algorithm)
        local_fallback = LocalFallback(policy="local", replicas=replicas, clock=ManualClock())
        plan = Plan((Check(terms, "a", terms.params[0]),))
        [outcome] = local_fallback.answer(plan, DOWN)
        assert (outcome.allowed, outcome.remaining) == (True, 0)
        assert outcome.limit == max(1, terms.params[0] // replicas) or outcome.limit == 1

    divide()


# Notes of the store's last outcomes


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize(("used", "replicas", "left"), [(0, 1, 8), (3, 1, 5), (8, 1, 0), (5, 4, 0), (4, 4, 1)])
def test_an_outage_does_not_refill_a_budget(
    mode: Mode, clock: ManualClock, algorithm: str, used: int, replicas: int, left: int
) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock, replicas=replicas)
    one = check("8/minute", algorithm=algorithm)
    for _ in range(used):
        store.run(one)
    clock.advance(0.001)
    inside.down = True
    assert sum(store.run(one)[0].allowed for _ in range(20)) == left


def test_an_outage_does_not_refill_a_budget_of_an_identity_that_did_something_else(
    mode: Mode, clock: ManualClock
) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    login = check("5/hour", scope="login")
    for one in (login._replace(cost=4), check("9/hour", scope="read"), check("9/hour", cost=0)):
        store.run(one)
    inside.down = True
    assert [store.run(login)[0].allowed for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("algorithm", NAMES)
def test_a_used_up_budget_is_free_when_it_would_be_in_the_store(clock: ManualClock, algorithm: str) -> None:
    inside, wanted = Breakable(clock), check("8/minute", cost=8, algorithm=algorithm)
    store = Fallback(inside, **guards(clock), launch=lambda work: None)
    [taken] = store.run(Plan((wanted,)))
    free_at = clock.now_us() + taken.reset_after
    clock.advance(20)
    inside.down = True
    assert not store.run(Plan((wanted,)))[0].allowed
    clock.advance_us(free_at - clock.now_us() - 1)
    assert not store.run(Plan((wanted,)))[0].allowed
    clock.advance_us(1)
    assert store.run(Plan((wanted,)))[0].allowed


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("used", [1, 3])
def test_units_of_an_earlier_outage_stand_for_no_later_unit_of_the_store(
    clock: ManualClock, algorithm: str, used: int
) -> None:
    """Both were used once. The unit of this process is free again before the store's."""
    local_fallback, inside = LocalFallback(policy="local", clock=clock), MemoryStore(clock=clock)
    early = check("8/minute", cost=used, algorithm=algorithm)
    local_fallback.answer(Plan((early,)), DOWN)
    clock.advance(40)
    late = Plan((early._replace(cost=1),))
    [noted] = outcomes = inside.run(late)
    local_fallback.note(late.checks, outcomes)
    look = Plan((early._replace(cost=0),), charge=False)
    assert local_fallback.answer(look, DOWN)[0].remaining <= noted.remaining
    clock.advance_us(noted.next_after - 1)
    assert local_fallback.answer(look, DOWN)[0].remaining <= noted.remaining


def test_units_that_are_free_again_are_not_charged_again(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    store.run(check(cost=5))
    clock.advance(60)
    inside.down = True
    assert store.run(check(cost=5))[0].allowed


def test_a_shared_budget_is_charged_once_for_its_notes(clock: ManualClock) -> None:
    """Notes of several identities may have the same shared budget."""
    local_fallback, inside = LocalFallback(policy="local", clock=clock), MemoryStore(clock=clock)
    shared = check("5/minute", "all", scope="shared", cost=3)
    plan = Plan((shared, check("9/hour")))
    local_fallback.note(plan.checks, inside.run(plan))
    clock.advance(61)
    one = shared._replace(cost=1)
    assert local_fallback.answer(Plan((one, check("9/hour", "b"))), DOWN)[0].remaining == 4
    assert local_fallback.answer(Plan((one, check("9/hour"))), DOWN)[0].remaining == 3


def test_each_budget_of_a_plan_has_its_own_note(clock: ManualClock) -> None:
    local_fallback, inside = LocalFallback(policy="local", clock=clock), MemoryStore(clock=clock)
    login, read = check("5/minute", scope="login", cost=3), check("9/hour", "b", scope="read", cost=2)
    plan = Plan((login, read))
    local_fallback.note(plan.checks, inside.run(plan))
    for budget, left in ((read, 6), (login, 1)):
        assert local_fallback.answer(Plan((budget._replace(cost=1),)), DOWN)[0].remaining == left


def test_a_reset_is_remembered(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    one = check("5/hour", cost=5)
    store.run(one)
    store.forget(one.terms.rule_id, "a")
    inside.down = True
    assert store.run(one)[0].allowed


def test_a_second_outage_remembers_the_first(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    used = []
    for _ in range(3):
        inside.down = True
        used.append(store.run(check("5/hour"))[0].remaining)
        inside.down = False
        while store.run(check("5/hour", "another", cost=0))[0].source != "store":
            clock.advance(1)
    assert used == [4, 3, 2]


@pytest.mark.slow
def test_notes_are_bounded_and_the_newest_stay(clock: ManualClock) -> None:
    local_fallback, inside = LocalFallback(policy="local", clock=clock), MemoryStore(clock=clock)
    for number in range(3 * NOTES + 1):
        plan = Plan((check("5/hour", f"client {number}", cost=5),))
        local_fallback.note(plan.checks, inside.run(plan))
    assert len(local_fallback._fresh) + len(local_fallback._older) <= 2 * NOTES
    results = [
        local_fallback.answer(Plan((check("5/hour", f"client {number}"),)), DOWN)[0].allowed
        for number in (0, 2 * NOTES, 3 * NOTES)
    ]
    assert results == [True, False, False]


@pytest.mark.slow
def test_an_older_note_of_a_budget_is_not_charged_after_its_newest(clock: ManualClock) -> None:
    """The older one says that all is used. Nine units have come free since."""
    local_fallback, inside = LocalFallback(policy="local", clock=clock), MemoryStore(clock=clock)

    def hit(identity: str = "a", cost: int = 1) -> int:
        plan = Plan((check("10/minute", identity, cost=cost),))
        outcomes = inside.run(plan)
        local_fallback.note(plan.checks, outcomes)
        return outcomes[0].remaining

    assert hit(cost=9) == 1
    clock.advance(30)
    assert hit() == 0
    for number in range(NOTES):
        hit(f"client {number}")
    clock.advance(31)
    assert hit() == 8
    one = Plan((check("10/minute"),))
    assert [local_fallback.answer(one, DOWN)[0].remaining for _ in range(3)] == [7, 6, 5]


# Refunds, resets, closing


def test_a_refund_goes_to_where_the_charge_was_made(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    plan = Plan((check(), check("5/hour", scope="other", on_store_failure="allow")))
    there = store.run(*plan.checks)
    store.refund(plan, there)
    assert inside.run(Plan((check(cost=0),)))[0].remaining == 5
    inside.down = True
    for _ in range(4):  # one was noted
        here = store.run(*plan.checks)
    assert here[0].remaining == 0
    store.refund(plan, here)
    assert [store.run(*plan.checks)[0].allowed for _ in range(2)] == [True, False]


def test_a_refused_plan_refunds_nothing(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    inside.down = True
    local, deny = check(scope="local"), check(scope="deny", on_store_failure="deny")
    store.run(local)
    store.refund(Plan((local, deny)), store.run(local, deny))
    assert store.run(local)[0].remaining == 3


def test_a_refund_that_fails_is_dropped_and_opens_the_breaker(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    plan = Plan((check(),))
    outcomes = store.run(*plan.checks)
    inside.down = True
    calls = inside.calls
    for _ in range(3):
        store.refund(plan, outcomes)
    assert inside.calls == calls + 1
    assert store.run(check())[0].source == "local"


def test_a_reset_that_fails_raises(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = around(inside, mode, clock)
    one = check("1/hour")
    store.run(one)
    inside.down = True
    assert not store.run(one)[0].allowed
    for _ in range(2):
        with pytest.raises(StoreError):
            store.forget(one.terms.rule_id, "a")
    assert store.run(one)[0].allowed, "it was dropped locally"


@pytest.mark.parametrize("owned", [True, False])
def test_close_closes_an_owned_store(mode: Mode, clock: ManualClock, owned: bool) -> None:
    inside, given = Breakable(clock), guards(clock)
    store: Store | AsyncStore = Fallback(inside, owned=owned, **given)
    if mode.is_async:
        store = AsyncFallback(AsyncAdapter(inside), owned=owned, deadline=DEADLINE, **given)
    assert repr(store).startswith(("GuardedStore(StoreInside", "AsyncGuardedStore(<"))
    mode.called(store).close()
    assert inside.closed == owned
    assert allowed(mode.called(store).run(check()))


class Nodes(Breakable):
    """A store with two servers. One can be down, or the other can have replaced it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.dead: set[str] = set()
        self.where = {"a": "node 1", "b": "node 2"}

    def parts(self, *identities: str) -> tuple[str, ...]:
        return tuple([self.where[identity] for identity in identities or self.where])

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        for part in self.parts(*[each.identity for each in plan.checks]):
            if part in self.dead:
                self.calls += 1
                raise StoreError(part, "it is dead", concerns="node")
        return super().run(plan)


def test_a_server_that_is_down_does_not_affect_the_others(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    inside = Nodes(clock)
    results: list[StoreChange] = []
    make = partial(Breaker, deadline=DEADLINE, clock=clock, jitter=lambda: 1, on_change=results.append)
    local_fallback = LocalFallback(policy="local", replicas=1, clock=clock)
    store = Fallback(inside, breakers=Breakers(make, parts=inside.parts), local_fallback=local_fallback, launch=at_once)
    one, two = Plan((check(identity="a"),)), Plan((check(identity="b"),))

    def sources(*plans: Plan) -> list[str]:
        return [store.run(plan)[0].source for plan in plans]

    assert sources(one, two) == ["store", "store"]
    inside.dead.add("node 2")
    for _ in range(20):
        clock.advance(0.01)
        assert sources(one, two, Plan(one.checks + two.checks)) == ["store", "local", "local"]
    assert [(change.store, change.available) for change in results] == [("node 2", False)]
    inside.where["b"] = "node 3"  # it was the replica: the next probe gets a reply, from another server
    assert sources(two) == ["store"]
    clock.advance(2)
    inside.where["b"] = "node 2"
    assert sources(two) == ["local"], "the breaker of a server that has not answered stays open"
    inside.dead.clear()
    clock.advance(2)
    assert sources(two, two) == ["local", "store"], "a probe, then the trial"
    assert [(change.store, change.available) for change in results] == [("node 2", False), ("node 2", True)]


def test_a_probe_that_another_server_replies_to_closes_the_breaker(clock: ManualClock) -> None:
    inside = Nodes(clock)
    results: list[StoreChange] = []
    make = partial(Breaker, deadline=DEADLINE, clock=clock, jitter=lambda: 1, on_change=results.append)
    local_fallback = LocalFallback(policy="local", replicas=1, clock=clock)
    work: list[Callable[[], None]] = []
    store = Fallback(
        inside, breakers=Breakers(make, parts=inside.parts), local_fallback=local_fallback, launch=work.append
    )
    inside.dead.add("node 2")
    store.run(Plan((check(identity="b"),)))
    clock.advance(2)
    store.run(Plan((check(identity="b"),)))
    inside.where["b"] = "node 3"
    [probe] = work
    probe()
    assert [(change.store, change.available) for change in results] == [("node 2", False), ("node 2", True)]


def test_one_network_uses_up_one_shared_budget_of_the_local_fallback(clock: ManualClock) -> None:
    """As in a full memory store. Charges from notes go to the same shared budget."""
    local_fallback = LocalFallback(policy="local", replicas=1, clock=clock)
    local_fallback._memory = MemoryStore(max_keys=1, clock=clock)
    used = Plan((check("9/hour", "noted"),), network=lambda: "203.0.113.0")
    local_fallback.note(used.checks, MemoryStore(clock=clock).run(Plan((check("9/hour", "noted", cost=4),))))
    for _ in range(2):
        local_fallback.answer(Plan((check("1/day", "blocked"),)), DOWN)
    assert local_fallback.answer(used, DOWN)[0].remaining == 4
    for number in range(1_000):
        local_fallback.answer(used._replace(checks=(check("9/hour", f"{number}"),)), DOWN)
    shared = local_fallback._memory._table._shared.values()
    assert [(each.state is not None, len(each.users)) for each in shared] == [(True, 5)]


@pytest.mark.parametrize("before", ["refund", "charge"])
def test_a_note_of_one_client_drops_no_budget_of_another(clock: ManualClock, before: str) -> None:
    """It is charged as of an earlier time. At that time the budget of the other lies ahead of the clock."""
    local_fallback, store = LocalFallback(policy="local", replicas=1, clock=clock), MemoryStore(clock=clock)
    victim, others = Plan((check("5/minute", "victim"),)), [Plan((check("100/day", f"{n}"),)) for n in range(20)]
    if before == "charge":
        local_fallback.answer(victim, DOWN)
        clock.advance(60)
    for other in others:
        local_fallback.note(other.checks, store.run(other))
    clock.advance(100)
    if before == "refund":
        local_fallback.refund(victim, tuple(local_fallback.answer(victim, DOWN)))
    admitted = 0
    for other in others:
        admitted += sum([local_fallback.answer(victim, DOWN)[0].allowed for _ in range(6)])
        assert local_fallback.answer(other, DOWN)[0].remaining == 98
    assert admitted == 5
