"""The decision of a plan that a store has run."""

from __future__ import annotations

from sluicegate.plan import Checks, Decision, Outcomes


def conclude(checks: Checks, outcomes: Outcomes) -> Decision:
    """Make the decision from the outcomes of checks."""
    return Decision(all([outcome.allowed for outcome in outcomes]), checks, outcomes)
