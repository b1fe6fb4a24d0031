"""The endpoint of a Starlette request: the quick search finds what a search of one route after the other finds."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import fastapi.routing
import pytest
from fastapi.routing import APIRoute, APIRouter, APIWebSocketRoute
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Match, Mount, Route, Router, WebSocketRoute, compile_path
from starlette.testclient import TestClient

from sluicegate import Rule
from sluicegate.starlette import RateLimitMiddleware, exempt, limit
from sluicegate.starlette.routes import Routes, known_arrivals
from sluicegate.testing.scenarios import examples
from sluicegate.web.endpoint import NOWHERE
from tests.adapters.asgi_client import make_scope

FLAT: Callable[[Any], Iterable[Any]] = getattr(fastapi.routing, "iter_route_contexts", iter)


class Picky(Convertor[str]):
    """A convertor that raises for a text that its pattern matches."""

    regex = "[a-z]+"

    def convert(self, value: str) -> str:
        if value == "bad":
            raise ValueError(value)
        return value

    def to_string(self, value: str) -> str:
        return value


PATTERNS = {
    "picky": Picky.regex,
    "groups": "(a|(b))c?",
    "named": "(?P<again>a|b)",  # Starlette finds no convertor for this name, and raises
    "by_name": "(?P<again>a|b)(?P=again)",
    "by_number": r"(a|b)\2",
    "conditional": "(a)?(?(2)b|c)",
    "ahead": "(?=a)[ab]+",
    "in_a_set": "[(?P<c>ab]+",
}
for name, regex in PATTERNS.items():
    register_url_convertor(name, type(name, (Picky,), {"regex": regex})())


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


def one_by_one(routes: Iterable[Any], scope: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The endpoint that the first matching route leads to, or None, and what the routes add to the scope."""
    for route in FLAT(routes):
        try:
            match, child = route.matches(scope)
        except (KeyError, ValueError):
            return None, {}
        if match is Match.FULL:
            below = getattr(route, "routes", None)
            if not below:
                return getattr(route, "endpoint", None) or route.app, child
            found, added = one_by_one(below, {**scope, **child})
            return found, {**child, **added}
    return None, {}


def check(known: Routes, routes: list[Any], scope: dict[str, Any]) -> None:
    arrival, params = known.find(dict(scope))
    endpoint, expected = one_by_one(routes, dict(scope))
    assert params == expected.get("path_params", {})
    if endpoint is None:
        assert arrival is NOWHERE
    else:
        alone = known_arrivals(endpoint, arrival.endpoint.route).of(scope)
        assert (arrival.endpoint.label, arrival.marks) == (alone.endpoint.label, alone.marks)


def in_any_case(path: str, view: Any) -> Route:
    route = Route(path, view)
    route.path_regex = re.compile(route.path_regex.pattern, re.IGNORECASE)
    return route


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
    "in any case": [Route("/b", plain), in_any_case("/a", marked), Route("/{name}", plain)],
    **{
        f"a convertor with a pattern: {name}": [
            Route("/{one}/{two}", plain),
            Route(f"/{{x:{name}}}", marked),
            Route("/{name}", plain),
        ]
        for name in PATTERNS
    },
}
SCOPES = [
    make_scope(method, path, headers=[("host", host)])
    for method in ("GET", "POST", "HEAD", "DELETE")
    for path in (
        "/",
        "/a",
        "/b",
        "/c",
        "/bad",
        "/aa",
        "/ab",
        "/A",
        "/P",
        "/in",
        "/in/",
        "/in/a",
        "/in/b",
        "/in/c",
        "/in/c/d",
    )
    for host in ("shop.example.org", "example.org")
]


@pytest.mark.parametrize("routes", ROUTES.values(), ids=ROUTES)
def test_the_routes_are_found_as_one_by_one_and_only_marks_make_a_difference(routes: list[Any]) -> None:
    router = Router(routes)
    known, middleware = Routes(router), RateLimitMiddleware(router)
    for scope in SCOPES:
        before = dict(scope)
        check(known, routes, scope)
        _, arrival = middleware.arrive(scope)
        assert scope == before
        found, _ = known.find(scope)
        assert arrival.marks == found.marks
        assert not found.marks or arrival.endpoint.label == found.endpoint.label


class Loose(Route):
    """A route with a `matches` of its own."""

    def matches(self, scope: Any) -> Any:
        if scope["type"] == "http" and scope["path"].lower().endswith(self.path):
            return Match.FULL, {"endpoint": self.endpoint, "path_params": {"loose": "yes"}}
        return Match.NONE, {}


NUMBERS = count()
SEGMENTS = ["a", "b", "ac", "1", "(a)", "a.b", r"\1", "é", "{}"]
SEGMENTS += [f"{{:{convertor}}}" for convertor in ("int", "float", "uuid", "path", *PATTERNS)]
SEGMENTS += ["x{:int}", "{:picky}.{}"]
PIECES = ["a", "b", "c", "ac", "aa", "ab", "1", "1.5", "xx", "x7", "(a)", "a.b", r"\1", "é", "A", "bad", "", "(P<c>"]
PIECES += ["6ba7b810-9dad-11d1-80b4-00c04fd430c8", "b\n"]
METHODS = ["GET", "POST", "HEAD"]


def _view() -> Any:
    async def view(request) -> None: ...

    view.__qualname__ = f"view{next(NUMBERS)}"
    return view


def _is_valid(path: str) -> bool:
    try:
        compile_path(path)
    except re.error:  # a reference to a group that only the first parameter has
        return False
    return True


@st.composite
def paths(draw: Any) -> str:
    """The path of a route, each parameter with a name of its own."""
    pieces = draw(st.lists(st.sampled_from(SEGMENTS), max_size=3))
    numbers = count()
    return "/" + re.sub(r"\{", lambda found: f"{{p{next(numbers)}", "/".join(pieces))


PATHS = paths().filter(_is_valid)


@st.composite
def tables(draw: Any, depth: int = 1) -> list[Any]:
    """Routes of every kind."""
    return [route for _ in range(draw(st.integers(0, 4))) for route in draw(_routes(depth))]


@st.composite
def _routes(draw: Any, depth: int) -> list[Any]:
    """One route, or those of an included router."""
    kinds = ["route", "class", "socket", "api", "api socket", "loose", "patched", "any case", "prefix", "application"]
    kind = draw(st.sampled_from(kinds + ["mount", "host", "included"] * (depth > 0)))
    path = draw(PATHS)
    methods = draw(st.sampled_from([None, ["GET"], ["POST"]]))
    if kind == "socket":
        return [WebSocketRoute(path, _view())]
    if kind == "api":
        return [APIRoute(path, _view(), methods=methods, response_model=None)]
    if kind == "api socket":
        return [APIWebSocketRoute(path, _view())]
    if kind == "application":
        return [Mount(path.rstrip("/"), app=PlainTextResponse("in"))]
    if kind in {"mount", "host", "included"}:
        below = draw(tables(depth - 1))
        if kind == "mount":
            return [Mount("/a", routes=below)]
        if kind == "host":
            return [Host("{sub}.example.org", Router(below))]
        outer = APIRouter()
        outer.include_router(APIRouter(routes=below), prefix="/a")
        return outer.routes
    view = type(f"View{next(NUMBERS)}", (Page,), {}) if kind == "class" else _view()
    if kind == "any case":
        return [in_any_case(path, view)]
    route = (Loose if kind == "loose" else Route)(path, view, methods=methods)
    if kind == "patched":
        route.matches = Loose.matches.__get__(route)  # type: ignore[method-assign]
    if kind == "prefix":
        route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$"))
    return [route]


SOME_SCOPES = st.builds(
    lambda kind, method, pieces, host, root: make_scope(
        method, "/" + "/".join(pieces), type=kind, headers=[("host", host)], root_path=root
    ),
    st.sampled_from(["http", "http", "websocket"]),
    st.sampled_from(METHODS),
    st.lists(st.sampled_from(PIECES), max_size=3),
    st.sampled_from(["shop.example.org", "example.org"]),
    st.sampled_from(["/app", "/app/a"]),
)


@examples(300)
@given(st.data(), tables())
def test_any_table_is_searched_as_one_by_one_also_when_it_changes(data: st.DataObject, routes: list[Any]) -> None:
    router = APIRouter(routes=routes)
    known = Routes(router)
    for change in data.draw(st.lists(st.sampled_from(["append", "insert", "reverse", "sort", "drop", "replace"]))):
        for scope in data.draw(st.lists(SOME_SCOPES, min_size=1, max_size=8)):
            check(known, router.routes, scope)
        if change == "append":
            router.routes += data.draw(tables())
        elif change == "insert":
            router.routes[:0] = data.draw(tables())
        elif change == "reverse":
            router.routes.reverse()
        elif change == "sort":
            router.routes.sort(key=lambda route: getattr(route, "path", ""))
        elif change == "drop":
            del router.routes[::2]
        else:
            router.routes = data.draw(tables())
    for scope in data.draw(st.lists(SOME_SCOPES, max_size=8)):
        check(known, router.routes, scope)


class Counting:
    """The pattern of a route, which counts how often the route is asked."""

    def __init__(self, route: Any, asked: list[Any]) -> None:
        self._pattern, self._asked = route.path_regex, asked
        route.path_regex = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pattern, name)

    def match(self, path: str) -> Any:
        self._asked.append(path)
        return self._pattern.match(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Route, APIRoute])
@pytest.mark.parametrize(
    ("path", "expect"), [("/a/0", 1), ("/a/199", 1), ("/a/200", 0), ("/199", 0)], ids=["first", "last", "no", "plain"]
)
def test_of_many_routes_only_the_one_that_matches_is_asked(kind: Any, path: str, expect: int) -> None:
    """And none, if its path has no parameters."""
    asked: list[Any] = []
    paths = [path for number in range(200) for path in (f"/{{x}}/{number}", f"/{number}")]
    routes = [kind(each, _view()) for each in paths]
    for route in routes:
        Counting(route, asked)
    arrival, _ = Routes(Router(routes)).find(make_scope(path=path))
    assert (arrival is NOWHERE, len(asked)) == (path == "/a/200", expect)


def test_the_methods_of_a_route_may_change() -> None:
    route = Route("/a", marked)
    known = Routes(Router([route]))
    assert known.find(make_scope("POST", "/a"))[0] is NOWHERE
    route.methods = {"POST"}
    assert known.find(make_scope("POST", "/a"))[0].endpoint.label.endswith("marked")


def test_routes_that_the_lifespan_sorts_keep_their_limits() -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.router.routes.sort(key=lambda route: "{" in getattr(route, "path", ""))
        yield

    app = Starlette(routes=[Route("/{name}", free), Route("/b", plain)], lifespan=lifespan)
    app.add_middleware(RateLimitMiddleware, rules=[Rule(name="b", quota="1/minute", route="/b")])
    with TestClient(app) as client:
        assert [client.get("/b").status_code for _ in range(2)] == [200, 429]
