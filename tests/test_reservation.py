"""Reservations and places in flight: both colours, in memory and on real servers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from threading import Barrier
from typing import Any

import pytest

from sluicegate import AsyncLimiter, Concurrency, Limiter, ManualClock, StoreError
from sluicegate.errors import QuotaError, RuleError
from sluicegate.testing import Awaited
from sluicegate.testing.store import NAMES
from tests.servers import MAKERS
from tests.stores.breakable import Breakable
from tests.stores.places import PATIENCE, url

ALGORITHMS = pytest.mark.parametrize("algorithm", NAMES)
QUOTA = "100/minute"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_760_000_000)


class Asked:
    """A limiter of either colour, and what it gives out, called plainly."""

    def __init__(self, limiter: Any, runner: asyncio.Runner | None) -> None:
        self.limiter, self._runner = limiter, runner

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self.wait(getattr(self.limiter, name)(*arguments, **options))

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
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["memory", *MAKERS])
def where(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    server = request.getfixturevalue(request.param)
    server.flush()
    return url(server)


@pytest.fixture
def asked(colour: str, where: str, clock: ManualClock) -> Iterator[Asked]:
    if colour == "sync":
        with Limiter(where, clock=clock, deadline=PATIENCE) as limiter:
            yield Asked(limiter, None)
        return
    with asyncio.Runner() as runner:
        later = AsyncLimiter(where, clock=clock, deadline=PATIENCE)
        yield Asked(later, runner)
        runner.run(later.close())


@ALGORITHMS
@pytest.mark.parametrize(
    ("estimate", "actual", "left"),
    [(60, 60, 40), (60, 20, 80), (60, 0, 100), (60, 90, 10), (60, 100, 0), (60, 10**9, 0), (0, 30, 70), (0, 0, 100)],
)
def test_settled_it_costs_what_it_cost(asked: Asked, algorithm: str, estimate: int, actual: int, left: int) -> None:
    reservation = asked("reserve", QUOTA, "a", cost=estimate, algorithm=algorithm)
    assert reservation
    assert reservation.decision.remaining == 100 - estimate
    asked.wait(reservation.settle(actual))
    assert asked.left(algorithm=algorithm) == left
    for again in (actual, 0, 100):
        asked.wait(reservation.settle(again))
    asked.wait(reservation.cancel())
    assert asked.left(algorithm=algorithm) == left, "only the first time counts"


@ALGORITHMS
def test_cancelled_it_costs_nothing(asked: Asked, algorithm: str) -> None:
    asked("hit", QUOTA, "a", cost=10, algorithm=algorithm)
    asked.wait(asked("reserve", QUOTA, "a", cost=90, algorithm=algorithm).cancel())
    assert asked.left(algorithm=algorithm) == 90


@ALGORITHMS
def test_debt_is_charged_whatever_is_left_and_goes_no_further_than_the_limit(
    asked: Asked, clock: ManualClock, algorithm: str
) -> None:
    reservation = asked("reserve", QUOTA, "a", cost=10, algorithm=algorithm)
    clock.advance(1)
    assert asked("hit", QUOTA, "a", cost=90, algorithm=algorithm)
    asked.wait(reservation.settle(500))
    assert asked.left(algorithm=algorithm) <= 1, "a bucket has leaked a unit or so"
    clock.advance(121)  # two windows: weighed ones go on for so long
    assert asked.left(algorithm=algorithm) == 100, "who waits it out owes nothing more"


@ALGORITHMS
def test_what_was_refused_has_nothing_to_settle(asked: Asked, algorithm: str) -> None:
    asked("hit", QUOTA, "a", cost=50, algorithm=algorithm)
    reservation = asked("reserve", QUOTA, "a", cost=60, algorithm=algorithm)
    assert not reservation
    for actual in (0, 40):
        asked.wait(reservation.settle(actual))
    assert asked.left(algorithm=algorithm) == 50


@pytest.mark.parametrize("algorithm", ["sliding-window", "sliding-log", "fixed-window"])
def test_a_refund_goes_to_the_window_that_was_charged_or_nowhere(
    asked: Asked, clock: ManualClock, algorithm: str
) -> None:
    reservation = asked("reserve", QUOTA, "a", cost=60, algorithm=algorithm)
    clock.advance(60)
    asked("hit", QUOTA, "a", cost=30, algorithm=algorithm)
    asked.wait(reservation.settle(5))
    assert asked.left(algorithm=algorithm) == 70


@ALGORITHMS
def test_of_a_process_that_died_the_charge_expires(asked: Asked, clock: ManualClock, algorithm: str) -> None:
    assert asked("reserve", QUOTA, "a", cost=100, algorithm=algorithm)  # and nobody ever settles it
    assert not asked("hit", QUOTA, "a", algorithm=algorithm)
    clock.advance(120 if algorithm == "sliding-counter" else 60)
    assert asked.left(algorithm=algorithm) == 100


def test_under_several_quotas_each_is_settled_and_owes_no_more_than_its_own_limit(asked: Asked) -> None:
    quotas = "100/minute; 1000/day"
    for actual, left in ((30, [70, 970]), (400, [0, 570])):
        asked.wait(asked("reserve", quotas, "a", cost=50).settle(actual))
        outcomes = asked("peek", quotas, "a", cost=0).results
        assert [outcome.remaining for outcome in outcomes] == left, "120 of it are charged to the minute, which has 100"


@pytest.mark.parametrize("actual", [-1, 1.0, "1", None, True])
def test_what_is_no_number_of_units_settles_nothing(asked: Asked, actual: Any) -> None:
    reservation = asked("reserve", QUOTA, "a", cost=60)
    with pytest.raises(RuleError, match="not a whole number of units"):
        asked.wait(reservation.settle(actual))
    asked.wait(reservation.settle(10))
    assert asked.left() == 90


@pytest.mark.parametrize("actual", [1, 99])
def test_of_many_threads_one_settles(valkey: Any, actual: int) -> None:
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
def test_of_many_tasks_one_settles_though_it_is_cancelled(valkey: Any, actual: int) -> None:
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
def over(colour: str, inside: Breakable) -> Iterator[Callable[[str], Asked]]:
    """Makes a limiter of this policy over the store that may break."""
    with asyncio.Runner() as runner:
        if colour == "sync":
            yield lambda policy: Asked(Limiter(inside, on_store_failure=policy), None)
        else:
            yield lambda policy: Asked(AsyncLimiter(Awaited(inside), on_store_failure=policy), runner)


def test_what_the_stand_in_was_charged_is_settled_with_it(over: Callable[[str], Asked], inside: Breakable) -> None:
    asked = over("local")
    inside.down = True
    for actual, left in ((10, 90), (95, 0)):
        reservation = asked("reserve", QUOTA, "a", cost=60 if actual == 10 else 20)
        assert reservation.decision.degraded
        asked.wait(reservation.settle(actual))
        assert asked.left() == left


@pytest.mark.parametrize("policy", ["local", "allow", "deny", "raise"])
def test_a_refund_that_the_store_does_not_take_heals_by_expiry(
    over: Callable[[str], Asked], inside: Breakable, clock: ManualClock, policy: str
) -> None:
    asked = over(policy)
    reservation = asked("reserve", QUOTA, "a", cost=60)
    inside.down = True
    asked.wait(reservation.settle(10))
    inside.down = False
    clock.advance(2)
    while (decision := over(policy)("peek", QUOTA, "a", cost=0)).degraded:
        clock.advance(1)
    assert decision.remaining == 40
    clock.advance(60)
    assert over(policy).left() == 100


@pytest.mark.parametrize("policy", ["local", "allow", "deny", "raise"])
def test_debt_that_the_store_does_not_take_is_no_error_unless_that_is_wanted(
    over: Callable[[str], Asked], inside: Breakable, policy: str
) -> None:
    asked = over(policy)
    reservation = asked("reserve", QUOTA, "a", cost=60)
    inside.down = True
    with pytest.raises(StoreError) if policy == "raise" else nullcontext():
        asked.wait(reservation.settle(80))
    asked.wait(reservation.settle(80))


# Places


def test_a_place_is_held_for_a_block(asked: Asked) -> None:
    two = Concurrency(2)
    blocks = [asked.limiter.hold(two, "a", action="report") for _ in range(3)]
    places = [asked.enter(block) for block in blocks]
    assert [bool(place) for place in places] == [True, True, False]
    assert [place.decision.remaining for place in places] == [1, 0, 0]
    assert asked("peek", two, "a").limit == 2, "of another action"
    asked.leave(blocks[2])
    assert asked.left(two, action="report") == 0, "who had no place gives none back"
    assert not asked.leave(blocks[0], KeyError("the block failed"))
    assert asked.left(two, action="report") == 1
    asked.leave(blocks[1])
    assert asked.left(two, action="report") == 2


def test_it_takes_its_text_and_several_places(asked: Asked) -> None:
    block = asked.limiter.hold("3 at once", "a", cost=2)
    assert asked.enter(block).decision.remaining == 1
    refused = asked.limiter.hold("3 at once", "a", cost=2)
    assert not asked.enter(refused)
    asked.leave(refused)
    asked.leave(block)
    assert asked.left("3 at once") == 3


def test_what_is_renewed_is_held_on_and_what_is_not_comes_back(asked: Asked, clock: ManualClock) -> None:
    two = Concurrency(2, lease=30)
    blocks = [asked.limiter.hold(two, "a") for _ in range(2)]
    kept, _ = [asked.enter(block) for block in blocks]
    for _ in range(3):
        clock.advance(10)
        asked.wait(kept.renew())
    assert asked.left(two) == 1, "the other one's lease is over"
    clock.advance_us(29_999_999)
    assert asked.left(two) == 1
    asked.leave(blocks[1])
    assert asked.left(two) == 1, "who is late gives back what is nobody's"
    asked.leave(blocks[0])
    assert asked.left(two) == 2


def test_after_its_end_there_is_nothing_to_renew_or_release(asked: Asked) -> None:
    block = asked.limiter.hold("1 at once", "a")
    place = asked.enter(block)
    asked.wait(place.release())
    other = asked.limiter.hold("1 at once", "a")
    assert asked.enter(other)
    asked.wait(place.renew())
    asked.wait(place.release())
    asked.leave(block)
    assert asked.left("1 at once") == 0, "it is the other one's now"
    asked.leave(other)


def test_a_reset_frees_every_place(asked: Asked) -> None:
    asked.enter(asked.limiter.hold("1 at once", "a"))
    asked("reset", "1 at once", "a")
    assert asked.left("1 at once") == 1


def test_so_many_per_time_is_not_held_and_so_many_at_once_not_hit(asked: Asked) -> None:
    with pytest.raises(RuleError, match="so many per time, where so many at once are meant"):
        asked.enter(asked.limiter.hold("5/minute", "a"))
    for name, options in (("hit", {}), ("reserve", {"cost": 1})):
        for given in (Concurrency(5), "5 at once"):
            with pytest.raises(QuotaError, match="use hold"):
                asked(name, given, "a", **options)


def test_a_task_that_is_cancelled_over_and_over_releases_its_place(valkey: Any) -> None:
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
