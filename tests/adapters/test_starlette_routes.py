"""The endpoint of a Starlette request: the search for marks finds what the search of all routes finds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router
from starlette.testclient import TestClient

from sluicegate import Rule
from sluicegate.starlette import RateLimitMiddleware, exempt, limit
from sluicegate.starlette.routes import Routes
from sluicegate.web.endpoint import NOWHERE
from tests.adapters.asgi_client import make_scope


class Picky(Convertor[str]):
    """A convertor that raises for a text that its pattern matches."""

    regex = "[a-z]+"

    def convert(self, value: str) -> str:
        if value == "bad":
            raise ValueError(value)
        return value

    def to_string(self, value: str) -> str:
        return value


async def plain(request: Request) -> Response:
    return PlainTextResponse("plain")


@limit("1/minute")
async def marked(request: Request) -> Response:
    return PlainTextResponse("marked")


@exempt
async def free(request: Request) -> Response:
    return PlainTextResponse("free")


class Page(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        return PlainTextResponse("get")

    @limit("1/minute")
    async def post(self, request: Request) -> Response:
        return PlainTextResponse("post")


register_url_convertor("picky", Picky())
INNER = [Route("/a", plain), Route("/b", marked), Route("/{name}", free)]
ROUTES: dict[str, list[Any]] = {
    "no route": [],
    "no mark": [Route("/a", plain), Route("/{name}", plain)],
    "a mark": [Route("/a", plain), Route("/b", marked), Route("/{name}", plain)],
    "behind a route that matches": [Route("/{name}", plain), Route("/b", marked)],
    "behind one for another method": [Route("/{name}", plain, methods=["POST"]), Route("/b", marked)],
    "behind one for some methods": [Route("/b", plain, methods=["POST"]), Route("/b", marked, methods=["GET", "POST"])],
    "of a method": [Route("/a", plain), Route("/b", Page)],
    "mounted": [Mount("/in", routes=INNER), Route("/{path:path}", plain)],
    "mounted behind a route that matches": [Route("/in/b", plain), Mount("/in", routes=INNER)],
    "mounted without marks, before one": [Mount("/in", routes=[Route("/a", plain)]), Route("/in/b", marked)],
    "an application without routes": [Mount("/in", app=PlainTextResponse("in")), Route("/{path:path}", marked)],
    "a host": [Host("{sub}.example.org", Router(INNER)), Route("/b", free)],
    "behind a convertor that raises": [Route("/{name:picky}", plain), Route("/{path:path}", marked)],
    "a convertor that raises": [Route("/a", plain), Route("/{name:picky}", marked), Route("/{path:path}", free)],
}
SCOPES = [
    make_scope(method, path, headers=[("host", host)])
    for method in ("GET", "POST", "HEAD", "DELETE")
    for path in ("/", "/a", "/b", "/c", "/bad", "/in", "/in/", "/in/a", "/in/b", "/in/c", "/in/c/d")
    for host in ("shop.example.org", "example.org")
]


@pytest.mark.parametrize("routes", ROUTES.values(), ids=ROUTES)
def test_the_search_for_marks_finds_what_the_search_of_all_routes_finds(routes: list[Any]) -> None:
    known = Routes(Router(routes))
    for scope in SCOPES:
        before = dict(scope)
        whole, _ = known.find(scope)
        found = known.find_marked(scope)
        assert scope == before
        if whole.marks:
            assert found is whole
        else:
            assert not found.marks
            assert not found.endpoint.marks


def test_a_route_without_a_mark_is_not_matched() -> None:
    matched: list[str] = []

    class Recording(Route):
        def matches(self, scope: Any) -> Any:
            matched.append(self.path)
            return super().matches(scope)

    known = Routes(Router([Recording("/a", plain), Recording("/b", marked), Recording("/c", plain)]))
    assert known.find_marked(make_scope(path="/c")) is NOWHERE
    assert matched == ["/b"]
    matched.clear()
    assert known.find_marked(make_scope(path="/b")).marks
    assert matched == ["/b", "/a"]


def test_routes_that_are_sorted_or_replaced_are_read_again() -> None:
    router = Router([Route("/{name}", plain), Route("/b", marked)])
    known = Routes(router)
    scope = make_scope(path="/b")

    def finds_the_mark() -> tuple[bool, bool]:
        return bool(known.find(scope)[0].marks), bool(known.find_marked(scope).marks)

    assert finds_the_mark() == (False, False)
    router.routes.reverse()
    assert finds_the_mark() == (True, True)
    router.routes[0] = Route("/b", plain)
    assert finds_the_mark() == (False, False)
    router.routes = [Route("/b", marked), Route("/c", plain)]
    assert finds_the_mark() == (True, True)
    assert Routes(router).find(scope) == known.find(scope)


def test_routes_that_the_lifespan_sorts_keep_their_limits() -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.router.routes.sort(key=lambda route: "{" in getattr(route, "path", ""))
        yield

    app = Starlette(routes=[Route("/{name}", free), Route("/b", plain)], lifespan=lifespan)
    app.add_middleware(RateLimitMiddleware, rules=[Rule(name="b", quota="1/minute", route="/b")])
    with TestClient(app) as client:
        assert [client.get("/b").status_code for _ in range(2)] == [200, 429]
