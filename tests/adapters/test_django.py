"""The Django adapter: sync and async, requests that reach no view, settings, installation (DJ: our checklist)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_type

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.signals import request_finished
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client, override_settings
from django.urls import path
from django.views import View
from django.views.decorators.http import require_GET

from sluicegate import Decision, ManualClock
from sluicegate.django import RateLimitMiddleware, conf, decision, exempt, limit
from sluicegate.errors import AsyncMismatchError, RuleError, SettingsError, StoreURLError
from sluicegate.testing import AsyncAdapter, BrokenStore
from tests.adapters.django_app import AUTH, COMMON, OURS, SESSIONS, Site, call_asgi, serving

HERE = "tests.adapters.test_django"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


# ---- DJ1: sync and async -----------------------------------------------------------------------------------------


def test_dj01_under_asgi_key_and_view_run_in_the_thread_of_the_event_loop() -> None:
    threads: dict[str, int] = {}

    def key(request: HttpRequest) -> str:
        threads["key"] = threading.get_ident()
        return "alice"

    async def view(request: HttpRequest) -> HttpResponse:
        threads["view"] = threading.get_ident()
        return HttpResponse()

    with serving(asgi=True, urls=[path("x", view)], default_limits=["1/minute"], key=key) as site:
        assert site.statuses("/x", "/x", "/nowhere") == [200, 429, 429]
    assert threads == {"key": threading.get_ident(), "view": threading.get_ident()}  # asyncio.run runs in this thread


def test_dj01_one_class_is_sync_or_async_like_the_function_it_wraps() -> None:
    async def async_ok(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert RateLimitMiddleware.sync_capable
    assert RateLimitMiddleware.async_capable
    sync, async_ = RateLimitMiddleware(ok), RateLimitMiddleware(async_ok)
    response = asyncio.run(asyncio.wait_for(async_(HttpRequest()), 10))  # type: ignore[arg-type]
    assert response.status_code == 200
    assert isinstance(sync(HttpRequest()), HttpResponse)


def test_c12_concurrent_requests_admit_exactly_the_limit() -> None:
    with serving(asgi=True, default_limits=["7/minute"], clock=ManualClock()) as site:
        request = {"method": "GET", "path": "/shared/b", "headers": [], "peer": "198.51.100.9"}

        async def crowd() -> list[int]:
            return [
                answer.status for answer in await asyncio.gather(*(call_asgi(site.app, request) for _ in range(30)))
            ]

        assert asyncio.run(crowd()).count(200) == 2  # the view's own limit
    with serving(asgi=False, default_limits=["7/minute"], clock=ManualClock()) as site:
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: site.request("GET", "/open").status, range(40)))
        assert statuses.count(200) == 7


# ---- DJ4: requests that reach no view ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[OURS, COMMON], [COMMON, OURS]], ids=["outside", "inside"])
def test_dj04_redirects_for_a_slash_are_limited(order: list[str], asgi: bool) -> None:
    with serving(asgi=asgi, middleware=order, default_limits=["2/minute"], clock=ManualClock()) as site:
        assert site.statuses("/slash", "/slash", "/slash") == [301, 301, 429]


def test_dj04_each_request_is_charged_once(asgi: bool) -> None:
    with serving(asgi=asgi, default_limits=["9/minute"], clock=ManualClock()) as site:
        paths = ["/open", "/nowhere", "/boom", "/limited", "/open"]
        left = [(site.request("GET", path).one("ratelimit") or "").split(",")[0] for path in paths]
        assert left == [f'"default";r={r};t=60' for r in (8, 7, 6, 5, 4)]


class Early:
    """A middleware that returns its own response to every request, with a resource to close."""

    sync_capable = True
    async_capable = True
    closed: list[str] = []  # noqa: RUF012  # emptied by the test

    def __init__(self, get_response: Any) -> None:
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        response: Any = HttpResponse("early", headers={"Cache-Control": "public"})
        response._resource_closers.append(lambda: self.closed.append("closed"))
        return sync_to_async(lambda: response)() if self.is_async else response


def test_dj04_responses_of_other_middleware_are_limited_and_closed_once(asgi: bool) -> None:
    finished: list[Any] = []
    Early.closed.clear()
    request_finished.connect(lambda **_: finished.append(1), weak=False, dispatch_uid="test")
    try:
        with serving(
            asgi=asgi, middleware=[OURS, f"{HERE}.Early"], default_limits=["1/minute"], clock=ManualClock()
        ) as site:
            answers = [site.request("GET", "/open") for _ in range(2)]
    finally:
        request_finished.disconnect(dispatch_uid="test")
    assert [answer.status for answer in answers] == [200, 429]
    assert answers[0].one("cache-control") == "public"
    assert answers[1].one("cache-control") == "no-store"
    assert (Early.closed, finished) == (["closed"] * 2, [1, 1])


def test_dj04_a_failed_csrf_check_counts_against_the_views_own_limit(asgi: bool) -> None:
    with serving(asgi=asgi, middleware=[CSRF, OURS], default_limits=["9/minute"], clock=ManualClock()) as site:
        assert site.statuses("POST /posted", "POST /posted", "POST /open") == [403, 429, 403]


class Cors:
    """A middleware that responds to preflights, like a CORS layer."""

    status = 200
    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return self.get_response(request)
        response = HttpResponse("preflight", status=self.status, headers={"Access-Control-Allow-Origin": "*"})
        return sync_to_async(lambda: response)() if self.is_async else response


class KeyCheck(Cors):
    """A middleware that responds to preflights like a check of API keys."""

    status = 401


class ToLogin(Cors):
    """Redirects them to a login page."""

    status = 302


PREFLIGHT: Any = {"headers": [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]}


class Answers(View):
    """A view class with Django's own `options`."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


# (middleware, path, statuses of three preflights, status of the next request)
PREFLIGHTS: list[tuple[list[str], str, list[int], int]] = [
    ([OURS, f"{HERE}.Cors"], "/x", [200, 200, 200], 200),
    ([f"{HERE}.Cors", OURS], "/x", [200, 200, 200], 200),
    ([OURS, f"{HERE}.Cors"], "/nowhere", [200, 200, 200], 200),
    ([OURS, f"{HERE}.KeyCheck"], "/x", [401, 401, 429], 429),  # else keys could be guessed without limit
    ([OURS, f"{HERE}.ToLogin"], "/x", [302, 302, 429], 429),
    ([OURS], "/nowhere", [404, 404, 404], 200),  # the URL resolver
    ([OURS, COMMON], "/slash", [301, 301, 301], 200),
    ([OURS], "/x", [200, 200, 429], 429),
    ([OURS], "/async", [200, 200, 429], 429),
    ([OURS], "/class", [200, 200, 429], 429),
    ([OURS], "/405", [405, 405, 429], 429),
]


@pytest.mark.parametrize("denying", [{}, {"deny": ["192.0.2.0/24"]}], ids=["", "with a deny list"])
@pytest.mark.parametrize(("middleware", "where", "statuses", "other"), PREFLIGHTS)
def test_a_preflight_is_free_unless_a_view_runs(
    middleware: list[str], where: str, statuses: list[int], other: int, denying: dict[str, Any], asgi: bool
) -> None:
    async def async_ok(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    urls = [
        path("x", ok),
        path("async", async_ok),
        path("class", Answers.as_view()),
        path("405", require_GET(ok)),
        path("slash/", ok),
    ]
    options: dict[str, Any] = {"default_limits": ["2/minute"], "clock": ManualClock(), "urls": urls, **denying}
    with serving(asgi=asgi, middleware=middleware, **options) as site:
        answers = [site.request("OPTIONS", where, **PREFLIGHT) for _ in range(3)]
        assert [answer.status for answer in answers] == statuses
        assert (answers[0].one("ratelimit") is None) is (other == 200 or statuses[0] == 302)
        assert site.statuses("/x") == [other]
        if denying and middleware[0] == OURS:
            assert site.request("OPTIONS", where, peer="192.0.2.7", **PREFLIGHT).status == 403


def test_two_middlewares_charge_once(asgi: bool) -> None:
    with serving(asgi=asgi, middleware=[OURS, OURS], default_limits=["2/minute"], clock=ManualClock()) as site:
        assert site.statuses("/open", "/nowhere", "/open") == [200, 404, 429]
        with override_settings(SLUICEGATE={"DEFAULT_LIMITS": ["2/minute"]}):
            assert site.request("GET", "/open").one("ratelimit") == '"default";r=1;t=60'


class SyncOnly:
    """A middleware that is only sync: Django runs all middleware outside it in a thread."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)


def test_the_limiter_runs_in_a_thread_outside_a_sync_middleware() -> None:
    async def hidden(request: HttpRequest) -> HttpResponse:
        return await limit("1/minute")(view)(request)

    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    order = [OURS, f"{HERE}.SyncOnly", SESSIONS, AUTH]
    with serving(
        asgi=True, middleware=order, urls=[path("x", hidden)], default_limits=["2/minute"], clock=ManualClock()
    ) as site:
        assert site.statuses("/x", "/nowhere", "/nowhere") == [200, 404, 429]


# ---- DJ5: settings -----------------------------------------------------------------------------------------------


def test_dj05_override_settings_takes_effect_and_is_undone() -> None:
    with serving(asgi=False, default_limits=["1/minute"], clock=ManualClock()):
        client = Client(raise_request_exception=False)  # one handler for the whole test

        def statuses(times: int) -> list[int]:
            return [client.get("/open").status_code for _ in range(times)]

        assert statuses(2) == [200, 429]
        with override_settings(SLUICEGATE={"DEFAULT_LIMITS": ["2/minute"], "CLOCK": ManualClock()}):
            assert statuses(3) == [200, 200, 429]
            with override_settings(SLUICEGATE={"ENABLED": False}):
                assert statuses(3) == [200, 200, 200]
        assert statuses(2) == [200, 429]


def test_dj05_gates_are_closed_when_the_setting_changes() -> None:
    closed: list[str] = []

    class Watched(BrokenStore):
        def close(self) -> None:
            closed.append("closed")

    with override_settings(SLUICEGATE={}):
        sync, async_ = conf.sync_gate(), conf.async_gate()
        sync.limiter.store, async_.limiter.store = Watched(), AsyncAdapter(Watched())
        assert (conf.sync_gate(), conf.async_gate()) == (sync, async_)
        with override_settings(DEBUG=True):
            assert conf.sync_gate() is sync  # another setting
    assert closed == ["closed", "closed"]
    assert conf.sync_gate() is not sync

    async def change() -> None:
        with override_settings(SLUICEGATE={}):
            conf.async_gate().limiter.store = AsyncAdapter(Watched())

    asyncio.run(change())
    assert len(closed) == 3


BAD_SETTINGS: list[tuple[str, Any, type[Exception], str]] = [
    ("unknown name", {"DEFAULT_LIMIT": "1/minute"}, SettingsError, 'did you mean "default_limits"'),
    ("no dict", ["1/minute"], SettingsError, "not a dict"),
    ("store", {"STORE": "mysql://"}, StoreURLError, "unknown scheme"),
]


@pytest.mark.parametrize(
    ("given", "error", "text"), [row[1:] for row in BAD_SETTINGS], ids=[row[0] for row in BAD_SETTINGS]
)
def test_dj10_wrong_settings_cannot_start(given: Any, error: type[Exception], text: str, asgi: bool) -> None:
    with override_settings(MIDDLEWARE=[OURS], SLUICEGATE=given), pytest.raises(error, match=text):
        Site(asgi=asgi)


async def denied_async(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(f"async: {decision.rule}", status=429)


def test_an_async_on_denied_cannot_start_under_wsgi() -> None:
    with pytest.raises(AsyncMismatchError, match="on_denied"), serving(asgi=False, on_denied=denied_async):
        pass


ROUTE: dict[str, Any] = {"name": "r", "quota": "1/minute", "route": "itme"}


def test_a_rule_for_an_unknown_route_cannot_start(asgi: bool) -> None:
    with pytest.raises(RuleError, match="did you mean"), serving(asgi=asgi, rules=[ROUTE]):
        pass


def test_a_route_of_another_urlconf_starts_with_the_check_silenced(asgi: bool) -> None:
    silenced = {"SILENCED_SYSTEM_CHECKS": ["sluicegate.E002"]}
    with serving(asgi=asgi, rules=[ROUTE], django_settings=silenced) as site:
        assert site.statuses("/open") == [200]


# ---- DJ12, DJ13: imports and installation ------------------------------------------------------------------------


def run(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_dj12_importing_needs_no_settings_and_no_models() -> None:
    script = (
        "import sys, sluicegate.django; from django.conf import settings; from django.apps import apps; "
        "others = [name for name in sys.modules if '.contrib.' in name or name == 'redis']; "
        "print(settings.configured, apps.ready, others)"
    )
    assert run(script) == "False False []"


@pytest.mark.parametrize("apps", [[], ["sluicegate.django"]])
def test_dj13_installed_or_not(apps: list[str]) -> None:
    script = f"""
from django.conf import settings
settings.configure(INSTALLED_APPS={apps}, MIDDLEWARE=["sluicegate.django.RateLimitMiddleware"], LOGGING_CONFIG=None,
                   ROOT_URLCONF=(), SLUICEGATE={{"DEFAULT_LIMITS": ["1/minute"]}}, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
import django; django.setup()
from django.core.checks import run_checks
from django.test import Client
print([Client().get("/").status_code for _ in range(2)], run_checks())
"""
    assert run(script) == "[404, 429] []"


# ---- types -------------------------------------------------------------------------------------------------------


@limit("5/minute")
def typed(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(str(number))


@exempt
async def typed_async(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse()


@override_settings(SLUICEGATE={})
def test_decorators_keep_types() -> None:
    request = HttpRequest()
    assert_type(typed(request, 5), HttpResponse)
    assert_type(asyncio.run(typed_async(request)), StreamingHttpResponse)
    assert_type(decision(request), Decision | None)
