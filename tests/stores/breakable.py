"""A store that fails on demand and counts its calls, and sync and async wrappers, both called without await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from inspect import iscoroutinefunction
from typing import Any

from sluicegate import ManualClock
from sluicegate.clock import Clock
from sluicegate.errors import StoreError
from sluicegate.plan import Check, Outcome, Plan
from sluicegate.quota import Quota
from sluicegate.rules.terms import make_terms
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import AsyncAdapter

DEADLINE = 0.1


class Breakable:
    """A memory store that is not a MemoryStore. It can hang for its deadline, or refuse to write."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._memory = MemoryStore(clock=clock)
        self.clock: Clock | None = clock
        self.down = self.full = False
        self.calls = 0  # of any method
        self.closed = 0
        self.refunds: list[tuple[str, int]] = []
        self.before: Callable[[], None] = lambda: None  # called at the begin of each call

    def __repr__(self) -> str:
        return "StoreInside"

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        self._come()
        if self.full and plan.charge:
            raise StoreError("breakable", "OOM command not allowed")
        return self._memory.run(plan)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        self._come()
        self.refunds += [(check.identity, check.cost) for check in plan.checks]
        self._memory.refund(plan, outcomes)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        self._come()
        return self._memory.renew(plan, outcomes)

    def forget(self, rule_id: str, identity: str) -> None:
        self._come()
        self._memory.forget(rule_id, identity)

    def close(self) -> None:
        self.closed += 1

    def _come(self) -> None:
        self.calls += 1
        self.before()
        if self.down:
            if isinstance(self.clock, ManualClock):
                self.clock.advance(DEADLINE)
            raise StoreError("breakable", "it hangs")


class Called:
    """A sync or an async store, called without await. Tasks that a call has started may run before it returns."""

    def __init__(self, store: Any, runner: asyncio.Runner) -> None:
        self.store, self._runner = store, runner

    def run(self, *checks: Check, charge: bool = True) -> tuple[Outcome, ...]:
        return self.answer(self.store.run, Plan(checks, charge))

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        self.answer(self.store.refund, plan, outcomes)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        renewed: tuple[Outcome, ...] = self.answer(self.store.renew, plan, outcomes)
        return renewed

    def forget(self, rule_id: str, identity: str) -> None:
        self.answer(self.store.forget, rule_id, identity)

    def close(self) -> None:
        self.answer(self.store.close)

    def answer(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """The result of a sync or an async call."""
        if not iscoroutinefunction(call):
            return call(*arguments, **options)

        async def main() -> Any:
            try:
                return await call(*arguments, **options)
            finally:
                for _ in range(5):
                    await asyncio.sleep(0)

        return self._runner.run(main())


class Mode:
    """The mode of a test: it makes a sync or an async wrapper around a sync store."""

    def __init__(self, name: str, runner: asyncio.Runner) -> None:
        self.is_async = name == "async"
        self._runner = runner

    def around(self, store: Any, kinds: tuple[Any, Any], **options: Any) -> Called:
        """The wrapper of this mode, from a pair (sync, async)."""
        if self.is_async:
            return self.called(kinds[1](AsyncAdapter(store), **options))
        return self.called(kinds[0](store, **options))

    def called(self, store: Any) -> Called:
        """A store of this mode."""
        return Called(store, self._runner)


@cache  # so that the same rule always has the same terms
def check(
    quota: str = "5/minute",
    identity: str = "a",
    *,
    cost: int = 1,
    scope: str = "exam",
    algorithm: str = "sliding-window",
    **more: Any,
) -> Check:
    """A check of a rule with the options `more`."""
    [terms] = make_terms(scope, Quota.parse_all(quota), algorithm=algorithm, **more)
    return Check(terms, identity, cost)


def allowed(outcomes: tuple[Outcome, ...]) -> bool:
    return all(outcome.allowed for outcome in outcomes)
