"""Django's caches store pages without the RateLimit fields of the client that a page was made for."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.middleware.cache import CacheMiddleware, UpdateCacheMiddleware
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client
from django.urls import path
from django.views.decorators.cache import cache_page

from sluicegate import ManualClock
from sluicegate.django import limit, responses
from tests.adapters.django_app import OURS, serving

HERE = "tests.adapters.test_django_cache"
UPDATE = "django.middleware.cache.UpdateCacheMiddleware"
FETCH = "django.middleware.cache.FetchFromCacheMiddleware"
pytestmark = pytest.mark.filterwarnings("ignore:.*SG104")  # by a decorator alone


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


class Update(UpdateCacheMiddleware):
    """A project's subclass."""


class Both(CacheMiddleware):
    """A project's subclass of both cache middlewares."""


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("page")


async def page_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("page")


def template(request: HttpRequest) -> HttpResponse:
    return TemplateResponse(request, engines["django"].from_string("page"))


def own(request: HttpRequest) -> HttpResponse:
    """A page with RateLimit fields of its own limiter."""
    return HttpResponse("page", headers={"RateLimit-Policy": '"own";q=5;w=1', "RateLimit": '"own";r=5'})


def limited(view: Any) -> Any:
    """The view with a limit, as a new function, so that marks stay apart."""

    def copy(request: HttpRequest) -> HttpResponse:
        return view(request)

    return limit("9/minute", name="view")(copy)


BOTH, DEFAULT, NONE = ["default", "view"], ["default"], list[str]()

# (middleware, view, rules that count a new page, rules that count a page from the cache)
SETUPS: dict[str, tuple[list[str], Any, list[str], list[str]]] = {
    "per site": ([UPDATE, OURS, FETCH], limited(page), BOTH, DEFAULT),  # a page from the cache runs no view
    "per site, async view": ([UPDATE, OURS, FETCH], limit("9/minute", name="view")(page_async), BOTH, DEFAULT),
    "per site, a template": ([UPDATE, OURS, FETCH], limited(template), BOTH, DEFAULT),
    "per site, subclassed": ([f"{HERE}.Update", OURS, FETCH], limited(page), BOTH, DEFAULT),
    "per site, wholly inside": ([OURS, UPDATE, FETCH], limited(page), BOTH, DEFAULT),
    "per site, wholly outside": ([UPDATE, FETCH, OURS], limited(page), BOTH, NONE),
    "per site, in one": ([f"{HERE}.Both", OURS], limited(page), BOTH, NONE),
    "per site, alone": ([UPDATE, FETCH], limited(page), NONE, NONE),
    "cache_page around": ([OURS], cache_page(60)(limited(page)), BOTH, BOTH),
    "cache_page around, alone": ([], cache_page(60)(limited(page)), NONE, NONE),
    "cache_page around, a template, alone": ([], cache_page(60)(limited(template)), NONE, NONE),
    "cache_page inside": ([OURS], limited(cache_page(60)(page)), BOTH, BOTH),
    "cache_page inside, alone": ([], limited(cache_page(60)(page)), NONE, NONE),
}


@pytest.mark.parametrize("where", SETUPS)
def test_no_cache_stores_our_fields(where: str, asgi: bool) -> None:
    middleware, view, made, kept = SETUPS[where]
    options: dict[str, Any] = {"default_limits": ["9/minute"], "clock": ManualClock(), "urls": [path("x", view)]}
    with serving(asgi=asgi, middleware=middleware, **options) as site:
        answers = [site.request("GET", "/x", peer=f"203.0.113.{number}") for number in (1, 2, 2)]
    assert [answer.body for answer in answers] == [b"page"] * 3
    expected = [[f'"{name}";r={left};t=60' for name in names] for names, left in ((made, 8), (kept, 8), (kept, 7))]
    assert [answer.one("ratelimit") for answer in answers] == [", ".join(items) or None for items in expected]
    assert len(cache._cache) == 2  # type: ignore[attr-defined]  # the page, and the headers it varies by
    assert all(b"atelimit" not in each.lower() for each in cache._cache.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("dialect", ["draft-7", "draft-6", "x-ratelimit", "x-ratelimit-delta"])
def test_no_cache_stores_fields_of_other_dialects(dialect: str, asgi: bool) -> None:
    options: dict[str, Any] = {"default_limits": ["9/minute"], "headers": dialect, "urls": [path("x", page)]}
    with serving(asgi=asgi, middleware=[UPDATE, FETCH, OURS], **options) as site:
        answers = [site.request("GET", "/x") for _ in range(2)]
    names = [[name for name, _ in answer.headers if "ratelimit" in name] for answer in answers]
    assert names[0]
    assert names[1] == []


def test_no_cache_stores_fields_of_the_application(asgi: bool) -> None:
    options: dict[str, Any] = {"default_limits": ["9/minute"], "clock": ManualClock(), "urls": [path("x", own)]}
    with serving(asgi=asgi, middleware=[UPDATE, FETCH, OURS], **options) as site:
        fields = [site.request("GET", "/x").one("ratelimit") for _ in range(2)]
    assert fields == ['"own";r=5, "default";r=8;t=60', None]


def test_a_refusal_is_never_stored(asgi: bool) -> None:
    options: dict[str, Any] = {"default_limits": ["1/minute"], "urls": [path("x", page), path("y", page)]}
    with serving(asgi=asgi, middleware=[UPDATE, FETCH, OURS], **options) as site:
        assert site.statuses("/x", "/y", "/x") == [200, 429, 200]  # the last from the cache
        assert site.statuses("/y", peer="203.0.113.1") == [200]


def test_a_pickled_copy_keeps_fields_that_others_added() -> None:
    with serving(asgi=False, urls=[path("x", own)], default_limits=["9/minute"]):
        response = Client().get("/x")
        response.headers["Vary"] = "Accept"
        stored = pickle.loads(pickle.dumps(response.headers))
    assert dict(stored) == {
        "Content-Type": "text/html; charset=utf-8",
        "Vary": "Accept",
    }
    assert "default" in response.headers["RateLimit"]


def test_the_headers_are_the_same_by_djangos_own_methods(monkeypatch: pytest.MonkeyPatch, asgi: bool) -> None:
    found = []
    for keeps in (True, False):
        monkeypatch.setattr(responses, "_KEEPS_A_STORE", keeps)
        urls = [path("page", page), path("own", own)]
        with serving(asgi=asgi, urls=urls, default_limits=["2/minute"], clock=ManualClock()):
            answers = [Client().get(f"/{name}") for name in ("page", "own", "own")]
        found.append(
            [(each.status_code, dict(each.headers), dict(pickle.loads(pickle.dumps(each.headers)))) for each in answers]
        )
    assert found[0] == found[1]
    (_, first, stored), (_, second, _), (status, refused, _) = found[0]
    assert (first["RateLimit"], "RateLimit" in stored) == ('"default";r=1;t=60', False)
    assert second["RateLimit"] == '"own";r=5, "default";r=0;t=60'
    assert (status, refused["Retry-After"], refused["RateLimit"]) == (429, "60", '"default";r=0;t=60')
