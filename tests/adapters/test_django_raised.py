"""`raise RateLimitExceeded(decision)` in a Django view: the adapter returns its refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.views import View

from sluicegate import Decision, Limiter, ManualClock, RateLimitExceeded
from sluicegate.django import charge, limit, rate_limited
from sluicegate.django import decision as decision_of
from sluicegate.plan import FORBIDDEN
from sluicegate.testing import BrokenStore
from tests.adapters.django_app import OURS, by_wsgi, call_asgi, serving

HERE = "tests.adapters.test_django_raised"


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def signals() -> Iterator[list[Decision]]:
    decisions: list[Decision] = []
    rate_limited.connect(lambda decision, **_: decisions.append(decision), weak=False, dispatch_uid="raised")
    yield decisions
    rate_limited.disconnect(dispatch_uid="raised")


def refused() -> Decision:
    limiter = Limiter(clock=ManualClock())
    limiter.hit("1/hour", "alice", action="export")
    return limiter.hit("1/hour", "alice", action="export")


def allowed() -> Decision:
    return Limiter(clock=ManualClock()).hit("5/hour", "alice", action="export")


def unavailable() -> Decision:
    return Limiter(BrokenStore(), on_store_failure="deny").hit("1/hour", "alice", action="export")


def forbidden() -> Decision:
    return FORBIDDEN


make: Callable[[], Decision] = refused


def deeper() -> None:
    raise RateLimitExceeded(make())


def plain(request: HttpRequest) -> HttpResponse:
    deeper()
    return HttpResponse("never")


async def async_plain(request: HttpRequest) -> HttpResponse:
    deeper()
    return HttpResponse("never")


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        deeper()
        return HttpResponse("never")


class AsyncPlain(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        deeper()
        return HttpResponse("never")


def in_a_template(request: HttpRequest) -> HttpResponse:
    return TemplateResponse(request, engines["django"].from_string("{{ deeper }}"), {"deeper": deeper})


def bare(view: Any) -> Any:
    """The same view as a new object, so that marks stay apart."""
    if isinstance(view, type):
        return type(view.__name__, (view,), {"__module__": view.__module__})
    if view is async_plain:

        async def async_copy(request: HttpRequest) -> HttpResponse:
            return await async_plain(request)

        return async_copy
    return lambda request: view(request)  # noqa: PLW0108  # a new function


def of(view: Any, *, decorated: bool) -> Any:
    made: Any = limit("9/minute", name="view")(bare(view)) if decorated else bare(view)
    return made.as_view() if hasattr(made, "as_view") else made


VIEWS = {"function": plain, "async": async_plain, "class": Plain, "async class": AsyncPlain}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("decorated", [False, True])
def test_a_raised_refusal_is_handled_as_our_own(
    view: str, decorated: bool, asgi: bool, signals: list[Decision], caplog: Any
) -> None:
    urls = [path("x", of(VIEWS[view], decorated=decorated))]
    with serving(asgi=asgi, urls=urls, default_limits=["5/minute"], clock=ManualClock()) as site:
        answer, head = site.request("GET", "/x"), site.request("HEAD", "/x")
    assert (answer.status, answer.one("retry-after"), answer.one("cache-control")) == (429, "3600", "no-store")
    assert json.loads(answer.body)["violated-policies"] == ["export"]
    assert answer.one("ratelimit") == '"export";r=0;t=3600'
    names = ["default", *(["view"] if decorated else []), "export"]
    assert [each.partition(";")[0] for each in (answer.one("ratelimit-policy") or "").split(", ")] == [
        f'"{name}"' for name in names
    ]
    assert (head.status, head.body) == (429, b"")
    assert [decision.rule for decision in signals] == ["export", "export"]
    assert not [record for record in caplog.records if record.name == "django.request"]  # as for our own refusals


@pytest.mark.parametrize(
    ("name", "status", "retry", "title"),
    [
        ("refused", 429, "3600", "Quota Exceeded"),
        ("unavailable", 503, "1", "Temporary Reduced Capacity"),
        ("forbidden", 403, None, "Forbidden"),
        ("allowed", 429, "1", "Quota Exceeded"),  # raising it makes it a refusal
    ],
)
def test_the_decision_says_which_refusal_it_is(
    name: str, status: int, retry: str | None, title: str, asgi: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(f"{HERE}.make", globals()[name])
    urls = [path("x", of(plain, decorated=True))]
    with serving(asgi=asgi, urls=urls, clock=ManualClock()) as site:
        answer = site.request("GET", "/x")
    assert (answer.status, answer.one("retry-after")) == (status, retry)
    assert json.loads(answer.body)["title"] == title
    assert '"view";q=9' in (answer.one("ratelimit-policy") or "")  # it was charged before the view ran


def denied(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(f"no: {decision.rule}", status=418)


async def denied_async(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(f"no: {decision.rule}", status=418)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("on_denied", ["denied", "denied_async"])
def test_on_denied_makes_the_response(on_denied: str, view: str, asgi: bool) -> None:
    if on_denied == "denied_async" and not asgi:
        return  # WSGI cannot await it: the project does not start
    urls = [path("x", of(VIEWS[view], decorated=True))]
    options: dict[str, Any] = {"on_denied": f"{HERE}.{on_denied}", "urls": urls, "clock": ManualClock()}
    with serving(asgi=asgi, **options) as site:
        answer = site.request("GET", "/x")
    assert (answer.status, answer.body) == (418, b"no: export")
    assert (answer.one("retry-after"), answer.one("ratelimit")) == ("3600", '"export";r=0;t=3600')


def test_it_is_handled_with_limits_off_and_from_a_template(asgi: bool) -> None:
    for enabled in (False, True):
        with serving(asgi=asgi, urls=[path("x", plain), path("t", in_a_template)], enabled=enabled) as site:
            for where in ("/x", "/t"):
                answer = site.request("GET", where)
                assert (answer.status, answer.one("ratelimit")) == (429, '"export";r=0;t=3600')


def test_two_middlewares_refuse_once(asgi: bool, signals: list[Decision]) -> None:
    with serving(asgi=asgi, middleware=[OURS, OURS], urls=[path("x", plain)], default_limits=["5/minute"]) as site:
        answer = site.request("GET", "/x")
    assert answer.one("ratelimit-policy") == '"default";q=5;w=60, "export";q=1;w=3600'
    assert len(signals) == 1


def test_the_decision_about_the_request_itself_may_be_raised(asgi: bool) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        found = decision_of(request)
        assert found is not None
        raise RateLimitExceeded(found)

    with serving(asgi=asgi, urls=[path("x", view)], default_limits=["5/minute"], clock=ManualClock()) as site:
        answer = site.request("GET", "/x")
    assert (answer.status, answer.one("retry-after")) == (429, "1")
    assert answer.one("ratelimit-policy") == '"default";q=5;w=60'


def test_charges_that_depend_on_the_response_see_the_refusal(asgi: bool) -> None:
    view = limit("2/minute", charge_when=lambda response: response.status_code == 429)(bare(plain))
    with serving(asgi=asgi, urls=[path("x", view)], clock=ManualClock()) as site:
        left = [site.request("GET", "/x").one("ratelimit-policy") for _ in range(3)]
    assert [len((each or "").split(", ")) for each in left] == [2, 2, 1]  # the third is refused before the view runs


class Charging:
    """A middleware that charges each request, as docs/in-a-view.md says."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            charge(request, "1/hour", scope="partner")
        except RateLimitExceeded as error:
            if "X-Raise" in request.headers:
                raise
            return HttpResponse("slow down", status=429, headers={"Retry-After": f"{error.decision.retry_after:.0f}"})
        return self.get_response(request)


def test_a_middleware_that_charges_answers_the_refusal_itself(asgi: bool) -> None:
    """Django makes a 500 of what a middleware raises, before another middleware can see the exception."""
    options: dict[str, Any] = {"middleware": [OURS, f"{HERE}.Charging"], "clock": ManualClock()}
    with serving(asgi=asgi, default_limits=["5/minute"], **options) as site:
        passed, refused = site.request("GET", "/open"), site.request("GET", "/open")
        raised = site.request("GET", "/open", headers=[("X-Raise", "yes")])
    assert (passed.status, refused.status, raised.status) == (200, 429, 500)
    assert (refused.body, refused.one("retry-after")) == (b"slow down", "3600")
    for answer in (passed, refused, raised):
        assert answer.one("ratelimit-policy") == '"partner";q=1;w=3600, "default";q=5;w=60'


def test_other_exceptions_pass(asgi: bool) -> None:
    with serving(asgi=asgi, default_limits=["5/minute"]) as site:
        assert site.request("GET", "/boom").status == 500


# ---- transactions ------------------------------------------------------------------------------------------------


@limit("9/minute")
def writes(request: HttpRequest) -> HttpResponse:
    SessionStore("written00").save(must_create=True)
    raise RateLimitExceeded(refused())


def test_what_the_view_wrote_is_rolled_back_under_atomic_requests(asgi: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    call_command("migrate", verbosity=0)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with serving(asgi=asgi, urls=[path("x", writes)], clock=ManualClock()) as site:
        request = {"method": "GET", "path": "/x", "headers": [], "peer": "198.51.100.9"}
        answer = async_to_sync(call_asgi)(site.app, request) if asgi else by_wsgi(site.app, request, b"")
    assert answer.status == 429
    assert not SessionStore().exists("written00")
