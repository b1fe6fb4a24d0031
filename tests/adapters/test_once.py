"""`once_per` in every adapter and store: retries with one key are charged once, and nothing else is free."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from django.http import HttpResponse
from django.urls import re_path
from fastapi import FastAPI
from flask import Flask, request
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from sluicegate import ManualClock, asgi, fastapi, flask, starlette, wsgi
from sluicegate.errors import RuleError
from sluicegate.rules.ban import Ban
from sluicegate.rules.rule import Rule
from sluicegate.rules.terms import REQUESTS
from sluicegate.stores.memory import MemoryStore
from tests.adapters.asgi_client import AsgiClient, make_scope
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient
from tests.cluster import Cluster
from tests.servers import Server, ask

KEY = "Idempotency-Key"
ONCE = f"header:{KEY}"
PATHS = ("/pay", "/other")
Opened = Iterator[Any]


async def ok(_: object) -> PlainTextResponse:
    return PlainTextResponse("ok")


@contextmanager
def in_starlette(**options: Any) -> Opened:
    app = Starlette(routes=[Route(path, ok, methods=["GET", "POST"]) for path in PATHS])
    app.add_middleware(starlette.RateLimitMiddleware, **options)
    yield AsgiClient(app)


@contextmanager
def in_fastapi(**options: Any) -> Opened:
    app = FastAPI()
    app.add_middleware(fastapi.RateLimitMiddleware, **options)
    for path in PATHS:
        app.add_api_route(path, lambda: "ok", methods=["GET", "POST"])
    yield AsgiClient(app)


@contextmanager
def in_flask(**options: Any) -> Opened:
    app = Flask("app")
    flask.RateLimiter(app, **options)
    for path in PATHS:
        app.add_url_rule(path, path, lambda: "ok", methods=["GET", "POST"])
    yield WsgiClient(app)


def in_django(*, is_asgi: bool) -> Any:
    @contextmanager
    def project(**options: Any) -> Opened:
        with serving(asgi=is_asgi, urls=[re_path("", lambda _: HttpResponse("ok"))], **options) as site:
            yield site

    return project


@contextmanager
def in_asgi(**options: Any) -> Opened:
    yield AsgiClient(asgi.RateLimitMiddleware(PlainTextResponse("ok"), **options))


@contextmanager
def in_wsgi(**options: Any) -> Opened:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"ok"]

    yield WsgiClient(wsgi.RateLimitMiddleware(app, **options))


ADAPTERS = {
    "starlette": in_starlette,
    "fastapi": in_fastapi,
    "flask": in_flask,
    "django wsgi": in_django(is_asgi=False),
    "django asgi": in_django(is_asgi=True),
    "asgi": in_asgi,
    "wsgi": in_wsgi,
}


@pytest.fixture(params=["memory", "valkey", "cluster"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    server: Server | Cluster = request.getfixturevalue(request.param)
    server.flush()
    return server.url


def sent(client: Any, key: str, who: str = "alice", method: str = "POST", path: str = "/pay", body: str = "x") -> int:
    """The status of a request with a key; "-" is none."""
    headers = [("X-User", who), *([] if key == "-" else [(KEY, key)])]
    if isinstance(client, AsgiClient) or getattr(client, "asgi", False):
        headers.append(("Content-Length", str(len(body))))
    status: int = client.request(method, path, headers=headers, body=body.encode()).status
    return status


Story = list[tuple[tuple[str, ...], int]]
STORIES: dict[str, Story] = {  # the limit is 2 for each identity
    "retries are free": [*[(("a",), 200)] * 9, (("b",), 200), (("c",), 429)],
    "a retry passes though the limit is reached": [(("a",), 200), (("b",), 200), (("c",), 429), (("a",), 200)],
    "a refused request is not remembered": [(("a",), 200), (("b",), 200), *[(("c",), 429)] * 3],
    "no key": [(("-",), 200), (("-",), 200), (("-",), 429)],
    "another identity": [(("a",), 200), (("b",), 200), (("c", "bob"), 200), (("a", "bob"), 200), (("b", "bob"), 429)],
    "another method": [(("a",), 200), (("a", "alice", "GET"), 200), (("a", "alice", "GET"), 200), (("b",), 429)],
    "another path": [(("a",), 200), (("a", "alice", "POST", "/other"), 200), (("b",), 429)],
    "another body": [(("a",), 200), (("a", "alice", "POST", "/pay", "xy"), 200), (("b",), 429), (("a",), 200)],
}
RULE: dict[str, Any] = {"name": "pay", "quota": "2/minute", "key": "header:X-User", "once_per": ONCE}


@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=list(ADAPTERS))
def test_stories(adapter: Any, story: Story, store: str) -> None:
    with adapter(store=store, rules=[RULE]) as client:
        assert [sent(client, *asked) for asked, _ in story] == [expected for _, expected in story]


OTHERS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[int]]] = {
    # rules, changes of RULE; the statuses of three retries, of a request with another key, and of one more retry
    "another rule counts each": ([{"name": "all", "quota": "3/minute"}], {}, [200, 200, 200, 429, 429]),
    "its refusal leaves no record": ([{"name": "all", "quota": "1/day", "path": "/*"}], {}, [200, 429, 429, 429, 429]),
    "every algorithm": ([], {"algorithm": "gcra"}, [200, 200, 200, 200, 200]),
    "two quotas": ([], {"quota": "1/minute; 5/day"}, [200, 200, 200, 429, 200]),
    "a cost": ([], {"cost": 2}, [200, 200, 200, 429, 200]),
    "in shadow": ([], {"mode": "shadow"}, [200, 200, 200, 200, 200]),
    "a second rule with a record": ([{**RULE, "name": "b", "quota": "1/hour"}], {}, [200, 200, 200, 429, 200]),
}


@pytest.mark.parametrize(("rules", "changes", "expected"), OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize("adapter", [in_starlette, in_flask])
def test_beside_other_rules(
    adapter: Any, rules: list[Any], changes: dict[str, Any], expected: list[int], store: str
) -> None:
    with adapter(store=store, rules=[*rules, {**RULE, **changes}]) as client:
        assert [sent(client, key) for key in "aaaba"] == expected


@pytest.mark.parametrize("adapter", [in_starlette, in_flask])
def test_a_key_is_remembered_as_long_as_its_charge_counts(adapter: Any) -> None:
    clock = ManualClock()
    with adapter(clock=clock, rules=[{**RULE, "quota": "1/minute"}]) as client:
        assert [sent(client, "a"), sent(client, "a"), sent(client, "b")] == [200, 200, 429]
        clock.advance(60)
        assert [sent(client, "a"), sent(client, "a"), sent(client, "b")] == [200, 200, 429]


@pytest.mark.parametrize("adapter", [in_starlette, in_flask])
def test_a_key_is_good_for_a_number_of_requests(adapter: Any, store: str) -> None:
    with adapter(store=store, rules=[RULE]) as client:
        assert [sent(client, "a") for _ in range(REQUESTS)] == [200] * REQUESTS
        assert [sent(client, "a") for _ in range(2)] == [200, 429]


def headers_of(fields: dict[str, str]) -> list[tuple[str, str]]:
    return [("X-User", "alice"), (KEY, "a"), *fields.items()]


@pytest.mark.parametrize(
    ("first", "second", "is_free"),
    [
        ({}, {}, False),  # a body of any length
        ({"Transfer-Encoding": "chunked"}, {"Transfer-Encoding": "chunked"}, False),
        ({"Content-Length": "1"}, {"Content-Length": "1"}, True),
        ({"Content-Length": "1"}, {"Content-Length": "1", "Content-Type": "text/plain"}, False),
        ({"Content-Length": "1", "Content-Digest": "a"}, {"Content-Length": "1", "Content-Digest": "b"}, False),
    ],
)
def test_bodies(first: dict[str, str], second: dict[str, str], *, is_free: bool) -> None:
    with in_starlette(rules=[{**RULE, "quota": "1/minute"}]) as client:
        statuses = [client.request("POST", "/pay", headers=headers_of(each)).status for each in (first, second)]
        assert statuses == [200, 200 if is_free else 429]


@pytest.mark.parametrize(("second", "expected"), [("/pay?a=1", 200), ("/pay?a=2", 429)])
@pytest.mark.parametrize("adapter", [in_starlette, in_flask, in_asgi, in_wsgi])
def test_queries(adapter: Any, second: str, expected: int) -> None:
    with adapter(rules=[{**RULE, "quota": "1/minute"}]) as client:
        assert [sent(client, "a", "alice", "GET", path) for path in ("/pay?a=1", second)] == [200, expected]


def test_messages_of_a_websocket_are_no_retries() -> None:
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        for _ in range(2):
            await starlette.charge(websocket, "1/minute", once_per=ONCE)
        raise NotImplementedError

    app = Starlette(routes=[WebSocketRoute("/pay", echo)])
    app.add_middleware(starlette.RateLimitMiddleware)
    assert AsgiClient(app).connect("/pay", headers=[(KEY, "a")]).code == 1008


def test_a_body_that_was_read_is_a_part_of_the_request() -> None:
    app = Flask("app")
    app.before_request(lambda: request.get_data() and None)
    flask.RateLimiter(app, rules=[{**RULE, "quota": "1/minute"}])
    app.add_url_rule("/pay", "pay", lambda: "ok", methods=["POST"])
    client = WsgiClient(app)
    assert [sent(client, "a", body=body) for body in "xxy"] == [200, 200, 429]


def test_64_retries_at_once_are_charged_once(store: str) -> None:
    app = asgi.RateLimitMiddleware(PlainTextResponse("ok"), store=store, rules=[{**RULE, "quota": "70/minute"}])
    fields = [("X-User", "alice"), (KEY, "a"), ("Content-Length", "1")]
    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    async def receive() -> Any:
        await anyio.sleep_forever()

    async def one(key: str) -> None:
        scope = make_scope("POST", "/pay", headers=[*fields[:1], (KEY, key), *fields[2:]])
        await app(scope, receive, send)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(64):
                tasks.start_soon(one, "a")
        for number in range(70):
            await one(f"b{number}")

    anyio.run(main)
    assert statuses == [200] * (64 + 69) + [429]


def test_64_retries_in_threads_are_charged_once(store: str) -> None:
    with in_wsgi(store=store, rules=[{**RULE, "quota": "70/minute"}]) as client:
        with ThreadPoolExecutor(16) as pool:
            assert [*pool.map(lambda _: sent(client, "a"), range(64))] == [200] * 64
        assert [sent(client, f"b{number}") for number in range(70)] == [200] * 69 + [429]


def test_64_retries_when_one_is_left(store: str) -> None:
    """The first takes the last unit. The others are refused by the rule, and pass as retries: on a cluster only those
    that come after the record, which is in another slot.
    """
    if "cluster" in store:
        pytest.skip("a retry may come between two slots")
    with in_wsgi(store=store, rules=[{**RULE, "quota": "1/minute"}]) as client:
        with ThreadPoolExecutor(16) as pool:
            assert [*pool.map(lambda _: sent(client, "a"), range(64))] == [200] * 64
        assert sent(client, "b") == 429


def test_a_full_memory_remembers_no_key_and_gives_nothing_away() -> None:
    """Each rule has one unit. Two clients are refused, so the table is full: all others share a budget."""
    store = MemoryStore(max_keys=2, clock=ManualClock())
    with in_flask(store=store, rules=[{**RULE, "quota": "1/minute"}]) as client:
        assert [sent(client, "-", who) for who in ("alice", "bob") * 2] == [200, 200, 429, 429]
        assert [sent(client, *asked) for asked in (("a", "carol"), ("a", "carol"), ("b", "dave"))] == [200, 429, 429]


def test_nothing_is_stored_in_clear(valkey: Server) -> None:
    valkey.flush()
    with in_flask(store=valkey.url, rules=[RULE]) as client:
        sent(client, "private-key")
    found = " ".join(ask(valkey, "KEYS", "*:pay*"))
    assert found.count("sg:{") == 2
    assert "private" not in found
    assert "alice" not in found


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"once_per": "Idempotency-Key"}, "not the name of a header"),
        ({"once_per": "header:"}, "not the name of a header"),
        ({"once_per": 5}, "not the name of a header"),
        ({"once_per": "ip"}, "not the name of a header"),
        ({"once_per": ONCE, "count_denied": True}, "how each request ends"),
        ({"once_per": ONCE, "ban": Ban(after=3, within=60, duration=60)}, "how each request ends"),
        ({"once_per": ONCE, "charge_when": bool}, "how each request ends"),
        ({"once_per": ONCE, "refund_when": bool}, "how each request ends"),
        ({"once_per": ONCE, "cost": 0}, "charges nothing"),
        ({"once_per": ONCE, "quota": "2 at once"}, "no meaning for a Concurrency"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        Rule(**{"name": "a", "quota": "1/minute", **options})


@pytest.mark.parametrize("adapter", [in_starlette, in_flask])
def test_a_retry_with_another_cost_is_charged(adapter: Any, store: str) -> None:
    costs = iter([1, 1, 2, 2, 1])
    rule = RULE | {"quota": "3/minute", "cost": lambda _: next(costs)}
    with adapter(store=store, rules=[rule]) as client:
        assert [sent(client, key) for key in "aaaab"] == [200, 200, 200, 200, 429]


def test_a_view_that_charges_twice_charges_no_retry(store: str) -> None:
    app = Flask("app")
    flask.RateLimiter(app, store=store)

    @app.post("/pay")
    def pay() -> str:
        for _ in range(2):
            flask.charge(request, "2/minute", key="header:X-User", once_per=ONCE)
        return "ok"

    client = WsgiClient(app)
    assert [sent(client, key) for key in "aaaaabac"] == [200] * 7 + [429]


def test_a_charge_inside_a_view() -> None:
    app = Flask("app")
    flask.RateLimiter(app)

    @app.post("/pay")
    def pay() -> str:
        flask.charge(request, "1/minute", key="header:X-User", once_per=ONCE)
        return "ok"

    client = WsgiClient(app)
    assert [sent(client, key) for key in "aaab"] == [200, 200, 200, 429]


def test_a_request_that_its_view_refuses_is_not_remembered() -> None:
    app = Flask("app")
    flask.RateLimiter(app, rules=[RULE])

    @app.post("/pay")
    def pay() -> str:
        flask.charge(request, "1/minute", key="header:X-User")
        return "ok"

    client = WsgiClient(app)
    assert [sent(client, key) for key in "abbcc"] == [200, 429, 429, 429, 429]
    assert [sent(client, key, path="/other") for key in "de"] == [404, 429]
