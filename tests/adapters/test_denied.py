"""Clients on the deny list: `on_denied`, the applications' handlers for 403, and the handlers that are not called."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from werkzeug.exceptions import Forbidden, HTTPException

from sluicegate import ManualClock
from sluicegate.asgi import RateLimitMiddleware as AsgiMiddleware
from sluicegate.fastapi import RESPONSES
from sluicegate.flask import Denied, RateLimiter, rate_limited
from sluicegate.plan import Decision, RateLimitExceeded
from sluicegate.starlette import RateLimitMiddleware
from sluicegate.testing.client import Answer
from sluicegate.web.http import TYPES
from sluicegate.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.adapters import test_starlette_exam, test_wsgi_exam
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.django_app import serving
from tests.adapters.test_flask_exam import make_app
from tests.adapters.wsgi_client import WsgiClient

PEER = "192.0.2.7"
DENY: dict[str, Any] = {"deny": [PEER]}


def check(answer: Answer, body: bytes, status: int = 403) -> None:
    assert (answer.status, answer.body) == (status, body)
    assert answer.one("cache-control") == "no-store"
    assert [name for name, _ in answer.headers if name == "retry-after" or "ratelimit" in name] == []


# Flask


@pytest.mark.parametrize("kind", [403, Forbidden, Denied, HTTPException])
def test_flask_s_handlers_are_used(kind: Any) -> None:
    app = make_app([])
    RateLimiter(app, **DENY, default_limits=["9/minute"])

    @app.errorhandler(kind)
    def away(error: Denied) -> Any:
        assert error.decision.forbidden
        assert error.retry_after is None
        return f"{error.code}: {error.description}", 403

    check(WsgiClient(app).request("GET", "/open", peer=PEER), b"403: This client is not allowed here.")


def test_flask_s_handler_for_429_is_not_called_and_listeners_are() -> None:
    app, signals = make_app([]), []
    RateLimiter(app, **DENY)
    app.register_error_handler(429, lambda error: ("slow down", 429))

    def listen(sender: Flask, decision: Decision) -> None:
        signals.append((decision.forbidden, decision.rule))

    with rate_limited.connected_to(listen, app):
        answer = WsgiClient(app).request("GET", "/open", peer=PEER)
    assert json.loads(answer.body)["title"] == "Forbidden"
    assert signals == [(True, None)]


def test_flask_s_on_denied_makes_the_response() -> None:
    app = make_app([])
    RateLimiter(app, **DENY, on_denied=lambda request, decision: f"away: {decision.forbidden}")
    check(WsgiClient(app).request("GET", "/open", peer=PEER), b"away: True")


# Starlette and FastAPI


def starlette(**options: Any) -> Starlette:
    app = test_starlette_exam.make_app([])
    app.add_middleware(RateLimitMiddleware, **{**DENY, **options})
    return app


def test_starlette_s_handler_for_403_is_used_and_not_that_for_limits() -> None:
    app = starlette()
    app.add_exception_handler(RateLimitExceeded, lambda request, error: PlainTextResponse("slow down", 429))
    answer = AsgiClient(app).request("GET", "/open", peer=PEER)
    assert (answer.status, json.loads(answer.body)["title"]) == (403, "Forbidden")
    for kind in (403, StarletteHTTPException):
        app = starlette()
        app.add_exception_handler(kind, lambda request, error: PlainTextResponse(str(error.detail), error.status_code))
        answer = AsgiClient(app).request("GET", "/open", peer=PEER)
        check(answer, b"Forbidden. This client is not allowed here.")


def test_starlette_s_on_denied_makes_the_response() -> None:
    def away(request: Request, decision: Decision) -> Response:
        return JSONResponse({"forbidden": decision.forbidden}, 403)

    check(AsgiClient(starlette(on_denied=away)).request("GET", "/open", peer=PEER), b'{"forbidden":true}')


def test_a_handshake_is_refused() -> None:
    client = AsgiClient(AsgiMiddleware(starlette(), deny=["198.51.100.0/24", "203.0.113.0/24", "127.0.0.1"]))
    refused = client.connect("/").answer
    assert refused is not None
    assert refused.status == 403
    assert client.connect("/", denial=False) == (False, None, 1008, ())


def test_fastapi_s_schema_has_both_problems() -> None:
    schema = RESPONSES[429]["content"]["application/problem+json"]["schema"]["properties"]["type"]
    assert schema["enum"] == [f"{TYPES}quota-exceeded", f"{TYPES}abnormal-usage-detected"]


def test_fastapi_s_handler_for_403_is_used() -> None:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, **DENY)

    @app.exception_handler(403)
    async def away(request: Request, error: Any) -> Response:
        return PlainTextResponse("away", error.status_code)

    check(AsgiClient(app).request("GET", "/", peer=PEER), b"away")


# Django


def sorry(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(f"away: {decision.forbidden}", status=403)


@pytest.mark.parametrize("is_async", [False, True])
def test_django_s_on_denied_makes_the_response(is_async: bool) -> None:
    with serving(asgi=is_async, **DENY, on_denied=sorry, default_limits=["1/minute"], clock=ManualClock()) as site:
        check(site.request("GET", "/open", peer=PEER), b"away: True")
        preflight = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]
        others = [site.request("OPTIONS", "/nowhere", headers=preflight).status for _ in range(3)]
        assert others == [404] * 3, "with a deny list, a preflight of another client is still free"
        assert site.request("GET", "/open").status == 200


# Plain WSGI and ASGI


def test_wsgi_s_on_denied_makes_the_response() -> None:
    def away(environ: Any, decision: Decision) -> Any:
        def answer(environ: Any, start_response: Any) -> list[bytes]:
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [f"away: {decision.forbidden}".encode()]

        return answer

    client = WsgiClient(WsgiMiddleware(test_wsgi_exam.make_app([]), **DENY, on_denied=away))
    check(client.request("GET", "/open", peer=PEER), b"away: True")
