"""`raise RateLimitExceeded(decision)` in a view of Django is the refusal that the adapter gives."""

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
from sluicegate.django import decision as decision_of
from sluicegate.django import limit, rate_limited
from sluicegate.plan import FORBIDDEN
from sluicegate.testing import BrokenStore
from tests.adapters.django_app import OURS, by_wsgi, call_asgi, serving

HERE = "tests.adapters.test_django_raised"
pytestmark = pytest.mark.filterwarnings("ignore:.*SG104")  # by a decorator alone


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def heard() -> Iterator[list[Decision]]:
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


def banned_from_here() -> Decision:
    return FORBIDDEN


make: Callable[[], Decision] = refused


def deeper() -> None:
    raise RateLimitExceeded(make())


def plain(request: HttpRequest) -> HttpResponse:
    deeper()
    return HttpResponse("never")


async def later(request: HttpRequest) -> HttpResponse:
    deeper()
    return HttpResponse("never")


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        deeper()
        return HttpResponse("never")


class Later(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        deeper()
        return HttpResponse("never")


def in_a_template(request: HttpRequest) -> HttpResponse:
    return TemplateResponse(request, engines["django"].from_string("{{ deeper }}"), {"deeper": deeper})


def bare(view: Any) -> Any:
    """The same view as a new one, so that marks do not meet."""
    if isinstance(view, type):
        return type(view.__name__, (view,), {"__module__": view.__module__})
    if view is later:

        async def again(request: HttpRequest) -> HttpResponse:
            return await later(request)

        return again
    return lambda request: view(request)  # noqa: PLW0108  # a function of its own


def of(view: Any, *, decorated: bool) -> Any:
    made: Any = limit("9/minute", name="view")(bare(view)) if decorated else bare(view)
    return made.as_view() if hasattr(made, "as_view") else made


VIEWS = {"function": plain, "async": later, "class": Plain, "async class": Later}
HOW: list[tuple[str, list[str], bool]] = [
    *[(name, [OURS], decorated) for name in VIEWS for decorated in (False, True)],
    *[(name, [], True) for name in VIEWS],
]


@pytest.mark.parametrize(("view", "middleware", "decorated"), HOW)
def test_a_refusal_raised_in_a_view_is_ours(
    view: str, middleware: list[str], decorated: bool, asgi: bool, heard: list[Decision], caplog: Any
) -> None:
    urls = [path("x", of(VIEWS[view], decorated=decorated))]
    defaults = ["5/minute"] if middleware else []
    with serving(later=asgi, middleware=middleware, urls=urls, default_limits=defaults, clock=ManualClock()) as site:
        answer, head = site.request("GET", "/x"), site.request("HEAD", "/x")
    assert (answer.status, answer.one("retry-after"), answer.one("cache-control")) == (429, "3600", "no-store")
    assert json.loads(answer.body)["violated-policies"] == ["export"]
    assert answer.one("ratelimit") == '"export";r=0;t=3600'
    names = [*(["default"] if middleware else []), *(["view"] if decorated else []), "export"]
    assert [each.partition(";")[0] for each in (answer.one("ratelimit-policy") or "").split(", ")] == [
        f'"{name}"' for name in names
    ]
    assert (head.status, head.body) == (429, b"")
    assert [decision.rule for decision in heard] == ["export", "export"]
    assert not [record for record in caplog.records if record.name == "django.request"]  # as for our own refusals


@pytest.mark.parametrize("middleware", [[OURS], []], ids=["middleware", "alone"])
@pytest.mark.parametrize(
    ("name", "status", "retry", "title"),
    [
        ("refused", 429, "3600", "Quota Exceeded"),
        ("unavailable", 503, "1", "Temporary Reduced Capacity"),
        ("banned_from_here", 403, None, "Forbidden"),
        ("allowed", 429, "1", "Quota Exceeded"),  # whoever raises it refuses
    ],
)
def test_the_decision_says_which_refusal_it_is(
    name: str, status: int, retry: str | None, title: str, middleware: list[str], asgi: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(f"{HERE}.make", globals()[name])
    urls = [path("x", of(plain, decorated=True))]
    with serving(later=asgi, middleware=middleware, urls=urls, clock=ManualClock()) as site:
        answer = site.request("GET", "/x")
    assert (answer.status, answer.one("retry-after")) == (status, retry)
    assert json.loads(answer.body)["title"] == title
    assert '"view";q=9' in (answer.one("ratelimit-policy") or "")  # which was charged before


def denied(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(f"no: {decision.rule}", status=418)


async def denied_later(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(f"no: {decision.rule}", status=418)


@pytest.mark.parametrize("middleware", [[OURS], []], ids=["middleware", "alone"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("on_denied", ["denied", "denied_later"])
def test_on_denied_answers(on_denied: str, view: str, middleware: list[str], asgi: bool) -> None:
    if on_denied == "denied_later" and not asgi:
        return  # nobody could await it, and it cannot start
    urls = [path("x", of(VIEWS[view], decorated=True))]
    options: dict[str, Any] = {"on_denied": f"{HERE}.{on_denied}", "urls": urls, "clock": ManualClock()}
    with serving(later=asgi, middleware=middleware, **options) as site:
        answer = site.request("GET", "/x")
    assert (answer.status, answer.body) == (418, b"no: export")
    assert (answer.one("retry-after"), answer.one("ratelimit")) == ("3600", '"export";r=0;t=3600')


def test_it_is_an_answer_where_limits_are_off_and_in_a_template(asgi: bool) -> None:
    for enabled in (False, True):
        with serving(later=asgi, urls=[path("x", plain), path("t", in_a_template)], enabled=enabled) as site:
            for where in ("/x", "/t"):
                answer = site.request("GET", where)
                assert (answer.status, answer.one("ratelimit")) == (429, '"export";r=0;t=3600')


def test_two_middlewares_answer_once(asgi: bool, heard: list[Decision]) -> None:
    with serving(later=asgi, middleware=[OURS, OURS], urls=[path("x", plain)], default_limits=["5/minute"]) as site:
        answer = site.request("GET", "/x")
    assert answer.one("ratelimit-policy") == '"default";q=5;w=60, "export";q=1;w=3600'
    assert len(heard) == 1


def test_the_decision_about_the_request_itself_may_be_raised(asgi: bool) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        found = decision_of(request)
        assert found is not None
        raise RateLimitExceeded(found)

    with serving(later=asgi, urls=[path("x", view)], default_limits=["5/minute"], clock=ManualClock()) as site:
        answer = site.request("GET", "/x")
    assert (answer.status, answer.one("retry-after")) == (429, "1")
    assert answer.one("ratelimit-policy") == '"default";q=5;w=60'


def test_charges_that_depend_on_the_response_see_the_refusal(asgi: bool) -> None:
    view = limit("2/minute", charge_when=lambda response: response.status_code == 429)(bare(plain))
    with serving(later=asgi, urls=[path("x", view)], clock=ManualClock()) as site:
        left = [site.request("GET", "/x").one("ratelimit-policy") for _ in range(3)]
    assert [len((each or "").split(", ")) for each in left] == [2, 2, 1]  # the third is refused before the view


def test_other_exceptions_pass(asgi: bool) -> None:
    with serving(later=asgi, default_limits=["5/minute"]) as site:
        assert site.request("GET", "/boom").status == 500


# ---- transactions ------------------------------------------------------------------------------------------------


@limit("9/minute")
def writes(request: HttpRequest) -> HttpResponse:
    SessionStore("written00").save(must_create=True)
    raise RateLimitExceeded(refused())


@pytest.mark.parametrize("middleware", [[OURS], []], ids=["middleware", "decorator"])
def test_what_the_view_wrote_is_rolled_back_under_atomic_requests(
    middleware: list[str], asgi: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_command("migrate", verbosity=0)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with serving(later=asgi, middleware=middleware, urls=[path("x", writes)], clock=ManualClock()) as site:
        asked = {"method": "GET", "path": "/x", "headers": [], "peer": "198.51.100.9"}
        answer = async_to_sync(call_asgi)(site.app, asked) if asgi else by_wsgi(site.app, asked, b"")
    assert answer.status == 429
    assert not SessionStore().exists("written00")
