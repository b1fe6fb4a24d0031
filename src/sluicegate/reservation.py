"""What is taken now and accounted for later: a reservation, settled once, and a place in flight, held for a block.

Both are a charge that the store can give back. Should the process die before it does, the charge expires as any other:
a reservation when its window has passed, a place when its lease is over. This module knows values, terms and the store
protocols; no concrete store, no HTTP and no framework. Limiters have its methods as their own.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from sluicegate.errors import RuleError
from sluicegate.plan import Decision, Outcome, Plan
from sluicegate.stores import AsyncStore, Store
from sluicegate.terms import QuotaSpec

if TYPE_CHECKING:
    import asyncio


class _Estimate:
    """What both colours of a reservation share: the account, closed once."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self._open = threading.Lock()  # taken by who settles first, and never given back

    def __bool__(self) -> bool:
        return self.decision.allowed

    def _rest(self, actual: int) -> Plan:
        """What is still to be refunded, or charged if `forced`; an empty plan when nothing is."""
        if type(actual) is not int or actual < 0:
            raise RuleError("actual", actual, problem="not a whole number of units", expected="give an int, 0 or more")
        if not self.decision.allowed or not self._open.acquire(blocking=False):
            return Plan(())
        owed = actual - self.decision.checks[0].cost
        units = [min(abs(owed), check.terms.params[0]) for check in self.decision.checks]  # no more than all there is
        checks = [check._replace(cost=cost) for check, cost in zip(self.decision.checks, units, strict=True)]
        return Plan(tuple(checks), forced=owed > 0)


class Reservation(_Estimate):
    """An estimated cost that was charged, until it is settled. True when it was allowed.

    `decision` is what the charge came to. What was refused was not charged, and has nothing to settle.
    """

    def __init__(self, store: Store, decision: Decision) -> None:
        super().__init__(decision)
        self._store = store

    def settle(self, actual: int) -> None:
        """Say what it has cost, in units. Only the first call counts, whichever thread it comes from.

        Less than the estimate is refunded to the window that was charged, or to none when that has passed. More is
        charged whatever is left, as far as the limit goes. RuleError when `actual` is not a whole number, 0 or more.
        """
        rest = self._rest(actual)
        if rest.forced:
            self._store.run(rest)
        elif rest.checks:
            self._store.refund(rest, self.decision.results)

    def cancel(self) -> None:
        """Give all of it back."""
        self.settle(0)


class AsyncReservation(_Estimate):
    """Reservation for asynchronous code: `settle` and `cancel` are awaited."""

    def __init__(self, store: AsyncStore, decision: Decision) -> None:
        super().__init__(decision)
        self._store = store

    async def settle(self, actual: int) -> None:
        """Say what it has cost, as `Reservation.settle`. It is done though the task that waits for it be cancelled."""
        rest = self._rest(actual)
        if rest.forced:
            await _to_the_end(self._store.run(rest))
        elif rest.checks:
            await _to_the_end(self._store.refund(rest, self.decision.results))

    async def cancel(self) -> None:
        """Give all of it back."""
        await self.settle(0)


class _Place:
    """What both colours of a place share: what of it is held at present."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self._plan = Plan(decision.checks)
        self._outcomes = decision.results

    def __bool__(self) -> bool:
        return self.decision.allowed

    def _end(self) -> tuple[Plan, tuple[Outcome, ...]]:
        """What has to be given back; from now on nothing is held."""
        held = self._plan, self._outcomes
        self._plan, self._outcomes = Plan(()), ()
        return held


class Place(_Place):
    """A place in flight, while the block lasts that it was taken for. True when there was one.

    `decision` says how it stood then.
    """

    def __init__(self, store: Store, decision: Decision) -> None:
        super().__init__(decision)
        self._store = store

    def renew(self) -> None:
        """Begin the lease anew: call it now and then in a block that may outlast it."""
        self._outcomes = self._store.renew(self._plan, self._outcomes)

    def release(self) -> None:
        """Give it back before the block ends. A second time it does nothing."""
        self._store.refund(*self._end())


class AsyncPlace(_Place):
    """Place for asynchronous code: `renew` is awaited."""

    def __init__(self, store: AsyncStore, decision: Decision) -> None:
        super().__init__(decision)
        self._store = store

    async def renew(self) -> None:
        """Begin the lease anew: call it now and then in a block that may outlast it."""
        self._outcomes = await self._store.renew(self._plan, self._outcomes)

    async def release(self) -> None:
        """Give it back before the block ends. A second time it does nothing."""
        await _to_the_end(self._store.refund(*self._end()))


class Reserving:
    """What a Limiter can take now and account for later."""

    store: Store
    run: Callable[[Plan], Decision]
    _plan: Callable[..., Plan]

    def reserve(
        self, quota: QuotaSpec, identity: object, *, cost: int, action: str = "", algorithm: str | None = None
    ) -> Reservation:
        """Charge an estimated `cost`, as `hit` does, to be settled when it is known what it really was.

        >>> from sluicegate import Limiter
        >>> limiter = Limiter()
        >>> tokens = limiter.reserve("1000/minute", "alice", cost=300)
        >>> tokens.settle(120)
        >>> limiter.peek("1000/minute", "alice", cost=0).remaining
        880
        """
        plan = self._plan(quota, identity, action=action, cost=cost, algorithm=algorithm)
        return Reservation(self.store, self.run(plan))

    @contextmanager
    def hold(self, concurrency: QuotaSpec, identity: object, *, action: str = "", cost: int = 1) -> Generator[Place]:
        """Take a place in flight for a block, or say that there is none. It is given back when the block is left.

        `concurrency` is a Concurrency or its text; `cost` is how many places are taken. RuleError for anything else.

        >>> from sluicegate import Concurrency, Limiter
        >>> limiter = Limiter()
        >>> with limiter.hold(Concurrency(1), "alice") as place, limiter.hold("1 at once", "alice") as another:
        ...     bool(place), bool(another)
        (True, False)
        """
        place = Place(self.store, self.run(_taking(self._plan, concurrency, identity, action=action, cost=cost)))
        try:
            yield place
        finally:
            place.release()


class AsyncReserving:
    """What an AsyncLimiter can take now and account for later."""

    store: AsyncStore
    run: Callable[[Plan], Coroutine[Any, Any, Decision]]
    _plan: Callable[..., Plan]

    async def reserve(
        self, quota: QuotaSpec, identity: object, *, cost: int, action: str = "", algorithm: str | None = None
    ) -> AsyncReservation:
        """Charge an estimated `cost`, as `hit` does, to be settled when it is known what it really was."""
        plan = self._plan(quota, identity, action=action, cost=cost, algorithm=algorithm)
        return AsyncReservation(self.store, await self.run(plan))

    @asynccontextmanager
    async def hold(
        self, concurrency: QuotaSpec, identity: object, *, action: str = "", cost: int = 1
    ) -> AsyncGenerator[AsyncPlace]:
        """Take a place in flight for a block, or say that there is none. It is given back when the block is left."""
        taken = await self.run(_taking(self._plan, concurrency, identity, action=action, cost=cost))
        place = AsyncPlace(self.store, taken)
        try:
            yield place
        finally:
            await place.release()


def _taking(plan: Callable[..., Plan], concurrency: QuotaSpec, identity: object, **options: Any) -> Plan:
    """A plan that takes a place. It is made as one that looks, for who charges cannot give a place back."""
    looking = plan(concurrency, identity, algorithm=None, charge=False, **options)
    if not all([check.terms.held for check in looking.checks]):
        problem, expected = "so many per time, where so many at once are meant", 'give a Concurrency or "10 at once"'
        raise RuleError("concurrency", concurrency, problem=problem, expected=expected)
    return looking._replace(charge=True)


_tasks: set[asyncio.Task[Any]] = set()  # the loop itself would let them go


async def _to_the_end(work: Coroutine[Any, Any, object]) -> None:
    """Do it to the end, though who waits for it be cancelled, as when a client hangs up."""
    import asyncio  # here: it is half the time to import sluicegate, and a Limiter has no use for it

    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    await asyncio.shield(task)
