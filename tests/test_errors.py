"""Errors: unique codes, all in the tree of the docstring; facts as attributes; short messages."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from flask import Flask

import sluicegate.asgi
import sluicegate.errors
from sluicegate import (
    AsyncLimiter,
    Ban,
    Limiter,
    RateLimitExceeded,
    Rule,
    Settings,
    SluicegateError,
    SluicegateWarning,
    StoreError,
    django,
    fastapi,
    flask,
    starlette,
)
from sluicegate.algorithms import ALGORITHMS
from sluicegate.errors import ConfigurationError, LineError, MissingExtraError
from sluicegate.other_names import OPTIONS, VALUES
from sluicegate.plan import FORBIDDEN
from sluicegate.stores import SCHEMES


def tree(root: type[SluicegateError]) -> Iterator[type[SluicegateError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == "sluicegate.errors":
            yield from tree(child)


ALL = list(tree(SluicegateError))


def test_codes_are_unique() -> None:
    assert len({error.code for error in ALL}) == len(ALL)


@pytest.mark.parametrize("error", ALL[1:], ids=lambda error: error.__name__)
def test_every_error_is_in_the_drawing_with_its_code(error: type[SluicegateError]) -> None:
    assert sluicegate.errors.__doc__ is not None
    lines = [line for line in sluicegate.errors.__doc__.splitlines() if error.__name__ in line]
    assert len(lines) == 1
    assert error.code in lines[0]


def test_a_configuration_error_keeps_the_facts() -> None:
    error = ConfigurationError("quota", "10/fortnight", problem='unknown unit "fortnight"', expected="use day")
    assert (error.what, error.given, error.problem, error.expected) == (
        "quota", "10/fortnight", 'unknown unit "fortnight"', "use day",
    )  # fmt: skip
    assert str(error) == "quota '10/fortnight': unknown unit \"fortnight\"; use day [SG010]"
    assert isinstance(error, ValueError)


def test_what_was_given_is_cut_short() -> None:
    error = ConfigurationError("quota", "x" * 10**6, problem="too long", expected="be brief")
    assert len(str(error)) < 300


def test_a_missing_extra_is_an_import_error_that_says_what_to_install() -> None:
    error = MissingExtraError("redis", "redis")
    assert isinstance(error, ImportError)
    assert "pip install 'sluicegate[redis]'" in str(error)
    assert error.extra == "redis"


def test_a_store_error_names_its_cause() -> None:
    cause = TimeoutError("too late")
    error = StoreError("localhost:6379", cause)
    assert error.cause is cause
    assert str(error) == "store localhost:6379: TimeoutError: too late [SG020]"
    assert not isinstance(error, ConfigurationError)


@pytest.mark.parametrize(("cost", "text"), [(1, "retry after 60 seconds"), (2, "it can never pass")])
def test_rate_limit_exceeded_carries_the_decision(cost: int, text: str) -> None:
    from sluicegate import ManualClock

    limiter = Limiter(clock=ManualClock())
    limiter.hit("1/minute", "a", action="reply")
    decision = limiter.hit("1/minute", "a", action="reply", cost=cost)
    error = RateLimitExceeded(decision)
    assert error.decision is decision
    assert "'reply'" in str(error)
    assert text in str(error)


def test_a_forbidden_decision_never_passes() -> None:
    assert FORBIDDEN.retry_after is None
    assert str(RateLimitExceeded(FORBIDDEN)) == "refused by the deny list; it can never pass [SG021]"


@pytest.mark.parametrize("given", ["too many of alice", None, 60, Limiter()])
def test_rate_limit_exceeded_carries_nothing_else(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="give the decision that a limiter returned") as caught:
        RateLimitExceeded(given)
    assert "alice" not in str(caught.value)


def test_a_warning_carries_its_code() -> None:
    with pytest.warns(SluicegateWarning, match=r"\[SG199\]") as caught:
        SluicegateWarning.warn("SG199", "something will hurt one day")
    assert caught[0].message.code == "SG199"  # type: ignore[union-attr]


PICKLED = [
    ConfigurationError("quota", "10/fortnight", problem="unknown unit", expected="use day"),
    MissingExtraError("redis", "redis"),
    StoreError("localhost:6379", TimeoutError("too late")),
    RateLimitExceeded(Limiter().hit("1/minute", "a", action="reply", cost=2)),
    LineError("access.log", 7, "garbage"),
]


@pytest.mark.parametrize("error", PICKLED, ids=lambda error: type(error).__name__)
def test_errors_travel_between_processes(error: SluicegateError) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived)) == (type(error), str(error))
    assert arrived.__dict__.keys() == error.__dict__.keys()
    assert repr(getattr(arrived, "decision", None)) == repr(getattr(error, "decision", None))


def fastapi_get(dependency: Any) -> None:
    FastAPI().get("/", dependencies=[Depends(dependency)])(lambda: None)


def bare_in_fastapi(dependency: Any) -> None:
    FastAPI(dependencies=[dependency]).get("/")(lambda: None)


# what is called, with these arguments and options → what the error says
ELSEWHERE: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (Settings, (), {"key_func": str}, "here it is called key: "),
    (Settings, (), {"retry_after": 1}, "leave it out: Retry-After is in every refusal, in seconds"),
    (flask.RateLimiter, (Flask("app"),), {"ban": None}, 'an option of a rule; give it to a Rule in "rules"'),
    (Settings.from_mapping, ({"CHARGE_WHEN": str},), {}, 'an option of a rule; give it to a Rule in "rules"'),
    (Settings.from_mapping, ({"STORAGE_URI": "redis://h"},), {}, "here it is called store: "),
    (Settings.from_mapping, ({"ratelimit_storage_uri": "redis://h"},), {}, "here it is called store: "),
    (Settings, (), {"rules": [{"name": "a", "quota": "5/m", "deduct_when": str}]}, "here it is called charge_when: "),
    (sluicegate.asgi.RateLimitMiddleware, (None,), {"headers_enabled": True}, "here it is called headers: "),
    (flask.RateLimiter, (Flask("app"),), {"strategy": "fixed-window"}, "here it is called algorithm: "),
    (Rule, (), {"name": "a", "quota": "5/minute", "exempt_when": str}, "here it is called when: "),
    (Rule, (), {"name": "a", "rate": "5/m"}, "here it is called quota: "),
    (Limiter, (), {"storage_uri": "redis://h"}, "here it is called store: "),
    (AsyncLimiter, (), {"key_func": str}, "here it is the option key: "),
    (starlette.limit, ("5/minute",), {"key_func": str}, "here it is called key: "),
    (flask.limit, ("5/minute",), {"deduct_when": str}, "here it is called charge_when: "),
    (django.limit, ("5/m",), {"block": False}, "here it is called mode: "),
    (django.limit, (), {"key": "ip", "rate": "5/m"}, "here it is called quota: "),
    (fastapi.RateLimit, (), {"times": 5, "seconds": 60}, "here it is called quota: "),
    (django.limit, ("5/m",), {"key": "user_or_ip"}, 'here it is "user"'),
    (django.limit, ("5/m",), {"key": "post:name"}, "give a function of the request that reads the form"),
    (Limiter, (), {"algorithm": "moving-window"}, 'here it is "sliding-log"'),
    (fastapi_get, (fastapi.limit("5/minute"),), {}, "a decorator, not a dependency; give Depends(RateLimit("),
    (bare_in_fastapi, (fastapi.limit("5/minute"),), {}, "a decorator, not a dependency; give Depends(RateLimit("),
    (Limiter().limit("5/minute"), (len,), {}, "a prepared limit is no decorator; use limit of sluicegate.flask"),
    (Limiter().limit("2 at once").hold("a", cost=0).__enter__, (), {}, "cost 0: it holds no slot; give 1 or more"),
    (Limiter().hit, ("5/minute", "a"), {"action": 5}, "action 5: it is not text; give a name"),
    (Limiter, ("async+redis://h",), {}, 'here it is "redis://"'),
    (Limiter, ("redis+unix:///run/redis.sock",), {}, 'here it is "unix://"'),
]


@pytest.mark.parametrize(("call", "arguments", "options", "hint"), ELSEWHERE, ids=range(len(ELSEWHERE)))
def test_names_of_other_libraries_lead_to_ours(call: Any, arguments: Any, options: Any, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(hint)) as caught:
        call(*arguments, **options)
    assert caught.value.code in str(caught.value)


def test_the_table_of_other_names_leads_to_options() -> None:
    known = {each.name for kind in (Settings, Rule, Ban) for each in fields(kind)}
    assert {name for name, _ in OPTIONS.values()} - {""} <= known
    assert not OPTIONS.keys() & {each.name for each in fields(Settings)}
    words = {"key": {"user", "ip"}, "algorithm": set(ALGORITHMS), "scheme": {f"{scheme}://" for scheme in SCHEMES}}
    for kind, hints in VALUES.items():
        named = {word for hint in hints.values() for word in re.findall(r'"(\S+?)"', hint)}
        assert named <= words[kind], kind
