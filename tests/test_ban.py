"""Bans: the value, and the checks that it adds to a plan."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from sluicegate import Ban, Quota
from sluicegate.clock import MICROSECOND
from sluicegate.errors import ConfigurationError, RuleError
from sluicegate.plan import Check
from sluicegate.rules.ban import agree, with_bans
from sluicegate.rules.terms import make_terms

HOUR = 3600 * MICROSECOND
OPTIONS: dict[str, Any] = {"after": 10, "within": "10 minutes", "duration": "1 hour"}


@pytest.mark.parametrize(
    ("factor", "longest", "hours"),
    [
        (1, None, [1]),
        (2, "1 day", [1, 2, 4, 8, 16, 24]),
        (24, timedelta(days=1), [1, 24]),
        (3, 9 * 3600, [1, 3, 9]),
        (2, "hour", [1]),
    ],
)
def test_how_long_each_ban_is(factor: int, longest: Any, hours: list[int]) -> None:
    after, within, remembered, *lengths = Ban(**OPTIONS, factor=factor, longest=longest).terms.params
    assert (after, within) == (10, 600 * MICROSECOND)
    assert lengths == [hour * HOUR for hour in hours]
    assert remembered == lengths[-1]


def test_equal_bans_are_one_however_they_are_written() -> None:
    ban = Ban(**OPTIONS, factor=2, longest="1 day")
    other = Ban(after=10, within=600, duration=timedelta(hours=1), factor=2, longest=86_400.0)
    assert ban == other
    assert ban.terms is other.terms
    assert pickle.loads(pickle.dumps(ban)).terms is ban.terms
    assert Ban(**OPTIONS, name="other").terms.rule_id != ban.terms.rule_id


def test_a_ban_that_lasts_otherwise_has_the_same_key() -> None:
    ban = Ban(**OPTIONS, factor=2, longest="4 hours")
    terms = ban.lasting("5 minutes")
    assert terms.rule_id == ban.terms.rule_id
    assert terms.params == (10, 600 * MICROSECOND, 4 * HOUR, *[300 * MICROSECOND] * 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"after": 0}, "after 0: not a whole number above 0"),
        ({"after": True}, "after True"),
        ({"factor": 1.5, "longest": "1 day"}, "factor 1.5"),
        ({"within": "10 fortnights"}, "unknown unit"),
        ({"within": "minute burst 3"}, "not a length of time"),
        ({"within": "minute; 5/hour"}, "within"),
        ({"duration": -1}, "duration -1"),
        ({"duration": None}, "duration None: not a duration"),
        ({"factor": 2}, "missing, but factor is above 1"),
        ({"longest": "1 day"}, "no ban is longer"),
        ({"factor": 2, "longest": "1 minute"}, "shorter than the first ban"),
        ({"name": ""}, "not a name"),
        ({"name": "a\nb"}, "not a name"),
    ],
)
def test_a_wrong_ban_cannot_be_made(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        Ban(**(OPTIONS | wrong))


def test_a_duration_by_hand_is_read_in_the_same_words() -> None:
    with pytest.raises(ConfigurationError, match="seconds, or words"):
        Ban(**OPTIONS).lasting("soon")


def test_bans_of_one_name_must_be_equal() -> None:
    bans: dict[str, Ban] = {}
    for ban in (None, Ban(**OPTIONS), Ban(**OPTIONS), Ban(**OPTIONS, name="other")):
        agree(bans, "login", ban)
    with pytest.raises(RuleError, match="has a different ban of this name"):
        agree(bans, "login", Ban(**(OPTIONS | {"after": 3})))


def test_a_plan_has_one_check_for_each_ban_and_identity() -> None:
    one, two = Ban(**OPTIONS), Ban(**OPTIONS, name="two")

    def rule(scope: str, ban: Ban | None, identity: str) -> Check:
        [terms] = make_terms(scope, (Quota(1, 1),), algorithm="gcra", ban=None if ban is None else ban.terms)
        return Check(terms, identity, 1)

    rules = [rule("a", one, "x"), rule("b", one, "x"), rule("c", one, "y"), rule("d", two, "x"), rule("e", None, "z")]
    assert with_bans([]) == ()
    assert with_bans(rules) == (*rules, Check(one.terms, "x", 0), Check(one.terms, "y", 0), Check(two.terms, "x", 0))
    shadow = rules[0]._replace(terms=rules[0].terms._replace(shadow=True))
    assert with_bans([shadow]) == (shadow,), "a shadow rule does not refuse a banned identity either"
