"""Every kind of Django view, limited to 2 a minute: with the middleware, and by its decorator alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from sluicegate import ManualClock
from sluicegate.django import decision, exempt, limit
from sluicegate.django.checks import check
from sluicegate.errors import NotEnforcedError
from tests.adapters.django_app import OURS, serving

MIDDLEWARE = [OURS]
pytestmark = pytest.mark.filterwarnings("ignore:.*SG104")  # every view here also runs by its decorator alone
two = limit("2/minute")


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("passed")


async def async_plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("passed")


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("passed")

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("posted")


class AsyncPlain(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("passed")

    async def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("posted")


def copy_of(view: Any) -> Any:
    """The same function or class as a new object, so that marks stay apart."""
    if isinstance(view, type):
        return type(view.__name__, (view,), {"__module__": view.__module__})

    if iscoroutinefunction(view):

        async def async_copy(request: HttpRequest) -> HttpResponse:
            return await view(request)

        return async_copy

    def sync_copy(request: HttpRequest) -> HttpResponse:
        return view(request)

    return sync_copy


def on_one_method(cls: Any, decorator: Any) -> Any:
    return type("One", (cls,), {"get": decorator(cls.__dict__["get"])})


def copied(method: Any) -> Any:
    """The same method as a new function."""
    if iscoroutinefunction(method):

        async def get(self: Any, request: HttpRequest) -> HttpResponse:
            return await method(self, request)

        return get

    def sync_copy(self: Any, request: HttpRequest) -> HttpResponse:
        return method(self, request)

    sync_copy.__name__ = "get"
    return sync_copy


def direct(method: Any) -> Any:
    """`@limit` on a method, without `method_decorator`: its first argument is the view's instance."""
    return two(copied(method))


def hidden(view: Any) -> Any:
    """A wrapper without functools.wraps: the middleware cannot see the mark."""
    if iscoroutinefunction(view):

        async def outer(request: HttpRequest) -> HttpResponse:
            return await view(request)

        return outer

    def inner(request: HttpRequest) -> HttpResponse:
        return view(request)

    return inner


class Rest:
    """Like REST framework's `as_view`: it returns a function with its class as `cls` and the methods as `actions`."""

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
    "async function": lambda: two(copy_of(async_plain)),
    "csrf_exempt outside": lambda: csrf_exempt(two(copy_of(plain))),
    "csrf_exempt inside": lambda: two(csrf_exempt(copy_of(plain))),
    "async csrf_exempt outside": lambda: csrf_exempt(two(copy_of(async_plain))),
    "hidden by a wrapper": lambda: hidden(two(copy_of(plain))),
    "async hidden by a wrapper": lambda: hidden(two(copy_of(async_plain))),
    "partial": lambda: two(partial(copy_of(plain))),
    "callable object": lambda: two(Called()),
    "class": lambda: two(copy_of(Plain)).as_view(),
    "async class": lambda: two(copy_of(AsyncPlain)).as_view(),
    "subclass": lambda: copy_of(Parent).as_view(),
    "as_view": lambda: two(copy_of(Plain).as_view()),
    "async as_view": lambda: two(copy_of(AsyncPlain).as_view()),
    "dispatch": lambda: method_decorator(two, name="dispatch")(copy_of(Plain)).as_view(),
    "async dispatch": lambda: method_decorator(two, name="dispatch")(copy_of(AsyncPlain)).as_view(),
    "method": lambda: on_one_method(Plain, method_decorator(two)).as_view(),
    "async method": lambda: on_one_method(AsyncPlain, method_decorator(two)).as_view(),
    "method directly": lambda: on_one_method(Plain, direct).as_view(),
    "async method directly": lambda: on_one_method(AsyncPlain, direct).as_view(),
    "REST framework": lambda: Rest.as_view({"get": "retrieve"}),
}


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
@pytest.mark.parametrize("kind", VIEWS)
def test_dj03_dj11_every_kind_of_view(kind: str, installed: list[str], asgi: bool) -> None:
    with serving(asgi=asgi, middleware=installed, urls=[path("x", VIEWS[kind]())], clock=ManualClock()) as site:
        answers = [site.request("GET", "/x") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert [answer.body for answer in answers[:2]] == [b"passed", b"passed"]
        assert answers[2].one("retry-after") == "60"
        fields = ["r=1;t=60", "r=0;t=60"] if installed else ["", ""]  # only the middleware adds them
        assert [(answer.one("ratelimit") or "").partition(";")[2] for answer in answers] == [*fields, "r=0;t=60"]


@pytest.mark.parametrize("kind", ["method", "async method", "method directly", "async method directly"])
def test_dj03_a_method_has_its_own_budget(kind: str, asgi: bool) -> None:
    with serving(asgi=asgi, urls=[path("x", VIEWS[kind]())], clock=ManualClock()) as site:
        assert site.statuses("/x", "HEAD /x", "/x", "POST /x", "HEAD /x") == [200, 200, 429, 200, 429]
        refused = site.request("GET", "/x")
        assert (refused.one("ratelimit-policy") or "").startswith('"One.get";q=2')


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
def test_dj03_a_class_and_its_method_both_count(installed: list[str], asgi: bool) -> None:
    view = limit("3/minute")(on_one_method(Plain, method_decorator(two))).as_view()
    with serving(asgi=asgi, middleware=installed, urls=[path("x", view)], clock=ManualClock()) as site:
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
    with serving(asgi=asgi, middleware=installed, urls=[path("x", view)], clock=clock) as site:
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

    with serving(asgi=asgi, middleware=installed, urls=[path("x", make(both))], clock=ManualClock()) as site:
        assert site.statuses("HEAD /x", "HEAD /x", "/x", "/x") == [200, 429, 200, 429]


def test_classes_and_views_have_separate_budgets(asgi: bool) -> None:
    other: Any = type("Other", (Plain,), {"__module__": Plain.__module__})
    first, second = two(copy_of(Plain)), two(other)
    urls = [path("a", first.as_view()), path("b", second.as_view()), path("c", Plain.as_view())]
    for installed in (MIDDLEWARE, []):
        with serving(asgi=asgi, middleware=installed, urls=urls, clock=ManualClock()) as site:
            assert site.statuses("/a", "/a", "/a", "/b", "/c", "/c", "/c") == [200, 200, 429, 200, 200, 200, 200]


def test_one_view_at_two_routes_is_one_budget(asgi: bool) -> None:
    with serving(asgi=asgi, urls=[path("a", two(async_plain)), path("b", async_plain)], clock=ManualClock()) as site:
        assert site.statuses("/a", "/b", "/a") == [
            200,
            200,
            429,
        ]  # @limit marks the function itself, so its other route is limited too


@pytest.mark.parametrize(
    "view", [plain, async_plain, Plain, AsyncPlain], ids=["def", "async def", "class", "async class"]
)
@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "decorator"])
def test_a_view_that_is_exempt_at_one_route_is_limited_at_another(view: Any, installed: list[str], asgi: bool) -> None:
    limited = two(view.as_view() if hasattr(view, "as_view") else copy_of(view))
    urls = [path("a", limited), path("free", exempt(limited))]
    with serving(asgi=asgi, middleware=installed, urls=urls, clock=ManualClock()) as site:
        assert site.statuses("/free", "/a", "/free", "/a", "/free", "/a") == [200] * 5 + [429]


# A view function at two routes, marked at one of them: what holds at the other.
TWO_ROUTES = {"def": plain, "async def": async_plain, "class": Plain, "async class": AsyncPlain}


@pytest.mark.parametrize("kind", TWO_ROUTES)
def test_exempt_at_one_route_leaves_the_bare_view_limited(kind: str, asgi: bool) -> None:
    bare: Any = copy_of(TWO_ROUTES[kind])
    bare = bare.as_view() if hasattr(bare, "as_view") else bare
    urls = [path("bare", bare), path("free", exempt(bare))]
    with serving(asgi=asgi, urls=urls, default_limits=["2/minute"], clock=ManualClock()) as site:
        assert site.statuses("/free", "/bare", "/free", "/bare", "/bare", "/free") == [200] * 4 + [429, 200]


@pytest.mark.parametrize(
    ("installed", "expect"),
    [(MIDDLEWARE, [200, 200, 429, 429]), ([], [200, 200, 200, 429])],
    ids=["middleware: one budget for both", "alone: the bare view is free"],
)
@pytest.mark.parametrize("kind", TWO_ROUTES)
def test_limit_at_one_route_marks_the_bare_view_too(
    kind: str, installed: list[str], expect: list[int], asgi: bool
) -> None:
    bare: Any = copy_of(TWO_ROUTES[kind])
    bare = bare.as_view() if hasattr(bare, "as_view") else bare
    urls = [path("bare", bare), path("limited", two(bare))]
    with serving(asgi=asgi, middleware=installed, urls=urls, clock=ManualClock()) as site:
        assert site.statuses("/limited", "/limited", "/bare", "/limited") == expect


class OneMethodFree(View):
    @exempt
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("free")

    @exempt(defaults_only=True)
    def delete(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("free of the defaults")

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("limited")


def test_exempt_frees_one_method_of_a_class(asgi: bool) -> None:
    with serving(asgi=asgi, urls=[path("v", OneMethodFree.as_view())], default_limits=["1/minute"]) as site:
        for method in ("GET", "DELETE"):
            answers = [site.request(method, "/v") for _ in range(3)]
            assert [(answer.status, answer.one("ratelimit")) for answer in answers] == [(200, None)] * 3
        assert [site.request("POST", "/v").status for _ in range(2)] == [200, 429]


@exempt
class Exempt(Plain):
    pass


def test_exempt_frees_functions_and_classes(asgi: bool) -> None:
    urls = [
        path("f", exempt(copy_of(plain))),
        path("c", Exempt.as_view()),
        path("d", copy_of(Exempt).as_view()),
    ]
    with serving(asgi=asgi, urls=urls, default_limits=["1/minute"], clock=ManualClock()) as site:
        assert site.statuses("/f", "/f", "/c", "/c", "/d", "/d") == [200] * 6


def test_rules_find_views_by_all_their_names(asgi: bool) -> None:
    urls = [path("in/", include(([path("x/<int:n>", lambda request, n: HttpResponse("x"), name="x")], "app")))]
    for route in ("app:x", "in/x/<int:n>", "/in/x/<int:n>"):
        rule = {"name": "r", "quota": "1/minute", "route": route}
        with serving(asgi=asgi, urls=[*urls, path("y", plain)], rules=[rule], clock=ManualClock()) as site:
            assert site.statuses("/in/x/1", "/in/x/2", "/y", "/y") == [200, 429, 200, 200]
    label = {"name": "r", "quota": "1/minute", "route": f"{__name__}.plain"}
    with serving(asgi=asgi, urls=[path("y", plain)], rules=[label], clock=ManualClock()) as site:
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
def test_dj11_a_preflight_that_a_view_handles_is_charged(kind: str, installed: list[str], asgi: bool) -> None:
    preflight = {"headers": [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]}
    with serving(asgi=asgi, middleware=installed, urls=[path("x", VIEWS[kind]())], clock=ManualClock()) as site:
        assert site.statuses("OPTIONS /x", "OPTIONS /x", "OPTIONS /x", **preflight) == [200, 200, 429]
        assert site.statuses("/x", "OPTIONS /x") == [429, 429]


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
def test_dj03_a_class_adds_to_what_it_inherits(installed: list[str], asgi: bool) -> None:
    child = limit("3/hour")(copy_of(Parent))
    clock = ManualClock()
    urls = [path("x", child.as_view()), path("y", copy_of(Plain).as_view())]
    with serving(asgi=asgi, middleware=installed, urls=urls, clock=clock) as site:
        assert site.statuses("/x", "/x", "/x") == [200, 200, 429]
        clock.advance(60)
        assert site.statuses("/x", "/x", "/y", "/y", "/y") == [200, 429, 200, 200, 200]


@override_settings(SLUICEGATE={"ENABLED": False})
def test_a_decorated_view_is_free_where_limits_are_off() -> None:
    view, request = two(copy_of(plain)), RequestFactory().get("/")
    assert [view(request).status_code for _ in range(3)] == [200, 200, 200]


def test_dj11_middleware_and_bare_decorator_share_a_budget(asgi: bool) -> None:
    view = two(copy_of(plain))
    with serving(asgi=asgi, urls=[path("x", view)], clock=ManualClock()) as site:
        assert site.statuses("/x") == [200]
        with override_settings(MIDDLEWARE=[]):
            bare = type(site)(asgi=asgi)
        assert bare.statuses("/x", "/x") == [200, 429]
        assert site.statuses("/x") == [429]


@pytest.mark.parametrize("installed", [MIDDLEWARE, []], ids=["middleware", "alone"])
def test_a_refusal_that_the_caller_drops_lets_no_later_call_run(installed: list[str], asgi: bool) -> None:
    """The middleware cannot see the mark of a view that another view calls."""
    ran: list[int] = []

    @limit("1/minute")
    def inner(request: HttpRequest) -> HttpResponse:
        ran.append(1)
        return HttpResponse("ran")

    def outer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str([inner(request).status_code for _ in range(2)]))

    with serving(asgi=asgi, urls=[path("x", outer)], middleware=installed, clock=ManualClock()) as site:
        site.request("GET", "/x")
        del ran[:]
        assert site.request("GET", "/x").body == b"[429, 429]"
    assert not ran


@override_settings(SLUICEGATE={})
def test_a_call_without_a_request_is_an_error() -> None:
    with pytest.raises(NotEnforcedError, match="without a request"):
        two(lambda: None)()


@override_settings(SLUICEGATE={})
def test_a_view_that_returns_nothing_is_called_once() -> None:
    calls: list[str] = []
    view: Any = two(lambda request: calls.append("called"))
    assert view(RequestFactory().get("/")) is None  # for Django, which raises
    assert calls == ["called"]


@override_settings(MIDDLEWARE=[], SLUICEGATE={})
@pytest.mark.parametrize("is_async", [False, True])
def test_a_view_may_return_data(is_async: bool) -> None:
    async def operation(request: Any) -> dict[str, str]:
        return {"an": "operation of Ninja"}

    view: Any = two(operation if is_async else lambda request: {"an": "operation of Ninja"})
    asked = async_to_sync(view) if is_async else view
    answers = [asked((AsyncRequestFactory() if is_async else RequestFactory()).get("/")) for _ in range(3)]
    assert answers[:2] == [{"an": "operation of Ninja"}] * 2
    assert answers[2].status_code == 429


def test_decorated_views_stay_sync_or_async() -> None:
    marked = markcoroutinefunction(lambda request: async_plain(request))  # noqa: PLW0108  # async only by its mark
    assert iscoroutinefunction(two(copy_of(async_plain)))
    assert iscoroutinefunction(two(marked))
    assert not iscoroutinefunction(two(copy_of(plain)))


@dataclass
class Page:
    """A view without a hash: two with the same text are equal."""

    text: str

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(self.text)


class Odd:
    """A view that cannot be compared."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("odd")

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize("kind", [lambda: Page("same"), Odd])
def test_a_view_that_can_be_no_key(kind: Callable[[], Any], asgi: bool) -> None:
    urls = [path("free", kind()), path("free2", kind()), path("a", two(kind())), path("b", two(kind()))]
    with serving(asgi=asgi, urls=urls, clock=ManualClock(), default_limits=["9/minute"]) as site:
        assert site.statuses("/free", "/free2") == [200, 200]
        assert site.statuses("/a", "/a", "/a") == [200, 200, 429]
        assert [each.id for each in check() if str(each.id).startswith("sluicegate.E")] == []


def test_each_route_of_a_view_that_can_be_no_key_matches_the_rules_of_its_own() -> None:
    rules = [{"name": "one", "quota": "1/minute", "route": "one"}, {"name": "two", "quota": "2/minute", "route": "two"}]
    urls = [path("one", Page("same")), path("two", Page("same"))]
    with serving(asgi=False, urls=urls, clock=ManualClock(), rules=rules) as site:
        assert site.statuses("/one", "/one", "/two", "/two", "/two") == [200, 429, 200, 200, 429]
