"""Charges that depend on the response: a function of the rule refunds a charge, or a charge is held until the response
has ended.

Pure functions from a decision and a response to charges. Waiting and calls of the store are in `settlement` and the
adapters.
"""

from __future__ import annotations

import logging
from typing import Final

from sluicegate.plan import Check, Decision, Outcome, Plan, shadow_refusals
from sluicegate.rules.response import Response

log = logging.getLogger("sluicegate.charges")

Charges = list[tuple[Check, Outcome]]
Due = tuple[Plan, tuple[Outcome, ...]]

_failed: Final[set[str]] = set()  # the ids of the rules whose predicate has failed: each rule is logged once


def owed(decision: Decision) -> Charges:
    """Return the charges of a decision that depend on the response or on its end. Most rules have no such charges."""
    allowed, checks, outcomes = decision
    for terms, _, _ in checks:
        if terms.refund_when is not None or terms.lasts:
            break
    else:
        return []
    if not allowed:
        return []  # only rules that count refusals were charged, and their charges stay
    pairs = made(list(zip(checks, outcomes, strict=True)))
    return [pair for pair in pairs if pair[0].terms.refund_when is not None or pair[0].terms.lasts]


def refundable(charges: Charges, response: Response) -> Charges:
    """Return the charges that this response refunds."""
    return [(check, outcome) for check, outcome in charges if not check.terms.held and _is_refunded(check, response)]


def lasting(charges: Charges) -> Charges:
    """Return the charges that are settled or released when the response has ended."""
    return [(check, outcome) for check, outcome in charges if check.terms.lasts]


def held(charges: Charges) -> Charges:
    """Return the charges that are released when the response has ended."""
    return [(check, outcome) for check, outcome in charges if check.terms.held]


def due(charges: Charges) -> Due:
    """Return these charges as arguments of a store's `refund` and `renew`."""
    return Plan(tuple([check for check, _ in charges])), tuple([outcome for _, outcome in charges])


def without(decision: Decision, refunded: Charges) -> Decision:
    """Return the decision without these charges: its header fields show what is left now, and its checks cost 0."""
    gone = {id(outcome) for _, outcome in refunded}
    checks, outcomes = [], []
    for check, outcome in zip(decision.checks, decision.outcomes, strict=True):
        is_gone = id(outcome) in gone
        checks.append(check._replace(cost=0) if is_gone else check)
        outcomes.append(_with_refund(outcome, check.cost) if is_gone else outcome)
    return decision._replace(checks=tuple(checks), outcomes=tuple(outcomes))


def replaced(decision: Decision, returned: Charges, taken: Charges) -> Decision:
    """Return the decision after charges that were given back have been replaced: `taken` are those of the stricter
    limits in their place. The earlier limits show what is left after that, because each budget is charged once.
    """
    costs = {check.budget: check.cost for check, _ in taken}
    earlier = {
        check._replace(cost=0): _with_refund(outcome, check.cost - costs.get(check.budget, 0))
        for check, outcome in returned
    }
    outcomes = [earlier.get(check, outcome) for check, outcome in zip(decision.checks, decision.outcomes, strict=True)]
    return decision._replace(outcomes=tuple(outcomes))


def kept(decision: Decision | None) -> Charges:
    """Return the charges of a request that were made and not refunded, and those that a retry need not make. A shadow
    check that would have refused is among them, although it was not charged.
    """
    if decision is None or not decision.allowed:
        return []  # of a refused request only the rules that count refusals were charged, and their charges stay
    pairs = list(zip(decision.checks, decision.outcomes, strict=True))
    records = {check.terms.rule_id for check, _ in pairs if check.terms.per is not None and check.cost > 0}
    free = [check for check, _ in pairs if check.terms.once is not None and check.terms.once.rule_id in records]
    return [(check, outcome) for check, outcome in pairs if outcome.allowed and (check.cost > 0 or check in free)]


def apart(charges: Charges) -> list[Charges]:
    """Return the same charges in parts that have each budget once, as a plan has. Two decisions about one request may
    have charged one budget.
    """
    parts: list[dict[tuple[str, str], tuple[Check, Outcome]]] = []
    for check, outcome in charges:
        part = next((each for each in parts if check.budget not in each), None)
        if part is None:
            parts.append(part := {})
        part[check.budget] = check, outcome
    return [list(part.values()) for part in parts]


def made(charges: Charges) -> Charges:
    """Return those of these charges that a store made, and can refund."""
    refused = shadow_refusals(charges)
    return [
        (check, outcome)
        for check, outcome in charges
        if check.cost > 0 and outcome.source != "policy" and check.group not in refused
    ]


def _with_refund(outcome: Outcome, cost: int) -> Outcome:
    remaining = min(outcome.limit, outcome.remaining + cost)
    if remaining == outcome.limit:
        return outcome._replace(remaining=remaining, reset_after=0, next_after=0)
    return outcome._replace(remaining=remaining)


def _is_refunded(check: Check, response: Response) -> bool:
    """True if the rule's function refunds this check. If it raises, the charge stays; the rule is logged once."""
    terms = check.terms
    if terms.refund_when is None:
        return False
    try:
        return terms.refund_when(response)
    except Exception:
        if terms.rule_id not in _failed:
            _failed.add(terms.rule_id)
            log.exception("sluicegate: charge_when or refund_when of rule %r failed, the charge is kept", terms.name)
        return False
