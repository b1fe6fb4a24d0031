"""Every public value can be copied and pickled, or raises an error: applications pass values to tasks and processes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import multiprocessing
import pickle
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tests.adapters.django_app  # noqa: F401  # Django's modules cannot be imported before settings are configured
from sluicegate import (
    AsyncLimiter,
    Ban,
    Concurrency,
    Decision,
    Limiter,
    ManualClock,
    Outcome,
    Quota,
    RateLimitExceeded,
    Rule,
    StoreError,
    Tiers,
)
from sluicegate.errors import AsyncMismatchError, MissingExtraError, QuotaError, StrictError
from sluicegate.rules.response import Headers
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from sluicegate.stores.redis.cell import RedisCellStore
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import make_mark
from sluicegate.web.settings import Settings


def plan_of(request: Any) -> str:
    return "free"


def refusal(request: Any, decision: Any) -> Any:
    return "later", 429


def is_wanted(response: Any) -> bool:
    return True


TIERS = Tiers(
    {"free": "1/minute", "pro": "2/minute; 9/hour", "staff": None, 7: "3 at once"}, by=plan_of, default="free"
)
BAN = Ban(after=3, within=60, duration="1 hour", factor=2, longest="1 day")
RULE = Rule(
    name="r",
    quota=TIERS,
    key=("ip", plan_of),
    methods=["GET"],
    route="home",
    ban=BAN,
    when=is_wanted,
    cost=1,
    scope="s",
)
VALUES: dict[str, Any] = {
    "quota": Quota(5, 60, burst=9),
    "concurrency": Concurrency(3, 30),
    "tiers": TIERS,
    "ban": BAN,
    "rule": RULE,
    "rule with a predicate": Rule(name="r", quota="5/minute", charge_when=is_wanted),
    "settings": Settings(),
    "settings of everything": Settings(
        store="redis://:pw@example.org/0",
        default_limits=["5/minute", Quota(9, 3600)],
        rules=[RULE],
        key=plan_of,
        allow=["10.0.0.0/8", plan_of, "alice"],
        deny=["192.0.2.1"],
        trusted_proxies=(each for each in ["10.0.0.0/8"]),  # read once
        secret="correct horse battery staple",
        on_denied=refusal,
    ),
    "outcome": Outcome(True, 5, 4, 0, 60, 60),
}


def pickled(protocol: int) -> Callable[[Any], Any]:
    return lambda value: pickle.loads(pickle.dumps(value, protocol))


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {protocol}": pickled(protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_equal(name: str, how: str) -> None:
    value = VALUES[name]
    again = COPIES[how](value)
    assert type(again) is type(value)
    assert again == value
    assert sorted(repr(again)) == sorted(repr(value))  # a set that was copied may show its members in another order


@pytest.mark.parametrize("name", [name for name, value in VALUES.items() if dataclasses.is_dataclass(value)])
def test_a_replaced_value_is_equal(name: str) -> None:
    assert dataclasses.replace(VALUES[name]) == VALUES[name]


def test_a_copy_of_a_rule_works_in_a_gate() -> None:
    for how in COPIES.values():
        settings = how(Settings(rules=[RULE]))
        assert Gate(settings).settings == AsyncGate(settings).settings == settings
        assert how(TIERS)(None) == TIERS(None) == (Quota(1, 60),)


def test_equal_tiers_are_one() -> None:
    table: dict[Any, Any] = {"free": "1/minute", "pro": None}
    one, same = Tiers(table, by=plan_of), Tiers(table, by=plan_of)
    assert one == same
    assert hash(one) == hash(same)
    others = [
        Tiers(table, by=is_wanted),
        Tiers(table, by=plan_of, default="pro"),
        Tiers({"free": "1/minute"}, by=plan_of),
        "free",
    ]
    assert all(one != other for other in others)


def test_values_reach_another_process() -> None:
    """Under spawn everything that a process is given is pickled."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(copy.copy, [VALUES["tiers"], VALUES["rule"], VALUES["settings of everything"]])
    assert found == [VALUES["tiers"], VALUES["rule"], VALUES["settings of everything"]]


def refused() -> Decision:
    limiter = Limiter(clock=ManualClock())
    return limiter.hit("1/minute; 9/hour", "alice", action="reply", cost=2)


DECISIONS: list[Decision] = [refused(), Limiter(clock=ManualClock()).hit("5/minute", "alice")]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("decision", DECISIONS, ids=["refused", "allowed"])
def test_a_copy_of_a_decision_says_the_same(decision: Decision, how: str) -> None:
    again = COPIES[how](decision)
    assert repr(again) == repr(decision)
    assert again == decision or "pickle" in how  # terms are compared by identity
    facts = ("allowed", "outcomes", "rule", "limit", "remaining", "retry_after", "reset_after", "banned", "forbidden")
    assert [getattr(again, fact) for fact in facts] == [getattr(decision, fact) for fact in facts]


ERRORS = [
    QuotaError("quota", "10/fortnight", problem="unknown unit", expected="use day"),
    AsyncMismatchError("rule 'r': key", plan_of, problem="async", expected="give a plain function"),
    MissingExtraError("redis", "redis"),
    StrictError("SG103", "trusted_proxies", "0.0.0.0/0", problem="everybody", expected="name them"),
    StoreError("localhost:6379", TimeoutError("too late")),
    RateLimitExceeded(refused()),
]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_copy_of_an_error_says_the_same(error: Any, how: str) -> None:
    again = COPIES[how](error)
    assert (type(again), str(again), again.code) == (type(error), str(error), error.code)
    assert vars(again).keys() == vars(error).keys()


HOLDERS: dict[str, Any] = {
    "Limiter": Limiter(),
    "AsyncLimiter": AsyncLimiter(),
    "Limiter of a store": Limiter(MemoryStore()),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", HOLDERS)
def test_what_holds_connections_says_that_it_cannot_be_copied(name: str, how: str) -> None:
    with pytest.raises(TypeError, match=r"cannot be copied or pickled.*; make one in each process"):
        COPIES[how](HOLDERS[name])


def test_settings_with_a_store_are_copied_with_the_same_store_and_not_pickled() -> None:
    settings = Settings(store=MemoryStore())
    assert copy.deepcopy(settings).store is copy.copy(settings).store is settings.store
    with pytest.raises(TypeError, match="settings with a MemoryStore cannot be pickled"):
        pickle.dumps(settings)


def test_a_function_that_cannot_be_pickled_is_named() -> None:
    for value in (Tiers({"free": "1/minute"}, by=lambda request: "free"), make_mark(lambda request: None).rule):
        assert copy.deepcopy(value) == value
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            pickle.dumps(value)


def public_classes() -> set[Any]:
    """Every class that docs/api.md shows: by itself, or as a member of its module."""
    text = (Path(__file__).parent.parent / "docs" / "api.md").read_text("utf-8")
    shown = [pkgutil.resolve_name(name) for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]
    members = [getattr(each, name) for each in shown if inspect.ismodule(each) for name in dir(each) if name[0] != "_"]
    found = {each for each in [*shown, *members] if isinstance(each, type) and each.__module__.startswith("sluicegate")}
    return {each for each in found if not issubclass(each, tuple) and not inspect.isabstract(each)}


SHOWN: set[Any] = public_classes() | {Headers, AsyncMemoryStore, RedisCellStore}


@pytest.mark.parametrize("kind", sorted(SHOWN, key=str))
def test_no_repr_of_a_half_made_value_raises(kind: Any) -> None:
    """A traceback with variables, a debugger and an error tracker show `self` of an `__init__` that raised."""
    assert repr(kind.__new__(kind))
