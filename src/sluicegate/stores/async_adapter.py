"""The adapter of a synchronous store that never blocks, for asynchronous code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluicegate.clock import Clock
from sluicegate.plan import Outcome, Plan
from sluicegate.stores import Store

if TYPE_CHECKING:
    from sluicegate.observe.status import Status


class AsyncAdapter:
    """An async store over a sync store that never blocks.

    >>> import asyncio
    >>> from sluicegate import AsyncLimiter
    >>> from sluicegate.testing import ShutStore
    >>> asyncio.run(AsyncLimiter(AsyncAdapter(ShutStore())).hit("5/minute", "alice")).allowed
    False
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        return self._store.run(plan)

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        self._store.refund(plan, outcomes)

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        return self._store.renew(plan, outcomes)

    async def forget(self, rule_id: str, identity: str) -> None:
        self._store.forget(rule_id, identity)

    async def close(self) -> None:
        self._store.close()

    def describe(self) -> Status:
        from sluicegate.observe.status import describe

        return describe(self._store)

    def separate(self, name: str, *, clock: Clock | None = None) -> AsyncAdapter:
        """Return the adapter of what the store's `separate` returns. Raises AttributeError if the store has none."""
        return AsyncAdapter(self._store.separate(name, clock=clock))  # type: ignore[attr-defined]
