"""Charges that depend on an ASGI response: sockets, disconnects, cancellations, and FastAPI's second plan."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException, WebSocket
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sluicegate import ManualClock, Rule
from sluicegate.asgi import RateLimitMiddleware
from sluicegate.fastapi import RateLimit
from sluicegate.fastapi import RateLimitMiddleware as FastAPIMiddleware
from sluicegate.identity import identity_text
from sluicegate.plan import Check, Outcome, Plan
from sluicegate.rules.response import Response as Seen
from sluicegate.starlette import RateLimitMiddleware as StarletteMiddleware
from sluicegate.starlette import limit
from sluicegate.stores.memory import AsyncMemoryStore
from sluicegate.testing.charges import Watched
from tests.adapters.asgi_client import AsgiClient, make_scope

HELD = Rule(name="held", quota="1 at once for 1 hour")
UNLESS_FINE = Rule(name="fails", quota="1/hour", charge_when=lambda response: response.status_code >= 400)
App = Callable[..., Any]


def left(store: Watched, rule: Rule, peer: str = "198.51.100.9") -> int:
    """The units of a rule that the client has left."""
    check = Check(rule.terms("sliding-window")[0], identity_text(("ip", peer)), 0)
    return store.run(Plan((check,)))[0].remaining


def called(store: Watched) -> list[str]:
    return [name for name, _ in store.log]


# ---- ways to end ----------------------------------------------------------------------------------------------


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"page"})


async def fails_first(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("first")


async def fails_midway(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    raise RuntimeError("midway")


async def fails_at_last(scope: Any, receive: Any, send: Any) -> None:
    await answers(scope, receive, send)
    raise RuntimeError("at last")


async def says_nothing(scope: Any, receive: Any, send: Any) -> None:
    pass


async def waits_first(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


async def waits_midway(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    await asyncio.Event().wait()


async def denied(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 403, "headers": [(b"x-why", b"\xe9")]})
    await send({"type": "http.response.pathsend", "path": "/tmp/x"})


@pytest.mark.parametrize(
    ("app", "charged"),
    [
        (answers, False),
        (denied, True),
        (fails_first, True),
        (fails_midway, False),
        (fails_at_last, False),
        (says_nothing, True),
        (waits_first, True),  # cancelled: a client that disconnects early keeps its charge
        (waits_midway, False),
    ],
)
def test_every_way_to_end_settles_once_and_releases(app: App, charged: bool) -> None:
    store = Watched(ManualClock())
    limited = RateLimitMiddleware(app, rules=[HELD, UNLESS_FINE], store=store.for_mode(is_async=True))

    async def send(message: Any) -> None:
        pass

    async def main() -> None:
        task = asyncio.create_task(limited(make_scope(), asyncio.Event().wait, send))  # type: ignore[arg-type]
        for _ in range(10):  # until it has ended, or waits forever
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert called(store) == ["run", "release"]
    assert (left(store, HELD), left(store, UNLESS_FINE)) == (1, not charged)


def test_a_failing_send_settles_too() -> None:
    store = Watched(ManualClock())
    limited = RateLimitMiddleware(answers, rules=[HELD, UNLESS_FINE], store=store.for_mode(is_async=True))

    async def send(message: Any) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        asyncio.run(limited(make_scope(), asyncio.Event().wait, send))  # type: ignore[arg-type]
    assert called(store) == ["run", "release"]


def test_a_slot_is_free_while_background_tasks_run() -> None:
    store = Watched(ManualClock())

    async def view(request: Request) -> Response:
        return PlainTextResponse("page", background=BackgroundTask(lambda: seen.append(called(store))))

    seen: list[list[str]] = []
    app = Starlette(routes=[Route("/open", view)])
    app.add_middleware(StarletteMiddleware, rules=[HELD], store=store.for_mode(is_async=True))
    assert AsgiClient(app).statuses("/open", "/open") == [200, 200]
    assert seen == [["run", "release"], ["run", "release"] * 2]


# ---- WebSockets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "denial", "status"),
    [("/accept", True, 101), ("/close", False, 403), ("/deny", True, 451), ("/boom", True, 500)],
)
def test_a_handshake_has_a_status_and_its_slot_is_held_as_long_as_the_socket(
    path: str, denial: bool, status: int
) -> None:
    app, store, seen = FastAPI(), Watched(ManualClock()), []

    @app.websocket("/{how}")
    async def socket(websocket: WebSocket, how: str) -> None:
        if how == "accept":
            await websocket.accept()
            await websocket.send_text("hello")
            await websocket.close()
        elif how == "close":
            await websocket.close()
        elif how == "deny":
            await websocket.send_denial_response(PlainTextResponse("no", 451))
        else:
            raise RuntimeError("boom")
        seen.append(called(store))

    statuses: list[int] = []

    def note(response: Seen) -> bool:
        statuses.append(response.status_code)
        return False

    judged = Rule(name="judged", quota="1/hour", refund_when=note)
    app.add_middleware(FastAPIMiddleware, rules=[HELD, judged], store=store.for_mode(is_async=True))
    scope = make_scope("GET", path, type="websocket", extensions={"websocket.http.response": {}} if denial else {})
    AsgiClient(app).serve(scope)
    assert statuses == [status]
    assert [log for log in seen if log != ["run"]] == []
    assert called(store) == ["run", "release"]


# ---- the second plan of a request --------------------------------------------------------------------------------


def test_fastapi_all_decisions_of_a_request_count() -> None:
    app, store = FastAPI(), Watched(ManualClock())
    failures = RateLimit("2/hour", charge_when=lambda response: response.status_code == 401, name="failures")

    @app.get("/login/{status}", dependencies=[Depends(failures)])
    async def login(status: int) -> None:
        raise HTTPException(status)

    app.add_middleware(FastAPIMiddleware, rules=[HELD, UNLESS_FINE], store=store.for_mode(is_async=True))
    client = AsgiClient(app)
    answers = [client.get(f"/login/{status}", peer=f"198.51.100.{at}") for at, status in enumerate((401, 404))]
    assert [answer.one("ratelimit") for answer in answers] == [
        '"held";r=0, "fails";r=0;t=3600, "failures";r=1;t=3600',
        '"held";r=0, "fails";r=0;t=3600, "failures";r=2',
    ]
    assert called(store).count("release") == 2


def test_fastapi_a_refusal_of_the_second_plan_still_ends_the_first() -> None:
    app, store = FastAPI(), Watched(ManualClock())

    @app.get("/open", dependencies=[Depends(RateLimit("1/hour"))])
    async def view() -> None: ...

    if_served = Rule(name="served", quota="2/hour", refund_when=lambda response: response.status_code == 429)
    app.add_middleware(FastAPIMiddleware, rules=[HELD, if_served], store=store.for_mode(is_async=True))
    assert AsgiClient(app).statuses(*["/open"] * 5) == [200] + [429] * 4
    assert left(store, if_served) == 1
    assert called(store).count("release") == 5


def test_a_view_that_was_unknown_before_the_call_settles_too() -> None:
    @limit("1/hour", charge_when=lambda response: response.status_code == 401)
    def inner(request: Request) -> Response:
        return PlainTextResponse("", int(request.path_params["status"]))

    class Hidden:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await Starlette(routes=[Route("/{status}", inner)])(scope, receive, send)

    app = Starlette(routes=[Route("/{status}", Hidden())])
    app.add_middleware(StarletteMiddleware, clock=ManualClock())
    assert AsgiClient(app).statuses("/200", "/200", "/401", "/200") == [200, 200, 401, 429]


# ---- 100,000 requests ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_20_000_requests_with_random_ends_leak_no_held_charge() -> None:
    """Errors at any time, failing sends, one or several cancellations: all slots are free at the end."""
    drawn, store = random.Random(4), Watched(ManualClock())
    log = store.log = Counting()
    several = Rule(name="several", quota="40 at once for 1 hour")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        how = scope["how"]
        for step in range(4):
            if how == ("fail", step):
                raise RuntimeError("drawn")
            if how == ("wait", step):
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if step == 0:
                await send({"type": "http.response.start", "status": 200})
            else:
                await send({"type": "http.response.body", "body": b"x", "more_body": step < 3})

    limited = RateLimitMiddleware(app, rules=[several], store=Yielding(store))
    never = asyncio.Event()

    async def request() -> None:
        step, ends = drawn.randrange(4), drawn.randrange(5)

        async def send(message: Any) -> None:
            nonlocal step
            if ends == 1:
                if step == 0:
                    raise ConnectionResetError
                step -= 1

        scope = make_scope(peer=f"198.51.100.{drawn.randrange(8)}")
        scope["how"] = {0: ("fail", step), 2: ("wait", step), 3: ("wait", step)}.get(ends)
        task = asyncio.ensure_future(limited(scope, never.wait, send))  # type: ignore[arg-type]
        for most in (12, 3, 2)[: drawn.randrange(1, 4) if ends in (2, 4) else 0]:
            for _ in range(drawn.randrange(most)):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def worker() -> None:
        for _ in range(200):
            await request()

    async def main() -> int:
        await asyncio.gather(*[worker() for _ in range(100)])
        for _ in range(10):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert [left(store, several, f"198.51.100.{peer}") for peer in range(8)] == [40] * 8
    assert log.released > 10_000


class Yielding(AsyncMemoryStore):
    """A store whose replies take an iteration of the loop, so that a cancellation can come before them."""

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        outcomes = await super().run(plan)
        await asyncio.sleep(0)
        return outcomes

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        await asyncio.sleep(0)
        await super().refund(plan, outcomes)


class Counting(list[tuple[str, int]]):
    """A log that only counts releases."""

    released = 0

    def append(self, entry: tuple[str, int]) -> None:
        self.released += entry[0] == "release"
