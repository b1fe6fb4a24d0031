"""The tests that every adapter passes, for FastAPI: routes of the application, and of routers inside routers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.responses import PlainTextResponse, RedirectResponse, StreamingResponse

from sluicegate.fastapi import RateLimitMiddleware, exempt, limit
from sluicegate.testing.adapter import AdapterExam
from sluicegate.testing.charges import wrong
from sluicegate.testing.client import AdapterClient
from tests.adapters.asgi_client import AsgiClient


def add_routes(routes: Any, calls: list[str]) -> None:
    """The exam's views, on an application or a router."""

    def get(path: str) -> Any:
        return routes.get(path, response_class=PlainTextResponse)

    @routes.api_route("/open", methods=["GET", "POST"], response_class=PlainTextResponse)
    async def open() -> str:  # noqa: A001
        calls.append("open")
        return "open"

    @routes.api_route("/limited", methods=["GET", "HEAD"], response_class=PlainTextResponse)
    @limit("2/minute")
    async def limited() -> str:
        return "limited"

    @limit("2/minute")
    @get("/above")
    def above() -> str:
        return "above"

    @get("/strict")
    @limit("1/minute", override_defaults=True)
    def strict() -> str:
        return "strict"

    @routes.api_route("/posted", methods=["GET", "POST"], response_class=PlainTextResponse)
    @limit("1/minute", methods=["POST"])
    async def posted() -> str:
        return "posted"

    @get("/shared/a")
    @limit("2/minute", scope="shared")
    async def a() -> str:
        return "a"

    @get("/shared/b")
    @limit("2/minute", scope="shared")
    async def b() -> str:
        return "b"

    @get("/exempt")
    @exempt
    async def exempted() -> str:
        return "exempt"

    @get("/stream")
    @limit("2/minute")
    def stream() -> StreamingResponse:
        def chunks() -> Iterator[str]:
            yield "one"
            yield "two"

        return StreamingResponse(chunks())

    @get("/slow")
    def slow() -> StreamingResponse:
        def chunks() -> Iterator[str]:
            for chunk in ("one", "two", "three"):
                calls.append(chunk)
                yield chunk

        return StreamingResponse(chunks())

    @get("/guess/{word}")
    @limit("2/minute", charge_when=wrong, scope="guess")
    async def guess(word: str) -> str:
        calls.append(word)
        if word != "right":
            raise HTTPException(401, word)
        return word

    @get("/redirect")
    async def redirect() -> RedirectResponse:
        calls.append("redirect")
        return RedirectResponse("/open", 302)

    @get("/boom")
    async def boom() -> str:
        calls.append("boom")
        raise RuntimeError("boom")

    @get("/items/{name}")
    @limit("2/minute", key="path:name", scope="items")
    async def item(name: str) -> str:
        return name


def flat(calls: list[str]) -> FastAPI:
    app = FastAPI()
    add_routes(app, calls)
    return app


def nested(calls: list[str]) -> FastAPI:
    app, outer, inner = FastAPI(), APIRouter(), APIRouter()
    add_routes(inner, calls)
    outer.include_router(inner)
    app.include_router(outer)
    return app


class TestFastAPI(AdapterExam):
    is_async = True
    make_app = staticmethod(flat)

    def client(self, **options: Any) -> AdapterClient:
        calls: list[str] = []
        app = self.make_app(calls)
        app.add_middleware(RateLimitMiddleware, **options)
        return AsgiClient(app, calls)


@pytest.mark.slow
class TestFastAPIInRouters(TestFastAPI):
    make_app = staticmethod(nested)
