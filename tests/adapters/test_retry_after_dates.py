"""A later `Retry-After` of the application stays, also if it is a date, in every adapter."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest
from django.http import HttpResponse
from flask import Flask
from starlette.responses import PlainTextResponse
from werkzeug.wrappers import Response

from sluicegate import ManualClock
from sluicegate.asgi import RateLimitMiddleware as AsgiMiddleware
from sluicegate.clock import epoch_seconds
from sluicegate.flask import RateLimiter
from sluicegate.testing.client import Answer
from sluicegate.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.adapters import test_wsgi_exam
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient

ONE: Any = {"default_limits": ["1/minute"]}


def wsgi(date: str) -> list[Answer]:
    client = WsgiClient(
        WsgiMiddleware(
            test_wsgi_exam.make_app([]),
            **ONE,
            clock=ManualClock(),
            on_denied=lambda environ, decision: Response("slow", 429, {"Retry-After": date}),
        )
    )
    return [client.request("GET", "/open") for _ in range(2)]


def flask(date: str) -> list[Answer]:
    app = Flask("board")
    app.get("/open")(lambda: "open")
    app.register_error_handler(429, lambda error: ("slow", 429, {"Retry-After": date}))
    RateLimiter(app, **ONE, clock=ManualClock())
    return [WsgiClient(app).request("GET", "/open") for _ in range(2)]


def asgi(date: str) -> list[Answer]:
    client = AsgiClient(
        AsgiMiddleware(
            PlainTextResponse("open"),
            **ONE,
            clock=ManualClock(),
            on_denied=lambda scope, decision: PlainTextResponse("slow", 429, {"Retry-After": date}),
        )
    )
    return [client.request("GET", "/open") for _ in range(2)]


def django(date: str) -> list[Answer]:
    def denied(request: Any, decision: Any) -> HttpResponse:
        return HttpResponse("slow", status=429, headers={"Retry-After": date})

    with serving(asgi=False, **ONE, clock=ManualClock(), on_denied=denied) as site:
        return [site.request("GET", "/open") for _ in range(2)]


@pytest.mark.parametrize("adapter", [wsgi, flask, asgi, django])
def test_the_later_of_both_is_sent(adapter: Any) -> None:
    now = epoch_seconds()
    later, sooner = formatdate(now + 3600, usegmt=True), formatdate(now + 5, usegmt=True)
    for date, expected in ((later, later), (sooner, "60"), ("tomorrow", "60")):
        passed, refused = adapter(date)
        assert (passed.status, refused.status, refused.one("retry-after")) == (200, 429, expected)
