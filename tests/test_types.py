"""Wrong options in a user's file: mypy, pyright and the library itself find every one.

`scripts/lint` reads this file with both type checkers. Each wrong line has a `type: ignore`, and both checkers report
an ignore that hides nothing. The tests here run the same lines.
"""

# pyright: basic, reportUnnecessaryTypeIgnoreComment=true, reportUnnecessaryComparison=true

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from fastapi import Depends, FastAPI
from flask import Flask, request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.testclient import TestClient

import sluicegate.asgi
import sluicegate.wsgi
from sluicegate import (
    AsyncLimiter,
    ConfigurationError,
    Decision,
    Limiter,
    Rule,
    Settings,
    django,
    fastapi,
    flask,
    starlette,
)
from sluicegate.algorithms import ALGORITHMS, AlgorithmName
from sluicegate.web.http import DIALECTS, DialectName
from sluicegate.web.marks import MarkOptions, RuleOptions
from sluicegate.web.settings import SettingsOptions


async def asgi(scope: Any, receive: Any, send: Any) -> None: ...


def wsgi(environ: Any, start_response: Any) -> list[bytes]:
    return []


def in_starlette(add: Callable[[Starlette], None]) -> None:
    add(app := Starlette())
    started(app)


def in_fastapi(add: Callable[[FastAPI], None]) -> None:
    add(app := FastAPI())
    started(app)


def started(app: Any) -> None:
    """Starlette builds its middleware late, so the error comes when the application starts."""
    with TestClient(app):
        pass


MISSPELT: list[Callable[[], object]] = [
    lambda: Limiter(algoritm="gcra"),  # type: ignore[arg-type]
    lambda: AsyncLimiter(deadlin=1),  # type: ignore[arg-type]
    lambda: Settings(stroe="memory://"),  # type: ignore[call-arg]
    lambda: Rule(name="r", quota="5/minute", methds=["GET"]),  # type: ignore[call-arg]
    lambda: sluicegate.asgi.RateLimitMiddleware(asgi, defualt_limits=["5/minute"]),  # type: ignore[call-arg]
    lambda: sluicegate.wsgi.RateLimitMiddleware(wsgi, defualt_limits=["5/minute"]),  # type: ignore[call-arg]
    lambda: in_starlette(lambda app: app.add_middleware(starlette.RateLimitMiddleware, kye="ip")),  # type: ignore[call-arg]
    lambda: in_fastapi(lambda app: app.add_middleware(fastapi.RateLimitMiddleware, kye="ip")),  # type: ignore[call-arg]
    lambda: started(Starlette(middleware=[Middleware(starlette.RateLimitMiddleware, kye="ip")])),  # type: ignore[call-arg]
    lambda: flask.RateLimiter(Flask("app"), header=None),  # type: ignore[call-arg]
    lambda: starlette.limit("5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: fastapi.limit("5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: flask.limit("5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: django.limit("5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: Depends(fastapi.RateLimit("5/minute", kye="ip")),  # type: ignore[call-arg]
    lambda: starlette.charge(Request({"type": "http"}), "5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: fastapi.charge_sync(Request({"type": "http"}), "5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: flask.charge(request, "5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: django.charge(None, "5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: django.acharge(None, "5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: sluicegate.asgi.charge({}, "5/minute", kye="ip"),  # type: ignore[call-arg]
    lambda: sluicegate.wsgi.charge({}, "5/minute", kye="ip"),  # type: ignore[call-arg]
]
WRONG_WORDS: list[Callable[[], object]] = [
    lambda: Limiter(algorithm="gcar"),  # type: ignore[arg-type]
    lambda: AsyncLimiter(on_store_failure="open"),  # type: ignore[arg-type]
    lambda: Limiter().hit("5/minute", "alice", algorithm="gcar"),  # type: ignore[arg-type]
    lambda: Settings(headers="draft-12"),  # type: ignore[arg-type]
    lambda: Settings(on_store_failure="raise"),  # type: ignore[arg-type]
    lambda: Rule(name="r", quota="5/minute", mode="shadwo"),  # type: ignore[arg-type]
    lambda: sluicegate.asgi.RateLimitMiddleware(asgi, headers="draft-12"),  # type: ignore[arg-type]
    lambda: sluicegate.wsgi.RateLimitMiddleware(wsgi, headers="draft-12"),  # type: ignore[arg-type]
    lambda: in_starlette(lambda app: app.add_middleware(starlette.RateLimitMiddleware, algorithm="gcar")),  # type: ignore[arg-type]
    lambda: in_fastapi(lambda app: app.add_middleware(fastapi.RateLimitMiddleware, algorithm="gcar")),  # type: ignore[arg-type]
    lambda: flask.RateLimiter(Flask("app"), on_store_failure="close"),  # type: ignore[arg-type]
    lambda: starlette.limit("5/minute", mode="shadwo"),  # type: ignore[arg-type]
    lambda: fastapi.limit("5/minute", mode="shadwo"),  # type: ignore[arg-type]
    lambda: flask.limit("5/minute", algorithm="gcar"),  # type: ignore[arg-type]
    lambda: django.limit("5/minute", on_store_failure="close"),  # type: ignore[arg-type]
    lambda: Depends(fastapi.RateLimit("5/minute", algorithm="gcar")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", [*MISSPELT, *WRONG_WORDS])
def test_the_library_finds_it_too(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean|use "):
        make()


async def forgets(limiter: AsyncLimiter, name: str) -> bool:
    """Every decision here is a coroutine, which is always true."""
    reply = limiter.limit("1/minute", action="reply")
    if name == "is_action_allowed":
        return True if limiter.is_action_allowed("alice", "reply", 60, 1) else False  # type: ignore[truthy-bool]  # noqa: SIM210
    if name == "hit":
        return True if limiter.hit("1/minute", "alice") else False  # type: ignore[truthy-bool]  # noqa: SIM210
    if name == "peek":
        return True if limiter.peek("1/minute", "alice") else False  # type: ignore[truthy-bool]  # noqa: SIM210
    if name == "Limit.hit":
        return True if reply.hit("alice") else False  # type: ignore[truthy-bool]  # noqa: SIM210
    limiter.reset("1/minute", "alice")  # type: ignore[unused-coroutine]
    return True


@pytest.mark.parametrize("name", ["is_action_allowed", "hit", "peek", "Limit.hit", "reset"])
def test_python_warns_of_a_forgotten_await(name: str) -> None:
    with pytest.warns(RuntimeWarning, match=rf"coroutine '\w+\.{name.rpartition('.')[2]}' was never awaited"):
        assert asyncio.run(forgets(AsyncLimiter(), name)) is True


async def charged(connection: Request) -> list[int | None]:
    """What a type checker knows of a charge: a decision, from an `await` and from a block, in sync and async code."""
    first: Decision = await starlette.charge(connection, "5/minute")
    async with fastapi.charge(connection, "2 at once", key="ip", refund_earlier=False) as second:
        with sluicegate.wsgi.charge({}, "2 at once", scope="slots") as third:
            return [first.remaining, second.remaining, third.remaining]


def test_the_options_for_type_checkers_are_the_settings_and_the_rules() -> None:
    settings, rule = get_type_hints(Settings), get_type_hints(Rule)
    inner = {"source", "rules_file"}  # what the settings were read from
    names = [each.name for each in fields(Settings) if each.init and each.name not in inner]
    assert get_type_hints(SettingsOptions) == {name: settings[name] for name in names}
    own = {"name", "quota", "scope", "path", "route"}  # of the settings' rules, or arguments of their own
    assert get_type_hints(RuleOptions) == {each.name: rule[each.name] for each in fields(Rule) if each.name not in own}
    assert get_type_hints(MarkOptions) == {
        **get_type_hints(RuleOptions), "scope": rule["scope"], "name": str | None, "override_defaults": bool | None
    }  # fmt: skip
    assert set(get_args(AlgorithmName)) == set(ALGORITHMS)
    assert set(get_args(DialectName)) == set(DIALECTS)
