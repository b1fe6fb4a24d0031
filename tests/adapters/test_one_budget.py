"""A view that is defined inside a function has one budget for all its URLs, like a view of a module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sluicegate import django as in_django
from sluicegate import starlette as in_starlette
from sluicegate.django import conf
from sluicegate.rules.rule import Rule
from sluicegate.web.endpoint import Endpoint, label_of, scope_of
from tests.adapters.django_app import serving

Statuses = Callable[..., list[int]]


def starlette_view() -> Any:
    @in_starlette.limit("2/minute")
    async def view(request: Request) -> PlainTextResponse:
        return PlainTextResponse("a")

    return view


def starlette_class() -> Any:
    @in_starlette.limit("2/minute")
    class View(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("a")

    return View


def in_starlette_routes(views: dict[str, Any]) -> Statuses:
    app = Starlette(routes=[Route(at, view) for at, view in views.items()])
    app.add_middleware(in_starlette.RateLimitMiddleware)
    client = TestClient(app)
    return lambda *paths: [client.get(at).status_code for at in paths]


def in_fastapi_routes(views: dict[str, Any]) -> Statuses:
    app = FastAPI()
    for at, view in views.items():
        app.get(at)(view)
    app.add_middleware(in_starlette.RateLimitMiddleware)
    client = TestClient(app)
    return lambda *paths: [client.get(at).status_code for at in paths]


def fastapi_view() -> Any:
    @in_starlette.limit("2/minute")
    async def view() -> str:
        return "a"

    return view


@pytest.mark.parametrize(
    ("serve", "make"),
    [
        pytest.param(in_starlette_routes, starlette_view, id="starlette"),
        pytest.param(in_starlette_routes, starlette_class, id="starlette class"),
        pytest.param(in_fastapi_routes, fastapi_view, id="fastapi"),
    ],
)
def test_a_view_of_a_factory_has_one_budget(
    serve: Callable[[dict[str, Any]], Statuses], make: Callable[[], Any]
) -> None:
    one, other = make(), make()
    statuses = serve({"/a": one, "/b": one, "/c": other})
    assert statuses("/b", "/a", "/a", "/b", "/c", "/c", "/c") == [200, 200, 429, 429, 200, 200, 429]


@pytest.mark.parametrize("first", ["/a", "/b"])
@pytest.mark.parametrize("is_async", [False, True], ids=["wsgi", "asgi"])
def test_workers_of_django_agree_on_the_budget(first: str, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key in the store names the first route of the URLconf, whichever route is requested first."""

    @in_django.limit("2/minute")
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
