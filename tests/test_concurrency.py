"""Concurrency: the value and its text, its rules, and the responses to clients."""

from __future__ import annotations

import pickle
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import http_sf
import pytest

from sluicegate import Concurrency, Decision, Outcome, Rule
from sluicegate.errors import QuotaError, RuleError, SettingsError
from sluicegate.plan import Check
from sluicegate.rules.terms import make_terms
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import Gate
from sluicegate.web.http import DIALECTS, denial, fields_for, retry_after
from sluicegate.web.marks import make_mark
from sluicegate.web.settings import Settings
from sluicegate.wsgi import WsgiCaller

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (Concurrency(10), "10 at once"),
        (Concurrency(10, 60), "10 at once"),
        (Concurrency(1, lease=300), "1 at once for 5 minutes"),
        (Concurrency(1, lease=timedelta(hours=1)), "1 at once for 1 hour"),
        (Concurrency(250, lease=1.5), "250 at once for 1500 milliseconds"),
        (Concurrency(3, lease=Fraction(1, 1000)), "3 at once for 1 millisecond"),
    ],
)
def test_its_text_parses_back(made: Concurrency, text: str) -> None:
    assert str(made) == text
    assert Concurrency.parse(text) == Concurrency.parse(f"  {text.upper()} ") == made
    assert hash(Concurrency.parse(text)) == hash(made)
    assert pickle.loads(pickle.dumps(made)) == made
    assert repr(made) == f"Concurrency('{text}')"


def test_it_is_a_frozen_value() -> None:
    made = Concurrency(10, lease=30)
    assert (made.limit, made.lease) == (10, 30)
    assert made != Concurrency(10)
    assert made != made.quota
    with pytest.raises(AttributeError, match="cannot be changed"):
        made.quota = Concurrency(5).quota
    with pytest.raises(AttributeError, match="cannot be changed"):
        del made.quota


@pytest.mark.parametrize(
    ("given", "what", "problem"),
    [
        ((0,), "limit", "less than 1"),
        ((True,), "limit", "not a whole number"),
        ((10**15,), "limit", "too large"),
        ((5, 0), "lease", "shorter than a microsecond"),
        ((5, "60"), "lease", "not a duration"),
        ((5, float("nan")), "lease", "not a finite number"),
        ("10", "concurrency", "cannot be read"),
        ("at once", "concurrency", "cannot be read"),
        ("10/minute at once", "concurrency", "cannot be read"),
        ("10 at once for", "concurrency", "cannot be read"),
        ("10 at once for 5 fortnights", "concurrency", 'unknown unit "fortnights"'),
        ("10 at once for minute burst 3", "concurrency", "has a burst"),
        ("10 at once for 1 minute; 5/minute", "concurrency", "2 quotas"),
        ("0 at once", "concurrency", "limit is zero"),
        ("-1 at once", "concurrency", '"-1" is negative'),
        (5, "concurrency", "cannot be read"),
        ("10 at once for x" + " " * 60_000 + "x", "concurrency", "60017 characters"),
    ],
)
def test_nonsense_says_what_is_wrong(given: Any, what: str, problem: str) -> None:
    with pytest.raises(QuotaError, match=problem) as caught:
        Concurrency(*given) if isinstance(given, tuple) else Concurrency.parse(given)
    assert caught.value.what == what


@pytest.mark.parametrize("quota", [Concurrency(2), "2 at once", lambda request: "2 at once"])
def test_a_rule_takes_it(quota: Any) -> None:
    [made] = Rule(name="reports", quota=quota).terms("gcra", "2 at once")
    assert (made.name, made.algorithm, made.params, made.held) == (
        "reports",
        "sliding-window",
        (2, 60 * SECOND, 1),
        True,
    )
    assert made.rule_id == "reports:at60"


def test_it_never_shares_a_key_with_a_quota() -> None:
    [held], [counted] = [
        make_terms("a", each, algorithm="sliding-window") for each in (Concurrency(2), (Concurrency(2).quota,))
    ]
    assert held.rule_id != counted.rule_id
    assert held.params == counted.params
    assert not counted.held


@pytest.mark.parametrize("options", [{"algorithm": "sliding-window"}, {"count_denied": True}])
def test_options_that_say_nothing_of_it_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RuleError, match="has no meaning for a Concurrency"):
        Rule(name="a", quota="2 at once", **options)
    with pytest.raises(RuleError, match="has no meaning for a Concurrency"):
        make_mark(Concurrency(2), **options)
    with pytest.raises(RuleError, match="has no meaning for a Concurrency"):
        Rule(name="a", quota=lambda request: Concurrency(2), **options).terms("gcra", Concurrency(2))


def test_a_cost_that_never_fits_is_refused() -> None:
    with pytest.raises(RuleError, match="more than 2, so it could never pass"):
        Rule(name="a", quota="2 at once", cost=3)
    assert make_mark("2 at once", cost=2, name="a").rule.names == ("a",)


def test_settings_take_it_as_a_rule_and_not_as_a_default_limit(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[sluicegate]\n[[sluicegate.rules]]\nname = "in-flight"\nquota = "10 at once for 5 minutes"\n')
    [rule] = list(Settings.from_toml(file).rules)
    assert isinstance(rule, Rule)
    assert rule.quota == Concurrency(10, lease=300)
    for wrong in ("10 at once", Concurrency(10)):
        with pytest.raises(QuotaError, match="give it to a rule, to @limit or to hold"):
            Settings(default_limits=[wrong])  # type: ignore[list-item]
    with pytest.raises(SettingsError):
        Settings(default_limits=Concurrency(10))  # type: ignore[arg-type]


def test_a_gate_keeps_it_beside_other_rules() -> None:
    rules = [Rule(name="in-flight", quota="2 at once"), Rule(name="often", quota="5/minute")]
    gate = Gate(Settings(rules=rules))
    caller = WsgiCaller({"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "203.0.113.7"})
    decisions = [gate.decide(caller, gate.bind(Endpoint())) for _ in range(3)]
    assert [decision is not None and decision.allowed for decision in decisions] == [True, True, False]
    gate.close()


def decision_of(*refused: tuple[str, float | None]) -> Decision:
    """A refusal by these checks, with the store's waits in seconds."""
    checks, outcomes = [], []
    for text, wait in refused:
        quota = Concurrency.parse(text) if "at once" in text else Rule(name="a", quota=text).quota
        [terms] = make_terms("held" if "at once" in text else "often", quota, algorithm="sliding-window")
        us = None if wait is None else round(wait * SECOND)
        checks.append(Check(terms, "a", 1))
        outcomes.append(Outcome(wait == 0, terms.params[0], 0 if wait else 1, us, us or 0, us or 0))
    return Decision(all(outcome.allowed for outcome in outcomes), tuple(checks), tuple(outcomes))


@pytest.mark.parametrize(
    ("refused", "seconds", "bound"),
    [
        ([("2 at once", 55.5)], 1, 55.5),
        ([("2 at once", 55.5), ("5/minute", 20)], 20, 55.5),
        ([("2 at once", 55.5), ("5/minute", 0)], 1, 55.5),
        ([("2 at once", 0), ("5/minute", 0.5)], 1, 0.5),
        ([("2 at once", None)], None, None),
    ],
)
def test_a_refusal_never_says_to_wait_for_the_lease(
    refused: list[tuple[str, float | None]], seconds: int | None, bound: float | None
) -> None:
    """A slot is free when any request ends, at an unknown time. The decision keeps the upper bound."""
    decision = decision_of(*refused)
    assert retry_after(decision) == seconds
    assert decision.retry_after == bound
    assert dict(denial(decision, None, epoch=0).fields).get("Retry-After") == (seconds and str(seconds))


def test_draft_11_says_what_is_counted() -> None:
    fields = dict(fields_for(decision_of(("2 at once", 0), ("5/minute", 0)), "draft-11", epoch=0, status=200))
    assert fields == {
        "RateLimit-Policy": '"held";q=2;qu="concurrent-requests", "often";q=5;w=60',
        "RateLimit": '"held";r=1, "often";r=1',
    }
    for value in fields.values():
        http_sf.parse(value.encode(), tltype="list")
    assert dict(fields_for(decision_of(("2 at once", 9)), "draft-11", epoch=0, status=429))["RateLimit"] == '"held";r=0'


@pytest.mark.parametrize("dialect", sorted(set(DIALECTS) - {"draft-11"}))
def test_dialects_with_a_reset_leave_it_out(dialect: str) -> None:
    both, alone = decision_of(("2 at once", 0), ("5/minute", 0)), decision_of(("5/minute", 0))
    assert fields_for(both, dialect, epoch=0, status=200) == fields_for(alone, dialect, epoch=0, status=200)
    for alone in (decision_of(("2 at once", 9)), decision_of(("2 at once", 9), ("5/minute", 0))):
        names = [name for name, _ in fields_for(alone, dialect, epoch=0, status=429)]
        assert names == ["Cache-Control", "Retry-After", *(["retry-after-ms"] if dialect == "openai" else [])]
