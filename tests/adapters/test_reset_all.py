"""`reset_all` in every adapter: a client that is refused passes again, and other clients are as before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from fastapi import FastAPI
from fastapi import Request as FastapiRequest
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sluicegate import asgi, django, fastapi, flask, starlette, wsgi
from sluicegate.errors import AsyncMismatchError, NotEnforcedError
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient

CLIENT = ("ip", "2001:db8::1")
"""An address of the network that the clients have."""

Reset = Callable[[], int]
Opened = Iterator[tuple[Any, Reset]]


@contextmanager
def in_starlette(**options: Any) -> Opened:
    @starlette.exempt
    async def reset(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(await starlette.reset_all(request, CLIENT)))

    @starlette.limit("2/hour")
    def limited(request: Request) -> PlainTextResponse:
        return PlainTextResponse("limited")

    app = Starlette(routes=[Route("/limited", limited), Route("/reset", reset)])
    app.add_middleware(starlette.RateLimitMiddleware, **options)
    client = AsgiClient(app)
    yield client, by_request(client)


@contextmanager
def in_fastapi(**options: Any) -> Opened:
    app = FastAPI()
    app.add_middleware(fastapi.RateLimitMiddleware, **options)

    @app.get("/reset")
    @fastapi.exempt
    async def reset(request: FastapiRequest) -> int:
        return await fastapi.reset_all(request, CLIENT)

    @app.get("/limited")
    @fastapi.limit("2/hour")
    def limited() -> str:
        return "limited"

    client = AsgiClient(app)
    yield client, by_request(client)


@contextmanager
def in_flask(**options: Any) -> Opened:
    app = Flask("app")
    limiter = flask.RateLimiter(app, **options)

    @app.get("/limited")
    @flask.limit("2/hour")
    def limited() -> str:
        return "limited"

    def reset() -> int:
        with app.app_context():
            return limiter.reset_all(CLIENT)

    yield WsgiClient(app), reset


def in_django(*, is_asgi: bool, is_async: bool) -> Any:
    @contextmanager
    def project(**options: Any) -> Opened:
        @django.exempt
        def reset(request: HttpRequest) -> HttpResponse:
            return HttpResponse(str(django.reset_all(CLIENT)))

        @django.exempt
        async def areset(request: HttpRequest) -> HttpResponse:
            return HttpResponse(str(await django.areset_all(CLIENT)))

        @django.limit("2/hour")
        def limited(request: HttpRequest) -> HttpResponse:
            return HttpResponse("limited")

        urls = [path("limited", limited), path("reset", areset if is_async else reset)]
        with serving(asgi=is_asgi, urls=urls, **options) as site:
            yield site, by_request(site)

    return project


@contextmanager
def in_asgi(**options: Any) -> Opened:
    limited = asgi.RateLimitMiddleware(PlainTextResponse("limited"), default_limits=["2/hour"], **options)
    yield AsgiClient(limited), lambda: asyncio.run(limited.reset_all(CLIENT))


@contextmanager
def in_wsgi(**options: Any) -> Opened:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"limited"]

    limited = wsgi.RateLimitMiddleware(app, default_limits=["2/hour"], **options)
    yield WsgiClient(limited), lambda: limited.reset_all(CLIENT)


def by_request(client: Any) -> Reset:
    return lambda: int(client.request("GET", "/reset", peer="192.0.2.1").body)


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(in_starlette, id="starlette"),
        pytest.param(in_fastapi, id="fastapi"),
        pytest.param(in_flask, id="flask"),
        pytest.param(in_django(is_asgi=False, is_async=False), id="django wsgi"),
        pytest.param(in_django(is_asgi=False, is_async=True), id="django wsgi async"),
        pytest.param(in_django(is_asgi=True, is_async=False), id="django asgi"),
        pytest.param(in_django(is_asgi=True, is_async=True), id="django asgi async"),
        pytest.param(in_asgi, id="asgi"),
        pytest.param(in_wsgi, id="wsgi"),
    ],
)
def test_a_client_passes_again(adapter: Any) -> None:
    """The address is given whole, and counts by its /64."""
    with adapter(key="ip", secret="a secret of 16 bytes or more") as (client, reset):

        def statuses(peer: str) -> list[int]:
            return [client.request("GET", "/limited", peer=peer).status for _ in range(3)]

        assert statuses("2001:db8::2") == statuses("2001:db8:1::2") == [200, 200, 429]
        assert reset() == 1
        assert reset() == 0
        assert statuses("2001:db8::3") == [200, 200, 429]
        assert statuses("2001:db8:1::2") == [429] * 3


@pytest.mark.parametrize("given", ["testclient", "peer testclient"])
def test_a_test_client_passes_again(given: str) -> None:
    """Its peer is no address: the name that a test knows is enough (issue 26)."""

    @starlette.exempt
    async def reset(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(await starlette.reset_all(request, ("ip", given))))

    @starlette.limit("1/hour")
    def limited(request: Request) -> PlainTextResponse:
        return PlainTextResponse("limited")

    app = Starlette(routes=[Route("/limited", limited), Route("/reset", reset)])
    app.add_middleware(starlette.RateLimitMiddleware)
    client = TestClient(app)
    statuses = [client.get(path).status_code for path in ("/limited", "/limited", "/reset", "/limited")]
    assert statuses == [200, 429, 200, 200]


def test_outside_of_what_is_limited() -> None:
    limiter = flask.RateLimiter(Flask("one"))
    with pytest.raises(NotEnforcedError, match="outside an application context"):
        limiter.reset_all("alice")
    with Flask("other").app_context(), pytest.raises(NotEnforcedError, match="does not limit"):
        limiter.reset_all("alice")

    async def on_the_loop() -> None:
        with pytest.raises(AsyncMismatchError, match="await areset_all"):
            django.reset_all("alice")
        request = Request({"type": "http", "path": "/", "headers": []})
        with pytest.raises(NotEnforcedError, match="without RateLimitMiddleware"):
            await starlette.reset_all(request, "alice")

    asyncio.run(on_the_loop())
