"""System checks: ids are tested, not prose. No check asks a server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.checks.registry import registry
from django.middleware.cache import CacheMiddleware
from django.test import override_settings

from headgate import Rule
from headgate.django import RateLimitMiddleware
from headgate.django.checks import CHECKS, check
from headgate.settings import Settings
from headgate.testing import Awaited, OpenStore
from tests.adapters.django_app import AUTH, OURS, SESSIONS

NOWHERE = "redis://127.0.0.1:1/0"  # nobody listens there


class Child(RateLimitMiddleware):
    """A project's own."""


async def key_later(request: Any) -> str:
    return "somebody"


class Cache(CacheMiddleware):
    """A project's own, both halves in one."""


CACHE = "django.middleware.cache.UpdateCacheMiddleware"
FETCH = "django.middleware.cache.FetchFromCacheMiddleware"
CHILD = f"{__name__}.Child"
FINE: dict[str, Any] = {"DEFAULT_LIMITS": ["1/minute"], "STORE": NOWHERE}

# (what, HEADGATE, MIDDLEWARE, other settings, ids)
TABLE: list[tuple[str, Any, list[str], dict[str, Any], list[str]]] = [
    ("all is well", FINE, [OURS], {}, []),
    ("nothing at all", None, [], {}, []),
    ("a Settings", Settings(default_limits=["1/minute"]), [OURS], {}, []),
    ("an async store", {"STORE": Awaited(OpenStore()), "RULES": []}, [OURS], {}, []),
    ("unknown name", {"DEFAULT_LIMIT": []}, [OURS], {}, ["headgate.E001"]),
    ("no dict", "1/minute", [OURS], {}, ["headgate.E001"]),
    ("a quota", {"DEFAULT_LIMITS": ["1/fortnight"]}, [OURS], {}, ["headgate.E001"]),
    ("a scheme", {"STORE": "mysql://"}, [OURS], {}, ["headgate.E002"]),
    ("an algorithm", {"DEFAULT_LIMITS": ["1/s burst 5"]}, [OURS], {}, ["headgate.E001"]),
    (
        "async store and route",
        {**FINE, "STORE": Awaited(OpenStore()), "RULES": [{"name": "a", "quota": "1/s", "route": "itme"}]},
        [OURS],
        {},
        ["headgate.E002"],
    ),
    ("a route by name", {"RULES": [{"name": "a", "quota": "1/s", "route": "item"}]}, [OURS], {}, []),
    ("a route by template", {"RULES": [{"name": "a", "quota": "1/s", "route": "/items/<str:name>"}]}, [OURS], {}, []),
    ("no such route", {"RULES": [{"name": "a", "quota": "1/s", "route": "itme"}]}, [OURS], {}, ["headgate.E002"]),
    ("both colours at once", {**FINE, "STORE": OpenStore(), "KEY": key_later}, [OURS], {}, ["headgate.E002"]),
    ("missing", None, [OURS], {}, ["headgate.W001"]),
    ("empty", {}, [CHILD], {}, ["headgate.W001"]),
    ("users, nobody signs in", {**FINE, "KEY": "user"}, [OURS], {}, ["headgate.W002"]),
    ("users in a tuple", {**FINE, "KEY": ("user", "path:x")}, [OURS], {}, ["headgate.W002"]),
    ("users in a rule", {"RULES": [{"name": "a", "quota": "1/s", "key": "user"}]}, [OURS], {}, ["headgate.W002"]),
    ("users in a Rule", {"RULES": [Rule(name="a", quota="1/s", key="user")]}, [OURS], {}, ["headgate.W002"]),
    ("users who sign in", {**FINE, "KEY": "user"}, [OURS, SESSIONS, AUTH], {}, []),
    ("twice", FINE, [OURS, CHILD], {}, ["headgate.W003"]),
    ("a proxy", FINE, [OURS], {"SECURE_PROXY_SSL_HEADER": ("HTTP_X_FORWARDED_PROTO", "https")}, ["headgate.W004"]),
    ("a proxy's host", FINE, [OURS], {"USE_X_FORWARDED_HOST": True}, ["headgate.W004"]),
    ("a named proxy", {**FINE, "TRUSTED_PROXIES": 1}, [OURS], {"USE_X_FORWARDED_HOST": True}, []),
    ("a cache outside", FINE, [CACHE, OURS, FETCH], {}, ["headgate.W005"]),
    ("a cache outside, ours a project's own", FINE, [CACHE, CHILD], {}, ["headgate.W005"]),
    ("a cache of a project's own", FINE, [f"{__name__}.Cache", SESSIONS, OURS], {}, ["headgate.W005"]),
    ("a cache inside", FINE, [OURS, CACHE, FETCH], {}, []),
    ("a cache alone", FINE, [CACHE, FETCH], {}, []),
    ("another's mistake", FINE, [OURS, "no.such.Middleware"], {}, []),
]


@pytest.mark.parametrize(
    ("given", "middleware", "others", "ids"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_dj06_dj10_checks(given: Any, middleware: list[str], others: dict[str, Any], ids: list[str]) -> None:
    with override_settings(HEADGATE=given, MIDDLEWARE=middleware, **others):
        assert [message.id for message in check()] == ids


def test_dj06_ids_are_stable_and_unique() -> None:
    ids = [row.id for row in CHECKS]
    assert ids == [
        "headgate.E001",
        "headgate.E002",
        "headgate.W001",
        "headgate.W002",
        "headgate.W003",
        "headgate.W004",
        "headgate.W005",
    ]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"headgate\.[EW][0-9]{3}", each) for each in ids)
    assert {row.id for row in CHECKS} == {each for row in TABLE for each in row[4]}  # each is provoked above


@override_settings(HEADGATE={}, MIDDLEWARE=[OURS], SILENCED_SYSTEM_CHECKS=["headgate.W001"])
def test_dj06_checks_are_registered_once_and_can_be_silenced() -> None:
    (message,) = run_checks(tags=["headgate"])
    assert message.id == "headgate.W001"
    assert message.is_silenced()
    assert [each for each in registry.get_checks() if each is check] == [check]


@override_settings(HEADGATE={"DEFAULT_LIMIT": []})
def test_dj10_an_error_says_what_to_do() -> None:
    (message,) = check()
    assert 'did you mean "default_limits"?' in message.msg
    assert message.hint
