"""System checks: ids are tested, not prose. No check connects to a server."""

from __future__ import annotations

import re
import sys
from inspect import getsource
from typing import Any, ClassVar

import pytest
from django.core.checks import run_checks
from django.core.checks.registry import registry
from django.http import HttpResponse
from django.middleware.cache import CacheMiddleware
from django.test import override_settings
from django.urls import path

from sluicegate import Rule
from sluicegate.django import RateLimitMiddleware, checks, conf, limit, overview
from sluicegate.django.checks import check
from sluicegate.testing import AsyncAdapter, OpenStore
from sluicegate.web.gate import AsyncGate
from sluicegate.web.settings import Settings
from tests.adapters.django_app import AUTH, OURS, SESSIONS

with override_settings():  # REST framework reads the settings of the module before when it is imported
    from rest_framework.throttling import SimpleRateThrottle
    from rest_framework.views import APIView

    from sluicegate.drf import ScopedRateThrottle, UserRateThrottle

NOWHERE = "redis://127.0.0.1:1/0"  # no server listens there


class Child(RateLimitMiddleware):
    """A project's subclass."""


async def key_async(request: Any) -> str:
    return "alice"


class Cache(CacheMiddleware):
    """A project's subclass of both cache middlewares."""


class Idle(UserRateThrottle):
    """A throttle without a rate, as without DEFAULT_THROTTLE_RATES."""

    THROTTLE_RATES: ClassVar[dict[str, Any]] = {"user": None}


class Rated(UserRateThrottle):
    """A throttle with a rate."""

    rate = "5/minute"


class ByRequest(UserRateThrottle):
    """A throttle whose rate depends on the request."""

    def rate(self, request: Any) -> None:
        """Return no limit."""


class Monthly(UserRateThrottle):
    """A throttle whose rate has two meanings."""

    rate = "10/month"


class Nowhere(UserRateThrottle):
    """A throttle whose scope has no rate."""

    scope = "nowhere"


class Late(Nowhere):
    """The same with code of its own, which may find a rate when the application serves."""

    def get_rate(self) -> str:
        return str(super().get_rate())


class Scoped(ScopedRateThrottle):
    """The throttle of views with scopes, of which one has no rate."""

    THROTTLE_RATES: ClassVar[dict[str, Any]] = {"fine": "5/minute", "free": None}


class ScopedMonthly(ScopedRateThrottle):
    """The same with a rate that has two meanings."""

    THROTTLE_RATES: ClassVar[dict[str, Any]] = {"fine": "5/minute", "wrong": "10/month"}


def throttled(*names: str) -> dict[str, Any]:
    """The settings of a project whose views have these throttles."""
    paths = [name if "." in name else f"{__name__}.{name}" for name in names]
    return {"REST_FRAMEWORK": {"DEFAULT_THROTTLE_CLASSES": paths}}


def routed(view: Any) -> dict[str, Any]:
    """The settings of a project with one view."""
    return {"ROOT_URLCONF": (path("x", view),)}


def viewed(kind: Any, **attributes: Any) -> dict[str, Any]:
    """The settings of a project with one view of REST framework, which has this throttle class."""
    view: Any = type("Viewed", (APIView,), {"throttle_classes": (kind,), **attributes})
    return routed(view.as_view())


@limit("5/minute burst 3")
def with_burst(request: Any) -> HttpResponse:
    """Its quota does not suit the default algorithm."""
    return HttpResponse()


@limit("5/minute", key=key_async)
async def with_async_key(request: Any) -> HttpResponse:
    """Its key can be called under ASGI only."""
    return HttpResponse()


CACHE = "django.middleware.cache.UpdateCacheMiddleware"
FETCH = "django.middleware.cache.FetchFromCacheMiddleware"
CHILD = f"{__name__}.Child"
FINE: dict[str, Any] = {"DEFAULT_LIMITS": ["1/minute"], "STORE": NOWHERE}

# (what, SLUICEGATE, MIDDLEWARE, other settings, ids)
TABLE: list[tuple[str, Any, list[str], dict[str, Any], list[str]]] = [
    ("all is well", FINE, [OURS], {}, []),
    ("nothing at all", None, [], {}, []),
    ("a Settings", Settings(default_limits=["1/minute"]), [OURS], {}, []),
    ("an async store", {"STORE": AsyncAdapter(OpenStore()), "RULES": []}, [OURS], {}, []),
    ("unknown name", {"DEFAULT_LIMIT": []}, [OURS], {}, ["sluicegate.E001"]),
    ("no dict", "1/minute", [OURS], {}, ["sluicegate.E001"]),
    ("a quota", {"DEFAULT_LIMITS": ["1/fortnight"]}, [OURS], {}, ["sluicegate.E001"]),
    ("a scheme", {"STORE": "mysql://"}, [OURS], {}, ["sluicegate.E002"]),
    ("an algorithm", {"DEFAULT_LIMITS": ["1/s burst 5"]}, [OURS], {}, ["sluicegate.E001"]),
    (
        "async store and route",
        {**FINE, "STORE": AsyncAdapter(OpenStore()), "RULES": [{"name": "a", "quota": "1/s", "route": "itme"}]},
        [OURS],
        {},
        ["sluicegate.E002"],
    ),
    ("a route by name", {"RULES": [{"name": "a", "quota": "1/s", "route": "item"}]}, [OURS], {}, []),
    ("a route by template", {"RULES": [{"name": "a", "quota": "1/s", "route": "/items/<str:name>"}]}, [OURS], {}, []),
    ("no such route", {"RULES": [{"name": "a", "quota": "1/s", "route": "itme"}]}, [OURS], {}, ["sluicegate.E002"]),
    (
        "a sync store and an async key",
        {**FINE, "STORE": OpenStore(), "KEY": key_async},
        [OURS],
        {},
        ["sluicegate.E002"],
    ),
    ("missing", None, [OURS], {}, ["sluicegate.W001"]),
    ("empty", {}, [CHILD], {}, ["sluicegate.W001"]),
    ("users without authentication", {**FINE, "KEY": "user"}, [OURS], {}, ["sluicegate.W002"]),
    ("users in a tuple", {**FINE, "KEY": ("user", "path:x")}, [OURS], {}, ["sluicegate.W002"]),
    ("users in a rule", {"RULES": [{"name": "a", "quota": "1/s", "key": "user"}]}, [OURS], {}, ["sluicegate.W002"]),
    ("users in a Rule", {"RULES": [Rule(name="a", quota="1/s", key="user")]}, [OURS], {}, ["sluicegate.W002"]),
    ("users with authentication", {**FINE, "KEY": "user"}, [OURS, SESSIONS, AUTH], {}, []),
    ("twice", FINE, [OURS, CHILD], {}, ["sluicegate.W003"]),
    ("a proxy", FINE, [OURS], {"SECURE_PROXY_SSL_HEADER": ("HTTP_X_FORWARDED_PROTO", "https")}, ["sluicegate.W004"]),
    ("a proxy's host", FINE, [OURS], {"USE_X_FORWARDED_HOST": True}, ["sluicegate.W004"]),
    ("a named proxy", {**FINE, "TRUSTED_PROXIES": 1}, [OURS], {"USE_X_FORWARDED_HOST": True}, []),
    ("a cache outside", FINE, [CACHE, OURS, FETCH], {}, ["sluicegate.W005"]),
    ("a cache outside, our subclass", FINE, [CACHE, CHILD], {}, ["sluicegate.W005"]),
    ("a subclassed cache outside", FINE, [f"{__name__}.Cache", SESSIONS, OURS], {}, ["sluicegate.W005"]),
    ("a cache inside", FINE, [OURS, CACHE, FETCH], {}, []),
    ("a cache alone", {"STORE": NOWHERE}, [CACHE, FETCH], {}, []),
    ("a middleware that does not exist", FINE, [OURS, "no.such.Middleware"], {}, []),
    ("limits without the middleware", FINE, [SESSIONS], {}, ["sluicegate.W006"]),
    ("rules without it", {"RULES": [Rule(name="a", quota="1/s")]}, [], {}, ["sluicegate.W006"]),
    ("limits that cannot be read, without it", {"DEFAULT_LIMITS": ["1/x"]}, [], {}, ["sluicegate.E001"]),
    ("throttles", None, [], throttled("Rated", "ByRequest", "Scoped", "rest_framework.throttling.X", "no.such"), []),
    ("a throttle without a rate", None, [], throttled("Idle", "Rated"), ["sluicegate.W007"]),
    ("a rate with two meanings", None, [], throttled("Monthly", "Idle"), ["sluicegate.E003", "sluicegate.W007"]),
    ("a rate of a scope with two meanings", None, [], throttled("ScopedMonthly"), ["sluicegate.E003"]),
    ("a scope without a rate", None, [], throttled("Nowhere"), ["sluicegate.E003"]),
    ("a scope whose rate code finds", None, [], throttled("Late"), []),
    ("no throttle", None, [], throttled("sluicegate.drf.RateThrottle"), ["sluicegate.E003"]),
    ("a view with a wrong limit", FINE, [OURS], routed(with_burst), ["sluicegate.E004"]),
    ("the same without the middleware", None, [], routed(with_burst), ["sluicegate.E004"]),
    ("a view for ASGI", FINE, [OURS], routed(with_async_key), []),
    (
        "a view for ASGI, a sync store",
        {**FINE, "STORE": OpenStore()},
        [OURS],
        routed(with_async_key),
        ["sluicegate.E002"],
    ),
    ("a view's throttle", FINE, [OURS], viewed(Monthly), ["sluicegate.E004"]),
    ("a view's throttle without a rate", FINE, [OURS], viewed(Nowhere), ["sluicegate.E004"]),
    ("a view's throttle for some requests", FINE, [OURS], viewed(Rated, get_throttles=lambda self: 1 / 0), []),
    ("no URLconf", FINE, [OURS], {"ROOT_URLCONF": None}, []),
    ("settings of django-ratelimit", FINE, [OURS], {"RATELIMIT_VIEW": "a.b"}, ["sluicegate.W008"]),
    ("a setting that has no name here", FINE, [OURS], {"RATELIMIT_HASH_ALGORITHM": "md5", "RATELIMIT_X": 1}, []),
    ("foreign throttles", None, [], throttled("rest_framework.throttling.ScopedRateThrottle"), []),
]


@pytest.mark.parametrize(
    ("given", "middleware", "others", "ids"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_dj06_dj10_checks(
    given: Any, middleware: list[str], others: dict[str, Any], ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "django_ratelimit", raising=False)  # other tests import it
    with override_settings(SLUICEGATE=given, MIDDLEWARE=middleware, **others):
        assert [message.id for message in check()] == ids


@pytest.mark.parametrize(("scope", "ids"), [("fine", []), ("wrong", ["sluicegate.E004"])])
def test_a_rate_of_another_class_is_no_error(scope: str, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of the settings are those of all classes, of which some read them in their own way."""
    monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", {"fine": "5/minute", "wrong": "10/month"})
    settings = {**viewed(ScopedRateThrottle, throttle_scope=scope), **throttled("sluicegate.drf.ScopedRateThrottle")}
    with override_settings(SLUICEGATE=FINE, MIDDLEWARE=[OURS], **settings):
        assert [message.id for message in check()] == ids


def test_dj06_settings_of_a_limiter_in_use_are_not_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "django_ratelimit", raising=False)
    with override_settings(SLUICEGATE=FINE, MIDDLEWARE=[OURS], RATELIMIT_ENABLE=True):
        (message,) = check()
        assert "RATELIMIT_ENABLE is ENABLED (False lets every request pass)" in message.msg
        monkeypatch.setitem(sys.modules, "django_ratelimit", sys)
        assert check() == []


IDS = {
    *("sluicegate.E001", "sluicegate.E002", "sluicegate.E003", "sluicegate.E004"),
    *("sluicegate.W001", "sluicegate.W002", "sluicegate.W003", "sluicegate.W004"),
    *("sluicegate.W005", "sluicegate.W006", "sluicegate.W007", "sluicegate.W008"),
}


def test_dj06_ids_are_stable() -> None:
    assert {each for row in TABLE for each in row[4]} == IDS
    assert set(re.findall(r"sluicegate\.[EW][0-9]{3}", getsource(checks))) | {conf.UNUSABLE} == IDS


@override_settings(SLUICEGATE={}, MIDDLEWARE=[OURS], SILENCED_SYSTEM_CHECKS=["sluicegate.W001"])
def test_dj06_checks_are_registered_once_and_can_be_silenced() -> None:
    (message,) = run_checks(tags=["sluicegate"])
    assert message.id == "sluicegate.W001"
    assert message.is_silenced()
    assert [each for each in registry.get_checks() if each is check] == [check]


@override_settings(SLUICEGATE={"DEFAULT_LIMIT": []})
def test_dj10_an_error_names_the_nearest_option() -> None:
    (message,) = check()
    assert 'did you mean "default_limits"?' in message.msg
    assert message.hint


def test_the_commands_take_the_gate_for_asgi_if_a_view_needs_it() -> None:
    with override_settings(SLUICEGATE=FINE, MIDDLEWARE=[OURS], **routed(with_async_key)):
        gate, (_, rules) = overview.project_rules()
        assert isinstance(gate, AsyncGate)
        assert [each.rule.name for each in rules.bounds] == ["default", "with_async_key"]
