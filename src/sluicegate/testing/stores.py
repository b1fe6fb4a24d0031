"""Stores with fixed outcomes for tests: one allows everything, one refuses everything, one always fails.

They keep no budgets and need no test framework. Each is sync; wrap it in `AsyncAdapter` for an AsyncLimiter.
"""

from __future__ import annotations

from typing import NoReturn, Self

from sluicegate.clock import MICROSECOND, Clock
from sluicegate.errors import StoreError
from sluicegate.plan import Outcome, Plan


class _Fixed:
    """A store that keeps no budgets."""

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Do nothing: nothing was charged."""

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Return the outcomes unchanged: nothing was charged."""
        return outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        """Do nothing: the store keeps no budgets."""

    def close(self) -> None:
        """Do nothing: the store holds no resources."""

    def separate(self, name: str, *, clock: Clock | None = None) -> Self:
        """Return the store itself: it keeps no budgets."""
        return self


class OpenStore(_Fixed):
    """Allows every request and counts nothing: for tests of an application that are not about its limits.

    >>> from sluicegate import Limiter
    >>> limiter = Limiter(OpenStore())
    >>> all(limiter.is_action_allowed("alice", "reply", period=60, max_count=1) for _ in range(100))
    True
    """

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        return tuple([Outcome(True, terms.limit, terms.limit, 0, 0, 0) for terms, _, _ in plan.checks])


class ShutStore(_Fixed):
    """Refuses every request under a rule: for tests of an application's response to a refusal.

    >>> from sluicegate import Limiter
    >>> Limiter(ShutStore(retry_after=30)).hit("5/minute", "alice").retry_after
    30.0
    """

    def __init__(self, *, retry_after: float | None = 60) -> None:
        self._wait = None if retry_after is None else round(retry_after * MICROSECOND)

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Refuse every check that can refuse."""
        left = self._wait if self._wait is not None else 0
        return tuple([Outcome(terms.shadow, terms.limit, 0, self._wait, left, left) for terms, _, _ in plan.checks])


class BrokenStore(_Fixed):
    """Raises StoreError on every call: for tests of an application while its store is down.

    >>> from sluicegate import Limiter
    >>> decision = Limiter(BrokenStore(), on_store_failure="deny").hit("5/minute", "alice")
    >>> decision.allowed, decision.degraded
    (False, True)
    """

    def run(self, *_: object, **__: object) -> NoReturn:
        raise StoreError("broken", "this store of sluicegate.testing always fails")

    refund = renew = forget = run
