"""Reservations and concurrency slots, sync and async, in memory and on real servers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from threading import Barrier
from typing import Any

import pytest

from sluicegate import AsyncLimiter, Concurrency, Limiter, ManualClock, RateLimitExceeded, StoreError
from sluicegate.errors import QuotaError, RuleError
from sluicegate.testing import AsyncAdapter
from sluicegate.testing.store import NAMES
from tests.servers import MAKERS
from tests.stores.breakable import Breakable
from tests.stores.places import PATIENCE, url

ALGORITHMS = pytest.mark.parametrize("algorithm", NAMES)
QUOTA = "100/minute"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_760_000_000)


class EitherLimiter:
    """A sync or async limiter, with its reservations and slots, called as if sync."""

    def __init__(self, limiter: Any, runner: asyncio.Runner | None) -> None:
        self.inner, self._runner = limiter, runner

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self.wait(getattr(self.inner, name)(*arguments, **options))

    def wait(self, answer: Any) -> Any:
        return self._runner.run(answer) if self._runner is not None and asyncio.iscoroutine(answer) else answer

    def enter(self, context: Any) -> Any:
        return self.wait(context.__aenter__()) if self._runner is not None else context.__enter__()

    def leave(self, context: Any, error: BaseException | None = None) -> bool:
        given = (type(error), error, None) if error is not None else (None, None, None)
        swallowed: bool = self.wait((context.__aexit__ if self._runner is not None else context.__exit__)(*given))
        return swallowed

    def left(self, quota: Any = QUOTA, identity: str = "a", **options: Any) -> int:
        remaining: int = self("peek", quota, identity, cost=0, **options).remaining
        return remaining


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["memory", *MAKERS])
def where(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    server = request.getfixturevalue(request.param)
    server.flush()
    return url(server)


@pytest.fixture
def limiter(mode: str, where: str, clock: ManualClock) -> Iterator[EitherLimiter]:
    if mode == "sync":
        with Limiter(where, clock=clock, deadline=PATIENCE) as limiter:
            yield EitherLimiter(limiter, None)
        return
    with asyncio.Runner() as runner:
        async_limiter = AsyncLimiter(where, clock=clock, deadline=PATIENCE)
        yield EitherLimiter(async_limiter, runner)
        runner.run(async_limiter.close())


@ALGORITHMS
@pytest.mark.parametrize(
    ("estimate", "actual", "left"),
    [(60, 60, 40), (60, 20, 80), (60, 0, 100), (60, 90, 10), (60, 100, 0), (60, 10**9, 0), (0, 30, 70), (0, 0, 100)],
)
def test_a_settled_reservation_costs_the_actual_cost(
    limiter: EitherLimiter, algorithm: Any, estimate: int, actual: int, left: int
) -> None:
    reservation = limiter("reserve", QUOTA, "a", cost=estimate, algorithm=algorithm)
    assert reservation
    assert reservation.decision.remaining == 100 - estimate
    limiter.wait(reservation.settle(actual))
    assert limiter.left(algorithm=algorithm) == left
    for again in (actual, 0, 100):
        limiter.wait(reservation.settle(again))
    limiter.wait(reservation.cancel())
    assert limiter.left(algorithm=algorithm) == left, "only the first time counts"


@ALGORITHMS
def test_a_cancelled_reservation_costs_nothing(limiter: EitherLimiter, algorithm: Any) -> None:
    limiter("hit", QUOTA, "a", cost=10, algorithm=algorithm)
    limiter.wait(limiter("reserve", QUOTA, "a", cost=90, algorithm=algorithm).cancel())
    assert limiter.left(algorithm=algorithm) == 90


@ALGORITHMS
def test_debt_is_charged_whatever_is_left_and_later_requests_wait_for_it(
    limiter: EitherLimiter, clock: ManualClock, algorithm: Any
) -> None:
    reservation = limiter("reserve", QUOTA, "a", cost=10, algorithm=algorithm)
    clock.advance(1)
    assert limiter("hit", QUOTA, "a", cost=90, algorithm=algorithm)
    limiter.wait(reservation.settle(500))
    refused = limiter("hit", QUOTA, "a", algorithm=algorithm)
    assert not refused, "590 units are used"
    bucket = algorithm in ("gcra", "token-bucket", "leaky-bucket")
    low, high = (290, 295) if bucket else (58, 120)
    assert low < refused.retry_after < high, "a window forgets its units at its end, a bucket leaks all of them"
    clock.advance(refused.retry_after - 0.000_001)
    assert not limiter("hit", QUOTA, "a", algorithm=algorithm)
    clock.advance(0.000_001)
    assert limiter("hit", QUOTA, "a", algorithm=algorithm)


@ALGORITHMS
def test_a_refused_reservation_has_nothing_to_settle(limiter: EitherLimiter, algorithm: Any) -> None:
    limiter("hit", QUOTA, "a", cost=50, algorithm=algorithm)
    reservation = limiter("reserve", QUOTA, "a", cost=60, algorithm=algorithm)
    assert not reservation
    for actual in (0, 40):
        limiter.wait(reservation.settle(actual))
    assert limiter.left(algorithm=algorithm) == 50


@pytest.mark.parametrize("algorithm", ["sliding-window", "sliding-log", "fixed-window"])
def test_a_refund_goes_to_the_window_that_was_charged_or_nowhere(
    limiter: EitherLimiter, clock: ManualClock, algorithm: Any
) -> None:
    reservation = limiter("reserve", QUOTA, "a", cost=60, algorithm=algorithm)
    clock.advance(60)
    limiter("hit", QUOTA, "a", cost=30, algorithm=algorithm)
    limiter.wait(reservation.settle(5))
    assert limiter.left(algorithm=algorithm) == 70


@ALGORITHMS
def test_the_charge_of_a_dead_process_expires(limiter: EitherLimiter, clock: ManualClock, algorithm: Any) -> None:
    assert limiter("reserve", QUOTA, "a", cost=100, algorithm=algorithm)  # it is never settled
    assert not limiter("hit", QUOTA, "a", algorithm=algorithm)
    clock.advance(120 if algorithm == "sliding-counter" else 60)
    assert limiter.left(algorithm=algorithm) == 100


def test_under_several_quotas_each_is_settled_up_to_its_own_limit(limiter: EitherLimiter) -> None:
    quotas = "100/minute; 1000/day"
    for actual, left in ((30, [70, 970]), (400, [0, 570])):
        limiter.wait(limiter("reserve", quotas, "a", cost=50).settle(actual))
        outcomes = limiter("peek", quotas, "a", cost=0).outcomes
        assert [outcome.remaining for outcome in outcomes] == left, "120 of it are charged to the minute, which has 100"


@pytest.mark.parametrize("actual", [-1, 1.0, "1", None, True])
def test_a_wrong_number_of_units_settles_nothing(limiter: EitherLimiter, actual: Any) -> None:
    reservation = limiter("reserve", QUOTA, "a", cost=60)
    with pytest.raises(RuleError, match="not a whole number of units"):
        limiter.wait(reservation.settle(actual))
    limiter.wait(reservation.settle(10))
    assert limiter.left() == 90


@pytest.mark.parametrize("actual", [1, 99])
def test_only_one_of_many_threads_settles(valkey: Any, actual: int) -> None:
    valkey.flush()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for where in ("memory://", url(valkey)):
            with Limiter(where, deadline=PATIENCE) as limiter, ThreadPoolExecutor(8) as threads:
                limiter.hit("1000/day", "a", cost=200)
                reservation, barrier = limiter.reserve("1000/day", "a", cost=50), Barrier(8)

                def settle(reservation: Any = reservation, barrier: Barrier = barrier) -> None:
                    barrier.wait(30)
                    reservation.settle(actual)

                for future in [threads.submit(settle) for _ in range(8)]:
                    future.result(60)
                assert limiter.peek("1000/day", "a", cost=0).remaining == 800 - actual
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("actual", [1, 99])
def test_only_one_of_many_tasks_settles_even_if_it_is_cancelled(valkey: Any, actual: int) -> None:
    valkey.flush()

    async def main(where: str) -> int | None:
        async with AsyncLimiter(where, deadline=PATIENCE) as limiter:
            await limiter.hit("1000/day", "a", cost=200)
            reservation = await limiter.reserve("1000/day", "a", cost=50)
            tasks = [asyncio.create_task(reservation.settle(actual)) for _ in range(50)]
            await asyncio.sleep(0)  # one has begun
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            async with asyncio.timeout(PATIENCE):
                while (left := (await limiter.peek("1000/day", "a", cost=0)).remaining) == 750:
                    pass
            return left

    for where in ("memory://", url(valkey)):
        assert asyncio.run(main(where)) == 800 - actual


@pytest.fixture
def inside(clock: ManualClock) -> Breakable:
    return Breakable(clock)


@pytest.fixture
def over(mode: str, inside: Breakable) -> Iterator[Callable[[Any], EitherLimiter]]:
    """Makes a limiter of this policy over the store that may break."""
    with asyncio.Runner() as runner:
        if mode == "sync":
            yield lambda policy: EitherLimiter(Limiter(inside, on_store_failure=policy), None)
        else:
            yield lambda policy: EitherLimiter(AsyncLimiter(AsyncAdapter(inside), on_store_failure=policy), runner)


def test_a_charge_of_the_local_fallback_is_settled_there(
    over: Callable[[str], EitherLimiter], inside: Breakable
) -> None:
    limiter = over("local")
    inside.down = True
    for actual, left in ((10, 90), (95, 0)):
        reservation = limiter("reserve", QUOTA, "a", cost=60 if actual == 10 else 20)
        assert reservation.decision.degraded
        limiter.wait(reservation.settle(actual))
        assert limiter.left() == left


@pytest.mark.parametrize("policy", ["local", "allow", "deny", "raise"])
def test_a_refund_that_the_store_does_not_take_heals_by_expiry(
    over: Callable[[str], EitherLimiter], inside: Breakable, clock: ManualClock, policy: str
) -> None:
    limiter = over(policy)
    reservation = limiter("reserve", QUOTA, "a", cost=60)
    inside.down = True
    limiter.wait(reservation.settle(10))
    inside.down = False
    clock.advance(2)
    while (decision := over(policy)("peek", QUOTA, "a", cost=0)).degraded:
        clock.advance(1)
    assert decision.remaining == 40
    clock.advance(60)
    assert over(policy).left() == 100


@pytest.mark.parametrize("policy", ["local", "allow", "deny", "raise"])
def test_debt_that_the_store_does_not_record_raises_only_under_the_policy_raise(
    over: Callable[[str], EitherLimiter], inside: Breakable, policy: str
) -> None:
    limiter = over(policy)
    reservation = limiter("reserve", QUOTA, "a", cost=60)
    inside.down = True
    with pytest.raises(StoreError) if policy == "raise" else nullcontext():
        limiter.wait(reservation.settle(80))
    limiter.wait(reservation.settle(80))


# Slots


def test_a_slot_is_held_for_a_block(limiter: EitherLimiter) -> None:
    two = Concurrency(2)
    blocks = [limiter.inner.hold(two, "a", action="report") for _ in range(3)]
    places = [limiter.enter(block) for block in blocks]
    assert [bool(place) for place in places] == [True, True, False]
    assert [place.decision.remaining for place in places] == [1, 0, 0]
    assert limiter("peek", two, "a").limit == 2, "of another action"
    limiter.leave(blocks[2])
    assert limiter.left(two, action="report") == 0, "a refused block releases no slot"
    assert not limiter.leave(blocks[0], KeyError("the block failed"))
    assert limiter.left(two, action="report") == 1
    limiter.leave(blocks[1])
    assert limiter.left(two, action="report") == 2


def test_a_block_that_refuses_does_not_run_without_a_slot(limiter: EitherLimiter) -> None:
    """As `with lock:` does not (issue 26). `refuse` is an option of both forms."""
    prepared = limiter.inner.limit("1 at once")
    held = limiter.inner.hold("1 at once", "a", refuse=True)
    assert limiter.enter(held)
    for refused in (limiter.inner.hold("1 at once", "a", refuse=True), prepared.hold("a", refuse=True)):
        with pytest.raises(RateLimitExceeded) as caught:
            limiter.enter(refused)
        assert caught.value.decision.limit == 1
    assert limiter.left("1 at once") == 0, "a refused block releases no slot"
    limiter.leave(held)
    assert limiter.left("1 at once") == 1


def test_hold_takes_a_text_and_several_slots(limiter: EitherLimiter) -> None:
    block = limiter.inner.hold("3 at once", "a", cost=2)
    assert limiter.enter(block).decision.remaining == 1
    refused = limiter.inner.hold("3 at once", "a", cost=2)
    assert not limiter.enter(refused)
    limiter.leave(refused)
    limiter.leave(block)
    assert limiter.left("3 at once") == 3


def test_a_renewed_slot_stays_held_and_the_other_expires(limiter: EitherLimiter, clock: ManualClock) -> None:
    two = Concurrency(2, lease=30)
    blocks = [limiter.inner.hold(two, "a") for _ in range(2)]
    kept, _ = [limiter.enter(block) for block in blocks]
    for _ in range(3):
        clock.advance(10)
        assert limiter.wait(kept.renew()) is True
    assert limiter.left(two) == 1, "the other one's lease is over"
    clock.advance_us(29_999_999)
    assert limiter.left(two) == 1
    limiter.leave(blocks[1])
    assert limiter.left(two) == 1, "a late release frees no slot of another block"
    limiter.leave(blocks[0])
    assert limiter.left(two) == 2


def test_after_its_end_there_is_nothing_to_renew_or_release(limiter: EitherLimiter) -> None:
    block = limiter.inner.hold("1 at once", "a")
    place = limiter.enter(block)
    limiter.wait(place.release())
    other = limiter.inner.hold("1 at once", "a")
    assert limiter.enter(other)
    assert limiter.wait(place.renew()) is False
    limiter.wait(place.release())
    limiter.leave(block)
    assert limiter.left("1 at once") == 0, "it is the other one's now"
    limiter.leave(other)


async def _one_after_the_other(first: Awaitable[Any], second: Awaitable[Any]) -> Any:
    await first
    return await second


def test_a_slot_that_is_released_while_it_is_renewed_holds_nothing(
    limiter: EitherLimiter, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat in a thread renews it, and meanwhile the request ends."""
    block = limiter.inner.hold("1 at once", "a")
    slot = limiter.enter(block)
    renew = slot._store.renew

    def released_first(*charges: Any) -> Any:
        released = slot._store.refund(*slot._end())
        return renew(*charges) if released is None else _one_after_the_other(released, renew(*charges))

    monkeypatch.setattr(slot._store, "renew", released_first)
    assert limiter.wait(slot.renew()) is False
    limiter.leave(block)
    assert limiter.left("1 at once") == 1


def test_a_refused_slot_has_nothing_to_renew(limiter: EitherLimiter) -> None:
    block = limiter.inner.hold("1 at once", "a")
    limiter.enter(block)
    refused = limiter.inner.hold("1 at once", "a")
    assert limiter.wait(limiter.enter(refused).renew()) is False
    limiter.leave(refused)
    limiter.leave(block)


@pytest.mark.parametrize("policy", ["local", "allow", "raise"])
def test_a_renewal_that_the_store_did_not_answer_is_reported(mode: str, clock: ManualClock, policy: str) -> None:
    """Before, `renew` returned without a sign, and the lease ended while the block ran."""
    store: Any = Breakable(clock)
    options: dict[str, Any] = {"on_store_failure": policy, "deny_cache": 0}
    with asyncio.Runner() as runner:
        if mode == "sync":
            limiter = EitherLimiter(Limiter(store, **options), None)
        else:
            limiter = EitherLimiter(AsyncLimiter(AsyncAdapter(store), **options), runner)
        two = Concurrency(2, lease=30)
        block = limiter.inner.hold(two, "a")
        slot = limiter.enter(block)
        assert limiter.wait(slot.renew()) is True
        store.down = True
        for _ in range(3):
            assert limiter.wait(slot.renew()) is False, "the first opened the circuit, the others found it open"
        if policy != "raise":
            other = limiter.inner.hold(two, "a")
            local = limiter.enter(other)
            assert local.decision.degraded
            assert limiter.wait(local.renew()) is (policy == "local"), "a slot that was not counted has no lease"
            limiter.leave(other)
        limiter.leave(block)
        limiter("close")


def test_a_reset_frees_every_slot(limiter: EitherLimiter) -> None:
    limiter.enter(limiter.inner.hold("1 at once", "a"))
    limiter("reset", "1 at once", "a")
    assert limiter.left("1 at once") == 1


def test_hold_refuses_a_quota_and_hit_refuses_a_concurrency(limiter: EitherLimiter) -> None:
    with pytest.raises(RuleError, match="a quota per time, no Concurrency"):
        limiter.enter(limiter.inner.hold("5/minute", "a"))
    for name, options in (("hit", {}), ("reserve", {"cost": 1})):
        for given in (Concurrency(5), "5 at once"):
            with pytest.raises(QuotaError, match="use hold"):
                limiter(name, given, "a", **options)


def test_a_task_that_is_cancelled_repeatedly_releases_its_slot(valkey: Any) -> None:
    valkey.flush()

    async def work(limiter: AsyncLimiter, began: asyncio.Event) -> None:
        async with limiter.hold("1 at once", "a"):
            began.set()
            await asyncio.Event().wait()

    async def main() -> None:
        async with AsyncLimiter(url(valkey), deadline=PATIENCE) as limiter:
            for _ in range(20):
                began = asyncio.Event()
                task = asyncio.create_task(work(limiter, began))
                await began.wait()
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0)
                with suppress(asyncio.CancelledError):
                    await task
                async with asyncio.timeout(PATIENCE):
                    while (await limiter.peek("1 at once", "a", cost=0)).remaining == 0:
                        pass

    asyncio.run(main())


def test_a_slot_that_is_released_after_close_leaves_no_connection_open(valkey: Any) -> None:
    valkey.flush()

    def connections() -> int:
        return len(valkey.command("CLIENT LIST TYPE normal").splitlines())

    async def main() -> list[int]:
        limiter = AsyncLimiter(url(valkey), deadline=PATIENCE)
        open_before = connections()
        async with limiter.hold("1 at once", "alice"):
            held = connections()
            await limiter.close()
        return [held - open_before, connections() - open_before]

    assert asyncio.run(main()) == [1, 0]


@ALGORITHMS
def test_a_decision_is_given_back_to_the_window_that_it_charged(
    limiter: EitherLimiter, clock: ManualClock, algorithm: str
) -> None:
    options: dict[str, Any] = {"algorithm": algorithm}
    charged = limiter("hit", "5/minute; 9/hour", "a", cost=3, **options)
    limiter("refund", limiter("hit", "5/minute; 9/hour", "a", cost=3, **options))  # refused: it charged nothing
    limiter("refund", limiter("peek", "5/minute; 9/hour", "a", cost=1, **options))
    assert limiter.left("5/minute; 9/hour", **options) == 2
    limiter("refund", charged)
    assert limiter.left("5/minute; 9/hour", **options) == 5
    late = limiter("hit", "5/minute", "a", cost=3, **options)
    clock.advance(120)
    limiter("hit", "5/minute", "a", cost=2, **options)
    limiter("refund", late)  # its window has passed
    assert limiter.left("5/minute", **options) == 3


def test_only_a_decision_is_given_back(limiter: EitherLimiter) -> None:
    with pytest.raises(RuleError, match="not a decision; give the decision that hit returned"):
        limiter("refund", True)
