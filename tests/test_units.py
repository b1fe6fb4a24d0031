"""What a quota counts, in the header fields: `qu` of draft 11, and the fields of OpenAI."""

from __future__ import annotations

import pytest

from sluicegate import Rule
from sluicegate.plan import Check, Decision, Outcome
from sluicegate.web.http import fields_for


def decided(*rules: Rule, left: int = 10, allowed: bool = True) -> Decision:
    terms = [each for rule in rules for each in rule.terms("sliding-window")]
    outcome = Outcome(allowed, 100, left, 0 if allowed else 30_000_000, 360_000_000, 60_000_000)
    return Decision(allowed, tuple([Check(each, "a", 1) for each in terms]), (outcome,) * len(terms))


@pytest.mark.parametrize(
    ("unit", "policy"),
    [
        (None, '"a";q=100;w=60'),
        ("requests", '"a";q=100;w=60'),
        ("content-bytes", '"a";q=100;qu="content-bytes";w=60'),
        ("tokens", '"a";q=100;w=60'),  # the draft does not name it
    ],
)
def test_the_unit_in_the_policy_of_draft_11(unit: str | None, policy: str) -> None:
    fields = dict(fields_for(decided(Rule(name="a", quota="100/minute", unit=unit)), "draft-11", status=200))
    assert fields["RateLimit-Policy"] == policy


@pytest.fixture
def plans() -> tuple[Rule, ...]:
    names = (("requests", None), ("tokens", "tokens"), ("seconds", "seconds"))
    return tuple(Rule(name=name, quota="100/minute", unit=unit) for name, unit in names)


def test_the_fields_of_openai(plans: tuple[Rule, ...]) -> None:
    expected = {
        f"x-ratelimit-{name}-{unit}": value
        for unit in ("requests", "tokens")
        for name, value in (("limit", "100"), ("remaining", "10"), ("reset", "6m0s"))
    }
    assert dict(fields_for(decided(*plans), "openai", status=200)) == expected
    refused = dict(fields_for(decided(*plans, left=0, allowed=False), "openai", status=429))
    assert (refused["Retry-After"], refused["retry-after-ms"]) == ("30", "30000")
    assert refused["x-ratelimit-remaining-tokens"] == "0"
    assert not fields_for(decided(plans[2]), "openai", status=200), "no field is about seconds"
