"""Rules: every option, validated when the rule is made; and the key of a rule's budget."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.algorithms import ALGORITHMS
from sluicegate.concurrency import Concurrency
from sluicegate.errors import AlgorithmError, ConfigurationError, IdentityError, QuotaError, RuleError
from sluicegate.limiter import Limiter
from sluicegate.quota import Quota
from sluicegate.rules.rule import Rule
from sluicegate.rules.terms import make_terms
from sluicegate.rules.tiers import Tiers

MINUTE_US, DAY_US = 60_000_000, 86_400_000_000


def rule(**options: Any) -> Rule:
    return Rule(**{"name": "login", "quota": "5/minute", **options})


NAMED: Final = "give 1 to 128 letters, digits or signs"
UNITS: Final = "give an int, 0 or more"
BURST: Final = "rule 'login': algorithm 'fixed-window' with quota"
PERCENT: Final = "rule 'login': enforce_percent"
PLANS: Final = Tiers({"paid": "9/minute", "free": "9/minute; 5/day", "staff": None}, by=str)
BUCKETS: Final = Tiers({"paid": "9/minute burst 5"}, by=str)
METHODS: Final = 'give a list like ["POST", "PUT"]'
ROUTES: Final = "give a name or a list of names"
LOWER: Final = "lower the cost or raise the limit"

# options → the error, what it is about, the problem, what is expected
WRONG: list[tuple[dict[str, Any], type[ConfigurationError], str, str, str]] = [
    ({"name": ""}, RuleError, "name", "not a name of printable ASCII", NAMED),
    ({"name": "x" * 129}, RuleError, "name", "not a name of printable ASCII", NAMED),
    ({"name": "café"}, RuleError, "name", "not a name of printable ASCII", NAMED),  # no Structured Field String
    ({"name": "a\nb"}, RuleError, "name", "not a name of printable ASCII", NAMED),
    ({"name": "a\n"}, RuleError, "name", "not a name of printable ASCII", NAMED),
    ({"name": None}, RuleError, "name", "not a name of printable ASCII", NAMED),
    ({"name": 5}, RuleError, "name", "not a name of printable ASCII", NAMED),
    ({"scope": ""}, RuleError, "rule 'login': scope", "not a name of printable ASCII", NAMED),
    ({"scope": "für"}, RuleError, "rule 'login': scope", "not a name of printable ASCII", NAMED),
    ({"scope": 5}, RuleError, "rule 'login': scope", "not a name of printable ASCII", NAMED),
    ({"quota": "5/fortnight"}, QuotaError, "rule 'login': quota", 'unknown unit "fortnight"', "use second, minute"),
    ({"quota": None}, QuotaError, "rule 'login': quota", "not a quota", 'give a Quota or text like "10/minute"'),
    ({"quota": 5}, QuotaError, "rule 'login': quota", "not a quota", 'give a Quota or text like "10/minute"'),
    ({"quota": Quota}, QuotaError, "rule 'login': quota", "not a quota", 'give a Quota or text like "10/minute"'),
    ({"quota": Concurrency}, QuotaError, "rule 'login': quota", "not a quota", 'give a Quota or text like "10/minute"'),
    ({"quota": ()}, QuotaError, "rule 'login': quota", "not a quota", 'give a Quota or text like "10/minute"'),
    (
        {"quota": ["5/minute"]},
        QuotaError,
        "rule 'login': quota",
        "several texts",
        'write one text: "5/minute"',
    ),
    (
        {"quota": "5/m; 6/60s", "algorithm": "gcra"},
        QuotaError,
        "rule 'login': quota",
        "two quotas over the same",
        "keep the smaller quota",
    ),
    ({"key": "adress"}, IdentityError, "rule 'login': key", "not known", 'use "user", "ip"'),
    ({"key": ()}, IdentityError, "rule 'login': key", "not a key", 'use "user", "ip"'),
    ({"key": 5}, IdentityError, "rule 'login': key", "not a key", 'use "user", "ip"'),
    (
        {"algorithm": "leaky"},
        AlgorithmError,
        "rule 'login': algorithm",
        "not known",
        f"use one of: {', '.join(ALGORITHMS)}",
    ),
    ({"algorithm": "GCRA"}, AlgorithmError, "rule 'login': algorithm", "not known", 'did you mean "gcra"'),
    ({"algorithm": ""}, AlgorithmError, "rule 'login': algorithm", "not known", "use one of: sliding-window"),
    ({"algorithm": ["gcra"]}, AlgorithmError, "rule 'login': algorithm", "not known", "use one of: sliding-window"),
    ({"cost": -1}, RuleError, "rule 'login': cost", "not a whole number of units", UNITS),
    ({"cost": 1.0}, RuleError, "rule 'login': cost", "not a whole number of units", UNITS),
    ({"cost": True}, RuleError, "rule 'login': cost", "not a whole number of units", UNITS),
    ({"cost": "1"}, RuleError, "rule 'login': cost", "not a whole number of units", UNITS),
    ({"cost": None}, RuleError, "rule 'login': cost", "not a whole number of units", UNITS),
    ({"cost": 6}, RuleError, "rule 'login': cost", "more than 5, so it could never pass", LOWER),
    ({"cost": 6, "quota": "9/minute; 5/day"}, RuleError, "rule 'login': cost", "more than 5, so it could", LOWER),
    ({"cost": 4, "quota": "9/m burst 3"}, RuleError, "rule 'login': cost", "more than 3, so it could", LOWER),
    ({"cost": 10**5000}, RuleError, "rule 'login': cost", "above any limit", "give at most 999999999999999"),
    ({"mode": "dry"}, RuleError, "rule 'login': mode", "not known", "use one of enforce, shadow"),
    ({"mode": None}, RuleError, "rule 'login': mode", "not known", "use one of enforce, shadow"),
    ({"enforce_percent": -1}, RuleError, PERCENT, "not a percentage", "give a number from 0 to 100"),
    ({"enforce_percent": 100.1}, RuleError, PERCENT, "not a percentage", "give a number from 0 to 100"),
    ({"enforce_percent": float("nan")}, RuleError, PERCENT, "not a percentage", "give a number from 0 to 100"),
    ({"enforce_percent": "10"}, RuleError, PERCENT, "not a percentage", "give a number from 0 to 100"),
    ({"enforce_percent": True}, RuleError, PERCENT, "not a percentage", "give a number from 0 to 100"),
    ({"enforce_percent": 10, "mode": "shadow"}, RuleError, PERCENT, "given beside mode", "leave out the mode"),
    ({"quota": PLANS, "cost": 6}, RuleError, "rule 'login': cost", "more than 5, so it could never pass", LOWER),
    ({"quota": BUCKETS, "algorithm": "fixed-window"}, AlgorithmError, BURST, "no burst", "leave the burst out"),
    ({"methods": ()}, RuleError, "rule 'login': methods", "not names of HTTP methods", METHODS),
    ({"methods": ""}, RuleError, "rule 'login': methods", "no such method", METHODS),
    ({"methods": "GET POST"}, RuleError, "rule 'login': methods", "no such method", ""),
    ({"methods": ["GET", ""]}, RuleError, "rule 'login': methods", "no such method", METHODS),
    ({"methods": ["GET", 5]}, RuleError, "rule 'login': methods", "not names of HTTP methods", METHODS),
    ({"methods": 5}, RuleError, "rule 'login': methods", "not names of HTTP methods", METHODS),
    ({"path": "api/*"}, RuleError, "rule 'login': path", "does not begin with a slash", 'write it like "/api/*"'),
    ({"path": ""}, RuleError, "rule 'login': path", "does not begin with a slash", 'write it like "/api/*"'),
    ({"path": 5}, RuleError, "rule 'login': path", "does not begin with a slash", 'write it like "/api/*"'),
    ({"route": ""}, RuleError, "rule 'login': route", "not the name of a route", ROUTES),
    ({"route": ()}, RuleError, "rule 'login': route", "not the name of a route", ROUTES),
    ({"route": ["a", ""]}, RuleError, "rule 'login': route", "not the name of a route", ROUTES),
    ({"route": ["a", 5]}, RuleError, "rule 'login': route", "not the name of a route", ROUTES),
    ({"route": [["a"]]}, RuleError, "rule 'login': route", "not the name of a route", ROUTES),
    ({"route": 5}, RuleError, "rule 'login': route", "not the name of a route", ROUTES),
    ({"when": "always"}, RuleError, "rule 'login': when", "not a function", "give a function of the request"),
    ({"when": True}, RuleError, "rule 'login': when", "not a function", "give a function of the request"),
    ({"count_denied": 1}, RuleError, "rule 'login': count_denied", "neither True nor False", "give True or False"),
    ({"count_denied": None}, RuleError, "rule 'login': count_denied", "neither True nor False", "give True or False"),
    ({"on_store_failure": "open"}, RuleError, "rule 'login': on_store_failure", "not known", "local, allow, deny"),
    ({"on_store_failure": "raise"}, RuleError, "rule 'login': on_store_failure", "not known", "local, allow, deny"),
    ({"on_store_failure": ""}, RuleError, "rule 'login': on_store_failure", "not known", "local, allow, deny"),
]


@pytest.mark.parametrize("row", WRONG, ids=lambda row: " ".join(row[0]))
def test_what_is_refused(row: tuple[dict[str, Any], type[ConfigurationError], str, str, str]) -> None:
    options, kind, what, problem, expected = row
    with pytest.raises(kind) as caught:
        rule(**options)
    assert caught.value.what == what
    assert problem in caught.value.problem
    assert expected in caught.value.expected


@pytest.mark.parametrize(
    ("option", "given", "kept"),
    [
        ("name", "x" * 128, "x" * 128),
        ("name", 'a b"c\\', 'a b"c\\'),
        ("scope", None, None),
        ("quota", "5/minute", (Quota(5, 60),)),
        ("quota", Quota(5, 60), (Quota(5, 60),)),
        ("quota", [Quota(5, 60), Quota(9, 90)], (Quota(5, 60), Quota(9, 90))),
        ("quota", print, print),
        ("key", None, None),
        ("key", ("user", "path:team"), ("user", "path:team")),
        ("key", print, print),
        ("cost", 0, 0),
        ("cost", 5, 5),
        ("cost", print, print),
        ("methods", None, None),
        ("methods", "post", {"POST"}),
        ("methods", ["get", "POST"], {"GET", "HEAD", "POST"}),  # HEAD shares GET's budget
        ("methods", ("HEAD",), {"HEAD"}),
        ("methods", (method for method in ("M-SEARCH",)), {"M-SEARCH"}),
        ("path", "/api/*", "/api/*"),
        ("route", "reply", {"reply"}),
        ("route", ["reply", "like"], {"reply", "like"}),
        ("when", print, print),
        ("count_denied", True, True),
        ("on_store_failure", "deny", "deny"),
        ("on_store_failure", None, None),
    ],
)
def test_what_is_kept(option: str, given: Any, kept: Any) -> None:
    assert getattr(rule(**{option: given}), option) == kept


def test_a_cost_function_is_not_called_at_startup() -> None:
    assert callable(rule(quota=lambda request: "5/minute", cost=99).quota)


def test_a_rule_is_a_frozen_value() -> None:
    made = rule()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "other"  # type: ignore[misc]
    assert made == rule()
    assert made != rule(cost=2)


BURSTS: Final = ("gcra", "token-bucket", "leaky-bucket")
LOG: Final = "a log of more than 10000 moments for each identity"

# What an algorithm cannot carry: quota, algorithm → the problem, what is expected
TOO_MUCH: list[tuple[str, str, str, str]] = [
    *[("5/m burst 9", name, "this algorithm has no burst", "gcra") for name in ALGORITHMS if name not in BURSTS],
    # 2 × 999,983 × 86,400,000,000: the limit is prime, so nothing cancels
    *[("999983/day", name, "needs numbers up to 172797062400000000, above 2^53", "sliding-window") for name in BURSTS],
    ("1/day burst 52125", "gcra", "above 2^53", "a shorter period"),
    ("7/100 years", "gcra", "above 2^53", "a shorter period"),
    ("999999999999999/day", "sliding-counter", "above 2^53", "a rounder limit"),
    ("10001/day", "sliding-log", LOG, "use algorithm 'sliding-window'"),
]


@pytest.mark.parametrize("make", [
    lambda quota, algorithm: Rule(name="login", quota=quota, algorithm=algorithm),
    lambda quota, algorithm: Limiter().hit(quota, "alice", algorithm=algorithm),
    lambda quota, algorithm: Limiter(algorithm=algorithm).peek(quota, "alice"),
], ids=["Rule", "hit", "Limiter"])  # fmt: skip
@pytest.mark.parametrize(("quota", "algorithm", "problem", "expected"), TOO_MUCH)
def test_a_quota_that_the_algorithm_cannot_carry(
    make: Callable[[str, str], object], quota: str, algorithm: Any, problem: str, expected: str
) -> None:
    with pytest.raises(AlgorithmError) as caught:
        make(quota, algorithm)
    assert problem in caught.value.problem
    assert expected in caught.value.expected
    assert (caught.value.given, caught.value.code) == (str(Quota.parse(quota)), "SG005")


@pytest.mark.parametrize(
    ("quota", "algorithm"),
    [
        ("1000000/day", "gcra"),  # rounder than 999,983
        ("1/day burst 52124", "gcra"),
        ("10000/day", "sliding-log"),
        ("999999999999999/day", "sliding-window"),
        ("999999999999999/day", "fixed-window"),
        ("1000000/day", "sliding-counter"),
        ("1/100 years", "sliding-window"),
    ],
)
def test_a_quota_that_it_can_just_carry(quota: str, algorithm: Any) -> None:
    assert Rule(name="login", quota=quota, algorithm=algorithm).terms("gcra")
    assert Limiter().hit(quota, "alice", algorithm=algorithm)


@pytest.mark.parametrize(
    ("quota", "names"),
    [
        ("5/minute", ("login",)),
        ("5/minute; 20/hour", ("login-minute", "login-hour")),
        ("20/hour; 5/minute", ("login-hour", "login-minute")),  # in the order in which they were written
        ("5/s, 10/5 minutes, 9/month", ("login-second", "login-5-minutes", "login-30-days")),
    ],
)
def test_names_of_several_quotas_differ_by_period(quota: str, names: tuple[str, ...]) -> None:
    assert rule(quota=quota).names == names
    assert tuple([terms.name for terms in rule(quota=quota).terms("gcra")]) == names


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_terms(algorithm: Any) -> None:
    module = ALGORITHMS[algorithm]
    one, two = rule(quota="5/minute; 20/day", algorithm=algorithm, count_denied=True).terms("fixed-window")
    assert (one.name, two.name) == ("login-minute", "login-day")
    assert (one.params[0], two.params[0]) == (5, 20)
    assert (one.window_us, two.window_us) == (MINUTE_US, DAY_US)
    assert one.algorithm == two.algorithm == module.NAMES[0]  # an alias is resolved
    assert one.count_denied
    assert one.rule_id == f"login:{module.CODE}{module.shape(one.params)}"
    assert one.rule_id != two.rule_id


def test_terms_carry_what_stores_need_to_know() -> None:
    (terms,) = rule(on_store_failure="deny").terms("gcra")
    assert terms.on_store_failure == "deny"


def test_the_same_quota_of_the_moment_makes_the_same_terms() -> None:
    """Terms are compared by identity: what is remembered under them would never be found again."""
    login = rule(quota=lambda request: None)
    assert login.terms("gcra", "7/hour")[0] is login.terms("gcra", Quota(7, 3600))[0]
    assert login.terms("gcra", "7/hour")[0] is not login.terms("gcra", "8/hour")[0]


def test_the_algorithm_of_the_application_is_used_where_the_rule_names_none() -> None:
    assert rule().terms("gcra")[0].algorithm == "gcra"
    assert rule(algorithm="fixed-window").terms("gcra")[0].algorithm == "fixed-window"


def test_a_quota_of_the_moment_takes_the_place_of_the_rules_own() -> None:
    assert rule(quota=lambda request: None).terms("gcra", "7/hour")[0].params[0] == 7


def rule_id(**options: Any) -> str:
    (terms,) = rule(**options).terms("sliding-window")
    return terms.rule_id


@pytest.mark.parametrize(
    ("one", "two", "shared"),
    [
        ({"name": "a", "scope": "x"}, {"name": "b", "scope": "x"}, True),
        ({"name": "a", "scope": "x"}, {"name": "a", "scope": "y"}, False),
        ({"name": "a"}, {"name": "b"}, False),
        ({"name": "a"}, {"name": "b", "scope": "a"}, True),  # the scope is the name unless given
        ({"quota": "5/minute"}, {"quota": "9/minute"}, True),  # a changed limit keeps what was used
        ({"quota": "5/minute"}, {"quota": "5/hour"}, False),
        ({"quota": "5/minute"}, {"quota": "5/60 seconds"}, True),
        ({"algorithm": "gcra"}, {"algorithm": "sliding-window"}, False),
        ({"algorithm": "gcra"}, {"algorithm": "leaky-bucket"}, True),
        ({"algorithm": "sliding-log"}, {"algorithm": "sliding-window"}, False),
        ({"cost": 1, "methods": "GET"}, {"cost": 2, "path": "/"}, True),
    ],
)
def test_which_rules_share_a_budget(one: dict[str, Any], two: dict[str, Any], shared: bool) -> None:
    assert (rule_id(**one) == rule_id(**two)) is shared


PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=128).filter(
    lambda text: text == text.strip()
)


@given(PRINTABLE, PRINTABLE)
@example("a b", "a:b")
@example("{a}", "a")
@example("login:sw60", "login")
@example("x" * 65, "x" * 66)
def test_hostile_scopes_neither_meet_nor_reach_a_key(one: str, two: str) -> None:
    assert (rule_id(scope=one) == rule_id(scope=two)) == (one == two)
    assert re.fullmatch(r"([A-Za-z0-9_.\-]{1,64}|~[A-Za-z0-9_\-]{22}):sw[0-9.]+", rule_id(scope=one))


@given(st.text(st.characters(codec=None), max_size=8), st.text(st.characters(codec=None), max_size=8))
@example("\0", "\ud800")
@example("é", "e\u0301")
def test_so_with_any_text_that_a_limiter_is_given(one: str, two: str) -> None:
    quota = (Quota(5, 60),)
    ids = [make_terms("a", quota, algorithm="gcra", scope=scope)[0].rule_id for scope in (one, two)]
    assert (ids[0] == ids[1]) == (one == two)
    assert all(found.isascii() and found.isprintable() and not set(found) & set("{} ") for found in ids)


def test_a_long_action_is_not_met_by_its_digest() -> None:
    limiter = Limiter()
    long = "x" * 129
    digested = limiter.hit("1/day", "alice", action=long).rule
    assert digested is not None
    assert limiter.hit("1/day", "alice", action=digested)
    assert not limiter.hit("1/day", "alice", action=long)
