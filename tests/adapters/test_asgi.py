"""The plain ASGI middleware: the exam with rules for paths, and the ASGI items of the checklist (C and ST)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluicegate import ManualClock, Rule
from sluicegate.asgi import AsgiCaller, RateLimitMiddleware
from sluicegate.errors import SettingsError
from sluicegate.identity import identity_text
from sluicegate.testing import AsyncAdapter, BrokenStore
from sluicegate.testing.client import AdapterClient
from tests.adapters.asgi_client import MOUNT, AsgiClient, make_scope
from tests.adapters.plain_exam import RULES, PlainExam, respond
from tests.adapters.wsgi_client import Recorder, addresses, check_fields

Send = Callable[[Any], Any]


def make_app(calls: list[str]) -> Any:
    """The exam's application in plain ASGI."""

    async def app(scope: Any, receive: Any, send: Send) -> None:
        path = scope["path"].removeprefix(MOUNT)
        status, chunks, headers = respond(scope["method"], path, calls)
        lines = [(name.lower().encode(), value.encode()) for name, value in (("Content-Type", "text/plain"), *headers)]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        for chunk in chunks:
            if path == "/slow":
                calls.append(chunk.decode())
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


class TestASGI(PlainExam):
    is_async = True
    backend = "asyncio"

    def client(self, **options: Any) -> AdapterClient:
        calls: list[str] = []
        rules = [*RULES, *options.pop("rules", ())]
        return AsgiClient(RateLimitMiddleware(make_app(calls), rules=rules, **options), calls, backend=self.backend)


class TestASGIOnTrio(TestASGI):
    backend = "trio"


async def hello(scope: Any, receive: Any, send: Send) -> None:
    """An application that handles HTTP, accepts sockets, and has no lifespan."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept", "headers": [(b"x-own", b"1")]})
        await send({"type": "websocket.send", "text": "hello"})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": scope.get("answer", [])})
        await send({"type": "http.response.body", "body": b"hello"})


def limited(app: Any = hello, **options: Any) -> AsgiClient:
    return AsgiClient(RateLimitMiddleware(app, **{"default_limits": ["1/minute"], "clock": ManualClock(), **options}))


# ---- what ASGI requires ------------------------------------------------------------------------------------------


def test_st01_other_scopes_pass_unchanged() -> None:
    seen: list[Any] = []

    async def app(*call: Any) -> None:
        seen.append(call)

    scope = {"type": "something.new"}
    server = limited(app).serve(scope)
    assert seen[0][0] is scope
    assert scope == {"type": "something.new"}
    assert seen[0][1:] == (server.receive, server.send)


def test_st01_lifespan_passes_with_its_state_and_its_errors() -> None:
    async def app(scope: Any, receive: Any, send: Send) -> None:
        scope["state"]["pool"] = 1
        assert (await receive())["type"] == "lifespan.startup"
        await send({"type": "lifespan.startup.failed", "message": "no pool"})
        raise RuntimeError("no pool")

    client = limited(app)
    with pytest.raises(RuntimeError, match="no pool"):
        client.live("startup")


def test_c16_the_gate_is_closed_with_the_application_and_a_given_store_is_not() -> None:
    async def app(scope: Any, receive: Any, send: Send) -> None:
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    given = Recorder()
    client = limited(app, store=AsyncAdapter(given), clock=None)
    assert [each["type"] for each in client.live("startup", "shutdown")] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert given.closed == 0
    owned = limited(app)
    closed: list[bool] = []

    async def close() -> None:
        closed.append(True)

    owned.app.gate.close = close  # type: ignore[attr-defined]
    owned.live("startup", "shutdown")
    assert closed == [True]


def test_st02_a_refusal_does_not_read_the_body() -> None:
    client = limited()
    scope = make_scope("POST", "/")
    assert client.serve(scope, b"x" * 9).received == 0
    server = client.serve(make_scope("POST", "/"), b"x" * 9)
    assert (server.answer.status, server.received) == (429, 0)


def test_st15_only_our_state_is_added_to_the_scope() -> None:
    scope = make_scope()
    before = {**scope, "state": {}}
    limited().serve(scope)
    assert list(scope["state"]) == ["sluicegate"]
    assert {**scope, "state": {}} == before
    stateless = make_scope(state=...)
    assert limited().serve(stateless).answer.status == 200
    assert list(stateless["state"]) == ["sluicegate"]


def test_the_messages_of_the_application_are_not_changed_in_place() -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1"), (b"x-own", b"2")]}

    async def app(scope: Any, receive: Any, send: Send) -> None:
        await send(start)
        await send({"type": "http.response.body"})

    answer = limited(app).get("/")
    assert answer.one("ratelimit") == '"default";r=0;t=60'
    assert start["headers"] == [(b"x-own", b"1"), (b"x-own", b"2")]
    assert answer.headers[:2] == [("x-own", "1"), ("x-own", "2")]


@pytest.mark.parametrize(
    ("own", "field", "expect"),
    [
        ([[b"ratelimit", b'"app";r=5']], "ratelimit", '"app";r=5, "default";r=0;t=60'),
        ([(b"ratelimit", b'"default";r=5')], "ratelimit", '"default";r=5, "default-2";r=0;t=60'),
        ([(b"retry-after", b"9")], "retry-after", "9"),
    ],
    ids=["another's", "same name", "retry-after"],
)
def test_c06_fields_of_the_application_are_kept(own: Any, field: str, expect: str) -> None:
    answer = limited().get("/", answer=own)
    assert answer.one(field) == expect


def test_c18_two_limiters_make_one_list_of_unique_names() -> None:
    inner = RateLimitMiddleware(hello, default_limits=["5/minute"], clock=ManualClock())
    client = limited(inner, default_limits=["2/minute"])
    answer = client.get("/")
    assert answer.one("ratelimit-policy") == '"default";q=5;w=60, "default-2";q=2;w=60'
    check_fields(answer)
    assert client.statuses("/", "/") == [200, 429]


# ---- WebSockets --------------------------------------------------------------------------------------------------


def test_st05_a_refused_handshake_gets_a_429_if_the_server_can_send_it() -> None:
    client = limited()
    assert client.connect("/") == (True, None, None, ["hello"])
    refused = client.connect("/").answer
    assert refused is not None
    assert (refused.status, refused.one("retry-after"), refused.one("ratelimit")) == (429, "60", '"default";r=0;t=60')


def test_st05_a_refused_handshake_is_closed_if_the_server_cannot_send_a_429() -> None:
    client = limited()
    assert client.connect("/", denial=False).accepted
    assert client.connect("/", denial=False) == (False, None, 1008, ())
    assert client.serve(make_scope(type="websocket", extensions={})).received == 1  # the handshake was received first


def test_st05_a_connection_is_counted_once_and_an_allowed_one_passes_unchanged() -> None:
    recorder = Recorder()
    client = limited(store=AsyncAdapter(recorder), clock=None)
    scope = make_scope(type="websocket", extensions={})
    server = client.serve(scope)
    assert server.messages[0] == {"type": "websocket.accept", "headers": [(b"x-own", b"1")]}
    assert len(recorder.plans) == 1


# ---- the identity ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("row", addresses())
def test_c07_the_table_of_addresses(row: dict[str, Any]) -> None:
    recorder = Recorder()
    options = {option: row[option] for option in ("trusted_proxies", "trusted_header")}
    client = limited(store=AsyncAdapter(recorder), clock=None, key="ip", **options)
    client.get("/", peer=row["peer"], headers=[(row["trusted_header"], line) for line in row["lines"]])
    assert recorder.identity == identity_text(("ip", row["expect"]))


def test_c07_an_underscore_makes_another_header() -> None:
    recorder = Recorder()
    client = limited(store=AsyncAdapter(recorder), clock=None, key="ip", trusted_proxies=1)
    client.get("/", headers=[("x_forwarded_for", "203.0.113.7")])
    assert recorder.identity == identity_text(("ip", "198.51.100.9"))


@pytest.mark.parametrize(
    ("path", "root", "expect"),
    [
        ("/app/a", "/app", "/a"),
        ("/a", "", "/a"),
        ("/apple", "/app", "/apple"),
        ("/a", "/app", "/a"),
        ("/app/app/a", "/app", "/app/a"),
    ],
)
def test_st11_the_path_is_the_one_below_the_prefix(path: str, root: str, expect: str) -> None:
    assert AsgiCaller({"type": "http", "path": path, "root_path": root}).path == expect


def test_c23_the_host_header_decides_nothing() -> None:
    rule = Rule(name="a", quota="1/minute", path="/a")
    client = limited(default_limits=(), rules=[rule])
    hosts = [[("Host", host)] for host in ("x/a?", "y", "z")]
    assert [client.get("/a", headers=host).status for host in hosts] == [200, 429, 429]


# ---- trouble -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "statuses"),
    [("deny", [503, 503]), ("allow", [200, 200]), ("local", [200, 429])],
    ids=str,
)
def test_c15_without_the_store_the_failure_policy_decides(policy: str, statuses: list[int]) -> None:
    client = limited(store=AsyncAdapter(BrokenStore()), on_store_failure=policy, clock=None)
    answers = [client.get("/") for _ in range(2)]
    assert [answer.status for answer in answers] == statuses
    assert [answer.one("retry-after") for answer in answers if answer.status == 503] == ["1"] * statuses.count(503)


@pytest.mark.parametrize(("status", "wait"), [(429, "60"), (420, "60"), (200, None), (302, None)])
def test_on_denied_makes_the_response(status: int, wait: str | None) -> None:
    async def shrug(scope: Any, receive: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"cache-control", b"private")]})
        await send({"type": "http.response.body", "body": b"no"})

    async def async_on_denied(scope: Any, decision: Any) -> Any:
        return shrug

    for on_denied in (lambda scope, decision: shrug, async_on_denied):
        client = limited(on_denied=on_denied)
        assert client.get("/").status == 200
        answer = client.get("/")
        assert (answer.status, answer.body) == (status, b"no")
        assert (answer.one("retry-after"), answer.one("cache-control")) == (wait, "no-store")
        assert answer.one("ratelimit") == (None if status == 302 else '"default";r=0;t=60')


def test_c26_wrong_options_are_errors_at_start_up() -> None:
    with pytest.raises(SettingsError, match='did you mean "default_limits"'):
        RateLimitMiddleware(hello, default_limit=["1/minute"])  # type: ignore[call-arg]
