"""Stores that answer as a test wants: everything passes, nothing passes, nothing answers.

They keep no budgets and need no test framework. Each is synchronous; `Awaited` makes the twin for an AsyncLimiter.
"""

from __future__ import annotations

from sluicegate.clock import MICROSECOND
from sluicegate.errors import StoreError
from sluicegate.plan import Outcome, Plan


class OpenStore:
    """Lets every request pass and counts nothing: for tests of an application that are not about its limits.

    >>> from sluicegate import Limiter
    >>> limiter = Limiter(OpenStore())
    >>> all(limiter.is_action_allowed("alice", "reply", period=60, max_count=1) for _ in range(100))
    True
    """

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Allow every check."""
        return tuple([Outcome(True, terms.params[0], terms.params[0], 0, 0, 0) for terms, _, _ in plan.checks])

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Nothing was charged, so nothing is given back."""

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Nothing was charged, so nothing changes."""
        return outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        """Nothing is known, so nothing is forgotten."""

    def close(self) -> None:
        """Nothing was opened."""


class ShutStore:
    """Refuses every request that is under any rule: for tests of what an application answers to that.

    >>> from sluicegate import Limiter
    >>> Limiter(ShutStore(retry_after=30)).hit("5/minute", "alice").retry_after
    30.0
    """

    def __init__(self, *, retry_after: float | None = 60) -> None:
        self._wait = None if retry_after is None else round(retry_after * MICROSECOND)

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Refuse every check that can refuse."""
        left = self._wait if self._wait is not None else 0
        return tuple([Outcome(terms.shadow, terms.params[0], 0, self._wait, left, left) for terms, _, _ in plan.checks])

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Nothing was charged, so nothing is given back."""

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Nothing was charged, so nothing changes."""
        return outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        """Nothing is known, so nothing is forgotten."""

    def close(self) -> None:
        """Nothing was opened."""


class BrokenStore:
    """Never answers: for tests of what an application does while its store is down.

    >>> from sluicegate import Limiter
    >>> decision = Limiter(BrokenStore(), on_store_failure="deny").hit("5/minute", "alice")
    >>> decision.allowed, decision.degraded
    (False, True)
    """

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Raise StoreError."""
        raise StoreError("broken", "it is down, as the test asked")

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Raise StoreError."""
        raise StoreError("broken", "it is down, as the test asked")

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Raise StoreError."""
        raise StoreError("broken", "it is down, as the test asked")

    def forget(self, rule_id: str, identity: str) -> None:
        """Raise StoreError."""
        raise StoreError("broken", "it is down, as the test asked")

    def close(self) -> None:
        """Nothing was opened."""
