"""Starlette: `uvicorn bench.apps.starlette_app:app`."""

from collections.abc import Callable
from typing import Any

import limits
import limits.aio.storage
import limits.aio.strategies
import redis.asyncio
import slowapi
import slowapi.middleware
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.apps import LIMIT, LIMITER, STORE, empty_script, work
from sluicegate.starlette import RateLimitMiddleware, limit


async def home(request: Request) -> Response:
    return PlainTextResponse(work())


class Empty:
    """A middleware that only wraps `send`: the cost of any middleware that reads the response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def passing(message: Message) -> None:
            await send(message)

        await self.app(scope, receive, passing)


class Script:
    """A middleware that asks the server to do nothing: the cost of any round trip."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.ask = empty_script(redis.asyncio.Redis)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.ask(dict(scope["headers"])[b"x-user"].decode())
        await self.app(scope, receive, send)


class Base(BaseHTTPMiddleware):
    """A BaseHTTPMiddleware that does nothing: the cost of Starlette's base class."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


class ByHand:
    """The library limits in a hand-written ASGI middleware: asyncio, one hit, no response fields."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        if STORE == "memory://":
            storage: Any = limits.aio.storage.MemoryStorage()
        else:
            storage = limits.aio.storage.RedisStorage(f"async+{STORE}", implementation="redispy")
        self.limiter = limits.aio.strategies.FixedWindowRateLimiter(storage)
        self.item = limits.parse(LIMIT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or await self.limiter.hit(self.item, dict(scope["headers"])[b"x-user"].decode()):
            await self.app(scope, receive, send)
        else:
            await PlainTextResponse("Too Many Requests", 429)(scope, receive, send)


def sluicegate(app: Starlette) -> None:
    app.add_middleware(RateLimitMiddleware, store=STORE, default_limits=[LIMIT], key="header:X-User")


def of_slowapi(app: Starlette) -> None:
    app.state.limiter = slowapi.Limiter(
        key_func=lambda request: request.headers["x-user"],
        default_limits=[LIMIT],
        storage_uri=STORE,
        headers_enabled=True,
    )
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)  # type: ignore[arg-type]
    app.add_middleware(slowapi.middleware.SlowAPIASGIMiddleware)


LIMITERS: dict[str, Callable[[Starlette], None]] = {
    "none": lambda app: None,
    "empty": lambda app: app.add_middleware(Empty),
    "script": lambda app: app.add_middleware(Script),
    "base": lambda app: app.add_middleware(Base),
    "sluicegate": sluicegate,
    "sluicegate, decorator": lambda app: app.add_middleware(RateLimitMiddleware, store=STORE),
    "slowapi": of_slowapi,
    "limits by hand": lambda app: app.add_middleware(ByHand),
}

limited = limit(LIMIT, key=lambda request: request.headers["x-user"])(home)
app = Starlette(routes=[Route("/", limited if LIMITER == "sluicegate, decorator" else home)])
LIMITERS[LIMITER](app)
