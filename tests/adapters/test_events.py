"""`on_decision` in every framework and mode: exactly one event for each decision, after the answer, with its fields."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
import wsgiref.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from io import BytesIO
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path as url
from fastapi import APIRouter, Depends, FastAPI
from flask import Flask, send_file, session
from gunicorn.http.wsgi import FileWrapper as GunicornFile
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

import sluicegate.asgi
import sluicegate.fastapi
import sluicegate.flask
import sluicegate.starlette
import sluicegate.wsgi
from sluicegate import RateLimitExceeded, Rule
from sluicegate.errors import SettingsError
from sluicegate.identity import digest, encoder
from sluicegate.observe.events import DecisionEvent
from tests.adapters.asgi_client import AsgiClient, make_scope
from tests.adapters.charging import SITES, Sites, ask, plain
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient, make_environ

PEER = encoder("ip")("198.51.100.9")
BARE = ("asgi", "wsgi")  # without routes


@pytest.fixture(params=SITES)
def sites(request: pytest.FixtureRequest) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(request.param, stack)


def shown(event: DecisionEvent) -> list[tuple[str, str]]:
    return [(rule.rule, rule.result) for rule in event.rules]


def charging(*quotas: str) -> Any:
    """A view that charges, and goes on after a refusal."""

    def body() -> Any:
        for quota in quotas:
            try:
                yield ask(quota, name=f"own-{quota.partition('/')[0]}", key="ip")
            except RateLimitExceeded:
                continue
        return "done"

    return body


Row = tuple[Any, dict[str, Any], list[str], list[list[list[tuple[str, str]]]]]
ALLOWED, REFUSED = [("default", "allowed")], [("default", "refused")]
KINDS: dict[str, Row] = {  # the view, the settings, the requests, and for each its events as rules and results
    "allowed": (plain, {"default_limits": ["5/hour"]}, ["/a"], [[ALLOWED]]),
    "refused": (plain, {"default_limits": ["1/hour"]}, ["/a", "/a"], [[ALLOWED], [REFUSED]]),
    "no rule": (plain, {}, ["/a"], [[]]),
    "shadow": (
        plain,
        {"default_limits": ["1/hour"], "mode": "shadow"},
        ["/a", "/a"],
        [[ALLOWED], [[("default", "shadow")]]],
    ),
    "denied": (plain, {"default_limits": ["5/hour"], "deny": ["198.51.100.0/24"]}, ["/a"], [[[]]]),
    "passes": (plain, {"default_limits": ["5/hour"], "allow": ["198.51.100.0/24"]}, ["/a"], [[]]),
    "off": (plain, {"default_limits": ["5/hour"], "enabled": False}, ["/a"], [[]]),
    "two quotas": (
        plain,
        {"default_limits": ["5/minute", "5/hour"]},
        ["/a"],
        [[[("default-minute", "allowed"), ("default-hour", "allowed")]]],
    ),
    "a charge": (
        charging("3/hour"),
        {"default_limits": ["5/hour"]},
        ["/a"],
        [[ALLOWED, [("own-3", "allowed")]]],
    ),
    "a refused charge": (
        charging("1/hour"),
        {"default_limits": ["5/hour"]},
        ["/a", "/a"],
        [[ALLOWED, [("own-1", "allowed")]], [ALLOWED, [("own-1", "refused")]]],
    ),
    "two charges of one name": (
        charging("3/hour", "3/minute"),
        {"default_limits": ["5/hour"]},
        ["/a"],
        [[ALLOWED, [("own-3", "allowed")], [("own-3-2", "allowed")]]],
    ),
    "a charge without other rules": (charging("3/hour"), {}, ["/a"], [[[("own-3", "allowed")]]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_decision_gives_one_event(sites: Sites, kind: str) -> None:
    view, options, paths, expected = KINDS[kind]
    events: list[DecisionEvent] = []
    site = sites(view, on_decision=events.append, application="shop", **options)
    for path, of_request in zip(paths, expected, strict=True):
        events.clear()
        policies = site.get(path).one("ratelimit-policy") or ""
        assert [shown(event) for event in events] == of_request
        assert kind == "shadow" or all(f'"{rule.rule}"' in policies for event in events for rule in event.rules)
        for event in events:
            assert (event.application, event.method) == ("shop", "GET")
            assert event.endpoint.lstrip("/") == ("" if sites.name in BARE else "a")
            assert event.forbidden == (kind == "denied")
            assert (event.store_seconds is None) == event.forbidden
            assert all([rule.identity == digest(PEER) and rule.source == "store" for rule in event.rules])
            assert "198.51.100" not in f"{event!r} {event.asdict()}"


def test_a_path_without_a_route_has_no_endpoint(sites: Sites) -> None:
    if sites.name in BARE:
        pytest.skip("it has no routes")
    events: list[DecisionEvent] = []
    site = sites(plain, on_decision=events.append, default_limits=["1/hour"])
    assert [site.get(path).status for path in ("/nothing", "/nothing")] == [404, 429]
    assert [(event.endpoint, shown(event)) for event in events] == [("", ALLOWED), ("", REFUSED)]


def test_a_guard_and_the_middleware_make_one_decision(sites: Sites) -> None:
    events: list[DecisionEvent] = []
    site = sites(plain, {"/a": "3/hour"}, on_decision=[events.append], default_limits=["5/hour"])
    site.get("/a")
    assert [shown(event) for event in events] == [[("default", "allowed"), ("view", "allowed")]]


def test_identities_are_shown_if_asked_for(sites: Sites) -> None:
    events: list[DecisionEvent] = []
    sites(plain, on_decision=events.append, default_limits=["5/hour"], show_identities=True).get("/a")
    assert events[0].rules[0].identity == PEER


def test_a_handler_that_fails_is_logged_once_and_changes_nothing(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[DecisionEvent] = []

    def fail(event: DecisionEvent) -> None:
        raise ValueError("full")

    async def later() -> None: ...

    handlers = [fail, events.append, lambda event: later()]
    site = sites(plain, on_decision=handlers, default_limits=["2/hour"])
    with caplog.at_level(logging.ERROR, "sluicegate.events"):
        assert site.statuses("/a", "/a", "/a") == [200, 200, 429]
    assert len(events) == 3
    assert [record.name for record in caplog.records] == ["sluicegate.events"] * 2
    assert "fail" in caplog.records[0].getMessage()


def test_a_charge_of_a_handler_has_no_event() -> None:
    events: list[DecisionEvent] = []
    left: list[int] = []

    def handle(event: DecisionEvent) -> None:
        events.append(event)
        assert len(events) < 5, "it is called again"
        left.extend([sluicegate.wsgi.charge(environ, each).outcomes[0].remaining for each in ("9/hour", "8/hour")])

    app = sluicegate.wsgi.RateLimitMiddleware(wsgi_app, on_decision=handle, default_limits=["5/hour"])
    environ = make_environ("/a")
    body: Any = app(environ, lambda *_: lambda _: None)
    body.close()
    assert left == [8, 7]
    assert [shown(event) for event in events] == [ALLOWED]


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


def test_a_view_that_raises_has_its_event(sites: Sites) -> None:
    events: list[DecisionEvent] = []

    def body() -> Any:
        raise RuntimeError("a bug")
        yield

    site = sites(body, on_decision=events.append, default_limits=["5/hour"])
    with suppress(RuntimeError):  # some clients pass it on
        site.get("/a")
    gc.collect()
    assert [shown(event) for event in events] == [ALLOWED]


# After the answer


def asgi_app(*, chunks: int, events: list[Any], ends: Callable[[], None] = lambda: None) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(chunks):
            await send({"type": "http.response.body", "body": b".", "more_body": number < chunks - 1})
        events.append("background")
        ends()

    return sluicegate.asgi.RateLimitMiddleware(
        app, default_limits=["1/hour"], on_decision=lambda event: events.append(event.allowed)
    )


async def exchange(app: Any, events: list[Any], **more: Any) -> None:
    async def send(message: Any) -> None:
        if message["type"].endswith("body"):
            await asyncio.sleep(0)
            events.append("last" if not message.get("more_body") else "part")

    async def receive() -> Any:
        return {"type": "http.request"}

    await app(make_scope(**more), receive, send)


def test_asgi_delivers_when_the_application_has_returned() -> None:
    events: list[Any] = []
    app = asgi_app(chunks=3, events=events)
    asyncio.run(exchange(app, events))
    assert events == ["part", "part", "last", "background", True]
    events.clear()
    asyncio.run(exchange(app, events))
    assert events == ["last", False]


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, KeyboardInterrupt])
def test_asgi_delivers_if_the_application_ends_without_an_answer(error: type[BaseException]) -> None:
    events: list[Any] = []

    def fail() -> None:
        raise error

    with pytest.raises(error):
        asyncio.run(exchange(asgi_app(chunks=0, events=events, ends=fail), events))
    assert events == ["background", True]


def test_a_handler_cannot_swallow_an_interrupt() -> None:
    def interrupt(event: DecisionEvent) -> None:
        raise KeyboardInterrupt

    app = sluicegate.wsgi.RateLimitMiddleware(hello, default_limits=["1/hour"], on_decision=interrupt)
    body: Any = app(make_environ(), lambda *_: lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        body.close()


def hello(environ: Any, start_response: Any) -> Any:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return environ.get("body", [b"hello"])


class _Closed:
    """A body that notes its end."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[bytes]:
        yield b"hello"

    def close(self) -> None:
        self._events.append("closed")


def test_wsgi_delivers_when_the_body_is_closed() -> None:
    events: list[Any] = []
    app = sluicegate.wsgi.RateLimitMiddleware(
        hello, default_limits=["2/hour"], on_decision=lambda event: events.append(event.allowed)
    )
    for given, seen in (([b"hello"], [True]), (_Closed(events), ["closed", True]), ((), [False])):
        events.clear()
        body: Any = app({**make_environ(), "body": given}, lambda *_: lambda _: None)
        assert b"".join(body) in (b"hello", b"") or seen == [False]
        assert not events
        if isinstance(given, list):
            assert len(body) == 1  # a server makes Content-Length of a list of one
        body.close()
        body.close()
        assert [each for each in events if each != "closed"] == [each for each in seen if each != "closed"]
        assert events[: len(seen)] == seen


@pytest.mark.parametrize("path", ["/text", "/file", "/boom", "/unsaved"])
def test_flask_delivers_when_the_response_is_closed(path: str, tmp_path: Any) -> None:
    events: list[bool] = []
    app = Flask(__name__)
    app.add_url_rule("/text", view_func=lambda: "text", endpoint="text")
    (tmp_path / "file").write_text("file")
    app.add_url_rule("/file", view_func=lambda: send_file(tmp_path / "file"), endpoint="file")
    app.add_url_rule("/boom", view_func=lambda: str(1 / 0), endpoint="boom")
    app.secret_key = "secret"
    app.add_url_rule("/unsaved", view_func=lambda: session.update(key=object()) or "text", endpoint="unsaved")
    sluicegate.flask.RateLimiter(app, default_limits=["1/hour"], on_decision=lambda event: events.append(event.allowed))
    body: Any = app(make_environ(path=path), lambda *_: lambda _: None)
    # The server closes only the file, and after an error Flask may send another response than it has shown.
    assert events == ([] if path == "/text" else [True])
    body.close()
    assert events == [True]


def test_flask_names_its_application() -> None:
    names: list[str] = []
    options: list[dict[str, Any]] = [{}, {"application": "shop"}]
    for given in options:
        app = Flask("bakery")
        sluicegate.flask.RateLimiter(
            app, default_limits=["1/hour"], on_decision=lambda event: names.append(event.application), **given
        )
        WsgiClient(app).request("GET", "/")
    assert names == ["bakery", "shop"]


# Starlette's routes and WebSockets


def text(request: Request) -> PlainTextResponse:
    return PlainTextResponse("text")


def routed(routes: Any, events: list[DecisionEvent], **options: Any) -> AsgiClient:
    limiter = Middleware(sluicegate.starlette.RateLimitMiddleware, on_decision=events.append, **options)
    return AsgiClient(Starlette(routes=routes, middleware=[limiter]))


def test_starlette_names_the_whole_template() -> None:
    events: list[DecisionEvent] = []
    shared = Route("/items/{item}", text)
    inner = [Route("/users/{name}", text), shared]
    routes = [Mount("/api/{version}", routes=inner), Route("/items/{item}", text), Mount("/old", routes=[shared])]
    client = routed(routes, events, default_limits=["7/hour"])
    paths = ["/api/1/users/bob", "/api/1/items/5", "/items/5", "/old/items/5", "/api/1/nothing", "/nothing", "/items/5"]
    for path in [*paths, "/api/1/users/bob", "/nothing"]:  # the last two are refused, before the router
        client.get(path)
    templates = [event.endpoint for event in events]
    mounted = ["/api/{version}/users/{name}", "/api/{version}/items/{item}"]
    assert templates[:4] == [*mounted, "/items/{item}", "/old/items/{item}"]
    assert templates[5:] == ["", "/items/{item}", "/api/{version}/users/{name}", ""]
    assert "1" not in templates[4]


def test_a_websocket_has_an_event_for_its_handshake_and_each_charge() -> None:
    events: list[Any] = []

    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        events.append("accepted")
        await sluicegate.starlette.charge(websocket, "5/hour", name="message")
        await websocket.close()

    seen: list[DecisionEvent] = []
    limiter = Middleware(
        sluicegate.starlette.RateLimitMiddleware,
        default_limits=["1/hour"],
        on_decision=[seen.append, lambda event: events.append(shown(event))],
    )
    client = AsgiClient(Starlette(routes=[WebSocketRoute("/chat/{room}", chat)], middleware=[limiter]))
    assert client.connect("/chat/5").accepted
    assert events == [ALLOWED, "accepted", [("message", "allowed")]]
    events.clear()
    assert not client.connect("/chat/5").accepted
    assert events == [REFUSED]
    assert [(event.endpoint, event.method) for event in seen] == [("/chat/{room}", "GET")] * 3


@pytest.mark.parametrize("limits", [["5/hour"], []])
def test_a_charge_in_background_work_has_its_event(limits: list[str]) -> None:
    events: list[DecisionEvent] = []

    async def view(request: Request) -> PlainTextResponse:
        async def work() -> None:
            await sluicegate.starlette.charge(request, "5/hour", name="late", key="ip")

        return PlainTextResponse("text", background=BackgroundTask(work))

    routed([Route("/a", view)], events, default_limits=limits).get("/a")
    expected = [(ALLOWED, "/a"), ([("late", "allowed")], "/a")]
    assert [(shown(event), event.endpoint) for event in events] == (expected if limits else expected[1:])


def test_an_inner_and_an_outer_limiter_have_events_of_their_own() -> None:
    outer: list[DecisionEvent] = []
    inner: list[DecisionEvent] = []
    app = Starlette(
        routes=[Route("/a", text)],
        middleware=[
            Middleware(
                sluicegate.starlette.RateLimitMiddleware,
                rules=[Rule(name="inner", quota="5/hour", key="ip")],
                on_decision=inner.append,
            )
        ],
    )
    limited = sluicegate.asgi.RateLimitMiddleware(
        app, rules=[Rule(name="outer", quota="5/hour", key="ip")], on_decision=outer.append
    )
    AsgiClient(limited).get("/a")
    assert [shown(event) for event in outer] == [[("outer", "allowed")]]
    assert [(shown(event), event.endpoint) for event in inner] == [([("inner", "allowed")], "/a")]


def test_a_dependency_of_fastapi_has_an_event() -> None:
    events: list[DecisionEvent] = []
    app = FastAPI()
    app.add_middleware(sluicegate.fastapi.RateLimitMiddleware, default_limits=["5/hour"], on_decision=events.append)
    router = APIRouter(prefix="/r")
    router.get("/{item}", dependencies=[Depends(sluicegate.fastapi.RateLimit("1/hour", name="own"))])(lambda: "text")
    app.include_router(router)
    client = AsgiClient(app)
    assert [client.get("/r/1").status for _ in range(2)] == [200, 429]
    own = [("own", "allowed")], [("own", "refused")]
    assert [shown(event) for event in events] == [ALLOWED, own[0], ALLOWED, own[1]]
    assert {event.endpoint for event in events} == {"/r/{item}"}


@pytest.mark.parametrize("path", ["/a", "/boom", "/nothing"])
def test_django_delivers_when_the_response_is_closed(path: str) -> None:
    """Its handler for WSGI keeps no request while the response is sent."""
    events: list[bool] = []
    urls = [url("a", lambda request: HttpResponse("text")), url("boom", lambda request: HttpResponse(str(1 / 0)))]
    with serving(
        asgi=False, urls=urls, default_limits=["1/hour"], on_decision=lambda event: events.append(event.allowed)
    ):
        body: Any = get_wsgi_application()({**make_environ(path=path), "SCRIPT_NAME": ""}, lambda *_: lambda _: None)
        gc.collect()
        assert b"".join(body)
        assert events == []
        body.close()
        assert events == [True]


@pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile")
def test_a_cancelled_request_of_django_has_its_event() -> None:
    events: list[DecisionEvent] = []
    waiting, gone = asyncio.Event(), asyncio.Event()
    incoming = [{"type": "http.request", "body": b"", "more_body": False}]

    async def view(request: HttpRequest) -> HttpResponse:
        waiting.set()
        await gone.wait()
        raise AssertionError

    async def receive() -> Any:
        if not incoming:
            await gone.wait()
        return incoming.pop()

    async def send(message: Any) -> None: ...

    async def main() -> None:
        scope = {"type": "http", "method": "GET", "path": "/a", "query_string": b"", "headers": []}
        task = asyncio.create_task(get_asgi_application()({**scope, "client": ("198.51.100.9", 1)}, receive, send))
        await waiting.wait()
        assert not events
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    with serving(asgi=True, urls=[url("a", view)], default_limits=["5/hour"], on_decision=events.append):
        asyncio.run(main())
    gc.collect()
    assert [(event.endpoint, shown(event)) for event in events] == [("a", ALLOWED)]


def test_nothing_keeps_the_request() -> None:
    requests: list[weakref.ref[Any]] = []
    events: list[DecisionEvent] = []

    async def view(request: Request) -> PlainTextResponse:
        requests.append(weakref.ref(request))
        await sluicegate.starlette.charge(request, "5/hour", key="ip")
        return PlainTextResponse("text")

    routed([Route("/a", view)], events, default_limits=["5/hour"]).get("/a")
    gc.collect()
    assert len(events) == 2
    assert requests[0]() is None


def test_wrong_handlers_are_refused() -> None:
    async def later(event: DecisionEvent) -> None: ...

    class Metrics:
        def __call__(self, event: DecisionEvent) -> None: ...

    for given in (5, [5], "print", later, [print, later], Metrics):
        with pytest.raises(SettingsError, match="on_decision"):
            sluicegate.wsgi.RateLimitMiddleware(hello, on_decision=given)  # type: ignore[arg-type]
    assert sluicegate.wsgi.RateLimitMiddleware(hello, on_decision=[Metrics()]).settings.on_decision


class Narrow:
    """A file wrapper of a server whose objects take no other `close`."""

    __slots__ = ("_file",)

    def __init__(self, file: Any) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._file)

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize(("kind", "stays"), [(wsgiref.util.FileWrapper, True), (GunicornFile, True), (Narrow, False)])
@pytest.mark.parametrize("closes", [True, False])
def test_a_file_stays_one_that_the_server_may_send_itself(kind: Any, *, stays: bool, closes: bool) -> None:
    seen: list[DecisionEvent] = []
    file: Any = BytesIO(b"a report") if closes or kind is Narrow else iter([b"a report"])

    def application(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return environ["wsgi.file_wrapper"](file)

    limited = sluicegate.wsgi.RateLimitMiddleware(application, default_limits=["9/minute"], on_decision=seen.append)
    start: Any = lambda *_: None  # noqa: E731
    body: Any = limited({**make_environ(), "wsgi.file_wrapper": kind}, start)
    assert isinstance(body, kind) is stays
    assert not seen
    body.close()
    assert [event.allowed for event in seen] == [True]
    assert getattr(file, "closed", True)
    limited.close()
