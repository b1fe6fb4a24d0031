"""Events: what they say of a decision, and never an identity."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from sluicegate import Limiter
from sluicegate.events import DecisionEvent, RuleEvent
from sluicegate.identity import digest, identity_text
from sluicegate.plan import FORBIDDEN, NEVER, Check, Decision, Outcome, Terms
from sluicegate.rules.terms import make_terms, read

ALICE = identity_text("alice")
TEN: Terms = make_terms("ten", read("10/minute"), algorithm="gcra")[0]
SHADOW = TEN._replace(name="trial", shadow=True)
BANNED = TEN._replace(name="out", algorithm="ban")


def decision(*rules: tuple[Terms, Outcome]) -> Decision:
    checks = tuple([Check(terms, ALICE, 2) for terms, _ in rules])
    outcomes = tuple([outcome for _, outcome in rules])
    return Decision(all([outcome.allowed for outcome in outcomes]), checks, outcomes)


def passed(remaining: int = 8, **more: Any) -> Outcome:
    return Outcome(True, 10, remaining, 0, 1_500_000, 500_000, **more)


def failed(wait: int | None = 2_500_000, **more: Any) -> Outcome:
    return Outcome(False, 10, 0, wait, 60_000_000, 1_000_000, **more)


def event(*rules: tuple[Terms, Outcome], **more: Any) -> DecisionEvent:
    return DecisionEvent(decision(*rules), **{"store_seconds": 0.001, **more})


def test_a_rule_event_has_the_numbers_of_its_outcome() -> None:
    (rule,) = event((TEN, passed())).rules
    assert rule.asdict() == {
        "rule": "ten",
        "result": "allowed",
        "limit": 10,
        "remaining": 8,
        "cost": 2,
        "retry_after": 0.0,
        "reset_after": 1.5,
        "near": False,
        "source": "store",
        "identity": digest(ALICE),
    }


@pytest.mark.parametrize(
    ("terms", "outcome", "result", "near"),
    [
        (TEN, passed(2), "allowed", False),
        (TEN, passed(1), "allowed", True),
        (TEN, passed(0), "allowed", True),
        (TEN, failed(), "refused", False),
        (TEN, failed(NEVER), "refused", False),
        (SHADOW, passed(0), "allowed", True),
        (SHADOW, failed()._replace(allowed=True), "shadow", False),
        (SHADOW, failed(NEVER)._replace(allowed=True), "shadow", False),
        (BANNED, passed(0), "allowed", False),
        (BANNED, failed(), "banned", False),
    ],
)
def test_the_result_of_a_rule(terms: Terms, outcome: Outcome, result: str, *, near: bool) -> None:
    made = event((terms, outcome))
    (rule,) = made.rules
    assert (rule.result, rule.near) == (result, near)
    assert made.tally == [(rule.rule, result, "store", near)]
    assert rule.retry_after == (None if outcome.retry_after is None else outcome.retry_after / 1e6)


@pytest.mark.parametrize(
    ("outcome", "seconds", "source"),
    [
        (passed(), 0.001, "store"),
        (failed(), 0.001, "store"),
        (passed(), None, "prefetch"),
        (failed(), None, "cache"),
        (passed(source="local"), 0.1, "local"),
        (passed(source="local"), None, "local"),
        (failed(source="policy"), None, "policy"),
    ],
)
def test_the_source_of_a_rule(outcome: Outcome, seconds: float | None, source: str) -> None:
    made = event((TEN, outcome), store_seconds=seconds)
    assert [made.rules[0].source, made.tally[0][2]] == [source, source]


def test_a_cached_refusal_has_one_source_for_all_its_rules() -> None:
    rules = event((TEN, passed()), (TEN, failed()), store_seconds=None).rules
    assert [rule.source for rule in rules] == ["cache", "cache"]


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (event((TEN, passed())), (True, False, False)),
        (event((TEN, passed()), (TEN, failed())), (False, False, False)),
        (event((TEN, passed(source="local"))), (True, False, True)),
        (DecisionEvent(FORBIDDEN), (False, True, False)),
    ],
)
def test_an_event_says_what_the_decision_says(made: DecisionEvent, fields: tuple[bool, bool, bool]) -> None:
    assert (made.allowed, made.forbidden, made.degraded) == fields
    assert made.application == made.endpoint == made.method == ""


@pytest.mark.parametrize(
    ("method", "shown"), [("GET", "GET"), ("PROPFIND", "PROPFIND"), ("", ""), ("get", "other"), ("X" * 99, "other")]
)
def test_a_client_cannot_invent_methods(method: str, shown: str) -> None:
    assert DecisionEvent(FORBIDDEN, method=method).method == shown


def test_an_identity_is_shown_only_if_asked_for() -> None:
    seen = Limiter().hit("5/minute", "alice")
    hidden, shown = DecisionEvent(seen), DecisionEvent(seen, show_identities=True)
    assert hidden.rules[0].identity == digest(ALICE)
    assert shown.rules[0].identity == ALICE
    assert "alice" not in f"{hidden!r} {hidden.rules!r} {hidden.asdict()}"
    assert "alice" in repr(shown)


def test_an_event_is_frozen_and_compared_by_its_fields() -> None:
    one, other = event((TEN, passed())), event((TEN, passed()))
    assert one == other
    assert len({one, other}) == len({one.rules[0], other.rules[0]}) == 1
    assert one != event((TEN, passed(7)))
    assert one.rules[0] is one.rules[0]
    for made, name in ((one, "allowed"), (one, "rules"), (one, "new"), (one.rules[0], "result")):
        with pytest.raises(AttributeError):
            setattr(made, name, 1)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_event_leaves_the_process_as_a_dictionary(copied: Any) -> None:
    made: DecisionEvent | RuleEvent
    for made in (event((TEN, passed())), event((TEN, passed())).rules[0]):
        with pytest.raises(TypeError, match="asdict"):
            copied(made)
    assert pickle.loads(pickle.dumps(event((TEN, passed())).asdict()))["rules"][0]["rule"] == "ten"
