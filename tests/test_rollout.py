"""Rules in shadow: counted, for all or for a share of the identities, and without effect on requests."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Ban, Decision, ManualClock, Quota, Rule
from sluicegate.identity import digest
from sluicegate.plan import Check, Plan, Terms
from sluicegate.rules.rollout import EVERYBODY, position, shadows, share
from sluicegate.rules.terms import make_terms
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.store import terms
from sluicegate.web.endpoint import NOWHERE
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.http import DIALECTS, denial, fields_for
from sluicegate.web.marks import make_mark
from sluicegate.web.request_state import RequestState
from tests import test_gate
from tests.test_gate import Ask, Visitor, settings

PEOPLE = [f"user-{number}" for number in range(4000)]
ask = test_gate.ask
PLACE = test_gate.place()
STRICT, WIDE = Rule(name="strict", quota="1/minute", mode="shadow"), Rule(name="wide", quota="3/minute")


def by_name(visitor: Visitor) -> str:
    return str(visitor.path)


def facts(decision: Decision | None) -> tuple[bool, tuple[str, ...]]:
    assert decision is not None
    return decision.allowed, decision.would_refuse


# The identities for which a rule is enforced


@pytest.mark.parametrize("percent", [0.5, 1, 10, 33.3, 50, 99])
def test_a_share_of_all_identities_is_enforced(percent: float) -> None:
    count = sum(position(person) < share("enforce", percent) for person in PEOPLE)
    assert abs(count - len(PEOPLE) * percent / 100) < 4 * (len(PEOPLE) * percent * (100 - percent)) ** 0.5 / 100


PERCENT = st.floats(0, 100).filter(lambda percent: percent == 0 or percent > 1e-12)  # what is less is refused


@given(st.text(max_size=50), PERCENT, PERCENT)
def test_an_identity_enforced_at_some_percentage_is_enforced_at_any_higher(
    identity: str, one: float, other: float
) -> None:
    lower, higher = sorted((share("enforce", one), share("enforce", other)))
    assert not position(identity) < lower or position(identity) < higher
    assert 0 <= position(identity) < EVERYBODY == share("enforce", 100)
    assert share("shadow", 100) == share("enforce", 0) == 0


def test_only_the_digest_decides() -> None:
    """As in any other process, on any other day; so two rules at 10 % are enforced for the same tenth."""
    assert digest("salice").startswith("BbDYQ3hb")
    assert position("salice") == int.from_bytes(b64decode("BbDYQ3hb"), "big") == 6257100683355


@pytest.mark.parametrize("percent", [0, 30, 100])
def test_the_gate_enforces_for_them(ask: Ask, percent: float) -> None:
    rule = Rule(name="r", quota="1/minute", key=by_name, enforce_percent=percent)
    people = [Visitor(path=f"/{number}") for number in range(40)]
    decisions = ask(settings(rules=[rule]), NOWHERE.endpoint, *people, *people)[40:]
    enforced = [position(f"s/{number}") < share("enforce", percent) for number in range(40)]
    assert 40 * (percent == 100) <= sum(enforced) <= 40 * (percent > 0)
    assert [facts(decision) for decision in decisions] == [(False, ()) if each else (True, ("r",)) for each in enforced]


# The content of a decision


def test_a_decision_is_that_of_the_enforced_rules(ask: Ask) -> None:
    decisions = ask(settings(rules=[STRICT, WIDE]), NOWHERE.endpoint, *[Visitor() for _ in range(5)])
    assert [facts(decision) for decision in decisions] == [(True, ())] + [(True, ("strict",))] * 2 + [
        (False, ("strict",))
    ] * 2
    for number, decision in enumerate(decisions):
        assert decision is not None
        assert (decision.rule, decision.limit, decision.remaining) == ("wide", 3, max(0, 2 - number))
        assert decision.retry_after == (0 if number < 3 else 60)
        assert list(decision.by_rule) == ["strict", "wide"]
        assert all(decision.by_rule["strict"][:1])


def test_with_only_shadow_rules_no_rule_is_binding(ask: Ask) -> None:
    [_, decision] = ask(settings(rules=[STRICT]), NOWHERE.endpoint, Visitor(), Visitor())
    assert decision is not None
    assert (decision.allowed, decision.rule, decision.limit, decision.remaining) == (True, None, None, None)
    assert (decision.retry_after, decision.reset_after, decision.would_refuse) == (0, 0, ("strict",))


def test_each_rule_is_charged_as_a_whole_also_beside_one_of_the_same_name() -> None:
    """The names of their quotas differ, so neither of the two rules gets another name."""
    gate = Gate(settings(mode="shadow"))
    bounds = gate.bind_own(PLACE, [make_mark("1/minute; 9/hour"), make_mark("5/day")])
    left = []
    for _ in range(3):
        decision = gate.decide(Visitor(), bounds)
        assert decision is not None
        left.append({name: outcome.remaining for name, outcome in decision.by_rule.items()})
    assert left == [{"reply-minute": 0, "reply-hour": 8, "reply": number} for number in (4, 3, 2)]


def test_a_cost_that_never_fits_is_no_refusal_either(ask: Ask) -> None:
    rule = Rule(name="r", quota="1/minute", cost=lambda visitor: 2, mode="shadow")
    [decision] = ask(settings(rules=[rule]), NOWHERE.endpoint, Visitor())
    assert decision is not None
    assert (facts(decision), decision.retry_after) == ((True, ("r",)), 0)
    assert decision.by_rule["r"].retry_after is None


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("count", [1, 4])
def test_clients_see_nothing_of_it(dialect: str, count: int) -> None:
    answers = []
    for rules in ([WIDE], [STRICT, WIDE], [WIDE, STRICT]):
        gate = Gate(settings(rules=rules))
        for _ in range(count):
            decision = gate.decide(Visitor(), gate.bind(NOWHERE.endpoint))
        assert decision is not None
        fields = fields_for(decision, dialect, epoch=1e9, status=200 if decision.allowed else 429)
        answer = None if decision.allowed else denial(decision, dialect, epoch=1e9)
        answers.append((fields, answer and (answer.status, answer.fields, answer.body)))
    assert answers[0] == answers[1] == answers[2]
    alone = Gate(settings(rules=[STRICT]))
    shadow = alone.decide(Visitor(), alone.bind(NOWHERE.endpoint))
    assert shadow is not None
    assert fields_for(shadow, dialect, epoch=1e9, status=200) == []


def test_two_decisions_of_one_request_are_reported_together() -> None:
    gate = Gate(settings(rules=[STRICT]))
    state = RequestState(gate)
    for _ in range(2):
        state.note(gate.decide(Visitor(), gate.bind(NOWHERE.endpoint)))
    assert state.decision is not None
    assert facts(state.decision) == (True, ("strict-2",))


# What it is counted under


@pytest.mark.parametrize("percent", [0, 100])
def test_a_shadow_rule_touches_no_budget_that_it_shares(ask: Ask, percent: float) -> None:
    """Rules of one scope share a budget: those that are enforced one, those in shadow another."""
    rules = [
        Rule(name="a", quota="2/minute", scope="both", path="/a", enforce_percent=percent),
        Rule(name="b", quota="2/minute", scope="both", path="/b"),
    ]
    visitors = [Visitor(path=path) for path in ("/a", "/a", "/b", "/b", "/b")]
    decisions = ask(settings(rules=rules, key="ip"), NOWHERE.endpoint, *visitors)
    expected = [True, True, True, True, False] if percent == 0 else [True, True, False, False, False]
    assert [decision is not None and decision.allowed for decision in decisions] == expected


def test_its_terms_are_those_of_the_rule_but_apart() -> None:
    made = make_terms("r", (Quota(5, 60),), algorithm="gcra", counted=True, ban=terms("gcra", "1/hour"))
    [shadow] = shadows(made)
    assert shadow.rule_id == f"{made[0].rule_id}:shadow"
    assert (shadow.shadow, shadow.ban, shadow.count_denied) == (True, None, True)
    assert shadows(made) is shadows(made), "what is remembered under terms is found again"


def test_a_full_memory_keeps_them_apart_and_forgets_them_first() -> None:
    clock = ManualClock()
    store = MemoryStore(max_keys=1, clock=clock)
    shadow, rule = terms("fixed-window", "1/minute", shadow=True), terms("fixed-window", "1/minute")

    def run(which: Terms, identity: str) -> tuple[bool, bool]:
        [outcome] = store.run(Plan((Check(which, identity, 1),), network=lambda: "203.0.113.0"))
        return outcome.allowed, outcome.retry_after == 0

    assert [run(shadow, "a"), run(shadow, "a")] == [(True, True), (True, False)]
    assert [run(rule, "a"), run(rule, "a")] == [(True, True), (False, False)], "it made room for one that is enforced"
    assert [run(shadow, "b"), run(shadow, "c")] == [(True, True), (True, False)], "there is no room: they share one"
    assert run(rule, "d") == (True, True), "and share it with no rule that is enforced"


@pytest.mark.parametrize("gate", [Gate, AsyncGate])
def test_settings_and_marks_take_the_options(gate: Any) -> None:
    made = gate(settings(rules=[{"name": "r", "quota": "5/minute", "MODE": "shadow"}]))
    assert [bound.share for bound in made.bind(NOWHERE.endpoint)] == [0]
    mark = make_mark("5/minute", enforce_percent=50)
    assert [bound.share for bound in made.bind_own(PLACE, [mark])] == [EVERYBODY // 2]


@pytest.mark.parametrize(("percent", "expected"), [(0, [True] * 4), (100, [True, False, False, False])])
def test_a_refusal_in_shadow_is_no_strike_towards_a_ban(ask: Ask, percent: float, expected: list[bool]) -> None:
    ban = Ban(after=1, within="1 hour", duration="1 hour")
    rules = [
        Rule(name="tried", quota="1/minute", enforce_percent=percent, ban=ban),
        Rule(name="banning", quota="9/minute", ban=ban),
    ]
    decisions = ask(settings(rules=rules), NOWHERE.endpoint, *[Visitor() for _ in range(4)])
    assert [decision is not None and decision.allowed for decision in decisions] == expected
    assert [decision.rule for decision in decisions if decision is not None and not decision.allowed] == [
        "ban" for each in expected if not each
    ]
