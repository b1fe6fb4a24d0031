"""A charge at unusual moments: for a message, during a cancellation, after the response, in a mounted application."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket

import sluicegate.asgi
import sluicegate.django
import sluicegate.wsgi
from sluicegate import ManualClock, RateLimitExceeded
from sluicegate.errors import AsyncMismatchError, NotEnforcedError
from sluicegate.plan import Outcome, Plan
from sluicegate.starlette import RateLimitMiddleware, charge, charge_sync
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from sluicegate.testing import AsyncAdapter
from sluicegate.web.charge import ChargedRule
from tests.adapters.asgi_client import DENIAL, AsgiClient, Server, make_scope
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient


async def plain(request: Request) -> Response:
    return PlainTextResponse("plain")


def limited(*routes: Any, **options: Any) -> AsgiClient:
    options = {"clock": ManualClock(), "default_limits": ["9/hour"], **options}
    everything = [*routes, Route("/plain", plain)]
    return AsgiClient(Starlette(routes=everything, middleware=[Middleware(RateLimitMiddleware, **options)]))


def left(client: Any) -> str | None:
    """The RateLimit field of a request that charges only the default limit."""
    found: str | None = client.request("GET", "/plain").one("ratelimit")
    return found


# ---- messages -------------------------------------------------------------------------------------------------------


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        decision = await charge(websocket, "2/second", key="ip")
        await websocket.send_text(f"{text} {decision.remaining}")


async def bare_echo(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await PlainTextResponse("plain")(scope, receive, send)
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        decision = await sluicegate.asgi.charge(scope, "2/second", key="ip")
        await send({"type": "websocket.send", "text": f"{message['text']} {decision.remaining}"})


@pytest.mark.parametrize("kind", ["starlette", "asgi"])
def test_each_message_counts_and_a_refused_one_closes_the_socket(kind: str) -> None:
    client = limited(WebSocketRoute("/", echo))
    if kind == "asgi":
        options: Any = {"clock": ManualClock(), "default_limits": ["9/hour"]}
        client = AsgiClient(sluicegate.asgi.RateLimitMiddleware(bare_echo, **options))
    server = Server(make_scope("GET", "/", type="websocket", extensions=DENIAL))
    server._coming[1:1] = [{"type": "websocket.receive", "text": "hi"}] * 5  # pyright: ignore[reportPrivateUsage]
    asyncio.run(server.run(client.app, raising=True))
    assert (server.handshake.sent, server.handshake.code) == (["hi 1", "hi 0"], 1008)
    assert left(client) == '"default";r=7;t=3600'  # the handshake stays charged


# ---- cancellation ---------------------------------------------------------------------------------------------------


async def holds(request: Request) -> Response:
    async with charge(request, "1 at once", key="ip"):
        return PlainTextResponse("held")


async def refused(request: Request) -> Response:
    await charge(request, "5/hour", cost=lambda _: 6)
    return PlainTextResponse("never")


class Stopping(AsyncAdapter):
    """A store that does at once what it is asked, and keeps the reply to one call back until `go` is set."""

    def __init__(self, store: MemoryStore, stop: int) -> None:
        super().__init__(store)
        self.calls: list[str] = []
        self.stop, self.reached, self.go, self.finished = stop, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        return await self._reply("run", await super().run(plan))

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        await self._reply("refund", None)
        await super().refund(plan, outcomes)  # a cancellation that is not handled loses it
        self.finished.set()

    async def _reply(self, name: str, reply: Any) -> Any:
        self.calls.append(name)
        if len(self.calls) == self.stop:
            self.reached.set()
            await self.go.wait()
        return reply


@pytest.mark.parametrize(("view", "stop", "field"), [(holds, 2, "r=6"), (refused, 3, "r=7")])
def test_a_cancelled_charge_leaves_nothing_behind(view: Any, stop: int, field: str) -> None:
    """Cancelled while the reply to the slot, or to what is given back, is on its way."""
    memory = MemoryStore(clock=ManualClock())

    async def main() -> list[str]:
        store = Stopping(memory, stop)
        client = limited(Route("/", view), store=store, clock=None)
        server = Server(make_scope("GET", "/"))
        running: Any = asyncio.ensure_future(client.app(server.scope, server.receive, server.send))
        await store.reached.wait()
        running.cancel()
        await asyncio.wait([running])
        store.go.set()
        await store.finished.wait()
        return store.calls

    assert asyncio.run(main()) == ["run", "run", "refund"]
    client = limited(Route("/", holds), store=AsyncMemoryStore(memory), clock=None)
    assert client.get("/").status == 200
    assert field in (left(client) or "")  # of 9: a client that goes away pays for its request, a refused one does not


def test_charges_that_wait_for_each_other_know_of_each_other() -> None:
    async def view(request: Request) -> Response:
        first, second = charge(request, "9/minute", scope="a"), charge(request, "9/minute", scope="a")
        third = charge(request, "1/minute", scope="b", cost=lambda _: 2)
        await first
        text = str((await second).remaining)
        with pytest.raises(RateLimitExceeded):
            await third
        return PlainTextResponse(text)

    answer = limited(Route("/", view)).get("/")
    assert answer.body == b"8"
    assert answer.one("ratelimit") == '"default";r=9, "a";r=9, "b";r=1'


# ---- after the response ---------------------------------------------------------------------------------------------


def in_background(quota: str, log: list[Any], **options: Any) -> Any:
    async def later(request: Request) -> None:
        async with charge(request, "1 at once", scope="slots") as slot:
            log.append(slot.allowed)
        log.append((await charge(request, quota, **options)).remaining)

    async def view(request: Request) -> Response:
        return PlainTextResponse("sent", background=BackgroundTask(later, request))

    return view


def test_a_charge_in_a_background_task_counts_and_its_refusal_is_the_task_s_own() -> None:
    log: list[Any] = []
    client = limited(Route("/", in_background("2/minute", log)))
    for remaining in (1, 0):
        server = client.serve(make_scope("GET", "/"), raising=True)
        assert server.answer.one("ratelimit") is not None
        assert log[-2:] == [True, remaining]
    with pytest.raises(RateLimitExceeded):
        client.serve(make_scope("GET", "/"), raising=True)


@pytest.mark.parametrize("kind", ["background", "stream"])
@pytest.mark.parametrize("options", [{}, {"refund_when": lambda _: True}, {"charge_when": lambda _: False}])
def test_after_the_response_has_started_nothing_is_given_back(kind: str, options: dict[str, Any]) -> None:
    refused: list[bool] = []

    async def later(request: Request) -> AsyncIterator[bytes]:
        yield b"sent"
        try:
            await charge(request, "2/minute", scope="late", **options)
        except RateLimitExceeded:
            refused.append(True)

    async def drain(request: Request) -> None:
        async for _ in later(request):
            pass

    async def view(request: Request) -> Response:
        if kind == "stream":
            return StreamingResponse(later(request))
        return PlainTextResponse("sent", background=BackgroundTask(drain, request))

    client = limited(Route("/", view))
    assert [client.get("/").status for _ in range(4)] == [200] * 4
    assert refused == [True, True]
    assert left(client) == '"default";r=4;t=3600'  # of 9


def test_a_slot_that_comes_after_the_response_is_released() -> None:
    class Slow(AsyncMemoryStore):
        async def run(self, plan: Plan) -> tuple[Outcome, ...]:
            outcomes = await super().run(plan)
            if plan.checks[0].terms.held:
                for _ in range(20):
                    await asyncio.sleep(0)
            return outcomes

    tasks: list[asyncio.Future[Any]] = []

    async def view(request: Request) -> Response:
        tasks.append(asyncio.ensure_future(charge(request, "1 at once", scope="slots")))
        await asyncio.sleep(0)
        return PlainTextResponse("sent")

    async def uses(request: Request) -> Response:
        async with charge(request, "1 at once", scope="slots"):
            return PlainTextResponse("used")

    async def main() -> list[int]:
        store = Slow(MemoryStore(clock=ManualClock()))
        app = limited(Route("/", view), Route("/uses", uses), store=store, clock=None).app
        statuses = []
        for where in ("/", "/uses"):
            server = Server(make_scope("GET", where))
            await server.run(app)
            await asyncio.wait(tasks)
            await asyncio.sleep(0)
            statuses.append(server.answer.status)
        return statuses

    assert asyncio.run(main()) == [200, 200]
    assert [type(task.exception()) for task in tasks] == [NotEnforcedError]


def test_a_slot_that_nothing_would_release_is_an_error() -> None:
    errors: list[BaseException] = []

    async def main() -> None:
        late: list[asyncio.Task[Any]] = []
        gone = asyncio.Event()

        async def later(request: Request) -> None:
            await gone.wait()
            assert (await charge(request, "5/minute")).remaining == 4
            await charge(request, "1 at once")

        async def view(request: Request) -> Response:
            late.append(asyncio.create_task(later(request)))
            return PlainTextResponse("sent")

        server = Server(make_scope("GET", "/"))
        await server.run(limited(Route("/", view)).app, raising=True)
        gone.set()
        errors.extend(await asyncio.gather(*late, return_exceptions=True))

    asyncio.run(main())
    assert [type(error) for error in errors] == [NotEnforcedError]


def generator(environ: Any, start_response: Any) -> Iterator[bytes]:
    """A WSGI application that charges in its first step, and again after its response has started."""
    sluicegate.wsgi.charge(environ, "2/minute", scope="first")
    with sluicegate.wsgi.charge(environ, "1 at once", scope="block"):
        sluicegate.wsgi.charge(environ, "1 at once", scope="slot")
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"one"
    sluicegate.wsgi.charge(environ, "1 at once", scope="late")
    yield b"two"


def test_a_generator_of_wsgi_may_charge() -> None:
    client = WsgiClient(sluicegate.wsgi.RateLimitMiddleware(generator, clock=ManualClock()))
    assert [(answer.status, answer.body[:6]) for answer in (client.request("GET", "/") for _ in range(3))] == [
        (200, b"onetwo"),
        (200, b"onetwo"),
        (429, b'{"type'),
    ]


def sharing(client: WsgiClient, environ: Any, start_response: Any) -> Iterable[bytes]:
    """Two blocks of one request use a slot, the first of them ends, and another request asks for the slot."""
    take = partial(sluicegate.wsgi.charge, environ, "1 at once", scope="slots", key=lambda _: "all")
    statuses = []
    if environ["PATH_INFO"] == "/":
        first, second = take(), take()
        with second:
            with first:
                pass
            statuses.append(client.request("GET", "/other").status)
        statuses.append(client.request("GET", "/other").status)
        with pytest.raises(NotEnforcedError), first:
            pass
    else:
        take()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(statuses).encode()]


def test_the_last_block_that_uses_a_slot_releases_it() -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        return sharing(client, environ, start_response)

    client = WsgiClient(sluicegate.wsgi.RateLimitMiddleware(app))
    assert client.request("GET", "/").body == b"[429, 200]"


def test_a_charge_keeps_nothing_of_a_request() -> None:
    """A closure is another rule each time, which nothing remembers. A function without one is the same rule."""
    refs: list[weakref.ref[Any]] = []

    class Form:
        email = "alice@example.com"

    async def view(request: Request) -> Response:
        form = Form()
        refs.append(weakref.ref(form))
        await charge(request, "9/minute", key=lambda _: form.email)
        return PlainTextResponse("x")

    client = limited(Route("/", view))
    answers = [client.get("/").one("ratelimit") for _ in range(3)]
    assert answers[-1] == '"default";r=6;t=3600, "view";r=6;t=60'
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3
    same = [ChargedRule.of("charge", "9/minute", key=lambda request: request.url.path) for _ in range(2)]
    assert same[0] is same[1]


def test_a_renamed_charge_has_the_same_terms_in_each_request() -> None:
    """The deny cache knows a charge by its terms."""
    found = []

    async def view(request: Request) -> Response:
        found.append((await charge(request, "9/minute", name="default")).checks[0].terms)
        return PlainTextResponse("")

    client = limited(Route("/", view))
    assert [client.get("/").status for _ in range(2)] == [200, 200]
    assert found[0].name == "default-2"
    assert found[0] is found[1]


# ---- two limiters ---------------------------------------------------------------------------------------------------


async def inner(request: Request) -> Response:
    await charge(request, "1/minute", name="own")
    return PlainTextResponse("inner")


def test_in_a_mounted_application_the_innermost_limiter_charges() -> None:
    middleware = [Middleware(RateLimitMiddleware, default_limits=["5/day"], clock=ManualClock())]
    mounted = Starlette(routes=[Route("/", inner), Route("/plain", plain)], middleware=middleware)
    client = limited(Mount("/in", app=mounted))
    passed = client.get("/in/")
    assert passed.one("ratelimit") == '"default";r=4;t=86400, "own";r=0;t=60, "default-2";r=8;t=3600'
    assert client.get("/in/").status == 429
    assert client.get("/in/plain").one("ratelimit") == '"default";r=3;t=86400, "default-2";r=6;t=3600'


class Charging:
    """A middleware that charges before the routes below it are matched."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await charge(Request(scope), "1/minute", name="own")
        await self.app(scope, receive, send)


def test_a_middleware_of_a_mounted_router_may_charge() -> None:
    """The endpoint of the scope is the router then, and a router cannot be hashed."""
    client = limited(Mount("/in", app=Router([Route("/", plain)], middleware=[Middleware(Charging)])))
    assert client.statuses("/in/", "/in/") == [200, 429]


# ---- the wrong kind of code -----------------------------------------------------------------------------------------


def forgets(request: Request) -> Response:
    charge(request, "5/minute")
    return PlainTextResponse("unlimited")


async def blocks(request: Request) -> Response:
    charge_sync(request, "5/minute")
    return PlainTextResponse("unlimited")


async def plain_with(request: Request) -> Response:
    with charge(request, "5/minute"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        return PlainTextResponse("unlimited")


WRONG = [(forgets, "write charge_sync"), (blocks, "write await charge"), (plain_with, "write async with charge")]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("view", "advice"), WRONG)
def test_the_wrong_kind_of_charge_says_which_one_is_right(view: Any, advice: str) -> None:
    with pytest.raises(AsyncMismatchError, match=advice):
        limited(Route("/", view)).serve(make_scope("GET", "/"), raising=True)


def with_block(request: HttpRequest, quota: str) -> None:
    with sluicegate.django.acharge(request, quota):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


DJANGO = [  # on the event loop of an async view under WSGI, `charge` may wait
    (asgi, is_async, call, start, advice)
    for is_async, call, start, advice in (
        (True, sluicegate.django.charge, "charge '5/minute': ", "write await acharge(…)"),
        (False, sluicegate.django.acharge, "acharge '5/minute': ", "write charge(…)"),
        (False, with_block, "acharge '5/minute': ", "write charge(…)"),
        (True, with_block, "acharge at ", "write async with acharge(…)"),
    )
    for asgi in (True, False)
    if asgi or call is not sluicegate.django.charge
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("asgi", "is_async", "call", "start", "advice"), DJANGO)
def test_the_wrong_kind_of_django_s_charge_says_which_one_is_right(
    asgi: bool, is_async: bool, call: Any, start: str, advice: str
) -> None:
    """Issue 26."""

    def view(request: HttpRequest) -> HttpResponse:
        try:
            call(request, "5/minute")
        except AsyncMismatchError as error:
            return HttpResponse(str(error))
        return HttpResponse("unlimited")

    async def async_view(request: HttpRequest) -> HttpResponse:
        return view(request)

    with serving(asgi=asgi, urls=[path("x", async_view if is_async else view)]) as site:
        text = site.request("GET", "/x").body.decode()
    assert text.startswith(start)
    assert text.endswith(f"{advice} [SG009]")
