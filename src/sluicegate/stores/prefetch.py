"""Prefetch: a store that fetches several permits in one trip to the store inside, and serves them by itself.

A plan is served from permits only if all its rules prefetch. Every other plan goes straight to the store inside.
`permits` decides how many permits to fetch and how long they are held. This module makes the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Generic, TypeVar

from sluicegate.clock import Clock
from sluicegate.errors import StoreError
from sluicegate.plan import Checks, Outcome, Plan, Terms
from sluicegate.status import Status, describe
from sluicegate.stores import AsyncStore, Hit, Store
from sluicegate.stores.completion import complete
from sluicegate.stores.deny_cache import Refusals
from sluicegate.stores.permits import SIZE, Permits, StoreCall, StoreCalls, prefetches

_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)


class _Prefetch(Generic[_AnyStore]):
    """What the sync and the async prefetch share: everything but the calls of the store inside."""

    _store: _AnyStore

    def __init__(
        self,
        store: _AnyStore,
        *,
        clock: Clock | None = None,
        size: int = SIZE,
        on_return: Callable[[Checks], object] | None = None,
    ) -> None:
        self._store = store
        self._permits = Permits(clock=clock, size=size, on_return=on_return)

    def healthy(self, terms: tuple[Terms, ...], refusals: Refusals) -> Hit | None:
        """Return the function of the store inside. There is none for rules that prefetch."""
        if all([each.prefetch > 1 for each in terms]):
            return None
        return self._store.healthy(terms, refusals)  # type: ignore[attr-defined, no-any-return]

    def remembered(self, identity: str) -> set[str]:
        """Return the ids of the rules under which this process remembers something of an identity."""
        inside: set[str] = self._store.remembered(identity)  # type: ignore[attr-defined]
        return inside | self._permits.rule_ids(identity)

    def describe(self) -> Status:
        """Return the status of the store inside, with the permits: held, used and given back."""
        permits = self._permits
        return describe(self._store)._replace(
            prefetched=permits.served, permits=permits.held, permits_returned=permits.returned
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"


class Prefetch(_Prefetch[Store]):
    """A store that fetches permits in advance from the store inside, and serves requests from these permits. It is used
    for rules with `prefetch`.

    A peek counts the permits that this process holds as free. `forget` and `close` first refund the held permits in the
    store. `on_return` is called with the checks of each plan whose permits were refunded.
    """

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Serve a permit, or ask the store inside."""
        if not prefetches(plan):
            return self._store.run(plan)
        served = self._permits.serve(plan)
        return self._make(self._permits.fetch(plan)) if served is None else served

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        self._store.refund(plan, outcomes)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        return self._store.renew(plan, outcomes)

    def forget(self, rule_id: str, identity: str) -> None:
        """Refund the permits of a budget, then drop it in the store inside."""
        self._make(self._permits.give_back(rule_id, identity))
        self._store.forget(rule_id, identity)

    def close(self) -> None:
        """Refund all permits, then close the store inside."""
        self._make(self._permits.give_back())
        self._store.close()

    def _make(self, calls: StoreCalls) -> tuple[Outcome, ...]:
        with closing(calls):
            try:
                call = next(calls)
                while True:
                    try:
                        answer = call.make(self._store)
                    except StoreError as error:
                        call = calls.throw(error)
                    else:
                        call = calls.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]


class AsyncPrefetch(_Prefetch[AsyncStore]):
    """A Prefetch for asynchronous code."""

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        if not prefetches(plan):
            return await self._store.run(plan)
        served = self._permits.serve(plan)
        if served is not None:
            return served
        calls = self._permits.fetch(plan)
        first = next(calls)
        if first.is_only(plan):
            return await self._make(calls, first)
        return await complete(self._make(calls, first))  # a batch of permits is not this request's alone

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        await self._store.refund(plan, outcomes)

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        return await self._store.renew(plan, outcomes)

    async def forget(self, rule_id: str, identity: str) -> None:
        await complete(self._make(self._permits.give_back(rule_id, identity)))
        await self._store.forget(rule_id, identity)

    async def close(self) -> None:
        await complete(self._make(self._permits.give_back()))
        await self._store.close()

    async def _make(self, calls: StoreCalls, first: StoreCall | None = None) -> tuple[Outcome, ...]:
        """Make the calls one after the other. `first` was taken already."""
        with closing(calls):
            try:
                call = next(calls) if first is None else first
                while True:
                    try:
                        answer = await call.make(self._store)
                    except StoreError as error:
                        call = calls.throw(error)
                    else:
                        call = calls.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
