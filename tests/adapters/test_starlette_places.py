"""Where a Starlette request will arrive: looking only for marks finds what looking at every route finds."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.convertors import Convertor, register_url_convertor
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router

from sluicegate.passage import NOWHERE
from sluicegate.starlette import exempt, limit
from sluicegate.starlette.places import Routes
from tests.adapters.asgi_client import make_scope


class Picky(Convertor[str]):
    """A convertor that cannot read everything that its pattern lets through."""

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
    "behind a route that takes it": [Route("/{name}", plain), Route("/b", marked)],
    "behind one for another method": [Route("/{name}", plain, methods=["POST"]), Route("/b", marked)],
    "behind one that takes some": [Route("/b", plain, methods=["POST"]), Route("/b", marked, methods=["GET", "POST"])],
    "of a method": [Route("/a", plain), Route("/b", Page)],
    "mounted": [Mount("/in", routes=INNER), Route("/{path:path}", plain)],
    "mounted behind a route that takes it": [Route("/in/b", plain), Mount("/in", routes=INNER)],
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
def test_looking_only_for_marks_finds_what_looking_at_every_route_finds(routes: list[Any]) -> None:
    ahead = Routes(Router(routes))
    for scope in SCOPES:
        before = dict(scope)
        whole, _ = ahead.find(scope)
        found = ahead.find_marked(scope)
        assert scope == before
        if whole.marks:
            assert found is whole
        else:
            assert not found.marks
            assert not found.place.marks


def test_what_carries_no_mark_is_not_looked_at() -> None:
    asked: list[str] = []

    class Telling(Route):
        def matches(self, scope: Any) -> Any:
            asked.append(self.path)
            return super().matches(scope)

    ahead = Routes(Router([Telling("/a", plain), Telling("/b", marked), Telling("/c", plain)]))
    assert ahead.find_marked(make_scope(path="/c")) is NOWHERE
    assert asked == ["/b"]
    asked.clear()
    assert ahead.find_marked(make_scope(path="/b")).marks
    assert asked == ["/b", "/a"]
