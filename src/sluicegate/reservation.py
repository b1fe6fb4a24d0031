"""Charges that the store can refund: a reservation, which is settled once, and a concurrency slot, which is held during
a `with` block.

If the process dies, the charge expires like any other charge: a reservation when its window has passed, a slot when its
lease has passed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from sluicegate.algorithms import KEPT
from sluicegate.errors import RuleError
from sluicegate.plan import Check, Decision, Outcome, Plan, Terms
from sluicegate.runtime import fork
from sluicegate.stores import AsyncStore, Store

if TYPE_CHECKING:
    from sluicegate.stores.completion import Steps

_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)
_Held = tuple[Store | AsyncStore, tuple[Check, ...]]


class Correction(NamedTuple):
    """What makes charges equal to their actual costs: what is refunded of them, and what is charged besides."""

    refunds: Plan
    outcomes: tuple[Outcome, ...]  # of the charges that are refunded
    debts: Plan

    @classmethod
    def of(cls, costs: Iterable[tuple[Check, Outcome, int]]) -> Correction:
        """Return the correction of these charges. With each is its actual cost."""
        owed = [(check, outcome, actual - check.cost) for check, outcome, actual in costs]
        back = [(check._replace(cost=-units), outcome) for check, outcome, units in owed if units < 0]
        due = [(_owing(check.terms), check.identity, units) for check, _, units in owed if units > 0]
        debts = [Check(terms, identity, min(units, terms.limit)) for terms, identity, units in due]
        refunds, outcomes = [check for check, _ in back], [outcome for _, outcome in back]
        return cls(Plan(tuple(refunds)), tuple(outcomes), Plan(tuple(debts), forced=True))

    def make(self, store: Store) -> None:
        """Make the correction."""
        try:
            if self.debts.checks:
                store.run(self.debts)
        finally:
            if self.refunds.checks:
                store.refund(self.refunds, self.outcomes)

    async def make_async(self, store: AsyncStore) -> None:
        try:
            if self.debts.checks:
                await store.run(self.debts)
        finally:
            if self.refunds.checks:
                await store.refund(self.refunds, self.outcomes)


@lru_cache(maxsize=1024)  # always the same object: a Run and the deny cache know terms by identity
def _owing(terms: Terms) -> Terms:
    """Return terms of the same budget under which a cost above the limit is charged."""
    return terms._replace(params=KEPT[terms.algorithm].owing(terms.params))


class _Estimate(Generic[_AnyStore]):
    """The common part of the sync and the async reservation. A reservation is settled once."""

    def __init__(self, store: _AnyStore, decision: Decision) -> None:
        self.decision = decision
        self._store: _AnyStore = store
        self._process = fork.generation()
        self._open = threading.Lock()  # acquired by the first thread that settles, and never released

    def __bool__(self) -> bool:
        return self.decision.allowed

    def _correction(self, actual: int) -> Correction:
        """Return what corrects the charge to its actual cost: nothing if it was settled before."""
        if type(actual) is not int or actual < 0:
            raise RuleError("actual", actual, problem="not a whole number of units", expected="give an int, 0 or more")
        inherited = self._process != fork.generation()
        if inherited or not self.decision.allowed or not self._open.acquire(blocking=False):
            return Correction.of(())
        pairs = zip(self.decision.checks, self.decision.outcomes, strict=True)
        return Correction.of([(check, outcome, actual) for check, outcome in pairs])


class Reservation(_Estimate[Store]):
    """An estimated cost that was charged, until it is settled. A reservation is true if the charge was allowed.

    `decision` is the decision about the charge. A refused reservation charged nothing, and settling it does nothing.
    """

    def settle(self, actual: int) -> None:
        """Correct the charge to the actual cost in units. Only the first call has an effect, in any thread.

        If the actual cost is less than the estimate, the difference is refunded to the window that was charged, unless
        this window has passed. If the actual cost is more, the difference is charged, allowed or not: above the limit
        it is a debt, which later requests wait for. Raises RuleError if `actual` is not a whole number, 0 or more.
        """
        self._correction(actual).make(self._store)

    def cancel(self) -> None:
        """Refund the whole estimate."""
        self.settle(0)


class AsyncReservation(_Estimate[AsyncStore]):
    """A Reservation for asynchronous code: `settle` and `cancel` are awaited."""

    async def settle(self, actual: int) -> None:
        """Do the same as `Reservation.settle`. Once started, it completes even if its task is cancelled."""
        from sluicegate.stores.completion import complete

        await complete(self._correction(actual).make_async(self._store))

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
