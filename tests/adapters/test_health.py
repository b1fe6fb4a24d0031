"""The health endpoint of every adapter: the status as JSON, without limits, and 200 while the store is down unless the
application wants another code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from django.urls import path
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from sluicegate import asgi, django, fastapi, flask, starlette, wsgi
from sluicegate.errors import AsyncMismatchError, NotEnforcedError, SettingsError
from sluicegate.observe.status import Status
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import free_port

PATH = "/health"
Opened = Generator[Any]


def by_path(scope: Any, kind: str) -> bool:
    return bool(str(scope[kind]).endswith(PATH))


@contextmanager
def in_starlette(code: dict[str, int], **options: Any) -> Opened:
    app = Starlette(routes=[Route(PATH, starlette.health(**code))])
    app.add_middleware(starlette.RateLimitMiddleware, **options)
    yield AsgiClient(app)


@contextmanager
def in_fastapi(code: dict[str, int], **options: Any) -> Opened:
    app = FastAPI()
    app.add_middleware(fastapi.RateLimitMiddleware, **options)
    app.add_api_route(PATH, fastapi.health(**code), methods=["GET", "HEAD"])
    yield AsgiClient(app)


@contextmanager
def in_flask(code: dict[str, int], **options: Any) -> Opened:
    app = Flask("app")
    limiter = flask.RateLimiter(app, **options)
    app.add_url_rule(PATH, view_func=flask.health(limiter, **code))
    yield WsgiClient(app)


def in_django(*, is_asgi: bool) -> Any:
    @contextmanager
    def project(code: dict[str, int], **options: Any) -> Opened:
        with serving(asgi=is_asgi, urls=[path(PATH[1:], django.health(**code))], **options) as site:
            yield site

    return project


@contextmanager
def in_asgi(code: dict[str, int], **options: Any) -> Opened:
    limited = asgi.RateLimitMiddleware(PlainTextResponse("limited"), **options)
    health = asgi.health(limited, **code)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (health if by_path(scope, "path") else limited)(scope, receive, send)

    yield AsgiClient(app)


@contextmanager
def in_wsgi(code: dict[str, int], **options: Any) -> Opened:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        raise NotImplementedError

    limited = wsgi.RateLimitMiddleware(app, **options)
    health: Any = wsgi.health(limited, **code)

    def beside(environ: Any, start: Any) -> Any:
        return (health if by_path(environ, "PATH_INFO") else limited)(environ, start)

    yield WsgiClient(beside)


ADAPTERS = {
    "starlette": in_starlette,
    "fastapi": in_fastapi,
    "flask": in_flask,
    "django wsgi": in_django(is_asgi=False),
    "django asgi": in_django(is_asgi=True),
    "asgi": in_asgi,
    "wsgi": in_wsgi,
}


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=list(ADAPTERS))
@pytest.mark.parametrize(
    ("code", "store", "expected"),
    [
        ({}, "memory://", 200),
        ({}, "redis://:password@127.0.0.1:{port}/0", 200),
        ({"unavailable": 503}, "redis://:password@127.0.0.1:{port}/0", 503),
    ],
)
def test_a_probe(adapter: Any, code: dict[str, int], store: str, expected: int) -> None:
    options: dict[str, Any] = {"store": store.format(port=free_port()), "on_store_failure": "deny"}
    with adapter(code, default_limits=["1/hour"], **options) as client:
        first, found = (client.request("GET", PATH) for _ in range(2))
        assert (first.status, found.status) == (expected, expected)
        assert found.one("content-type") == "application/json"
        assert found.one("cache-control") == "no-store"
        status = json.loads(found.body)
        assert tuple(status) == Status._fields
        assert status["available"] is (store == "memory://")
        assert b"password" not in found.body
        assert client.request("HEAD", PATH).status == expected


def of_flask(*, unavailable: int) -> object:
    return flask.health(flask.RateLimiter(), unavailable=unavailable)


@pytest.mark.parametrize("make", [starlette.health, django.health, of_flask])
@pytest.mark.parametrize("code", [0, 99, 1000, True, "503"])
def test_what_is_no_code(make: Callable[..., Any], code: Any) -> None:
    with pytest.raises(SettingsError, match="health: unavailable"):
        make(unavailable=code)


def test_a_status_outside() -> None:
    with pytest.raises(NotEnforcedError, match="status"):
        flask.RateLimiter().status()


async def _on_the_loop() -> None:
    with pytest.raises(AsyncMismatchError, match="astatus"):
        django.status()
    assert (await django.astatus()).available


def test_a_status_in_async_code() -> None:
    with serving(asgi=True, urls=[]):
        asyncio.run(_on_the_loop())
