"""Settings: every option from each source, and the mistakes that a person can make."""

from __future__ import annotations

import copy
import functools
import pickle
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import redis

from sluicegate import AsyncLimiter, Ban, Limiter, ManualClock, Quota, Rule, Tiers
from sluicegate.address import Trust
from sluicegate.errors import (
    AlgorithmError,
    ConfigurationError,
    IdentityError,
    OverrideError,
    QuotaError,
    RuleError,
    SettingsError,
)
from sluicegate.stores import StoreChange
from sluicegate.testing import OpenStore
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import Gate
from sluicegate.web.marks import make_mark
from sluicegate.web.settings import Settings

CLOCK, STORE = ManualClock(), OpenStore()
SECRET = "correct horse battery staple"


def by_team(request: object) -> str:
    return "team"


async def awaitable(change: object) -> None:
    """A hook that is never awaited."""


def slow(request: object, decision: object) -> str:
    return "slow"


def note_change(change: StoreChange) -> None:
    """A hook of the user's."""


@pytest.fixture(autouse=True)
def _shop() -> Iterator[None]:
    """A module of the user's, for dotted names."""
    shop = ModuleType("shop")
    shop.by_team, shop.slow, shop.note_change, shop.awaitable = by_team, slow, note_change, awaitable  # type: ignore[attr-defined]
    sys.modules["shop"] = shop
    yield
    del sys.modules["shop"]


INTERNAL = ("source", "rules_file")  # fields that are no settings
RULES_FILE = str(Path(__file__).with_name("rules.toml"))


# option → (as Python gives it, as TOML writes it, as a variable holds it, what Settings then has)
# None if a source cannot express the option.
OPTIONS: dict[str, tuple[Any, str | None, str | None, Any]] = {
    "store": ("redis://r:6379/0", '"redis://r:6379/0"', "redis://r:6379/0", "redis://r:6379/0"),
    "default_limits": (
        ["1000/day", Quota(20, 1)],
        '["1000/day", "20/second"]',
        "1000/day; 20/second",
        (Quota(1000, 86400), Quota(20, 1)),
    ),
    "limits_replace_defaults": (True, "true", "true", True),
    "rules": (
        [Rule(name="login", quota="5/minute", key="ip")],
        '[{name = "login", quota = "5/minute", key = "ip"}]',
        RULES_FILE,
        (Rule(name="login", quota="5/minute", key="ip"),),
    ),
    "key": ("header:X-Key", '"header:X-Key"', "header:X-Key", "header:X-Key"),
    "allow": (
        ["10.0.0.0/8", by_team],
        '["10.0.0.0/8", "shop.by_team"]',
        "10.0.0.0/8, shop.by_team",
        ("10.0.0.0/8", by_team),
    ),
    "deny": (
        ["192.0.2.7", by_team],
        '["192.0.2.7", "shop.by_team"]',
        "192.0.2.7, shop.by_team",
        ("192.0.2.7", by_team),
    ),
    "algorithm": ("gcra", '"gcra"', "gcra", "gcra"),
    "headers": ("draft-7", '"draft-7"', "draft-7", "draft-7"),
    "trusted_proxies": (["10.0.0.0/8", "unix"], '["10.0.0.0/8", "unix"]', "10.0.0.0/8, unix", ["10.0.0.0/8", "unix"]),
    "trusted_header": ("X-Real-IP", '"X-Real-IP"', "X-Real-IP", "X-Real-IP"),
    "ipv6_prefix": (56, "56", "56", 56),
    "ipv4_prefix": (24, "24", "24", 24),
    "secret": (SECRET, f'"{SECRET}"', SECRET, SECRET),
    "on_store_failure": ("deny", '"deny"', "deny", "deny"),
    "deadline": (0.05, "0.05", "0.05", 0.05),
    "replicas": (4, "4", "4", 4),
    "deny_cache": (0, "0", "0", 0),
    "on_store_change": (note_change, '"shop.note_change"', "shop.note_change", note_change),
    "enabled": (False, "false", "false", False),
    "mode": ("shadow", '"shadow"', "shadow", "shadow"),
    "prefix": ("shop", '"shop"', "shop", "shop"),
    "error_message": ("Slow down.", '"Slow down."', "Slow down.", "Slow down."),
    "on_denied": (slow, '"shop.slow"', "shop.slow", slow),
    "strict": (True, "true", "true", True),
    "overrides": (False, "false", "false", False),
    "on_decision": (
        [note_change, by_team],
        '["shop.note_change", "shop.by_team"]',
        "shop.note_change, shop.by_team",
        (note_change, by_team),
    ),
    "show_identities": (True, "true", "true", True),
    "application": ("shop", '"shop"', "shop", "shop"),
    "clock": (CLOCK, None, None, CLOCK),
}


def test_the_table_has_every_option() -> None:
    assert list(OPTIONS) == [option.name for option in fields(Settings) if option.init and option.name not in INTERNAL]


@pytest.mark.parametrize("option", OPTIONS)
def test_from_keywords(option: str) -> None:
    given, _, _, expected = OPTIONS[option]
    assert getattr(Settings(**{option: given}), option) == expected


@pytest.mark.parametrize("case", [str.lower, str.upper])
@pytest.mark.parametrize("option", OPTIONS)
def test_from_a_mapping(option: str, case: Any) -> None:
    given, _, _, expected = OPTIONS[option]
    assert getattr(Settings.from_mapping({case(option): given}), option) == expected


@pytest.mark.parametrize("option", [option for option, row in OPTIONS.items() if row[1] is not None])
def test_from_toml(option: str, tmp_path: Path) -> None:
    _, text, _, expected = OPTIONS[option]
    path = tmp_path / "limits.toml"
    path.write_text(f"[sluicegate]\n{option} = {text}\n")
    assert getattr(Settings.from_toml(path), option) == expected


@pytest.mark.parametrize("option", [option for option, row in OPTIONS.items() if row[2] is not None])
def test_from_the_environment(option: str) -> None:
    _, _, text, expected = OPTIONS[option]
    assert text is not None
    environ = {"PATH": "/bin", f"SLUICEGATE_{option.upper()}": text}
    assert getattr(Settings.from_environ(environ), option) == expected


@pytest.mark.parametrize("option", [option for option, row in OPTIONS.items() if row[2] is None])
def test_options_that_a_variable_cannot_hold_are_refused(option: str) -> None:
    with pytest.raises(SettingsError, match="cannot be given in a variable"):
        Settings.from_environ({f"SLUICEGATE_{option.upper()}": "x"})


def test_defaults_trust_no_proxy_and_limit_nothing() -> None:
    settings = Settings()
    assert (settings.trust, settings.default_limits, settings.rules) == (Trust(), (), ())
    assert (settings.store, settings.key, settings.on_store_failure) == ("memory://", "user", "local")
    assert Settings.from_mapping({}) == Settings.from_environ({}) == settings


BAN_OPTIONS = {"after": 10, "within": "10 minutes", "duration": "1 hour", "factor": 2, "longest": "1 day"}


def test_a_ban_from_a_mapping(tmp_path: Path) -> None:
    ban = Ban(after=10, within=600, duration=3600, factor=2, longest=86_400)
    rule = {"name": "login", "quota": "5/minute", "ban": {name.upper(): value for name, value in BAN_OPTIONS.items()}}
    assert Settings(rules=[rule]).rules == (Rule(name="login", quota="5/minute", ban=ban),)
    path = tmp_path / "limits.toml"
    table = "\n".join(f"{name} = {value!r}" for name, value in BAN_OPTIONS.items())
    path.write_text(f'[[sluicegate.rules]]\nname = "login"\nquota = "5/minute"\n[sluicegate.rules.ban]\n{table}\n')
    assert Settings.from_toml(path).rules == (Rule(name="login", quota="5/minute", ban=ban),)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({**BAN_OPTIONS, "afte": 3}, 'did you mean "after"'),
        ({"within": 1, "duration": 1}, 'has no "after"'),
        ("1 hour", "not a Ban"),
    ],
)
def test_a_wrong_ban_says_what_is_wrong(wrong: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Settings(rules=[{"name": "login", "quota": "5/minute", "ban": wrong}])


def test_a_table_of_another_name_and_a_prefix_of_another_name(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[limits]\nprefix = "shop"\n')
    assert Settings.from_toml(path, table="limits").prefix == "shop"
    assert Settings.from_environ({"SHOP_PREFIX": "shop", "SLUICEGATE_PREFIX": "x"}, prefix="SHOP_").prefix == "shop"


@pytest.mark.parametrize("option", ["headers", "trusted_proxies", "on_denied", "on_store_change"])
def test_none_is_written_as_a_word_in_files_and_variables(option: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(f'[sluicegate]\n{option} = "none"\n')
    assert getattr(Settings.from_toml(path), option) is None
    assert getattr(Settings.from_environ({f"SLUICEGATE_{option.upper()}": "none"}), option) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", True), ("true", True), ("YES", True), ("0", False), ("False", False), ("no", False)],
)
def test_flags_in_variables(text: str, expected: bool) -> None:
    assert Settings.from_environ({"SLUICEGATE_ENABLED": text}).enabled is expected


@pytest.mark.parametrize(("text", "hops"), [("2", 2), ("10.0.0.0/8", 0)])
def test_proxies_in_variables(text: str, hops: int) -> None:
    assert Settings.from_environ({"SLUICEGATE_TRUSTED_PROXIES": text}).trust.hops == hops


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("user", "user"),
        ("shop.by_team", by_team),
        (["ip", "shop.by_team"], ("ip", by_team)),
        (("ip", "header:X-Key"), ("ip", "header:X-Key")),
        (by_team, by_team),
    ],
)
def test_keys(given: Any, expected: Any) -> None:
    assert Settings(key=given).key == expected
    [rule] = list(Settings(rules=[{"name": "a", "quota": "1/s", "key": given}]).rules)
    assert isinstance(rule, Rule)
    assert rule.key == expected


def test_rules_from_mappings_have_every_option_of_a_rule() -> None:
    options: dict[str, Any] = {
        "name": "writes",
        "quota": "5/minute",
        "key": "ip",
        "algorithm": "gcra",
        "cost": 2,
        "scope": "all",
        "methods": ["POST"],
        "path": "/api/*",
        "route": ["write"],
        "when": by_team,
        "count_denied": False,  # not beside once_per, as ban
        "on_store_failure": "deny",
        "ban": None,
        "mode": "enforce",
        "enforce_percent": 12.5,
        "charge_when": by_team,
        "refund_when": None,  # its opposite
        "estimate": None,  # it cannot be beside charge_when, and nor can the next one
        "cost_after": None,
        "unit": "tokens",
        "per_method": True,
        "once_per": None,  # nor beside charge_when
        "error_message": "Slow down.",
        "on_denied": slow,
    }
    assert set(options) == {option.name for option in fields(Rule)}
    upper = {name.upper(): value for name, value in options.items()}
    assert Settings(rules=[options]).rules == Settings(rules=[upper]).rules == (Rule(**options),)


def test_functions_of_a_rule_by_dotted_names() -> None:
    costs = {"estimate": "shop.by_team", "cost_after": "shop.by_team"}
    [rule] = list(Settings(rules=[{"name": "a", "quota": "9/day", **costs}]).rules)
    assert isinstance(rule, Rule)
    given_functions: list[object] = [rule.estimate, rule.cost_after]
    assert given_functions == [by_team] * 2
    given = {"name": "a", "quota": "shop.by_team", "cost": "shop.by_team", "when": "shop.by_team"}
    [rule] = list(Settings(rules=[given]).rules)
    assert isinstance(rule, Rule)
    assert [rule.quota, rule.cost, rule.when] == [by_team] * 3


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("stor", "store"),
        ("DEFAULT_LIMIT", "default_limits"),
        ("on_deny", "on_denied"),
        ("trusted_proxy", "trusted_proxies"),
        ("zzz", None),
        (5, None),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: Any, near: str | None) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_mapping({name: 1}, source="app.config")
    assert caught.value.expected == (f'did you mean "{near}"?' if near else f"known are {', '.join(OPTIONS)}")
    assert str(caught.value).startswith(f"app.config {name!r}: no such setting")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"store": 5}, None, ""),  # the limiter raises this error: it knows what a store is
        ({"default_limits": 5}, SettingsError, "not a list of quotas"),
        ({"default_limits": [5]}, QuotaError, "not a quota"),
        ({"default_limits": ["10/fortnight"]}, QuotaError, "fortnight"),
        ({"default_limits": ""}, QuotaError, "empty"),
        ({"default_limits": None}, SettingsError, "not a list of quotas"),
        ({"rules": "login"}, OverrideError, "No such file"),
        ({"rules": {"name": "login"}}, SettingsError, "not a list of rules"),
        ({"rules": None}, SettingsError, "not a list of rules"),
        ({"rules": [5]}, SettingsError, "neither a Rule nor a mapping"),
        ({"rules": [{"quota": "1/s"}]}, RuleError, 'has no "name"'),
        ({"rules": [{"name": "a"}]}, RuleError, 'has no "quota"'),
        ({"rules": [{"name": "a", "quota": "1/s", "pth": "/"}]}, SettingsError, 'did you mean "path"?'),
        ({"rules": [{"name": "a", "quota": "1/s", "path": "x"}]}, RuleError, "slash"),
        ({"rules": [{"name": "a", "quota": "1/s"}] * 2}, SettingsError, "two rules of this name"),
        ({"key": "users"}, IdentityError, "not known"),
        ({"key": []}, IdentityError, "not a key"),
        ({"key": None}, IdentityError, "not a key"),
        ({"key": "shop.nobody"}, SettingsError, "cannot be imported"),
        ({"key": "nowhere.at.all"}, SettingsError, "cannot be imported"),
        ({"algorithm": "leaky"}, AlgorithmError, "use one of"),
        ({"algorithm": None}, AlgorithmError, "use one of"),
        ({"headers": "draft-12"}, SettingsError, "use one of draft-11"),
        ({"headers": ["draft-11"]}, SettingsError, "not known"),
        ({"trusted_proxies": "10.0.0.1/8"}, SettingsError, "host bits"),
        ({"trusted_proxies": []}, SettingsError, "empty"),
        ({"trusted_proxies": 0}, SettingsError, "between 1 and 32"),
        ({"trusted_proxies": True}, SettingsError, "neither a number nor networks"),
        ({"trusted_header": "X Forwarded"}, SettingsError, "not the name of a header"),
        ({"ipv6_prefix": 0}, SettingsError, "not a number of bits from 1 to 128"),
        ({"ipv6_prefix": 129}, SettingsError, "not a number of bits from 1 to 128"),
        ({"ipv6_prefix": True}, SettingsError, "not a number of bits from 1 to 128"),
        ({"ipv6_prefix": "64"}, SettingsError, "not a number of bits from 1 to 128"),
        ({"ipv4_prefix": 33}, SettingsError, "not a number of bits from 1 to 32"),
        ({"mode": "shadwo"}, RuleError, "use one of enforce, shadow"),
        ({"error_message": ""}, SettingsError, "not a text"),
        ({"error_message": 5}, SettingsError, "not a text"),
        ({"error_message": "\ud800 bad"}, SettingsError, "half of a surrogate pair"),
        ({"secret": "short"}, SettingsError, "only 5 bytes long"),
        ({"strict": 1}, SettingsError, "neither True nor False"),
        ({"on_store_failure": "open"}, SettingsError, "not known; use local, allow or deny"),
        ({"on_store_failure": "raise"}, SettingsError, "use local, allow or deny"),
        ({"on_store_failure": None}, SettingsError, "not known"),
        ({"deadline": 0}, SettingsError, "seconds above 0"),
        ({"deadline": float("nan")}, SettingsError, "seconds above 0"),
        ({"deadline": float("inf")}, SettingsError, "seconds above 0"),
        ({"deadline": True}, SettingsError, "seconds above 0"),
        ({"deadline": "fast"}, SettingsError, "seconds above 0"),
        ({"deadline": 100}, SettingsError, "more than 60 seconds; give seconds, not milliseconds"),
        ({"deadline": 1e9}, SettingsError, "more than 60 seconds; give seconds, not milliseconds"),
        ({"replicas": 0}, SettingsError, "number of processes"),
        ({"replicas": 2.0}, SettingsError, "number of processes"),
        ({"replicas": True}, SettingsError, "number of processes"),
        ({"deny_cache": -0.1}, SettingsError, "0 for none"),
        ({"deny_cache": None}, SettingsError, "0 for none"),
        ({"deny_cache": float("inf")}, SettingsError, "0 for none"),
        ({"on_store_change": 5}, SettingsError, "not a plain function"),
        ({"on_store_change": "shop.nobody"}, SettingsError, "cannot be imported"),
        ({"on_store_change": awaitable}, SettingsError, "not a plain function"),
        ({"enabled": "yes"}, SettingsError, "neither True nor False"),
        ({"enabled": 1}, SettingsError, "neither True nor False"),
        ({"on_denied": "slow"}, SettingsError, "not a function"),
        ({"on_denied": 5}, SettingsError, "not a function"),
        ({"on_denied": "shop.fast"}, SettingsError, "cannot be imported"),
        ({"clock": 5}, SettingsError, "not a clock"),
        ({"clock": ManualClock}, SettingsError, "not a clock"),
    ],
)
def test_wrong_values(options: dict[str, Any], error: type[ConfigurationError] | None, words: str) -> None:
    if error is None:
        Settings(**options)
        return
    with pytest.raises(error) as caught:
        Settings(**options)
    assert words in str(caught.value)


def test_one_option_under_two_spellings_is_an_error() -> None:
    with pytest.raises(SettingsError, match='"store" is given twice'):
        Settings.from_mapping({"store": "memory://", "STORE": "redis://r"})


def test_a_password_is_not_shown_in_an_error() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_mapping({"stor": "redis://:secret@r/0"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("[sluicegate", "readable TOML"),
        ("\udcff", "readable TOML"),
        ("[other]\n", "has no table [sluicegate]"),
        ("sluicegate = 5\n", "has no table [sluicegate]"),
        ("[sluicegate]\nstor = 1\n", 'did you mean "store"?'),
        ("[sluicegate]\nstor.e = 1\n", 'did you mean "store"?'),
    ],
)
def test_wrong_files(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingsError) as caught:
        Settings.from_toml(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_wrong_variables() -> None:
    with pytest.raises(SettingsError, match=r'environment SLUICEGATE_\*.*did you mean "store"\?'):
        Settings.from_environ({"SLUICEGATE_STOR": "memory://"})
    with pytest.raises(SettingsError, match="neither True nor False"):
        Settings.from_environ({"SLUICEGATE_ENABLED": "maybe"})
    with pytest.raises(SettingsError, match="seconds above 0"):
        Settings.from_environ({"SLUICEGATE_DEADLINE": "100 ms"})
    with pytest.raises(SettingsError, match="number of processes"):
        Settings.from_environ({"SLUICEGATE_REPLICAS": "four"})
    with pytest.raises(SettingsError, match="does not appear to be an IPv4 or IPv6 network"):
        Settings.from_environ({"SLUICEGATE_TRUSTED_PROXIES": "10.0.0.0/8,"})


def nothing() -> str:
    return "as the functions of Flask-Limiter: they get nothing"


def group(group: str, request: object) -> str:
    return "as the functions of django-ratelimit"


@functools.wraps(nothing)
def wrapped(request: object) -> str:
    return nothing()


TAKES = {  # the option that takes a function → how it is called, where it is given
    **dict.fromkeys(("key", "quota", "when", "cost", "charge_when", "refund_when", "on_denied"), "decorator"),
    **dict.fromkeys(("on_denied ", "key ", "allow", "deny", "on_store_change", "on_decision"), "setting"),
}


@pytest.mark.parametrize("wrong", [nothing, group, functools.partial(group, "login", "x"), lambda *, request: "x"])
@pytest.mark.parametrize("option", TAKES)
def test_a_function_that_cannot_be_called_with_what_it_gets(option: str, wrong: Any) -> None:
    """It is an error at the start. Before, it was a TypeError for each request."""
    name, many = option.strip(), option in ("allow", "deny")
    fits = (lambda request, decision: "") if name == "on_denied" else wrapped

    def give(function: Any) -> None:
        options: dict[str, Any] = {name: [function] if many else function}
        if TAKES[option] == "setting":
            Settings(**options)
        else:
            make_mark(options.pop("quota", "5/minute"), **options)

    if (name, wrong) != ("on_denied", group):
        with pytest.raises(ConfigurationError, match=rf"{name}.*it is called with \((request|response|change|event)"):
            give(wrong)
    give(fits)


WRONG_CALLS: list[tuple[Callable[..., object], list[object], dict[str, object], str]] = [
    (Rule, ["login", "5/minute"], {}, r"Rule 'login': .*write Rule\(name=…, quota=…\)"),
    (Rule, [], {"name": "a"}, "Rule 'quota': this argument is missing"),
    (Ban, [], {"after": 3, "within": 60, "length": 60}, "called duration"),
    (Ban, [], {"after": 3, "within": 60}, "Ban 'duration': this argument is missing"),
    (Tiers, [{"free": "5/minute"}], {}, "Tiers 'by': this argument is missing"),
    (Ban, [], {"after": 3, "within": "6 00", "duration": 1}, "within '6 00': it cannot be read; give seconds"),
    (Rule, [], {"name": "a", "quota": {"free": "5/minute"}}, r"not a quota; give Tiers\(…\)"),
    (Rule, [], {"name": "a", "quota": "5/minute", "key": "headers:X-A"}, 'did you mean "header:"'),
    (AsyncLimiter, [redis.Redis()], {}, r"give AsyncRedisStore\(redis.asyncio.Redis\(…\)\)"),
    (Limiter, [redis.Redis()], {}, r"give RedisStore\(client\)"),
    (Settings, [], {"enabled": "false"}, "in TOML true or false, without quotes"),
    (Settings, [], {"rules": [{"name": "a", "quota": "1/minute", "ban": {"for": "1 hour"}}]}, "called duration"),
]


@pytest.mark.parametrize(("kind", "given", "options", "says"), WRONG_CALLS)
def test_what_a_newcomer_writes_has_an_error_that_says_what_to_do(
    kind: Callable[..., object], given: list[object], options: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        kind(*given, **options)


def test_seconds_may_be_text_and_none_may_have_a_capital() -> None:
    assert Ban(after=3, within="600", duration="2") == Ban(after=3, within=600, duration=2)
    assert Settings.from_environ({"SLUICEGATE_HEADERS": "None"}).headers is None


def test_the_function_of_tiers_gets_the_request() -> None:
    with pytest.raises(RuleError, match=r"by.*test_settings.nothing'.*called with \(request\).*lambda request: …"):
        Tiers({"free": "5/minute"}, by=nothing)  # type: ignore[arg-type]


REDIS = {  # what Kubernetes sets for a service called sluicegate-redis
    "SLUICEGATE_REDIS_SERVICE_HOST": "10.0.0.11",
    "SLUICEGATE_REDIS_SERVICE_PORT": "6379",
    "SLUICEGATE_REDIS_SERVICE_PORT_CLIENTS": "6379",
    "SLUICEGATE_REDIS_PORT": "tcp://10.0.0.11:6379",
    "SLUICEGATE_REDIS_PORT_6379_TCP": "tcp://10.0.0.11:6379",
    "SLUICEGATE_REDIS_PORT_6379_TCP_PROTO": "tcp",
    "SLUICEGATE_REDIS_PORT_6379_TCP_PORT": "6379",
    "SLUICEGATE_REDIS_PORT_6379_TCP_ADDR": "10.0.0.11",
}


def test_variables_that_are_no_settings() -> None:
    """Only those that certainly are none: any other name with the prefix may be a typo."""
    others = {"SLUICEGATE_APP": "shop:app", "SLUICEGATE_EXAMPLES": "5000", **REDIS}
    assert Settings.from_environ({**others, "SLUICEGATE_PREFIX": "shop"}) == Settings(prefix="shop")
    alone = {variable: text for variable, text in REDIS.items() if not variable.endswith("_HOST")}
    for variable in ("SLUICEGATE_APPS", "SLUICEGATE_REDIS_URL", *alone):
        with pytest.raises(SettingsError, match="no such setting"):
            Settings.from_environ({"SLUICEGATE_APP": "shop:app", variable: "x"})


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().enabled = False  # type: ignore[misc]
    assert Settings(store=STORE).store is STORE


# where an error comes from


LIMITS = """\
[sluicegate]
{settings}

[[sluicegate.rules]]
name = "first"
quota = "1/minute"

[[sluicegate.rules]]
{rule}
"""

# a line of TOML → how the message begins after the name of the file
WRONG_LINES: list[tuple[str, str, str]] = [
    ("settings", 'default_limits = ["10/fortnight"]', "default_limits: quota '10/fortnight': unknown unit"),
    ("settings", 'key = "users"', "key 'users': not known"),
    ("settings", 'key = "shop.nobody"', "key 'shop.nobody': cannot be imported"),
    ("settings", 'algorithm = "leaky"', "algorithm 'leaky': not known"),
    ("settings", 'trusted_proxies = ["10.0.0.1/8"]', "trusted_proxies '10.0.0.1/8': "),
    ("settings", "trusted_proxies = 99", "trusted_proxies 99: "),
    ("settings", 'deny = ["10.0.0.300"]', "deny '10.0.0.300': "),
    ("settings", "deny = [1.5]", "deny: identity 'float': "),
    ("settings", "deadline = 0", "deadline 0: "),
    ("settings", 'stor = "memory://"', "'stor': no such setting"),
    ("settings", 'secret = "short"', "secret '…': only 5 bytes long"),
    ("settings", 'prefix = "a b"', "prefix 'a b': "),
    ("settings", 'default_limits = ["9/minute burst 20"]', "default_limits: algorithm 'sliding-window' with quota"),
    ("settings", 'strict = true\ntrusted_proxies = ["0.0.0.0/0"]', "trusted_proxies '0.0.0.0/0': this network"),
    ("rule", 'name = "login"\nquota = "5/fortnight"', "rule 'login': quota '5/fortnight': unknown unit"),
    ("rule", 'name = "login"\nquota = "9/m burst 20"', "rule 'login': algorithm 'sliding-window' with quota"),
    ("rule", 'name = "login"\nquota = "5/m; 6/m"', "rule 'login': quota '5/minute; 6/minute': two quotas"),
    ("rule", 'name = "login"\nquota = "5/m"\nkey = "users"', "rule 'login': key 'users': not known"),
    ("rule", 'name = "login"\nquota = "5/m"\nwhen = "shop.nobody"', "rule 'login': when 'shop.nobody': cannot be"),
    ("rule", 'name = "login"\nquota = "5/m"\nalgorithm = "x"', "rule 'login': algorithm 'x': not known"),
    ("rule", 'name = "login"\nquota = "5/m"\ncost = 6', "rule 'login': cost 6: more than 5"),
    ("rule", 'name = "login"\nquota = "5/m"\nscope = ""', "rule 'login': scope '': "),
    ("rule", 'name = "login"\nquota = "5/m"\npth = "/"', "rule 'login' 'pth': no such option"),
    ("rule", 'name = "login"\nquota = "5/m"\nban = {after = 3}', "rule 'login': ban {'after': 3}: has no \"within\""),
    ("rule", 'name = "login"\nquota = "5/m"\nban = {afte = 3}', "rule 'login': ban 'afte': no such option"),
    ("rule", 'name = "login"', "rule 'login' {'name': 'login'}: has no \"quota\""),
    ("rule", 'quota = "5/minute"', "rule 2 (counted from 1) {'quota': '5/minute'}: has no \"name\""),
    ("rule", 'name = ""\nquota = "5/minute"', "rule 2 (counted from 1): name '': "),
    ("rule", 'name = "first"\nquota = "5/minute"', "rules 'first': two rules of this name"),
]  # fmt: skip


WRONG_AT_START: list[tuple[str, str, str]] = [  # a line of TOML that is wrong only for an adapter
    ("settings", 'store = "carrier://pigeon"', "store "),
    (
        "settings", 'key = "shop.awaitable"\ndefault_limits = ["1/s"]',
        "rule 'default': key 'tests.test_settings.awaitable': ",
    ),
    ("settings", 'deny = ["shop.awaitable"]', "deny 'tests.test_settings.awaitable': an async function"),
    (
        "rule", 'name = "a"\nquota = "1/s"\nwhen = "shop.awaitable"',
        "rule 'a': when 'tests.test_settings.awaitable': an async",
    ),
    ("rule", 'name = "a"\nquota = "1/s"\nroute = "nowhere"', "rule 'a': route 'nowhere': no such route"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "line", "message"), WRONG_AT_START)
@pytest.mark.parametrize("copied", [False, True])
def test_an_error_at_the_start_of_an_adapter_names_the_file(
    place: str, line: str, message: str, copied: bool, tmp_path: Path
) -> None:
    path = tmp_path / "shop.toml"
    other = {"settings": "", "rule": 'name = "last"\nquota = "1/minute"'}
    path.write_text(LIMITS.format(**{**other, place: line}))
    settings = Settings.from_toml(path)
    with pytest.raises(ConfigurationError) as caught:
        Gate(copy.deepcopy(pickle.loads(pickle.dumps(settings))) if copied else settings).check_routes([])
    assert str(caught.value).startswith(f"{path} [sluicegate]: {message}")


def test_an_error_at_the_start_names_the_variable_or_all_of_them() -> None:
    with pytest.raises(ConfigurationError, match=r"^environment SLUICEGATE_STORE: store "):
        Gate(Settings.from_environ({"SLUICEGATE_STORE": "carrier://pigeon"}))
    variables = {"SLUICEGATE_KEY": "shop.awaitable", "SLUICEGATE_DEFAULT_LIMITS": "1/minute"}
    with pytest.raises(ConfigurationError, match=r"^environment SLUICEGATE_\*: rule 'default': key "):
        Gate(Settings.from_environ(variables))


CHANGES: dict[str, Callable[[Settings], Settings]] = {
    "replace": lambda settings: replace(settings, strict=True),
    "replace twice": lambda settings: replace(replace(settings, strict=True), strict=False),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda settings: cast("Settings", pickle.loads(pickle.dumps(settings))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_settings_that_were_changed_in_code_keep_their_source(
    change: Callable[[Settings], Settings], tmp_path: Path
) -> None:
    path = tmp_path / "shop.toml"
    path.write_text('[sluicegate]\nstore = "carrier://pigeon"')
    settings = change(Settings.from_toml(path))
    assert (type(settings.source), settings.source) == (str, f"{path} [sluicegate]")
    with pytest.raises(ConfigurationError, match=rf"^{re.escape(str(path))} \[sluicegate\]: store "):
        Gate(settings)


@pytest.mark.parametrize(
    "read", [Settings.from_mapping, lambda options: Settings.from_environ({"SLUICEGATE_SOURCE": "x"})]
)
def test_the_source_is_no_option(read: Callable[[dict[str, str]], Settings]) -> None:
    with pytest.raises(SettingsError, match="no such setting"):
        read({"source": "x"})


def test_an_error_in_code_names_no_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text("[sluicegate]")
    gate = Gate(Settings.from_toml(path))
    with pytest.raises(ConfigurationError, match=r"^rule 'view': key ") as caught:
        gate.bind(Endpoint("view", (make_mark("1/minute", key=awaitable),), label="shop.view"))
    assert caught.value.source == ""
    with pytest.raises(ConfigurationError, match=r"^store "):
        Gate(Settings(store="carrier://pigeon"))


@pytest.mark.parametrize("raised", [RuntimeError("no database"), KeyError("TEAM"), SyntaxError("invalid syntax")])
@pytest.mark.parametrize("option", ["key", "deny", "on_denied", "rule"])
def test_a_module_that_raises_at_import_names_the_setting(
    option: str, raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "teams", raising=False)
    error = f"{type(raised).__name__}({raised.args[0]!r})"
    (tmp_path / "teams.py").write_text(f"raise {error}")
    rule = {"name": "login", "quota": "1/minute", "key": "teams.of"}
    shapes: dict[str, dict[str, Any]] = {"deny": {"deny": ["teams.of"]}, "rule": {"rules": [rule]}}
    options = shapes.get(option, {option: "teams.of"})
    with pytest.raises(SettingsError, match=r"'teams\.of': cannot be imported") as caught:
        Settings(**options)
    assert str(caught.value).startswith("rule 'login': key " if option == "rule" else f"{option} ")
    assert f"({type(raised).__name__}: " in str(caught.value)
    assert isinstance(caught.value.__cause__, type(raised))


@pytest.mark.parametrize(("place", "line", "message"), WRONG_LINES)
def test_an_error_names_the_file_and_the_rule(place: str, line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    other = {"settings": "", "rule": 'name = "last"\nquota = "1/minute"'}
    path.write_text(LIMITS.format(**{**other, place: line}))
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_toml(path)
    start = f"{path} [sluicegate]" + ("" if message.startswith("'") else ":")
    assert str(caught.value).startswith(f"{start} {message}")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_all_errors_of_a_file_are_reported(tmp_path: Path) -> None:
    """One error does not hide the others, and none is reported that comes from another one."""
    path = tmp_path / "shop.toml"
    path.write_text(
        """
        [sluicegate]
        stor = "memory://"
        key = "users"
        deny = [["team", "7"]]
        algorithm = "leaky"
        default_limits = ["9/minute burst 20"]
        deadline = 0

        [[sluicegate.rules]]
        quota = "5/fortnight"

        [[sluicegate.rules]]
        name = "login"
        quota = "5/minute"
        pth = "/"

        [[sluicegate.rules]]
        name = "search"
        quota = "9/minute burst 20"

        [[sluicegate.rules]]
        quota = "5/minute"
        """,
        "utf-8",
    )
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_toml(path)
    found = [str(caught.value), *getattr(pickle.loads(pickle.dumps(caught.value)), "__notes__", ())]
    expected = [
        "'stor': no such setting",
        "key 'users': not known",
        "algorithm 'leaky': not known",
        "deadline 0: ",
        "rule 1 (counted from 1) {'quota': '5/fortnight'}: has no",
        "rule 'login' 'pth': no such option",
        "rule 4 (counted from 1) {'quota': '5/minute'}: has no",
    ]
    starts = [text.removeprefix(f"{path} [sluicegate]").removeprefix(":").removeprefix(" ") for text in found]
    assert [text[: len(start)] for text, start in zip(starts, expected, strict=True)] == expected


@pytest.mark.parametrize(("place", "line", "message"), WRONG_LINES)
def test_an_error_names_the_mapping_and_the_rule(place: str, line: str, message: str) -> None:
    other = {"settings": "", "rule": 'name = "last"\nquota = "1/minute"'}
    options = tomllib.loads(LIMITS.format(**{**other, place: line}))["sluicegate"]
    start = "settings.SLUICEGATE" + ("" if message.startswith("'") else ":")
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_mapping({name.upper(): value for name, value in options.items()}, source="settings.SLUICEGATE")
    found = str(caught.value)
    assert found.lower().startswith(f"{start} {message}".lower())


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("SLUICEGATE_DEFAULT_LIMITS", "10/fortnight", "default_limits: quota '10/fortnight': unknown unit"),
        ("SLUICEGATE_KEY", "users", "key 'users': not known"),
        ("SLUICEGATE_DEADLINE", "fast", "deadline 'fast': "),
        ("SLUICEGATE_DENY", "10.0.0.300", "deny '10.0.0.300': "),
        ("SLUICEGATE_SECRET", "short", "secret '…': "),
        ("SLUICEGATE_TRUSTED_PROXIES", "99", "trusted_proxies 99: "),
        ("SLUICEGATE_ON_DENIED", "shop.nobody", "on_denied 'shop.nobody': "),
        ("SLUICEGATE_STRICT", "perhaps", "strict 'perhaps': "),
    ],
)
def test_an_error_names_the_variable(variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environ({variable: text, "SLUICEGATE_PREFIX": "shop"})
    assert str(caught.value).startswith(f"environment {variable}: {message}")


def test_a_rule_in_code_names_itself_in_every_error() -> None:
    for options in ({"quota": "5/fortnight"}, {"quota": "5/m", "key": "x"}, {"quota": "5/m", "algorithm": "x"}):
        with pytest.raises(ConfigurationError, match=r"^rule 'login': "):
            Rule(**{"name": "login", **options})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"^rule 'login': quota 5: not a quota"):
        Rule(name="login", quota=lambda request: None).terms("gcra", cast("Any", 5))
