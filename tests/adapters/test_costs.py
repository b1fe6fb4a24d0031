"""Costs of streamed responses in every adapter: sent to the end, cut off by the client, or failed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import StreamingHttpResponse
from django.urls import path as url
from fastapi import FastAPI
from flask import Flask, stream_with_context
from flask import Response as FlaskResponse
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import sluicegate.asgi
import sluicegate.django
import sluicegate.fastapi
import sluicegate.flask
import sluicegate.starlette
import sluicegate.wsgi
from sluicegate import ManualClock, Rule
from sluicegate.identity import identity_text
from sluicegate.plan import Check, Plan
from sluicegate.rules.cost import Ended
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from tests.adapters.asgi_client import make_scope
from tests.adapters.django_app import serving

PARTS = 4  # of a whole stream; one is sent before a client leaves or a stream fails
ENDED: list[Ended] = []


def by_size(response: Ended) -> int:
    ENDED.append(response)
    return response.size


OPTIONS: dict[str, Any] = {"key": lambda _: "alice", "estimate": 10, "unit": "tokens"}
RULE = Rule(name="tokens", scope="tokens", quota="100/day", cost_after=by_size, **OPTIONS)


class Parts:
    """The parts of a stream, one byte each. It may fail, and may tell its cost: 5 for each part."""

    def __init__(self, tell: Callable[[int], object] | None, *, fails: bool) -> None:
        self.tell, self.fails = tell, fails

    def _step(self, number: int) -> bytes:
        if self.tell is not None:
            self.tell(5 * number)
        if number == 2 and self.fails:
            raise LookupError
        return b"x"

    def __iter__(self) -> Iterator[bytes]:
        for number in range(1, PARTS + 1):
            yield self._step(number)

    async def later(self) -> AsyncIterator[bytes]:
        for number in range(1, PARTS + 1):
            yield self._step(number)
            await asyncio.sleep(0)


def asgi(store: Any, told: bool, fails: bool) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        parts = Parts((lambda n: sluicegate.asgi.settle(scope, n)) if told else None, fails=fails)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async for part in parts.later():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return sluicegate.asgi.RateLimitMiddleware(app, rules=[RULE], store=store)


def starlette(store: Any, told: bool, fails: bool) -> Any:
    async def view(request: Request) -> StreamingResponse:
        parts = Parts((lambda n: sluicegate.starlette.settle(request, n)) if told else None, fails=fails)
        return StreamingResponse(parts.later())

    limits = Middleware(sluicegate.starlette.RateLimitMiddleware, rules=[RULE], store=store)
    return Starlette(routes=[Route("/page", view)], middleware=[limits])


def fastapi(store: Any, told: bool, fails: bool) -> Any:
    app = FastAPI()
    app.add_middleware(sluicegate.fastapi.RateLimitMiddleware, store=store)

    @app.get("/page")
    @sluicegate.fastapi.limit("100/day", scope="tokens", cost_after=by_size, **OPTIONS)
    def page(request: Request) -> StreamingResponse:
        parts = Parts((lambda n: sluicegate.fastapi.settle(request, n)) if told else None, fails=fails)
        return StreamingResponse(iter(parts), media_type="text/event-stream")

    return app


def charged(store: Any, told: bool, fails: bool) -> Any:
    """A charge in the view, which tells its cost by the decision."""

    async def view(request: Request) -> StreamingResponse:
        charge = sluicegate.starlette.charge(request, "100/day", scope="tokens", cost_after=by_size, **OPTIONS)
        decision: Any = await charge
        return StreamingResponse(Parts(decision.settle if told else None, fails=fails).later())

    limits = Middleware(sluicegate.starlette.RateLimitMiddleware, store=store)
    return Starlette(routes=[Route("/page", view)], middleware=[limits])


def wsgi(store: Any, told: bool, fails: bool) -> Any:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return Parts((lambda n: sluicegate.wsgi.settle(environ, n)) if told else None, fails=fails)

    return sluicegate.wsgi.RateLimitMiddleware(app, rules=[RULE], store=store)


def flask(store: Any, told: bool, fails: bool) -> Any:
    app = Flask("costs")
    sluicegate.flask.RateLimiter(app, store=store)

    @app.get("/page")
    @sluicegate.flask.limit("100/day", scope="tokens", cost_after=by_size, **OPTIONS)
    def page() -> FlaskResponse:
        parts = Parts((lambda n: sluicegate.flask.settle(flask_request, n)) if told else None, fails=fails)
        return FlaskResponse(stream_with_context(part.decode() for part in parts))

    return app


def django_view(request: Any) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter(_parts_of(request)))


def django_view_async(request: Any) -> StreamingHttpResponse:
    return StreamingHttpResponse(_parts_of(request).later())


def _parts_of(request: Any) -> Parts:
    told, fails = "told" in request.GET, "fails" in request.GET
    return Parts((lambda n: sluicegate.django.settle(request, n)) if told else None, fails=fails)


def run_asgi(app: Any, *, cut: bool, query: bytes = b"") -> None:
    sent: list[Any] = []
    task: Any = None

    incoming = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if not incoming:
            await asyncio.Event().wait()
        return incoming.pop()

    async def send(message: Any) -> None:
        sent.append(message)
        if cut and sum(len(each.get("body", b"")) for each in sent) == 1:
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.Event().wait()

    async def main() -> None:
        nonlocal task
        scope = {**make_scope(path="/page"), "root_path": "", "path": "/page", "query_string": query}
        task = asyncio.create_task(app(scope, receive, send))
        await asyncio.wait([task])
        with contextlib.suppress(BaseException):
            task.result()
        task = None
        gc.collect()  # Django does not close a request whose task was cancelled
        for _ in range(20):  # what was started then
            await asyncio.sleep(0)

    asyncio.run(main())


def run_wsgi(app: Any, *, cut: bool, query: bytes = b"") -> None:
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    environ |= {"PATH_INFO": "/page", "REMOTE_ADDR": "198.51.100.9", "QUERY_STRING": query.decode()}
    chunks = app(environ, lambda *_: print)
    with contextlib.suppress(LookupError):
        for _ in chunks:
            if cut:
                break
    if hasattr(chunks, "close"):
        chunks.close()


def left(store: MemoryStore) -> int:
    (terms,) = RULE.terms("sliding-window")
    return store.run(Plan((Check(terms, identity_text("alice"), 0),), charge=False))[0].remaining


ENDINGS = pytest.mark.parametrize(
    ("ending", "told", "cost"),
    [
        ("whole", False, 4), ("cut", False, 1), ("fails", False, 1),
        ("whole", True, 20), ("cut", True, 5), ("fails", True, 10),
    ],
)  # fmt: skip


@ENDINGS
@pytest.mark.parametrize("make", [asgi, starlette, fastapi, charged, wsgi, flask])
def test_a_stream_settles_its_cost_however_it_ends(make: Any, ending: str, told: bool, cost: int) -> None:
    ENDED.clear()
    store = MemoryStore(clock=ManualClock())
    is_async = make not in (wsgi, flask)
    app = make(AsyncMemoryStore(store) if is_async else store, told, ending == "fails")
    (run_asgi if is_async else run_wsgi)(app, cut=ending == "cut")
    # Starlette reads a plain iterator in a thread, which may be one part ahead of what is sent.
    ahead = [100 - cost - 5] if make is fastapi and ending == "cut" else []
    assert left(store) in [100 - cost, *ahead]
    if not told:
        assert [each.complete for each in ENDED] == [ending == "whole"]


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume", "ignore:.*SpooledTemporaryFile")
@ENDINGS
@pytest.mark.parametrize("server", ["wsgi", "asgi"])
def test_a_stream_of_django_settles_its_cost(server: str, ending: str, told: bool, cost: int) -> None:
    ENDED.clear()
    store, is_async = MemoryStore(clock=ManualClock()), server == "asgi"
    query = "&".join([*(["told"] if told else []), *(["fails"] if ending == "fails" else [])]).replace("&", "=&") + "="
    view = django_view_async if is_async else django_view
    with serving(
        asgi=is_async, urls=[url("page", view)], rules=[RULE], store=AsyncMemoryStore(store) if is_async else store
    ):
        application = get_asgi_application() if is_async else get_wsgi_application()
        (run_asgi if is_async else run_wsgi)(application, cut=ending == "cut", query=query.encode())
    assert left(store) == 100 - cost


def test_a_refusal_in_the_view_gives_the_estimate_back() -> None:
    async def view(request: Request) -> StreamingResponse:
        await sluicegate.starlette.charge(request, "1/day", cost=1, scope="other")
        await sluicegate.starlette.charge(request, "1/day", cost=1, scope="third")
        return StreamingResponse(iter([b"x"]))

    store = MemoryStore(clock=ManualClock())
    limits = Middleware(sluicegate.starlette.RateLimitMiddleware, rules=[RULE], store=AsyncMemoryStore(store))
    app = Starlette(routes=[Route("/page", view)], middleware=[limits])
    for _ in range(2):  # the second is refused
        run_asgi(app, cut=False)
    assert left(store) == 99, "a byte of the first; of the refused one nothing"


def test_wsgi_counts_what_an_old_application_writes() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [])
        write(b"three")
        return [b"two"]

    ENDED.clear()
    limited = sluicegate.wsgi.RateLimitMiddleware(app, rules=[RULE])
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    written: list[bytes] = []
    body: Any = limited(environ, lambda *_: written.append)
    assert [*written, *body] == [b"three", b"two"]
    body.close()
    assert [(each.size, each.complete) for each in ENDED] == [(8, True)]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("method", "size"), [("GET", 3), ("HEAD", 0)])
def test_flask_sends_no_body_for_a_head(streams: bool, method: str, size: int) -> None:
    app = Flask("costs")
    sluicegate.flask.RateLimiter(app)

    @app.get("/page")
    @sluicegate.flask.limit("100/day", cost_after=by_size, **OPTIONS)
    def page() -> FlaskResponse:
        return FlaskResponse(iter(["x", "yz"]) if streams else "xyz")

    ENDED.clear()
    with app.test_client().open("/page", method=method) as answer:
        assert len(answer.get_data()) == size
    assert [(each.size, each.complete) for each in ENDED] == [(size, True)]
