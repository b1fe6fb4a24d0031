"""Leases: a store that takes several permits in one trip to the store inside, and serves them by itself.

For plans whose rules all lease; every other plan goes straight through. What is held, and for how long, is a matter of
`permits`. This module makes the trips, in both colours.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress

from sluicegate.clock import Clock
from sluicegate.errors import StoreError
from sluicegate.plan import Outcome, Plan
from sluicegate.stores import AsyncStore, Store
from sluicegate.stores.permits import SIZE, Permits, Trip, Trips


class Leases:
    """A store that serves permits which it has taken in advance, for rules that lease.

    A peek counts the permits held here as free. `forget` and `close` give them back to the store first.
    `on_return` is called with each plan whose permits went back to the store.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        size: int = SIZE,
        on_return: Callable[[Plan], object] | None = None,
    ) -> None:
        self._store = store
        self._permits = Permits(clock=clock, size=size)
        self._on_return = on_return

    def __repr__(self) -> str:
        return f"Leases({self._store!r})"

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Serve a permit, or ask the store inside."""
        for terms, _, _ in plan.checks:
            if terms.lease == 1 or plan.forced:
                return self._store.run(plan)
        found = self._permits.held(plan)
        if found is not None:
            return found
        return self._drive(self._permits.trips(plan)) if plan.charge and plan.checks else self._store.run(plan)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Pass on."""
        self._store.refund(plan, outcomes)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Pass on."""
        return self._store.renew(plan, outcomes)

    def forget(self, rule_id: str, identity: str) -> None:
        """Give back what is held under a budget, and drop it in the store inside."""
        self._drive(self._permits.given_up(rule_id, identity))
        self._store.forget(rule_id, identity)

    def close(self) -> None:
        """Give back what is held, and close the store inside."""
        self._drive(self._permits.given_up())
        self._store.close()

    def _drive(self, trips: Trips) -> tuple[Outcome, ...]:
        with closing(trips):
            try:
                trip = next(trips)
                while True:
                    trip = trips.send(self._go(trip))
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]

    def _go(self, trip: Trip) -> tuple[Outcome, ...]:
        if trip.refunded is None:
            return self._store.run(trip.plan)
        with suppress(StoreError):  # it heals by expiry
            self._store.refund(trip.plan, trip.refunded)
        if self._on_return is not None:
            self._on_return(trip.plan)
        return ()


class AsyncLeases:
    """The same for asynchronous code."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        clock: Clock | None = None,
        size: int = SIZE,
        on_return: Callable[[Plan], object] | None = None,
    ) -> None:
        self._store = store
        self._permits = Permits(clock=clock, size=size)
        self._on_return = on_return

    def __repr__(self) -> str:
        return f"AsyncLeases({self._store!r})"

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Serve a permit, or ask the store inside."""
        for terms, _, _ in plan.checks:
            if terms.lease == 1 or plan.forced:
                return await self._store.run(plan)
        found = self._permits.held(plan)
        if found is not None:
            return found
        if plan.charge and plan.checks:
            return await self._drive(self._permits.trips(plan))
        return await self._store.run(plan)

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Pass on."""
        await self._store.refund(plan, outcomes)

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Pass on."""
        return await self._store.renew(plan, outcomes)

    async def forget(self, rule_id: str, identity: str) -> None:
        """Give back what is held under a budget, and drop it in the store inside."""
        await self._drive(self._permits.given_up(rule_id, identity))
        await self._store.forget(rule_id, identity)

    async def close(self) -> None:
        """Give back what is held, and close the store inside."""
        await self._drive(self._permits.given_up())
        await self._store.close()

    async def _drive(self, trips: Trips) -> tuple[Outcome, ...]:
        with closing(trips):
            try:
                trip = next(trips)
                while True:
                    trip = trips.send(await self._go(trip))
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]

    async def _go(self, trip: Trip) -> tuple[Outcome, ...]:
        if trip.refunded is None:
            return await self._store.run(trip.plan)
        with suppress(StoreError):  # it heals by expiry
            await self._store.refund(trip.plan, trip.refunded)
        if self._on_return is not None:
            self._on_return(trip.plan)
        return ()
