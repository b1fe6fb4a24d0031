"""Plans and decisions: the binding rule, and the numbers for the client."""

from __future__ import annotations

from typing import Any, Final

import pytest

from sluicegate.plan import NEVER, Check, Decision, Outcome, Plan, RateLimitExceeded
from sluicegate.quota import Quota
from sluicegate.testing.store import terms

SECOND: Final = 1_000_000


def passed(limit: int, remaining: int, reset: int = 60) -> Outcome:
    return Outcome(True, limit, remaining, 0, reset * SECOND, SECOND)


def refused(limit: int, retry: float | None, reset: int = 60) -> Outcome:
    return Outcome(False, limit, 0, NEVER if retry is None else round(retry * SECOND), reset * SECOND, SECOND)


def decide(*results: Outcome) -> Decision:
    """A decision over rules called a, b, c, … in this order."""
    names = "abcdef"[: len(results)]
    checks = tuple(
        [
            Check(terms("sliding-window", Quota(outcome.limit, 60), scope=name)._replace(name=name), "salice", 1)
            for name, outcome in zip(names, results, strict=True)
        ]
    )
    return Decision(all(outcome.allowed for outcome in results), checks, results)


# the outcomes of rules a, b, c → allowed, the binding rule, limit, remaining, retry_after, reset_after
DECISIONS: dict[str, tuple[Decision, tuple[Any, ...]]] = {
    "no rule": (decide(), (True, None, None, None, 0.0, 0.0)),
    "one allows": (decide(passed(5, 4)), (True, "a", 5, 4, 0.0, 60.0)),
    "one refuses": (decide(refused(5, 12.5)), (False, "a", 5, 0, 12.5, 60.0)),
    "allowed: the smallest share binds": (decide(passed(5, 4), passed(100, 50)), (True, "b", 100, 50, 0.0, 60.0)),
    "allowed: a share and not a number": (decide(passed(1000, 100), passed(5, 4)), (True, "a", 1000, 100, 0.0, 60.0)),
    "allowed: nothing left binds": (decide(passed(5, 3), passed(9, 0, 7), passed(8, 1)), (True, "b", 9, 0, 0.0, 7.0)),
    "allowed: the first of equals binds": (decide(passed(4, 2, 7), passed(8, 4, 9)), (True, "a", 4, 2, 0.0, 7.0)),
    "a refusal binds, however much others have left": (
        decide(passed(5, 0), refused(7, 3), passed(9, 0)),
        (False, "b", 7, 0, 3.0, 60.0),
    ),
    "refused: the longest wait binds": (
        decide(refused(5, 3, 9), refused(7, 4000, 5000), refused(9, 20, 30)),
        (False, "b", 7, 0, 4000.0, 5000.0),
    ),
    "refused: never is longer than any wait": (
        decide(refused(5, 10**9), refused(7, None, 8), refused(9, 1)),
        (False, "b", 7, 0, None, 8.0),
    ),
    "a microsecond": (decide(refused(5, 0.000_001)), (False, "a", 5, 0, 0.000_001, 60.0)),
}


@pytest.mark.parametrize(("decision", "expected"), DECISIONS.values(), ids=DECISIONS)
def test_decisions(decision: Decision, expected: tuple[Any, ...]) -> None:
    assert expected == (
        decision.allowed,
        decision.rule,
        decision.limit,
        decision.remaining,
        decision.retry_after,
        decision.reset_after,
    )
    assert bool(decision) is decision.allowed
    assert decision.binding is None or decision.binding[1].limit == decision.limit


def test_outcomes_are_in_rule_order() -> None:
    results = (passed(5, 4), refused(3, 9), passed(9, 1))
    assert list(decide(*results).by_rule.items()) == list(zip("abc", results, strict=True))


def test_a_decision_is_not_degraded_unless_said() -> None:
    assert decide().degraded is False
    assert decide(passed(5, 4)).degraded is False
    local, policy = (refused(5, 1)._replace(source=source) for source in ("local", "policy"))
    assert [(made.degraded, made.unavailable) for made in map(decide, (local, policy))] == [(True, False), (True, True)]


def test_a_plan_charges_unless_said() -> None:
    assert Plan(()).charge is True


@pytest.mark.parametrize("value", [decide(passed(5, 4)), Plan(decide(passed(5, 4)).checks)], ids=["decision", "plan"])
def test_an_identity_stays_out_of_what_is_printed(value: object) -> None:
    for shown in (repr(value), str(value), f"{value}"):
        assert "alice" not in shown
        assert "Check('a:sw60', identity=…, cost=1)" in shown


@pytest.mark.parametrize("value", [passed(5, 4), decide(), Plan(()), decide(passed(5, 4)).checks[0]])
def test_values_are_frozen_and_comparable(value: Any) -> None:
    with pytest.raises(AttributeError):
        setattr(value, value._fields[0], None)
    assert value == value._replace()
    assert hash(value) == hash(value._replace())


@pytest.mark.parametrize(
    ("wait", "message"),
    [
        (0.5, "rate limit 'a' exceeded; retry after 0.5 seconds [SG021]"),
        (60, "rate limit 'a' exceeded; retry after 60 seconds [SG021]"),
        (59.999_999, "rate limit 'a' exceeded; retry after 59.999999 seconds [SG021]"),
        (30 * 86_400, "rate limit 'a' exceeded; retry after 2592000 seconds [SG021]"),
        (None, "rate limit 'a' exceeded; it can never pass: its cost is above the limit [SG021]"),
    ],
)
def test_rate_limit_exceeded_says_when_to_come_back(wait: float | None, message: str) -> None:
    decision = decide(refused(5, wait))
    error = RateLimitExceeded(decision)
    assert (str(error), error.decision) == (message, decision)
