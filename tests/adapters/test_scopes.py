"""Legal but unusual ASGI scopes and messages, through every ASGI adapter: optional keys may be absent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute

from sluicegate import ManualClock, Rule
from sluicegate.asgi import AsgiCaller, RateLimitMiddleware
from sluicegate.fastapi import RateLimitMiddleware as FastAPIMiddleware
from sluicegate.starlette import RateLimitMiddleware as StarletteMiddleware
from sluicegate.starlette import limit
from sluicegate.testing.charges import wrong
from tests.adapters.asgi_client import AsgiClient

HTTP: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": "/"}
SOCKET: dict[str, Any] = {"type": "websocket", "asgi": {"version": "3.0"}, "path": "/socket"}
KEYS: list[Any] = ["ip", "user", "header:X-Key", "path:name", ("ip", "header:X-Key"), lambda request: "alice"]
NAMES = ["ip", "user", "header", "path", "both", "function"]


async def bare(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})


class Page(HTTPEndpoint):
    @limit("9/minute")
    async def get(self, request: Request) -> Response:
        return PlainTextResponse("page")


async def accept(websocket: WebSocket) -> None:
    await websocket.accept()


def of_asgi(**options: Any) -> Any:
    return RateLimitMiddleware(bare, **options)


def of_starlette(**options: Any) -> Any:
    app = Starlette(routes=[Route("/", Page), WebSocketRoute("/socket", accept)])
    app.add_middleware(StarletteMiddleware, **options)
    return app


def around_starlette(**options: Any) -> Any:
    return StarletteMiddleware(Starlette(routes=[Mount("/", of_starlette().router)]), **options)


def of_fastapi(**options: Any) -> Any:
    app = FastAPI()
    app.router.routes.extend([Route("/", Page), WebSocketRoute("/socket", accept)])  # its own routes read more keys
    app.add_middleware(FastAPIMiddleware, **options)
    return app


APPS = [of_asgi, of_starlette, around_starlette, of_fastapi]


@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("key", KEYS, ids=NAMES)
def test_a_scope_without_optional_keys_is_served_and_limited(make: Any, key: Any) -> None:
    client = AsgiClient(make(default_limits="1/minute", key=key, clock=ManualClock()))
    assert client.serve({**HTTP}, raising=True).answer.status == 200
    refused = client.serve({**HTTP}, raising=True).answer
    assert (refused.status, refused.one("retry-after")) == (429, "60")


@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("key", KEYS, ids=NAMES)
def test_optional_keys_may_be_none(make: Any, key: Any) -> None:
    client = AsgiClient(make(default_limits="1/minute", key=key, clock=ManualClock()))
    for name in ("client", "extensions", "headers", "root_path", "state", "user"):
        client.serve({**HTTP, name: None}, raising=True)
    assert client.serve({**HTTP}, raising=True).answer.status == 429


@pytest.mark.parametrize("make", APPS)
def test_a_handshake_without_optional_keys_is_served_and_limited(make: Any) -> None:
    client = AsgiClient(make(default_limits="1/minute", clock=ManualClock()))
    assert client.serve({**SOCKET}, raising=True).handshake.accepted
    assert client.serve({**SOCKET}, raising=True).handshake.code == 1008


@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("options", [{"deny": ["192.0.2.0/24"]}, {"trusted_proxies": 1}, {"headers": None}], ids=str)
def test_every_option_works_without_optional_keys(make: Any, options: Any) -> None:
    rules = [Rule(name="one", quota="1/minute", path="/*", methods=["GET"])]
    client = AsgiClient(make(rules=rules, clock=ManualClock(), **options))
    assert [client.serve({**HTTP}, raising=True).answer.status for _ in range(2)] == [200, 429]
    assert client.serve({**HTTP, "method": "OPTIONS"}, raising=True).answer.status in (200, 405)


PAIRS = [(b"x-key", b"alice"), (b"x-key", b"bob")]
LINES: dict[str, Any] = {
    "a list of tuples": lambda: PAIRS,
    "a list of lists": lambda: [list(pair) for pair in PAIRS],
    "a tuple": lambda: tuple(PAIRS),
    "a generator": lambda: (pair for pair in PAIRS),
    "an iterator": lambda: iter(PAIRS),
    "a view": lambda: dict(enumerate(PAIRS)).values(),
}


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_headers_of_any_iterable_are_read_repeatedly_and_reach_the_application(lines: Any) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append([tuple(pair) for pair in scope["headers"]])
        await bare(scope, receive, send)

    scope = {**HTTP, "headers": lines()}
    assert [AsgiCaller(scope).header("X-Key") for _ in range(2)] == [["alice", "bob"]] * 2
    client = AsgiClient(RateLimitMiddleware(app, default_limits="1/minute", key="header:X-Key", clock=ManualClock()))
    assert [client.serve({**HTTP, "headers": lines()}).answer.status for _ in range(2)] == [200, 429]
    assert seen == [PAIRS]


@pytest.mark.parametrize("make", [of_starlette, around_starlette, of_fastapi])
@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_functions_of_a_request_read_headers_of_any_iterable(make: Any, lines: Any) -> None:
    client = AsgiClient(
        make(default_limits="1/minute", key=lambda request: request.headers.get("x-key"), clock=ManualClock())
    )
    assert [client.serve({**HTTP, "headers": lines()}).answer.status for _ in range(2)] == [200, 429]


def test_a_header_name_in_capitals_is_ignored() -> None:
    """Servers send names in lower case. A name in capitals is ignored, and the address is the key."""
    client = AsgiClient(RateLimitMiddleware(bare, default_limits="1/minute", key="header:X-Key", clock=ManualClock()))
    keys = [b"alice", b"bob"]
    assert [client.serve({**HTTP, "headers": [(b"X-Key", key)]}).answer.status for key in keys] == [200, 429]


@pytest.mark.parametrize(
    ("rule", "expect"), [({}, '"one";r=0;t=60'), ({"charge_when": wrong}, '"one";r=1')], ids=["plain", "refunded"]
)
def test_the_headers_of_a_response_may_be_a_generator(rule: Any, expect: str) -> None:
    def lines() -> Iterator[tuple[bytes, bytes]]:
        yield b"x-own", b"1"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": lines()})
        await send({"type": "http.response.body"})

    limited = RateLimitMiddleware(app, rules=[Rule(name="one", quota="1/minute", **rule)], clock=ManualClock())
    answer = AsgiClient(limited).get("/")
    assert (answer.one("x-own"), answer.one("ratelimit")) == ("1", expect)
