"""A synchronous store that never blocks, for asynchronous code. This module knows values and the store's contract."""

from __future__ import annotations

from sluicegate.plan import Outcome, Plan
from sluicegate.stores import Store


class Awaited:
    """The asynchronous twin of a synchronous store that never blocks.

    >>> import asyncio
    >>> from sluicegate import AsyncLimiter
    >>> from sluicegate.testing import ShutStore
    >>> asyncio.run(AsyncLimiter(Awaited(ShutStore())).hit("5/minute", "alice")).allowed
    False
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """What the store answers."""
        return self._store.run(plan)

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Pass on."""
        self._store.refund(plan, outcomes)

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """What the store answers."""
        return self._store.renew(plan, outcomes)

    async def forget(self, rule_id: str, identity: str) -> None:
        """Pass on."""
        self._store.forget(rule_id, identity)

    async def close(self) -> None:
        """Close the store."""
        self._store.close()
