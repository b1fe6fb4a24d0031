"""A decorated function that the limiter does not find before the call. To catch its refusal does not let it run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from flask import Flask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import sluicegate.django
import sluicegate.flask
import sluicegate.starlette
from sluicegate import ManualClock, RateLimitExceeded
from tests.adapters.django_app import OURS, serving
from tests.adapters.test_starlette_limit import visible
from tests.adapters.wsgi_client import WsgiClient

TRIES = 3


class Ran:
    """Counts the runs of a decorated function."""

    def __init__(self) -> None:
        self.times = 0

    def run(self) -> None:
        self.times += 1


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_starlette(kind: str) -> None:
    ran = Ran()

    @sluicegate.starlette.limit("1/minute")
    async def costly(request: Request) -> None:
        ran.run()

    @sluicegate.starlette.limit("1/minute")
    def costly_sync(request: Request) -> None:
        ran.run()

    async def view(request: Request) -> Response:
        refused = 0
        for _ in range(TRIES):
            try:
                await costly(request)
            except RateLimitExceeded:
                refused += 1
        return PlainTextResponse(str(refused))

    def view_sync(request: Request) -> Response:
        refused = 0
        for _ in range(TRIES):
            try:
                costly_sync(request)
            except RateLimitExceeded:
                refused += 1
        return PlainTextResponse(str(refused))

    client = visible(Route("/", view if kind == "async" else view_sync), default_limits="5/minute")
    answers = [client.get("/") for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"0"), (200, str(TRIES).encode())]
    assert ran.times == TRIES  # all calls of the first request, which is charged once, and none of the second


@pytest.mark.parametrize("store", ["memory", "valkey"])
def test_of_several_calls_at_the_same_time_one_is_charged(store: str, request: pytest.FixtureRequest) -> None:
    """Over a server, a call that is refused must not give back what another call was charged, whose view runs."""
    ran, given = Ran(), {"store": "memory://"}
    if store == "valkey":
        server = request.getfixturevalue("valkey")
        server.flush()
        given["store"] = server.url

    @sluicegate.starlette.limit("2/minute", key="ip")
    async def costly(request: Request) -> None:
        ran.run()

    async def view(request: Request) -> Response:
        await asyncio.gather(*[costly(request) for _ in range(3)], return_exceptions=True)
        return PlainTextResponse("done")

    client = visible(Route("/", view), **given)
    for _ in range(12):
        client.get("/")
    assert 2 <= ran.times <= 9  # at most three for each of the two charges, and three that did not wait for the refusal


def test_flask() -> None:
    ran, app = Ran(), Flask(__name__)

    @sluicegate.flask.limit("1/minute")
    def costly() -> None:
        ran.run()

    @app.get("/")
    def view() -> str:
        refused = 0
        for _ in range(TRIES):
            try:
                costly()
            except RateLimitExceeded:
                refused += 1
        return str(refused)

    sluicegate.flask.RateLimiter(app, default_limits=["5/minute"], clock=ManualClock())
    client = WsgiClient(app)
    answers = [client.request("GET", "/") for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"0"), (200, str(TRIES).encode())]
    assert ran.times == TRIES


@pytest.mark.parametrize("asgi", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("installed", [[OURS], []])
@pytest.mark.filterwarnings("ignore:.*SG104")
def test_django(installed: list[str], is_async: bool, asgi: bool) -> None:
    """There a refusal is the response that the call returns."""
    ran = Ran()

    @sluicegate.django.limit("3/minute")
    def costly(request: HttpRequest) -> HttpResponse:
        ran.run()
        return HttpResponse()

    @sluicegate.django.limit("3/minute")
    async def costly_async(request: HttpRequest) -> HttpResponse:
        ran.run()
        return HttpResponse()

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str([costly(request).status_code for _ in range(TRIES)]))

    async def view_async(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str([(await costly_async(request)).status_code for _ in range(TRIES)]))

    urls: list[Any] = [path("", view_async if is_async else view)]
    with serving(asgi=asgi, urls=urls, middleware=installed, clock=ManualClock()) as site:
        answers = [site.request("GET", "/") for _ in range(4)]
    passed, refused = b"[200, 200, 200]", b"[429, 429, 429]"
    # With the middleware a request is charged once; without it each call is.
    assert [answer.body for answer in answers] == ([passed] * 3 + [refused] if installed else [passed] + [refused] * 3)
    assert ran.times == (3 * TRIES if installed else TRIES)


@pytest.mark.parametrize("asgi", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_django_gives_back(is_async: bool, asgi: bool) -> None:
    """What the request was charged before is given back by the refusal, as in Starlette and Flask."""

    @sluicegate.django.limit("1/minute")
    def costly(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ran")

    @sluicegate.django.limit("1/minute")
    async def costly_async(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ran")

    def view(request: HttpRequest) -> HttpResponse:
        return costly(request)

    async def view_async(request: HttpRequest) -> HttpResponse:
        return await costly_async(request)

    urls: list[Any] = [path("", view_async if is_async else view), path("plain", lambda request: HttpResponse())]
    with serving(asgi=asgi, urls=urls, middleware=[OURS], default_limits=["9/minute"], clock=ManualClock()) as site:
        assert [site.request("GET", "/").status for _ in range(3)] == [200, 429, 429]
        assert site.request("GET", "/plain").one("ratelimit") == '"default";r=7;t=60'
