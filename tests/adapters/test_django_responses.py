"""Django's responses: streams, fields, refusals; and the signal (C and DJ8 of our checklist)."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
import http_sf
import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client
from django.urls import path

from sluicegate import Decision, ManualClock
from sluicegate.django import decision, limit, rate_limited
from sluicegate.errors import SettingsError
from sluicegate.testing import AsyncAdapter, BrokenStore
from tests.adapters.django_app import COMMON, OURS, serving

HERE = "tests.adapters.test_django_responses"


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# ---- DJ8, C5, C6: responses pass unchanged -----------------------------------------------------------------------


def chunks(log: list[str]) -> Iterator[bytes]:
    for chunk in ("one", "two"):
        log.append(chunk)
        yield chunk.encode()


async def chunks_async(log: list[str]) -> AsyncIterator[bytes]:
    for chunk in chunks(log):
        yield chunk


def test_dj08_streaming_responses_keep_streaming() -> None:
    log: list[str] = []
    urls = [
        path("stream", lambda request: StreamingHttpResponse(chunks(log))),
        path("async", lambda request: StreamingHttpResponse(chunks_async(log))),
        path("file", lambda request: FileResponse(io.BytesIO(b"a file" * 9999))),
    ]
    with serving(asgi=False, urls=urls, default_limits=["9/minute"], clock=ManualClock()):
        response: Any = Client().get("/stream")
        assert response.streaming
        assert log == []
        assert next(iter(response.streaming_content)) == b"one"
        assert log == ["one"]
        assert response.headers["RateLimit"] == '"default";r=8;t=60'
        sent: Any = Client().get("/file")
        assert isinstance(sent, FileResponse)
        assert b"".join(sent) == b"a file" * 9999
        sent.close()
    log.clear()

    async def first_chunk() -> bytes:
        response: Any = await AsyncClient().get("/async")
        assert response.is_async
        assert log == []
        return await anext(aiter(response.streaming_content))

    with serving(asgi=True, urls=urls, default_limits=["9/minute"]):
        assert asyncio.run(first_chunk()) == b"one"
        assert log == ["one"]


def test_c05_an_allowed_response_differs_only_by_the_fields(asgi: bool) -> None:
    answers = []
    choices: list[dict[str, Any]] = [{"enabled": False}, {"default_limits": ["9/minute"]}]
    for options in choices:
        with serving(asgi=asgi, middleware=[COMMON, OURS], **options) as site:
            answers.append(site.request("GET", "/open"))
    free, limited = answers
    added = [header for header in limited.headers if header not in free.headers]
    assert [name for name, _ in added] == ["ratelimit-policy", "ratelimit"]
    assert limited._replace(headers=[header for header in limited.headers if header not in added]) == free


def test_c02_c06_c18_fields_are_valid_lists_and_join_the_existing_ones(asgi: bool) -> None:
    own = {"RateLimit-Policy": '"default";q=5;w=1', "RateLimit": '"default";r=5', "Retry-After": "3"}
    view = limit("4/minute", name='odd "name"')(lambda request: HttpResponse(status=503, headers=own))
    with serving(asgi=asgi, urls=[path("x", view)], default_limits=["9/minute"], clock=ManualClock()) as site:
        answer = site.request("GET", "/x")
    assert answer.one("retry-after") == "3"
    policies: Any = http_sf.parse((answer.one("ratelimit-policy") or "").encode(), tltype="list")
    items: Any = http_sf.parse((answer.one("ratelimit") or "").encode(), tltype="list")
    assert [(name, params["q"], params["w"]) for name, params in policies] == [
        ("default", 5, 1),
        ("default-2", 9, 60),
        ('odd "name"', 4, 60),
    ]
    assert [(name, params["r"]) for name, params in items] == [("default", 5), ("default-2", 8), ('odd "name"', 3)]


# ---- C15: without the store --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "expect"), [("local", [200, 429]), ("allow", [200, 200]), ("deny", [503, 503])])
def test_c15_without_the_store_the_policy_decides(policy: str, expect: list[int], asgi: bool) -> None:
    store = AsyncAdapter(BrokenStore()) if asgi else BrokenStore()
    with serving(asgi=asgi, store=store, default_limits=["1/minute"], on_store_failure=policy) as site:
        answers = [site.request("GET", "/open") for _ in range(2)]
        assert [answer.status for answer in answers] == expect
        if policy == "deny":
            assert answers[0].one("retry-after") == "1"
            assert answers[0].one("ratelimit") is None


# ---- on_denied, the signal and the log ---------------------------------------------------------------------------


def denied(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(f"no: {decision.rule}", status=403)


def denied_by_template(request: HttpRequest, decision: Decision) -> HttpResponse:
    return TemplateResponse(
        request, engines["django"].from_string("t: {{ rule }}"), {"rule": decision.rule}, status=429
    )


async def denied_async(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(f"async: {decision.rule}", status=429)


DENIED = [
    ("denied", 403, b"no: default"),
    ("denied_by_template", 429, b"t: default"),
    ("denied_async", 429, b"async: default"),
]


@pytest.mark.parametrize(("name", "status", "body"), DENIED)
@pytest.mark.parametrize("where", ["/open", "/nowhere"])
def test_on_denied_makes_the_response(name: str, status: int, body: bytes, where: str, asgi: bool) -> None:
    if name == "denied_async" and not asgi:
        return  # test_django.py: test_an_async_on_denied_cannot_start_under_wsgi
    with serving(asgi=asgi, default_limits=["1/minute"], on_denied=f"{HERE}.{name}", clock=ManualClock()) as site:
        site.request("GET", where)
        answer = site.request("GET", where)
    assert (answer.status, answer.body) == (status, body)
    assert (answer.one("retry-after"), answer.one("cache-control")) == ("60", "no-store")
    assert answer.one("ratelimit") == '"default";r=0;t=60'


def redirect(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(status=302, headers={"Location": "/slow-down"})


def test_an_on_denied_that_returns_no_response_is_an_error(asgi: bool, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"default_limits": ["1/minute"], "on_denied": lambda request, decision: "slow down"}
    with serving(asgi=asgi, clock=ManualClock(), **options) as site:
        assert site.statuses("/open", "/open") == [200, 500]
    (error,) = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert isinstance(error, SettingsError)
    assert "on_denied" in str(error)


def test_on_denied_may_redirect(asgi: bool) -> None:
    options: dict[str, Any] = {"default_limits": ["1/minute"], "on_denied": redirect, "clock": ManualClock()}
    with serving(asgi=asgi, **options) as site:
        site.request("GET", "/open")
        answer = site.request("GET", "/open")
    assert (answer.status, answer.one("retry-after"), answer.one("cache-control")) == (302, None, "no-store")


def test_a_refusal_has_the_fields_of_a_later_decision_too() -> None:
    view = limit("1/minute", name="first")(lambda request: HttpResponse("first"))
    more = limit("9/minute", name="more")(lambda request: HttpResponse("more"))

    def both(request: HttpRequest) -> Any:
        answer = view(request)
        more(request)
        return answer

    with serving(asgi=False, urls=[path("x", both)], clock=ManualClock()) as site:
        answers = [site.request("GET", "/x") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert answers[1].one("ratelimit-policy") == '"first";q=1;w=60, "more";q=9;w=60'


@pytest.mark.parametrize("on_denied", [None, f"{HERE}.denied"])
def test_refusals_do_not_fill_the_log(asgi: bool, on_denied: str | None, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"default_limits": ["2/minute"], "on_denied": on_denied, "clock": ManualClock()}
    with serving(asgi=asgi, **options) as site:
        site.statuses("/nowhere", *["/open"] * 5)
    assert [record.getMessage() for record in caplog.records if record.name == "django.request"] == [
        "Not Found: /app/nowhere"
    ]


def test_c22_views_and_receivers_get_the_decision(asgi: bool) -> None:
    seen: list[Any] = []

    def view(request: HttpRequest) -> HttpResponse:
        found = decision(request)
        assert found is not None
        return HttpResponse(str(found.remaining))

    def receive(sender: Any, *, request: HttpRequest, decision: Decision, **_: Any) -> None:
        seen.append((sender, request.path_info, decision.rule))
        raise RuntimeError("logged, and the answer stays")

    rate_limited.connect(receive)
    with serving(asgi=asgi, urls=[path("x", view)], default_limits=["1/minute"], clock=ManualClock()) as site:
        assert site.request("GET", "/x").body == b"0"
        assert site.request("GET", "/x").status == 429
    rate_limited.disconnect(receive)
    assert seen == [(ASGIRequest if asgi else WSGIRequest, "/x", "default")]
    assert decision(HttpRequest()) is None


def test_async_keys_and_receivers() -> None:
    signals: list[str] = []

    async def key(request: HttpRequest) -> str:
        return await sync_to_async(lambda: "alice")()

    async def receive(**event: Any) -> None:
        signals.append(event["decision"].rule)

    rate_limited.connect(receive)
    with serving(asgi=True, default_limits=["1/minute"], key=key, clock=ManualClock()) as site:
        assert site.statuses("/open", "/open") == [200, 429]
    rate_limited.disconnect(receive)
    assert signals == ["default"]


# ---- Django 6 ----------------------------------------------------------------------------------------------------

CSP = "django.middleware.csp.ContentSecurityPolicyMiddleware"


@pytest.mark.skipif(django.VERSION < (6,), reason="Django 6 brings the middleware")
@pytest.mark.parametrize("order", [[OURS, CSP], [CSP, OURS]], ids=["outside", "inside"])
def test_a_refusal_has_the_content_security_policy(order: list[str], asgi: bool) -> None:
    policy = {"SECURE_CSP": {"default-src": ["'self'"]}}
    options: dict[str, Any] = {"default_limits": ["1/minute"], "clock": ManualClock(), "django_settings": policy}
    with serving(asgi=asgi, middleware=order, **options) as site:
        answers = [site.request("GET", "/open") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert [answer.one("content-security-policy") for answer in answers] == ["default-src 'self'"] * 2
    assert answers[0].one("ratelimit") == '"default";r=0;t=60'
