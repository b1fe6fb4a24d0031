"""Every kind of view that Django knows, limited to two a minute: with the middleware, and by its decorator alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from sluicegate import ManualClock
from sluicegate.django import decision, exempt, limit
from sluicegate.errors import NotEnforcedError
from tests.adapters.django_app import OURS, serving

MIDDLEWARE = [OURS]
pytestmark = pytest.mark.filterwarnings("ignore:.*SG104")  # by a decorator alone, as every view here is too
two = limit("2/minute")


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("passed")


async def later(request: HttpRequest) -> HttpResponse:
    return HttpResponse("passed")


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("passed")

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("posted")


class Later(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("passed")

    async def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("posted")


def copy_of(view: Any) -> Any:
    """The same function or class as a new object, so that marks do not meet."""
    if isinstance(view, type):
        return type(view.__name__, (view,), {"__module__": view.__module__})

    if iscoroutinefunction(view):

        async def again(request: HttpRequest) -> HttpResponse:
            return await view(request)

        return again

    def now(request: HttpRequest) -> HttpResponse:
        return view(request)

    return now


def on_one_method(cls: Any, decorator: Any) -> Any:
    return type("One", (cls,), {"get": decorator(cls.__dict__["get"])})


def copied(method: Any) -> Any:
    """The same method as a new function."""
    if iscoroutinefunction(method):

        async def get(self: Any, request: HttpRequest) -> HttpResponse:
            return await method(self, request)

        return get

    def now(self: Any, request: HttpRequest) -> HttpResponse:
        return method(self, request)

    now.__name__ = "get"
    return now


def direct(method: Any) -> Any:
    """`@limit` on a method, without `method_decorator`: its first argument is the view's instance."""
    return two(copied(method))


def hidden(view: Any) -> Any:
    """A wrapper that forgets functools.wraps, so that the middleware cannot see the mark."""
    if iscoroutinefunction(view):

        async def outer(request: HttpRequest) -> HttpResponse:
            return await view(request)

        return outer

    def inner(request: HttpRequest) -> HttpResponse:
        return view(request)

    return inner


class Rest:
    """What REST framework's `as_view` gives: a function that names its class as `cls`, and the verbs' methods."""

    http_method_names = ("get", "head")

    @two
    def retrieve(self, request: Any) -> HttpResponse:
        return HttpResponse("passed")

    @classmethod
    def as_view(cls, actions: dict[str, str]) -> Any:
        def view(request: HttpRequest) -> HttpResponse:
            wrapped = type("Request", (), {"_request": request})()
            return getattr(cls(), actions[str(request.method).lower()])(wrapped)

        view.cls, view.actions = cls, actions  # type: ignore[attr-defined]
        return view


class Called:
    def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("passed")


class Parent(copy_of(Plain)):  # type: ignore[misc]
    pass


two(Parent)

VIEWS: dict[str, Callable[[], Any]] = {
    "function": lambda: two(copy_of(plain)),
    "async function": lambda: two(copy_of(later)),
    "csrf_exempt outside": lambda: csrf_exempt(two(copy_of(plain))),
    "csrf_exempt inside": lambda: two(csrf_exempt(copy_of(plain))),
    "async csrf_exempt outside": lambda: csrf_exempt(two(copy_of(later))),
    "hidden by a wrapper": lambda: hidden(two(copy_of(plain))),
    "async hidden by a wrapper": lambda: hidden(two(copy_of(later))),
    "partial": lambda: two(partial(copy_of(plain))),
    "callable object": lambda: two(Called()),
    "class": lambda: two(copy_of(Plain)).as_view(),
    "async class": lambda: two(copy_of(Later)).as_view(),
    "subclass": lambda: copy_of(Parent).as_view(),
    "as_view": lambda: two(copy_of(Plain).as_view()),
    "async as_view": lambda: two(copy_of(Later).as_view()),
    "dispatch": lambda: method_decorator(two, name="dispatch")(copy_of(Plain)).as_view(),
    "async dispatch": lambda: method_decorator(two, name="dispatch")(copy_of(Later)).as_view(),
    "method": lambda: on_one_method(Plain, method_decorator(two)).as_view(),
    "async method": lambda: on_one_method(Later, method_decorator(two)).as_view(),
    "method directly": lambda: on_one_method(Plain, direct).as_view(),
    "async method directly": lambda: on_one_method(Later, direct).as_view(),
    "REST framework": lambda: Rest.as_view({"get": "retrieve"}),
}


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
@pytest.mark.parametrize("kind", VIEWS)
def test_dj03_dj11_every_kind_of_view(kind: str, installed: list[str], asgi: bool) -> None:
    with serving(later=asgi, middleware=installed, urls=[path("x", VIEWS[kind]())], clock=ManualClock()) as site:
        answers = [site.request("GET", "/x") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert [answer.body for answer in answers[:2]] == [b"passed", b"passed"]
        assert answers[2].one("retry-after") == "60"
        assert [(answer.one("ratelimit") or "").partition(";")[2] for answer in answers] == [
            "r=1;t=60",
            "r=0;t=60",
            "r=0;t=60",
        ]


@pytest.mark.parametrize("kind", ["method", "async method", "method directly", "async method directly"])
def test_dj03_a_method_has_a_budget_of_its_own(kind: str, asgi: bool) -> None:
    with serving(later=asgi, urls=[path("x", VIEWS[kind]())], clock=ManualClock()) as site:
        assert site.statuses("/x", "HEAD /x", "/x", "POST /x", "HEAD /x") == [200, 200, 429, 200, 429]
        refused = site.request("GET", "/x")
        assert (refused.one("ratelimit-policy") or "").startswith('"One.get";q=2')


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
def test_dj03_a_class_and_its_method_both_count(installed: list[str], asgi: bool) -> None:
    view = limit("3/minute")(on_one_method(Plain, method_decorator(two))).as_view()
    with serving(later=asgi, middleware=installed, urls=[path("x", view)], clock=ManualClock()) as site:
        assert site.statuses("/x", "/x", "/x", "POST /x") == [
            200,
            200,
            429,
            200,
        ]  # the refusal took nothing from the class


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
def test_decorators_stack_and_are_charged_together(installed: list[str], asgi: bool) -> None:
    view = limit("3/hour")(limit("2/minute")(copy_of(plain)))
    clock = ManualClock()
    with serving(later=asgi, middleware=installed, urls=[path("x", view)], clock=clock) as site:
        assert site.statuses("/x", "/x", "/x") == [200, 200, 429]  # the refusal took nothing from the hour
        clock.advance(60)
        assert site.statuses("/x", "/x") == [200, 429]


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
@pytest.mark.parametrize(
    "make",
    [lambda both: both(copy_of(plain)), lambda both: on_one_method(Plain, lambda get: both(copied(get))).as_view()],
)
def test_two_decorators_over_one_period_are_two_budgets(make: Any, installed: list[str], asgi: bool) -> None:
    def both(view: Any) -> Any:
        return limit("2/minute", key="ip")(limit("1/minute", key="ip", methods=["HEAD"])(view))

    with serving(later=asgi, middleware=installed, urls=[path("x", make(both))], clock=ManualClock()) as site:
        assert site.statuses("HEAD /x", "HEAD /x", "/x", "/x") == [200, 429, 200, 429]


def test_classes_and_views_do_not_share_by_accident(asgi: bool) -> None:
    other: Any = type("Other", (Plain,), {"__module__": Plain.__module__})
    first, second = two(copy_of(Plain)), two(other)
    urls = [path("a", first.as_view()), path("b", second.as_view()), path("c", Plain.as_view())]
    for installed in (MIDDLEWARE, []):
        with serving(later=asgi, middleware=installed, urls=urls, clock=ManualClock()) as site:
            assert site.statuses("/a", "/a", "/a", "/b", "/c", "/c", "/c") == [200, 200, 429, 200, 200, 200, 200]


def test_one_view_at_two_routes_is_one_budget(asgi: bool) -> None:
    with serving(later=asgi, urls=[path("a", two(later)), path("b", later)], clock=ManualClock()) as site:
        assert site.statuses("/a", "/b", "/a") == [200, 200, 429]  # above the route: the bare function is marked too


@pytest.mark.parametrize("view", [plain, later, Plain, Later], ids=["def", "async def", "class", "async class"])
@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "decorator"])
def test_a_view_that_is_exempt_at_one_route_is_limited_at_another(view: Any, installed: list[str], asgi: bool) -> None:
    limited = two(view.as_view() if hasattr(view, "as_view") else copy_of(view))
    urls = [path("a", limited), path("free", exempt(limited))]
    with serving(later=asgi, middleware=installed, urls=urls, clock=ManualClock()) as site:
        assert site.statuses("/free", "/a", "/free", "/a", "/free", "/a") == [200] * 5 + [429]


@exempt
class Exempt(Plain):
    pass


def test_exempt_frees_functions_and_classes(asgi: bool) -> None:
    urls = [
        path("f", exempt(copy_of(plain))),
        path("c", Exempt.as_view()),
        path("d", copy_of(Exempt).as_view()),
    ]
    with serving(later=asgi, urls=urls, default_limits=["1/minute"], clock=ManualClock()) as site:
        assert site.statuses("/f", "/f", "/c", "/c", "/d", "/d") == [200] * 6


def test_rules_find_views_by_all_their_names(asgi: bool) -> None:
    urls = [path("in/", include(([path("x/<int:n>", lambda request, n: HttpResponse("x"), name="x")], "app")))]
    for route in ("app:x", "in/x/<int:n>", "/in/x/<int:n>"):
        rule = {"name": "r", "quota": "1/minute", "route": route}
        with serving(later=asgi, urls=[*urls, path("y", plain)], rules=[rule], clock=ManualClock()) as site:
            assert site.statuses("/in/x/1", "/in/x/2", "/y", "/y") == [200, 429, 200, 200]
    label = {"name": "r", "quota": "1/minute", "route": f"{__name__}.plain"}
    with serving(later=asgi, urls=[path("y", plain)], rules=[label], clock=ManualClock()) as site:
        assert site.statuses("/y", "/y") == [200, 429]


@override_settings(MIDDLEWARE=[], SLUICEGATE={})
def test_dj11_a_decorated_view_can_be_called_by_hand() -> None:
    view, request = two(copy_of(plain)), RequestFactory().get("/")
    assert [view(request).status_code for _ in range(3)] == [200, 200, 429]  # the same request counts each time
    assert two(copy_of(plain))(AsyncRequestFactory().get("/")).status_code == 200  # a sync view under ASGI
    seen = decision(request)
    assert seen is not None
    assert not seen.allowed


@override_settings(MIDDLEWARE=[], SLUICEGATE={})
@pytest.mark.parametrize("kind", ["class", "dispatch", "method", "method directly"])
def test_dj11_a_decorated_class_can_be_called_by_hand(kind: str) -> None:
    view = VIEWS[kind]()
    assert [view(RequestFactory().get("/")).status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
@pytest.mark.parametrize("kind", ["function", "async function", "class", "async class", "hidden by a wrapper"])
def test_dj11_a_preflight_that_a_view_answers_is_charged(kind: str, installed: list[str], asgi: bool) -> None:
    preflight = {"headers": [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]}
    with serving(later=asgi, middleware=installed, urls=[path("x", VIEWS[kind]())], clock=ManualClock()) as site:
        assert site.statuses("OPTIONS /x", "OPTIONS /x", "OPTIONS /x", **preflight) == [200, 200, 429]
        assert site.statuses("/x", "OPTIONS /x") == [429, 429]


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
def test_dj03_a_class_adds_to_what_it_inherits(installed: list[str], asgi: bool) -> None:
    child = limit("3/hour")(copy_of(Parent))
    clock = ManualClock()
    urls = [path("x", child.as_view()), path("y", copy_of(Plain).as_view())]
    with serving(later=asgi, middleware=installed, urls=urls, clock=clock) as site:
        assert site.statuses("/x", "/x", "/x") == [200, 200, 429]
        clock.advance(60)
        assert site.statuses("/x", "/x", "/y", "/y", "/y") == [200, 429, 200, 200, 200]


@override_settings(SLUICEGATE={"ENABLED": False})
def test_a_decorated_view_is_free_where_limits_are_off() -> None:
    view, request = two(copy_of(plain)), RequestFactory().get("/")
    assert [view(request).status_code for _ in range(3)] == [200, 200, 200]


def test_dj11_middleware_and_bare_decorator_share_a_budget(asgi: bool) -> None:
    view = two(copy_of(plain))
    with serving(later=asgi, urls=[path("x", view)], clock=ManualClock()) as site:
        assert site.statuses("/x") == [200]
        with override_settings(MIDDLEWARE=[]):
            bare = type(site)(later=asgi)
        assert bare.statuses("/x", "/x") == [200, 429]
        assert site.statuses("/x") == [429]


@override_settings(SLUICEGATE={})
def test_what_is_no_view_says_so() -> None:
    with pytest.raises(NotEnforcedError, match="without a request"):
        two(lambda: None)()


@override_settings(SLUICEGATE={})
def test_a_view_that_returns_nothing_is_called_once() -> None:
    calls: list[str] = []
    view: Any = two(lambda request: calls.append("called"))
    with pytest.raises(ValueError, match="didn't return an HttpResponse"):
        view(RequestFactory().get("/"))
    assert calls == ["called"]


def test_decorated_views_keep_their_colour() -> None:
    marked = markcoroutinefunction(lambda request: later(request))  # noqa: PLW0108  # no `async def` itself
    assert iscoroutinefunction(two(copy_of(later)))
    assert iscoroutinefunction(two(marked))
    assert not iscoroutinefunction(two(copy_of(plain)))
