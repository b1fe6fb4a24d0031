"""Usage: what one identity has used of each budget. Values only."""

from __future__ import annotations

from typing import Literal, NamedTuple

from sluicegate.clock import MICROSECOND
from sluicegate.plan import BAN, Decision, Outcome, Terms

Kind = Literal["budget", "slots", "ban"]


class Budget(NamedTuple):
    """One budget of an identity. Times are in seconds. Of a ban, `used` are the refusals that count towards it."""

    rule: str
    kind: Kind
    tier: str | None  # whose quota it is, if the rule has tiers
    unit: str | None  # what is counted; None: requests
    limit: int
    used: int
    remaining: int
    next_after: float  # until `remaining` next grows, or until a ban ends; 0 if nothing is used
    reset_after: float  # until nothing of the limit is used

    @classmethod
    def of(cls, terms: Terms, outcome: Outcome) -> Budget:
        """Make it from an outcome that charged nothing."""
        return cls(
            rule=terms.name,
            kind="ban" if terms.algorithm == BAN else "slots" if terms.held else "budget",
            tier=terms.tier,
            unit=terms.unit,
            limit=outcome.limit,
            used=outcome.limit - outcome.remaining,
            remaining=outcome.remaining,
            next_after=outcome.next_after / MICROSECOND,
            reset_after=outcome.reset_after / MICROSECOND,
        )


def budgets_of(decision: Decision | None) -> tuple[Budget, ...]:
    """Return the budgets of a decision that charged nothing: without rules in shadow, and without a ban that does not
    hold.
    """
    pairs = [] if decision is None else zip(decision.checks, decision.outcomes, strict=True)
    told = [(check.terms, outcome) for check, outcome in pairs if not check.terms.shadow]
    return tuple([Budget.of(terms, each) for terms, each in told if terms.algorithm != BAN or not each.allowed])
