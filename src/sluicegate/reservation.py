"""Charges that the store can refund: a reservation, which is settled once, and a concurrency slot, which is held during
a `with` block.

If the process dies, the charge expires like any other charge: a reservation when its window has passed, a slot when its
lease has passed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from sluicegate.errors import RuleError
from sluicegate.plan import Check, Decision, Outcome, Plan
from sluicegate.runtime import fork
from sluicegate.stores import AsyncStore, Store

if TYPE_CHECKING:
    from sluicegate.stores.completion import Steps

_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)
_Held = tuple[Store | AsyncStore, tuple[Check, ...]]


class _Estimate(Generic[_AnyStore]):
    """The common part of the sync and the async reservation. A reservation is settled once."""

    def __init__(self, store: _AnyStore, decision: Decision) -> None:
        self.decision = decision
        self._store: _AnyStore = store
        self._process = fork.generation()
        self._open = threading.Lock()  # acquired by the first thread that settles, and never released

    def __bool__(self) -> bool:
        return self.decision.allowed

    def _rest(self, actual: int) -> Plan:
        """Return the plan of the units to refund, or to charge if `forced`. It is empty if the cost does not change."""
        if type(actual) is not int or actual < 0:
            raise RuleError("actual", actual, problem="not a whole number of units", expected="give an int, 0 or more")
        inherited = self._process != fork.generation()
        if inherited or not self.decision.allowed or not self._open.acquire(blocking=False):
            return Plan(())
        owed = actual - self.decision.checks[0].cost
        units = [min(abs(owed), check.terms.limit) for check in self.decision.checks]  # at most the limit
        checks = [check._replace(cost=cost) for check, cost in zip(self.decision.checks, units, strict=True)]
        return Plan(tuple(checks), forced=owed > 0)


class Reservation(_Estimate[Store]):
    """An estimated cost that was charged, until it is settled. A reservation is true if the charge was allowed.

    `decision` is the decision about the charge. A refused reservation charged nothing, and settling it does nothing.
    """

    def settle(self, actual: int) -> None:
        """Correct the charge to the actual cost in units. Only the first call has an effect, in any thread.

        If the actual cost is less than the estimate, the difference is refunded to the window that was charged, unless
        this window has passed. If the actual cost is more, the difference is charged, allowed or not, up to the limit.
        Raises RuleError if `actual` is not a whole number, 0 or more.
        """
        rest = self._rest(actual)
        if rest.forced:
            self._store.run(rest)
        elif rest.checks:
            self._store.refund(rest, self.decision.outcomes)

    def cancel(self) -> None:
        """Refund the whole estimate."""
        self.settle(0)


class AsyncReservation(_Estimate[AsyncStore]):
    """A Reservation for asynchronous code: `settle` and `cancel` are awaited."""

    async def settle(self, actual: int) -> None:
        """Do the same as `Reservation.settle`. Once started, it completes even if its task is cancelled."""
        from sluicegate.stores.completion import complete

        rest = self._rest(actual)
        if rest.forced:
            await complete(self._store.run(rest))
        elif rest.checks:
            await complete(self._store.refund(rest, self.decision.outcomes))

    async def cancel(self) -> None:
        """Refund the whole estimate."""
        await self.settle(0)


class InFlight:
    """The slots that are held in this process, for metrics. An owner that is garbage-collected holds none."""

    def __init__(self) -> None:
        self.after_fork()
        fork.renew(self)

    def after_fork(self) -> None:
        """Begin without slots: they are the parent's."""
        self._held: WeakKeyDictionary[object, _Held] = WeakKeyDictionary()

    def add(self, owner: object, store: Store | AsyncStore, checks: tuple[Check, ...]) -> None:
        self._held[owner] = store, checks

    def remove(self, owner: object) -> None:
        self._held.pop(owner, None)

    def read(self) -> list[_Held]:
        """Return the stores, each with the checks that hold slots."""
        while True:
            try:
                return list(self._held.values())
            except RuntimeError:  # another thread has changed it meanwhile
                continue


IN_FLIGHT: Final = InFlight()

_Charges = tuple[Plan, tuple[Outcome, ...]]
_NONE: Final[_Charges] = (Plan(()), ())


class _HeldSlot(Generic[_AnyStore]):
    """The common part of the sync and the async slot: the charges that a slot holds."""

    def __init__(self, store: _AnyStore, decision: Decision) -> None:
        if decision.allowed:
            IN_FLIGHT.add(self, store, decision.checks)
        self.decision = decision
        self._store: _AnyStore = store
        self._process = fork.generation()
        # One value, because a thread may renew while another releases.
        self._charges: _Charges = Plan(decision.checks), decision.outcomes

    def __bool__(self) -> bool:
        return self.decision.allowed

    def _end(self) -> _Charges:
        """Return the charges to refund. From now on the slot holds none."""
        held = self._held()
        IN_FLIGHT.remove(self)
        self._charges = _NONE
        return held

    def _note(self, renewed: tuple[Outcome, ...], *, held: _Charges) -> bool:
        """Note a renewal of these charges. Returns False if there was none, or if the slot was released meanwhile: then
        what was charged again must be refunded.
        """
        kept = renewed is not held[1] and self._charges is held
        if kept:
            self._charges = held[0], renewed
        return kept

    def _held(self) -> _Charges:
        """Return the charges that this slot holds: none in the child of a fork, because they are the parent's."""
        return self._charges if self._process == fork.generation() else _NONE


class Slot(_HeldSlot[Store]):
    """A concurrency slot, held until its block ends. A Slot is true if a slot was free.

    `decision` is the decision about the charge.
    """

    def renew(self) -> bool:
        """Start the lease again from now. Call this regularly in a block that may take longer than the lease.

        Returns False if the lease was not renewed, so that it ends when it would have ended: the store did not answer,
        or the slot is not held.
        """
        held = self._held()
        renewed = self._store.renew(*held)
        if self._note(renewed, held=held):
            return True
        if renewed is not held[1]:
            self._store.refund(held[0], renewed)
        return False

    def release(self) -> None:
        """Release the slot before the block ends. A second call does nothing."""
        self._store.refund(*self._end())


class AsyncSlot(_HeldSlot[AsyncStore]):
    """A Slot for asynchronous code: `renew` and `release` are awaited."""

    def __init__(self, store: AsyncStore, decision: Decision) -> None:
        from sluicegate.stores.completion import Steps  # it imports asyncio, which a Limiter does not need

        super().__init__(store, decision)
        self._steps: Steps[bool] = Steps()

    async def renew(self) -> bool:
        """Do the same as `Slot.renew`. Once started, it completes even if its task is cancelled."""
        return await self._steps.do(self._renew)

    async def release(self) -> None:
        """Release the slot before the block ends. A second call does nothing."""
        await self._steps.do(self._release)

    async def _renew(self) -> bool:
        held = self._held()
        renewed = await self._store.renew(*held)
        if self._note(renewed, held=held):
            return True
        if renewed is not held[1]:
            await self._store.refund(held[0], renewed)
        return False

    async def _release(self) -> bool:
        await self._store.refund(*self._end())
        return True
