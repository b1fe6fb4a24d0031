"""The tests that every adapter passes, for Flask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flask import Flask, abort, redirect
from werkzeug.wrappers import Response

from sluicegate.flask import RateLimiter, exempt, limit
from sluicegate.testing.adapter import AdapterExam
from sluicegate.testing.charges import wrong
from sluicegate.testing.client import AdapterClient
from tests.adapters.wsgi_client import WsgiClient


def make_app(calls: list[str]) -> Flask:
    """The exam's application."""
    app = Flask(__name__)
    app.logger.disabled = True  # the error of /boom is intended

    @app.route("/open", methods=["GET", "POST"])
    def open() -> str:  # noqa: A001
        calls.append("open")
        return "open"

    @app.get("/limited")
    @limit("2/minute")
    def limited() -> str:
        calls.append("limited")
        return "limited"

    @limit("2/minute")
    @app.get("/above")
    def above() -> str:
        return "above"

    @app.get("/strict")
    @limit("1/minute", override_defaults=True)
    def strict() -> str:
        return "strict"

    @app.route("/posted", methods=["GET", "POST"])
    @limit("1/minute", methods=["POST"])
    def posted() -> str:
        return "posted"

    @app.get("/shared/a")
    @limit("2/minute", scope="shared")
    def a() -> str:
        return "a"

    @app.get("/shared/b")
    @limit("2/minute", scope="shared")
    def b() -> str:
        return "b"

    @app.get("/exempt")
    @exempt
    def exempted() -> str:
        return "exempt"

    @app.get("/stream")
    @limit("2/minute")
    def stream() -> Iterator[str]:
        return iter(["one", "two"])

    @app.get("/slow")
    def slow() -> Iterator[str]:
        for chunk in ("one", "two", "three"):
            calls.append(chunk)
            yield chunk

    @app.get("/guess/<word>")
    @limit("2/minute", charge_when=wrong, scope="guess")
    def guess(word: str) -> str:
        calls.append(word)
        if word != "right":
            abort(401)
        return word

    @app.get("/redirect")
    def away() -> Response:
        calls.append("redirect")
        return redirect("/open")

    @app.get("/boom")
    def boom() -> str:
        calls.append("boom")
        raise RuntimeError("boom")

    @app.get("/items/<name>")
    @limit("2/minute", key="path:name", scope="items")
    def item(name: str) -> str:
        return name

    return app


class TestFlask(AdapterExam):
    def client(self, **options: Any) -> AdapterClient:
        calls: list[str] = []
        app = make_app(calls)
        RateLimiter(app, **options)
        return WsgiClient(app, calls)
