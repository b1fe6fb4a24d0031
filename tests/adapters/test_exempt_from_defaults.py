"""`@exempt(defaults_only=True)`, and functions that only some of their routes have with `@exempt`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from sluicegate import ManualClock, Rule, django, fastapi, flask, starlette
from sluicegate.errors import RuleError
from tests.adapters.asgi_client import AsgiClient, make_scope
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient

OPTIONS: dict[str, Any] = {
    "default_limits": ["1/minute"],
    "rules": [Rule(name="path", quota="3/minute", path="/ruled")],
}


@contextmanager
def in_starlette(**options: Any) -> Iterator[Any]:
    @starlette.exempt(defaults_only=True)
    async def free(request: Request) -> PlainTextResponse:
        return PlainTextResponse("free")

    @starlette.exempt(defaults_only=True)
    @starlette.limit("2/minute")
    def limited(request: Request) -> PlainTextResponse:
        return PlainTextResponse("limited")

    app = Starlette(routes=[Route("/free", free), Route("/ruled", free), Route("/limited", limited)])
    app.add_middleware(starlette.RateLimitMiddleware, **options)
    yield AsgiClient(app)


@contextmanager
def in_fastapi(**options: Any) -> Iterator[Any]:
    app = FastAPI()
    app.add_middleware(fastapi.RateLimitMiddleware, **options)

    @app.get("/free")
    @app.get("/ruled")
    @fastapi.exempt(defaults_only=True)
    def free() -> str:
        return "free"

    @app.get("/limited")
    @fastapi.limit("2/minute")
    @fastapi.exempt(defaults_only=True)
    async def limited() -> str:
        return "limited"

    yield AsgiClient(app)


@contextmanager
def in_flask(**options: Any) -> Iterator[Any]:
    app = Flask("app")
    flask.RateLimiter(app, **options)

    @app.get("/free")
    @app.get("/ruled")
    @flask.exempt(defaults_only=True)
    def free() -> str:
        return "free"

    @app.get("/limited")
    @flask.exempt(defaults_only=True)
    @flask.limit("2/minute")
    def limited() -> str:
        return "limited"

    yield WsgiClient(app)


@contextmanager
def in_django(**options: Any) -> Iterator[Any]:
    @django.exempt(defaults_only=True)
    def free(request: HttpRequest) -> HttpResponse:
        return HttpResponse("free")

    @django.exempt(defaults_only=True)
    @django.limit("2/minute")
    def limited(request: HttpRequest) -> HttpResponse:
        return HttpResponse("limited")

    urls = [path("free", free), path("ruled", free), path("limited", limited)]
    with serving(asgi=False, urls=urls, **options) as site:
        yield site


@pytest.mark.parametrize("adapter", [in_starlette, in_fastapi, in_flask, in_django])
def test_only_the_defaults_are_dropped(adapter: Any) -> None:
    with adapter(**OPTIONS, clock=ManualClock()) as client:
        assert [client.request("GET", "/free").status for _ in range(4)] == [200] * 4
        assert [client.request("GET", "/ruled").status for _ in range(4)] == [200, 200, 200, 429]
        assert [client.request("GET", "/limited").status for _ in range(3)] == [200, 200, 429]


APP, OTHER = Flask("app"), FastAPI()


def view() -> str:
    return "limited at one route"


APP.add_url_rule("/limited", "limited", view)
OTHER.get("/limited")(view)
view = flask.exempt(view)
APP.add_url_rule("/free", "free", view)
OTHER.get("/free")(fastapi.exempt(view))


def test_a_route_that_has_the_function_without_exempt_is_limited() -> None:
    limits: Any = {"rules": [Rule(name="each", quota="1/minute", key=lambda request: str(request.url))]}
    flask.RateLimiter(APP, **limits)
    OTHER.add_middleware(fastapi.RateLimitMiddleware, **limits)
    for client in (WsgiClient(APP), AsgiClient(OTHER)):
        assert [client.request("GET", path).status for path in ["/limited", "/free"] * 2] == [200, 200, 429, 200]


EXEMPT: dict[str, tuple[Any, Callable[[], Any]]] = {
    "flask": (flask, lambda: Flask("above")),
    "fastapi": (fastapi, FastAPI),
    "starlette": (starlette, Starlette),
}


def route(app: Any, path: str) -> Any:
    """The decorator that adds a view to the routes of an application."""
    if type(app) is Starlette:

        def add(view: Any) -> Any:
            app.add_route(path, view)
            return view

        return add
    return app.get(path, **({"endpoint": path} if isinstance(app, Flask) else {}))


def same(view: Any) -> Any:
    """A usual decorator."""

    @wraps(view)
    def wrapper(*args: Any) -> Any:
        return view(*args)

    return wrapper


def start(adapter: Any, app: Any) -> Any:
    """Add the limiter, and make the first request."""
    if adapter is flask:
        flask.RateLimiter(app, default_limits="1/minute")
        app.config["PROPAGATE_EXCEPTIONS"] = True
        return WsgiClient(app).request("GET", "/")
    app.add_middleware(adapter.RateLimitMiddleware, default_limits="1/minute")
    return AsgiClient(app).serve(make_scope(path="/"), raising=True)


@pytest.mark.parametrize("others", [(), (same,)], ids=["", "below another decorator"])
@pytest.mark.parametrize("options", [{}, {"defaults_only": True}], ids=str)
@pytest.mark.parametrize(("adapter", "make"), EXEMPT.values(), ids=EXEMPT)
def test_exempt_above_the_route_decorator_is_an_error_at_the_start(
    adapter: Any, make: Any, options: Any, others: Any
) -> None:
    """Issue 26."""
    app, exempt = make(), adapter.exempt(**options) if options else adapter.exempt
    other = others[0] if others else route(app, "/other")

    @exempt
    @other
    @route(app, "/")
    def above() -> None: ...

    with pytest.raises(RuleError, match=r"@exempt on .*above.*: it stands above the route decorator") as raised:
        start(adapter, app)
    assert raised.value.expected == "write @exempt below the route decorator"


@pytest.mark.parametrize(("adapter", "make"), EXEMPT.values(), ids=EXEMPT)
def test_an_exempt_function_may_be_at_one_route_of_two(adapter: Any, make: Any) -> None:
    app = make()

    def limited(*args: Any) -> Any:
        return PlainTextResponse("page") if args else "page"

    route(app, "/")(limited)
    route(app, "/a")(adapter.exempt(limited))
    route(app, "/b")(adapter.exempt(same(limited)))
    start(adapter, app)


@pytest.mark.parametrize("exempt", [starlette.exempt, flask.exempt, django.exempt])
def test_the_option_is_a_flag(exempt: Any) -> None:
    with pytest.raises(RuleError, match="defaults_only 1: neither True nor False"):
        exempt(defaults_only=1)
    assert callable(exempt(lambda request: None, defaults_only=True))
