"""An option that can never match is refused: a mistake must not become a rule that limits no request."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from types import ModuleType
from typing import Any, Final

import pytest

from sluicegate import Ban, Concurrency, ConfigurationError, Quota, Rule, Tiers
from sluicegate.algorithms import ALGORITHMS
from sluicegate.errors import AlgorithmError, IdentityError, QuotaError, RuleError, SettingsError, StoreURLError
from sluicegate.limiter import AsyncLimiter, Limiter
from sluicegate.rules.rule import METHODS
from sluicegate.web.marks import MarkOptions, make_mark
from sluicegate.web.settings import Settings
from sluicegate.wsgi import RateLimitMiddleware


def by_team(request: object) -> str:
    return "team"


@pytest.fixture(autouse=True)
def _shop() -> Iterator[None]:
    """A module of the user's, for dotted names that lead to no function."""
    shop = ModuleType("shop")
    shop.limits, shop.NUMBER, shop.by_team = {"login": "5/minute"}, 5, by_team  # type: ignore[attr-defined]
    sys.modules["shop"] = shop
    yield
    del sys.modules["shop"]


def shown(case: Any) -> str:
    """A case as the name of a test: without addresses, which differ from process to process."""
    options = case[0] if isinstance(case, tuple) else case
    return ",".join([f"{name}={re.sub(' at 0x[0-9a-f]+', '', repr(value)):.40}" for name, value in options.items()])


def rule(**options: Any) -> Rule:
    return Rule(**{"name": "r", "quota": "5/minute", **options})


Row = tuple[dict[str, Any], type[ConfigurationError], str]  # options, the error, words of it

BAN: Final = Ban(after=3, within=60, duration=60)
RULE: list[Row] = [
    ({"name": ""}, RuleError, "not a name"),
    ({"name": " "}, RuleError, "blanks around it"),
    ({"name": " login"}, RuleError, "blanks around it"),
    ({"name": "login "}, RuleError, "blanks around it"),
    ({"scope": ""}, RuleError, "not a name"),
    ({"scope": " all"}, RuleError, "blanks around it"),
    ({"quota": ""}, QuotaError, "the text is empty"),
    ({"quota": "5/minute;"}, QuotaError, "an empty part"),
    ({"quota": "0/minute"}, QuotaError, "limit is zero"),
    ({"quota": "5/minute burst 0"}, QuotaError, "burst is zero"),
    ({"quota": "0 at once"}, QuotaError, "limit is zero"),
    ({"quota": ()}, QuotaError, "not a quota"),
    ({"quota": "5/minute burst 9", "algorithm": "sliding-window"}, AlgorithmError, "no burst"),
    ({"key": ""}, IdentityError, "not known"),
    ({"key": ()}, IdentityError, "not a key"),
    ({"key": ("ip", "")}, IdentityError, "not known"),
    ({"key": "header:"}, IdentityError, "missing or not one"),
    ({"key": "header: X-Key"}, IdentityError, "missing or not one"),
    ({"key": "header:X-Key "}, IdentityError, "missing or not one"),
    ({"key": "header:X Key"}, IdentityError, "missing or not one"),
    ({"key": "header::path"}, IdentityError, "missing or not one"),
    ({"key": "path:"}, IdentityError, "missing or not one"),
    ({"key": "path:{name}"}, IdentityError, "missing or not one"),
    ({"key": "path:a-b"}, IdentityError, "missing or not one"),
    ({"key": "Header:X-Key"}, IdentityError, "not known"),
    ({"key": " ip"}, IdentityError, "not known"),
    ({"algorithm": ""}, AlgorithmError, "not known"),
    ({"algorithm": " gcra"}, AlgorithmError, "not known"),
    ({"methods": []}, RuleError, "not names of HTTP methods"),
    ({"methods": ""}, RuleError, "no such method"),
    ({"methods": "PSOT"}, RuleError, 'did you mean "POST"?'),
    ({"methods": ["GET", "PSOT"]}, RuleError, 'did you mean "POST"?'),
    ({"methods": ["psot"]}, RuleError, 'did you mean "POST"?'),
    ({"methods": ["GTE"]}, RuleError, 'did you mean "GET"?'),
    ({"methods": ["DELET"]}, RuleError, 'did you mean "DELETE"?'),
    ({"methods": [" POST"]}, RuleError, 'did you mean "POST"?'),
    ({"methods": "POST,PUT"}, RuleError, "no such method"),
    ({"methods": "POST PUT"}, RuleError, "no such method"),
    ({"methods": ["SHOUT"]}, RuleError, 'give when=lambda request: request.method == "SHOUT"'),
    ({"methods": ["*"]}, RuleError, "give a list like"),
    ({"methods": ["PRI"]}, RuleError, "no such method"),  # of the preface of HTTP/2: no request has it
    ({"path": ""}, RuleError, "does not begin with a slash"),
    ({"path": " /x"}, RuleError, "does not begin with a slash"),
    ({"path": "x"}, RuleError, "does not begin with a slash"),
    ({"path": "*"}, RuleError, "does not begin with a slash"),
    ({"path": "https://example.org/x"}, RuleError, "does not begin with a slash"),
    ({"path": "//x"}, RuleError, "begins with two slashes"),
    ({"path": "//example.org/x"}, RuleError, "begins with two slashes"),
    ({"path": "/x?y=1"}, RuleError, "has a query"),
    ({"path": "/x?"}, RuleError, "has a query"),
    ({"path": "/x?page=*"}, RuleError, "has a query"),
    ({"path": "/a#b"}, RuleError, "has a fragment"),
    ({"path": "/x "}, RuleError, "blanks around it"),
    ({"path": "/x\n"}, RuleError, "blanks around it"),
    ({"path": "/caf%C3%A9"}, RuleError, "is percent-encoded"),
    ({"path": "/items/{id}"}, RuleError, "is the template of a route"),
    ({"path": "/items/{id:int}/parts"}, RuleError, "is the template of a route"),
    ({"path": "/items/<int:id>"}, RuleError, "is the template of a route"),
    ({"path": "/items/<id>"}, RuleError, "is the template of a route"),
    ({"route": []}, RuleError, "not the name of a route"),
    ({"route": ""}, RuleError, "not the name of a route"),
    ({"route": " home"}, RuleError, "blanks around it"),
    ({"route": ["home", "home "]}, RuleError, "blanks around it"),
    ({"when": True}, RuleError, "not a function"),
    ({"cost": 6}, RuleError, "could never pass"),
    ({"cost": 0, "ban": BAN}, RuleError, "never refuses"),
    ({"cost": 0, "count_denied": True}, RuleError, "never refuses"),
    ({"cost": 0, "charge_when": by_team}, RuleError, "charges nothing"),
    ({"cost": 0, "refund_when": by_team}, RuleError, "charges nothing"),
    ({"quota": "5 at once", "algorithm": "gcra"}, RuleError, "has no meaning for a Concurrency"),
    ({"estimate": 0}, RuleError, "charges nothing"),
    ({"estimate": "", "cost_after": by_team}, RuleError, "not a whole number"),
    ({"cost_after": ""}, RuleError, "not a function"),
    ({"unit": ""}, RuleError, "not a name"),
    ({"mode": ""}, RuleError, "not known"),
    ({"enforce_percent": 10, "mode": "shadow"}, RuleError, 'beside mode="shadow"'),
    ({"enforce_percent": 1e-13}, RuleError, "enforces for nobody"),
    ({"enforce_percent": "10"}, RuleError, "not a percentage"),
    ({"on_store_failure": ""}, RuleError, "not known"),
    ({"charge_when": by_team, "refund_when": by_team}, RuleError, "given beside refund_when"),
    ({"ban": "1 hour"}, RuleError, "not a Ban"),
    ({"per_method": 1}, RuleError, "neither True nor False"),
    ({"once_per": ""}, RuleError, "not the name of a header"),
    ({"error_message": " "}, RuleError, "not a text"),
    ({"on_denied": "slow down"}, RuleError, "not a function"),
]  # fmt: skip


@pytest.mark.parametrize("row", RULE, ids=shown)
def test_a_rule(row: Row) -> None:
    options, error, words = row
    with pytest.raises(error) as caught:
        rule(**options)
    assert words in f"{caught.value.problem}; {caught.value.expected}"


def test_every_option_of_a_rule_is_tried() -> None:
    flags = {"count_denied"}  # which names nothing only beside a cost of 0
    assert {name for options, _, _ in RULE for name in options} >= {option.name for option in fields(Rule)} - flags


@pytest.mark.parametrize("row", RULE, ids=shown)
def test_a_decorator(row: Row) -> None:
    options, error, words = row
    if not options.keys() <= {"quota", *MarkOptions.__annotations__}:
        error, words = RuleError, "no such option"
    given = {"quota": "5/minute", **options}
    with pytest.raises(error) as caught:
        make_mark(given.pop("quota"), **given)
    assert words in f"{caught.value.problem}; {caught.value.expected}"


@pytest.mark.parametrize("row", RULE, ids=shown)
def test_a_rule_of_the_settings(row: Row) -> None:
    options, error, words = row
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_mapping({"rules": [{"name": "r", "quota": "5/minute", **options}]}, source="settings")
    if options != {"key": "path:a-b"}:
        assert isinstance(caught.value, error)
    assert words in f"{caught.value.problem}; {caught.value.expected}"
    assert caught.value.source == "settings"


KEPT: list[dict[str, Any]] = [  # what looks like a mistake and is correct
    {"methods": ["PURGE"]},
    {"methods": ["PROPFIND", "MKCALENDAR", "REPORT", "VERSION-CONTROL", "QUERY"]},
    {"methods": "post"},
    {"methods": ["OPTIONS"]},
    {"path": "/"},
    {"path": "/*"},
    {"path": "/a//b"},
    {"path": "/a b"},
    {"path": "/100%"},
    {"path": "/users/[0-9]*"},
    {"path": "/v?/users"},  # one character
    {"path": "/a?b*"},
    {"path": "/a{b"},
    {"path": "/café"},
    {"route": "a b"},
    {"route": "/items/{id}"},
    {"key": "header:X_API_KEY"},
    {"mode": "shadow", "enforce_percent": 0},
    {"mode": "shadow", "ban": BAN},  # as a step of a rollout
    {"enforce_percent": 0},
    {"enforce_percent": 1e-6},
    {"cost": 0},
    {"count_denied": True},
    {"name": "a b"},
]


@pytest.mark.parametrize("options", KEPT, ids=shown)
def test_what_is_kept(options: dict[str, Any]) -> None:
    assert rule(**options).names


def test_the_methods_are_those_of_the_registry_and_a_few_that_are_used() -> None:
    assert {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"} <= METHODS  # RFC 9110, 5789
    assert {"PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "ACL", "REPORT", "SEARCH"} <= METHODS
    assert {"PURGE", "M-SEARCH", "NOTIFY", "SUBSCRIBE", "UNSUBSCRIBE"} <= METHODS
    assert all(method == method.upper() for method in METHODS)


TIERS: list[tuple[Any, dict[str, Any], type[ConfigurationError], str]] = [
    ({}, {}, RuleError, "not a table of quotas"),
    ({"free": None}, {}, RuleError, "no tier has a quota"),
    ({"free": None, "pro": None}, {"default": "free"}, RuleError, "no tier has a quota"),
    ({"free": ""}, {}, QuotaError, "the text is empty"),
    ({"free": "1/minute"}, {"default": "gold"}, RuleError, "no such tier"),
    ({"free": "1/minute"}, {"by": "shop.by_team"}, RuleError, "not a function"),
]


@pytest.mark.parametrize(("table", "options", "error", "words"), TIERS, ids=range(len(TIERS)))
def test_tiers(table: Any, options: dict[str, Any], error: type[ConfigurationError], words: str) -> None:
    with pytest.raises(error, match=words):
        Tiers(table, **{"by": str, **options})


BANS: list[tuple[dict[str, Any], str]] = [
    ({"after": 0}, "not a whole number above 0"),
    ({"within": 0}, "shorter than a microsecond"),
    ({"within": ""}, "cannot be read"),
    ({"duration": 0}, "shorter than a microsecond"),
    ({"duration": "5/minute"}, "cannot be read"),
    ({"factor": 2}, "missing, but factor is above 1"),
    ({"factor": 2, "longest": 59}, "shorter than the first ban"),
    ({"longest": 90}, "without a factor above 1 no ban is longer"),
    ({"name": ""}, "not a name"),
    ({"name": " "}, "blanks around it"),
    ({"name": "abuse "}, "blanks around it"),
]


@pytest.mark.parametrize(("options", "words"), BANS, ids=[str(row[0]) for row in BANS])
def test_a_ban(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RuleError, match=words):
        Ban(**{"after": 3, "within": 60, "duration": 60, **options})


@pytest.mark.parametrize("make", [lambda: Concurrency(0), lambda: Concurrency(3, lease=0), lambda: Quota(0, 60),
                                  lambda: Quota(5, 0), lambda: Quota(5, 60, burst=0)], ids=range(5))  # fmt: skip
def test_values(make: Any) -> None:
    with pytest.raises(QuotaError):
        make()


SETTINGS: list[Row] = [
    ({"store": ""}, StoreURLError, "not a URL and not a store"),
    ({"store": " memory://"}, StoreURLError, "unknown scheme"),
    ({"store": "redis://localhost/first"}, StoreURLError, "not the number of a database"),
    ({"store": "redis+sentinel://localhost/main/first"}, StoreURLError, "not the number of a database"),
    ({"default_limits": ""}, QuotaError, "the text is empty"),
    ({"default_limits": [""]}, QuotaError, "the text is empty"),
    ({"default_limits": [()]}, QuotaError, "not a quota"),
    ({"default_limits": ["5/minute", "6/minute"]}, QuotaError, "two quotas over the same period"),
    ({"default_limits": ["5 at once"]}, QuotaError, "a quota per time is expected"),
    ({"rules": [{}]}, RuleError, 'has no "name"'),
    ({"rules": [""]}, SettingsError, "neither a Rule nor a mapping"),
    ({"key": ""}, IdentityError, "not known"),
    ({"key": []}, IdentityError, "not a key"),
    ({"key": "shop.limits"}, SettingsError, "leads to a dict, not to a function"),
    ({"key": ["ip", "shop.NUMBER"]}, SettingsError, "leads to a int, not to a function"),
    ({"algorithm": ""}, AlgorithmError, "not known"),
    ({"headers": ""}, SettingsError, "not known"),
    ({"trusted_proxies": []}, SettingsError, "empty"),
    ({"trusted_proxies": ""}, SettingsError, ""),
    ({"trusted_proxies": [""]}, SettingsError, ""),
    ({"trusted_proxies": [" 10.0.0.0/8"]}, SettingsError, ""),
    ({"trusted_proxies": 0}, SettingsError, "not between 1 and 32"),
    ({"trusted_header": ""}, SettingsError, "not the name of a header"),
    ({"trusted_header": "X-Real-IP "}, SettingsError, "not the name of a header"),
    ({"allow": ""}, SettingsError, "the key never gives"),
    ({"allow": [""]}, SettingsError, "the key never gives"),
    ({"deny": [" 192.0.2.1"]}, SettingsError, "the key never gives"),
    ({"deny": [()]}, SettingsError, "the key never gives"),
    ({"deny": ["alice"]}, SettingsError, "the key never gives"),  # the key "user" gives ("user", "alice")
    ({"deny": [42]}, SettingsError, "the key never gives"),
    ({"deny": [("alice",)]}, SettingsError, "the key never gives"),
    ({"deny": [("User", "alice")]}, SettingsError, "the key never gives"),
    ({"deny": [("user", "alice")], "key": "ip"}, SettingsError, "the key never gives"),
    ({"deny": [("header:X-Key", "k")], "key": "header:X-Key"}, SettingsError, "the key never gives"),  # in lower case
    ({"deny": [("user", "alice")], "key": ("user", "ip")}, SettingsError, "the key never gives"),
    ({"deny": ["shop.NUMBER"]}, SettingsError, "leads to a int, not to a function"),
    ({"secret": ""}, SettingsError, "only 0 bytes long"),
    ({"on_store_failure": ""}, SettingsError, "not known"),
    ({"deadline": 0}, SettingsError, "seconds above 0"),
    ({"replicas": 0}, SettingsError, "number of processes"),
    ({"on_store_change": "shop.limits"}, SettingsError, "leads to a dict, not to a function"),
    ({"on_store_change": ""}, SettingsError, "not a plain function"),
    ({"prefix": ""}, StoreURLError, "empty"),
    ({"prefix": " shop"}, StoreURLError, "empty, or with a space"),
    ({"on_denied": "shop.limits"}, SettingsError, "leads to a dict, not to a function"),
    ({"on_denied": ""}, SettingsError, "not a function"),
    ({"rules": [{"name": "r", "quota": "5/m", "key": "shop.NUMBER"}]}, SettingsError, "leads to a int"),
    ({"rules": [{"name": "r", "quota": "5/m", "when": "shop.NUMBER"}]}, SettingsError, "leads to a int"),
    ({"rules": [{"name": "r", "quota": "5/m", "cost": "shop.NUMBER"}]}, SettingsError, "leads to a int"),
    ({"rules": [{"name": "r", "quota": "shop.limits"}]}, SettingsError, "leads to a dict"),
    ({"rules": [{"name": "r", "quota": "5/m", "charge_when": "shop.NUMBER"}]}, SettingsError, "leads to a int"),
    ({"rules": [{"name": "r", "quota": "5/m", "key": "path:item"}]}, RuleError, "has no named parts of a path"),
    ({"key": "path:item", "default_limits": ["5/m"]}, RuleError, "has no named parts of a path"),
    ({"key": ("ip", ("path:item",)), "default_limits": ["5/m"]}, RuleError, "has no named parts of a path"),
    ({"key": ("ip", "path:item"), "default_limits": ["5/m"]}, RuleError, "has no named parts of a path"),
    ({"rules": [{"name": "r", "quota": "5/m", "route": "home"}]}, RuleError, "no named routes"),
]  # fmt: skip


def page(environ: Any, start_response: Any) -> list[bytes]:
    return []


@pytest.mark.parametrize("row", SETTINGS, ids=shown)
def test_settings(row: Row) -> None:
    options, error, words = row
    with pytest.raises(error) as caught:
        RateLimitMiddleware(page, **options)
    assert words in f"{caught.value.problem}; {caught.value.expected}"


NONE: list[dict[str, Any]] = [  # an empty list that means the same as the default: none
    {"default_limits": []},
    {"rules": []},
    {"allow": []},
    {"deny": []},
    {"deny": [("user", "alice"), ("ip", "192.0.2.1")]},
    {"deny": ["alice", 42, ("user", "alice")], "key": by_team},
    {"deny": [("header:x-key", "k")], "key": "header:X-Key"},
    {"deny": [(("user", "alice"), ("ip", "192.0.2.1")), (("ip", "::1"), ("ip", "::1"))], "key": ("user", "ip")},
    {"deny": [("alice", ("ip", "192.0.2.1"))], "key": (by_team, "ip")},
    {"trusted_header": "X-Real-IP"},  # beside it trusted_proxies may be set in one environment, and not in another
]  # fmt: skip


@pytest.mark.parametrize("options", NONE, ids=shown)
def test_settings_that_say_something(options: dict[str, Any]) -> None:
    RateLimitMiddleware(page, **options)


@pytest.mark.parametrize("make", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    "options", [{"store": ""}, {"prefix": ""}, {"algorithm": ""}, {"on_store_failure": ""}, {"secret": ""}], ids=str
)
def test_a_limiter(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        make(**options)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_with_blanks_is_none(algorithm: str) -> None:
    for name in (f" {algorithm}", f"{algorithm} ", algorithm.upper()):
        with pytest.raises(AlgorithmError):
            rule(algorithm=name)
