"""The tests that every adapter passes, for Starlette: the middleware inside, outside, and on trio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from sluicegate.starlette import RateLimitMiddleware, exempt, limit
from sluicegate.testing.adapter import AdapterExam
from sluicegate.testing.charges import wrong
from sluicegate.testing.client import AdapterClient
from tests.adapters.asgi_client import AsgiClient


def make_app(calls: list[str]) -> Starlette:
    """The exam's application."""

    async def open(request: Request) -> Response:  # noqa: A001
        calls.append("open")
        return PlainTextResponse("open")

    @limit("2/minute")
    async def limited(request: Request) -> Response:
        return PlainTextResponse("limited")

    async def above(request: Request) -> Response:
        return PlainTextResponse("above")

    @limit("1/minute", override_defaults=True)
    def strict(request: Request) -> Response:
        return PlainTextResponse("strict")

    @limit("1/minute", methods=["POST"])
    async def posted(request: Request) -> Response:
        return PlainTextResponse("posted")

    @limit("2/minute", scope="shared")
    async def a(request: Request) -> Response:
        return PlainTextResponse("a")

    @limit("2/minute", scope="shared")
    def b(request: Request) -> Response:
        return PlainTextResponse("b")

    @exempt
    async def exempted(request: Request) -> Response:
        return PlainTextResponse("exempt")

    @limit("2/minute")
    async def stream(request: Request) -> Response:
        return StreamingResponse(iter(["one", "two"]))

    async def slow(request: Request) -> Response:
        async def chunks() -> AsyncIterator[str]:
            for chunk in ("one", "two", "three"):
                calls.append(chunk)
                yield chunk

        return StreamingResponse(chunks())

    @limit("2/minute", charge_when=wrong, scope="guess")
    def guess(request: Request) -> Response:
        word = request.path_params["word"]
        calls.append(word)
        return PlainTextResponse(word, 200 if word == "right" else 401)

    async def redirect(request: Request) -> Response:
        calls.append("redirect")
        return RedirectResponse("/open", 302)

    async def boom(request: Request) -> Response:
        calls.append("boom")
        raise RuntimeError("boom")

    @limit("2/minute", key="path:name", scope="items")
    async def item(request: Request) -> Response:
        return PlainTextResponse(request.path_params["name"])

    routes = [
        Route("/open", open, methods=["GET", "POST"]),
        Route("/limited", limited),
        Route("/above", above),
        Route("/strict", strict),
        Route("/posted", posted, methods=["GET", "POST"]),
        Route("/shared/a", a),
        Route("/shared/b", b),
        Route("/exempt", exempted),
        Route("/stream", stream),
        Route("/slow", slow),
        Route("/guess/{word}", guess),
        Route("/redirect", redirect),
        Route("/boom", boom),
        Route("/items/{name}", item),
    ]
    limit("2/minute")(above)  # the route has the undecorated function
    return Starlette(routes=routes)


class TestStarlette(AdapterExam):
    is_async = True
    backend = "asyncio"

    def client(self, **options: Any) -> AdapterClient:
        calls: list[str] = []
        app = make_app(calls)
        app.add_middleware(RateLimitMiddleware, **options)
        return AsgiClient(app, calls, backend=self.backend)


class TestStarletteOnTrio(TestStarlette):
    """ST13."""

    backend = "trio"


class TestStarletteFromOutside(AdapterExam):
    """The middleware wrapped around the whole application."""

    is_async = True

    def client(self, **options: Any) -> AdapterClient:
        calls: list[str] = []
        return AsgiClient(RateLimitMiddleware(make_app(calls), **options), calls)
