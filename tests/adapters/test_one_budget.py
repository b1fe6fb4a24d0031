"""A view that is defined inside a function has one budget for all its URLs, like a view of a module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import include, path
from django.views import View as DjangoView
from django.views.decorators.csrf import csrf_exempt
from fastapi import APIRouter, FastAPI
from flask import Blueprint, Flask
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import sluicegate.django
import sluicegate.flask
import sluicegate.starlette
from sluicegate.django import conf
from sluicegate.rules.rule import Rule
from sluicegate.web.endpoint import Endpoint, label_of, scope_of
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient

Statuses = Callable[..., list[int]]
Views = dict[str, Any]


def starlette_function() -> Any:
    async def view(request: Request) -> PlainTextResponse:
        return PlainTextResponse("a")

    return view


def starlette_class() -> Any:
    class View(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("a")

    return View


def plain_function() -> Any:
    def view() -> str:
        return "a"

    return view


def flask_class() -> Any:
    class View(MethodView):
        def get(self) -> str:
            return "a"

    return View


def django_function() -> Any:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("a")

    return view


def django_class() -> Any:
    class View(DjangoView):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("a")

    return View


@contextmanager
def in_starlette(views: Views, *, mounted: bool = False, **options: Any) -> Iterator[Any]:
    routes = [Route("/" if mounted else at, view) for at, view in views.items()]
    app = Starlette(
        routes=[Mount(at, routes=[each]) for at, each in zip(views, routes, strict=True)] if mounted else routes
    )
    app.add_middleware(sluicegate.starlette.RateLimitMiddleware, **options)
    yield AsgiClient(app)


@contextmanager
def in_hidden_routes(views: Views, *, mounted: bool = False, **options: Any) -> Iterator[Any]:
    """The middleware cannot find the routes: the guards of the views enforce the limits."""
    with in_starlette(views, mounted=mounted, **options) as client:
        client.app.user_middleware.insert(1, Middleware(_hiding))
        yield client


def _hiding(app: Any) -> Any:
    async def hidden(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return hidden


@contextmanager
def in_fastapi(views: Views, *, mounted: bool = False, **options: Any) -> Iterator[Any]:
    app = FastAPI()
    for at, view in views.items():
        router = APIRouter() if mounted else app
        add = router.add_route if isinstance(view, type) else router.add_api_route
        add("/" if mounted else at, view)
        if isinstance(router, APIRouter):
            app.include_router(router, prefix=at)
    app.add_middleware(sluicegate.starlette.RateLimitMiddleware, **options)
    yield AsgiClient(app)


@contextmanager
def in_flask(views: Views, *, mounted: bool = False, **options: Any) -> Iterator[Any]:
    app = Flask(__name__)
    for at, view in views.items():
        name = at.strip("/")
        owner = Blueprint(f"of_{name}", __name__) if mounted else app
        owner.add_url_rule("/" if mounted else at, name, view.as_view(name) if hasattr(view, "as_view") else view)
        if isinstance(owner, Blueprint):
            app.register_blueprint(owner, url_prefix=at)
    sluicegate.flask.RateLimiter(app, **options)
    yield WsgiClient(app)


@contextmanager
def in_django(views: Views, *, mounted: bool = False, **options: Any) -> Iterator[Any]:
    paths = [(at[1:], view.as_view() if hasattr(view, "as_view") else view) for at, view in views.items()]
    urls = [path(f"{at}/", include([path("", view)])) if mounted else path(at, view) for at, view in paths]
    with serving(asgi=False, urls=urls, **options) as client:
        yield client


SERVERS = {
    "starlette": (in_starlette, sluicegate.starlette, starlette_function, starlette_class),
    "starlette, hidden": (in_hidden_routes, sluicegate.starlette, starlette_function, starlette_class),
    "fastapi": (in_fastapi, sluicegate.starlette, plain_function, starlette_class),
    "flask": (in_flask, sluicegate.flask, plain_function, flask_class),
    "django": (in_django, sluicegate.django, django_function, django_class),
}


@pytest.mark.parametrize("places", ["one route", "two routes", "two mounts"])
@pytest.mark.parametrize("shape", ["function", "class", "method"])
@pytest.mark.parametrize("local", [False, True], ids=["of a module", "local"])
@pytest.mark.parametrize(("serve", "adapter", "function", "cls"), SERVERS.values(), ids=SERVERS)
def test_a_view_has_one_budget(
    serve: Callable[..., Any],
    adapter: Any,
    function: Callable[[], Any],
    cls: Callable[[], Any],
    *,
    local: bool,
    shape: str,
    places: str,
) -> None:
    """A view of a factory has one too, apart from the other views of the factory (issue 26)."""

    def make() -> Any:
        view = function() if shape == "function" else cls()
        if not local:
            view.__qualname__ = view.__name__
        if shape != "method":
            return adapter.limit("2/minute")(view)
        view.get = adapter.limit("2/minute")(view.get)
        return view

    one = make()
    second = "/a" if places == "one route" else "/b"
    views = {"/a": one, second: one, **({"/c": make()} if local else {})}
    with serve(views, mounted=places == "two mounts") as client:
        end = "/" if places == "two mounts" else ""
        asked = [client.request("GET", at + end).status for at in (second, "/a", "/a", second)]
        assert asked == [200, 200, 429, 429]
        assert not local or client.request("GET", "/c" + end).status == 200


@pytest.mark.parametrize("name", ["starlette", "fastapi", "flask", "django"])
def test_an_exempt_method_is_free(name: str) -> None:
    serve, adapter, _, make = SERVERS[name]
    view, other = make(), make()
    view.get = adapter.exempt(view.get)
    with serve({"/a": view, "/b": other}, default_limits="1/minute") as client:
        assert [client.request("GET", at).status for at in ("/a", "/a", "/b", "/b", "/a")] == [200, 200, 200, 429, 200]


@pytest.mark.parametrize("first", ["/a", "/b"])
@pytest.mark.parametrize("is_async", [False, True], ids=["wsgi", "asgi"])
def test_workers_of_django_agree_on_the_budget(first: str, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key in the store names the first route of the URLconf, whichever route is requested first."""

    @sluicegate.django.limit("2/minute")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("a")

    urls = ModuleType("urls_of_a_factory")
    urls.urlpatterns = [path("a", view), path("b", csrf_exempt(view))]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, urls.__name__, urls)
    with override_settings(ROOT_URLCONF=urls.__name__), serving(asgi=is_async) as client:
        other = {"/a": "/b", "/b": "/a"}[first]
        assert [client.request("GET", at).status for at in (first, other, other, first)] == [200, 200, 429, 429]
        gate = conf.async_gate() if is_async else conf.sync_gate()
        (kept_under,) = {
            terms.rule_id for found in gate._bound.values() for bound in found for terms in bound.terms or ()
        }
        scope = scope_of(Endpoint(label=label_of(view), route="a"))
        (terms,) = Rule(name="view", quota="2/minute", scope=scope).terms("sliding-window")
        assert kept_under == terms.rule_id
