"""Preflights through the ASGI adapters: free if a CORS layer or the router responds, charged if a view runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware as FastAPICors
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router

from sluicegate import ManualClock
from sluicegate.asgi import RateLimitMiddleware as AsgiMiddleware
from sluicegate.fastapi import RateLimit
from sluicegate.starlette import RateLimitMiddleware, limit
from tests.adapters.asgi_client import AsgiClient

ORIGIN = [("Origin", "https://a.example")]
PREFLIGHT = [*ORIGIN, ("Access-Control-Request-Method", "POST")]
CORS = Middleware(CORSMiddleware, allow_origins=["*"])
HOSTS = Middleware(TrustedHostMiddleware, allowed_hosts=["*"])
ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


async def view(request: Request) -> Response:
    ran.append("view")
    return PlainTextResponse("view")


async def raw(scope: Any, receive: Any, send: Any) -> None:
    if scope["method"] == "OPTIONS":
        ran.append("raw")
    await PlainTextResponse("raw")(scope, receive, send)


class Silent(CORSMiddleware):
    """A subclass that behaves like its parent."""


class Picky(CORSMiddleware):
    """A CORS layer that passes some paths to the application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Passing(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: Callable[..., Any]) -> Response:
        response: Response = await call_next(request)
        return response


class Hiding:
    """A middleware that hides the application inside."""

    def __init__(self, app: Any) -> None:
        self._inner = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._inner(scope, receive, send)


class Checking(BaseHTTPMiddleware):
    """A middleware that responds to requests with a wrong key."""

    async def dispatch(self, request: Request, call_next: Callable[..., Any]) -> Response:
        return PlainTextResponse("wrong key", 401)


class Backend(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> None:
        raise AuthenticationError("wrong key")


USERS = Middleware(AuthenticationMiddleware, backend=Backend())


class Rewriting:
    """A middleware that changes the method."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app({**scope, "method": "GET"} if scope["type"] == "http" else scope, receive, send)


class Get(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        return await view(request)


@limit("9/minute")
class Marked(Get):
    pass


class Options(Get):
    async def options(self, request: Request) -> Response:
        return await view(request)


class Dispatching(Get):
    async def dispatch(self) -> None:
        await (await view(Request(self.scope)))(self.scope, self.receive, self.send)


class Refusing(Get):
    async def method_not_allowed(self, request: Request) -> Response:
        return await view(request)


def of(*routes: Any, inside: Any = (), **options: Any) -> Any:
    return lambda: Starlette(
        routes=list(routes),
        middleware=[
            Middleware(RateLimitMiddleware, default_limits="1/minute", clock=ManualClock()),
            *(each if isinstance(each, Middleware) else Middleware(each) for each in inside),
        ],
        **options,
    )


def around(app: Any, kind: Any = RateLimitMiddleware) -> Any:
    return lambda: kind(app(), default_limits="1/minute", clock=ManualClock())


def free_router() -> Router:
    return Router([Route("/", view, methods=["OPTIONS"])], middleware=[CORS])


ANY = Route("/", view, methods=["GET", "OPTIONS"])
INNER = Middleware(RateLimitMiddleware, default_limits="1/minute", clock=ManualClock())

FREE: dict[str, Any] = {
    "no route": of(),
    "a route for another method": of(Route("/", view)),
    "a route for another path": of(Route("/x", view, methods=["OPTIONS"])),
    "a redirect to a slash": of(Mount("/app", routes=[Route("/x/", view, methods=["OPTIONS"])])),
    "a class without options": of(Route("/", Get)),
    "a decorated class without options": of(Route("/", Marked)),
    "a CORS layer": of(ANY, inside=[CORS]),
    "a CORS layer that inherits": of(ANY, inside=[Middleware(Silent, allow_origins=["*"])]),
    "a CORS layer below layers of Starlette": of(ANY, inside=[GZipMiddleware, HOSTS, CORS]),
    "a CORS layer above a layer of one's own": of(ANY, inside=[CORS, Checking]),
    "another method below layers of Starlette": of(Route("/", view), inside=[GZipMiddleware, HOSTS]),
    "a CORS layer of the router": around(free_router),
    "a CORS layer of a mount": of(Mount("/", routes=[ANY], middleware=[CORS])),
    "a CORS layer of a mounted application": of(Mount("/", Starlette(routes=[ANY], middleware=[CORS]))),
    "a CORS layer around a mounted application": of(Mount("/", CORSMiddleware(raw, allow_origins=["*"]))),
    "a CORS layer of a route": of(Route("/", Options, middleware=[CORS])),
    "a CORS layer as a route": of(Route("/", CORSMiddleware(raw, allow_origins=["*"]))),
    "a CORS layer of a host": of(Host("testserver", free_router())),
    "a mount without a route for it": of(Mount("/", routes=[Route("/", view)])),
    "an application around": around(lambda: Starlette(routes=[Route("/", view)])),
    "an application around, with a CORS layer": around(lambda: Starlette(routes=[ANY], middleware=[CORS])),
    "an ASGI middleware around a CORS layer": around(
        lambda: CORSMiddleware(raw, allow_origins=["*"]), kind=AsgiMiddleware
    ),
    "a limiter inside a mount": lambda: Starlette(routes=[Mount("/", routes=[Route("/", view)], middleware=[INNER])]),
}
UNSEEN: dict[str, Any] = {
    "a layer that answers": of(Route("/", view), inside=[Checking]),
    "a layer that authenticates": of(Route("/", view), inside=[USERS]),
    "a layer that answers above a CORS layer": of(ANY, inside=[Checking, CORS]),
    "a layer that passes all on to a CORS layer": of(ANY, inside=[Passing, CORS]),
    "a layer that hides a CORS layer": of(ANY, inside=[Hiding, CORS]),
    "a layer that hides the router": of(Route("/", view), inside=[Hiding]),
    "a layer that changes the method": of(Route("/", view), inside=[Rewriting]),
    "a layer of a router": around(lambda: Router([Route("/", view)], middleware=[Middleware(Checking)])),
    "a layer of a mount": of(Mount("/", routes=[Route("/", view)], middleware=[Middleware(Rewriting)])),
    "a layer of a mounted application": of(
        Mount("/", Starlette(routes=[Route("/", view)], middleware=[Middleware(Checking)]))
    ),
    "a layer of an application around": around(
        lambda: Starlette(routes=[Route("/", view)], middleware=[Middleware(Checking), CORS])
    ),
    "a layer of a route": of(Route("/", Get, middleware=[Middleware(Rewriting)])),
    "a layer below an ASGI middleware": around(
        lambda: Passing(CORSMiddleware(raw, allow_origins=["*"])), kind=AsgiMiddleware
    ),
}
"""Layers of the user: it is unknown whether they respond, and what they read."""
CHARGED: dict[str, Any] = {
    "a view": of(ANY),
    "a view beside a route for another method": of(Route("/", view), ANY),
    "a view below another layer": of(ANY, inside=[Passing]),
    "a view below one that hides the router": of(ANY, inside=[Hiding]),
    "a view below a CORS layer that leaves it": of(ANY, inside=[Middleware(Picky, allow_origins=["*"])]),
    "a class with options": of(Route("/", Options)),
    "a class that dispatches itself": of(Route("/", Dispatching)),
    "a class that refuses itself": of(Route("/", Refusing)),
    "a raw application as a route": of(Route("/", type("Raw", (), {"__call__": staticmethod(raw)})())),
    "a raw application, mounted": of(Mount("/", raw)),
    "a mounted view": of(Mount("/", routes=[ANY])),
    "a view of a mounted application": of(Mount("/", Starlette(routes=[ANY]))),
    "a view of a host": of(Host("testserver", Router([ANY]))),
    "a view of an application with a CORS layer elsewhere": of(Mount("/other", routes=[ANY], middleware=[CORS]), ANY),
    "a default application of the router": around(lambda: Router(default=raw)),
    "an application around": around(lambda: Starlette(routes=[ANY])),
    "an ASGI middleware": around(lambda: raw, kind=AsgiMiddleware),
    "an ASGI middleware around an application": around(lambda: Starlette(routes=[ANY]), kind=AsgiMiddleware),
    "a limiter of a route": lambda: Starlette(routes=[Route("/", Options, middleware=[INNER])]),
    "a limiter inside a mount": lambda: Starlette(routes=[Mount("/", routes=[ANY], middleware=[INNER])]),
}


def statuses(app: Any, headers: Any = PREFLIGHT) -> list[int]:
    return AsgiClient(app).statuses("/", "/", "/", method="OPTIONS", headers=headers)


@pytest.mark.parametrize("make", FREE.values(), ids=FREE)
def test_a_preflight_that_no_view_handles_is_free(make: Any) -> None:
    app = make()
    assert 429 not in statuses(app)
    assert ran == []
    assert 429 in statuses(app, ORIGIN), "a bare OPTIONS is charged"


@pytest.mark.filterwarnings("ignore:.*SG110")  # the layer that authenticates is inside the limiter
@pytest.mark.parametrize("make", UNSEEN.values(), ids=UNSEEN)
def test_a_preflight_that_a_layer_of_the_user_may_handle_is_charged(make: Any) -> None:
    """A layer that checks an API key would respond to any number of guesses."""
    first, *others = statuses(make())
    assert first != 429
    assert others == [429, 429]


@pytest.mark.parametrize("make", CHARGED.values(), ids=CHARGED)
def test_a_preflight_that_runs_a_view_is_charged(make: Any) -> None:
    assert statuses(make()) == [200, 429, 429]
    assert len(ran) == 1


@pytest.mark.parametrize("method", ["options", "Options"])
def test_a_method_in_lower_case_is_no_preflight(method: str) -> None:
    """A CORS layer does not handle it, and a route for any method runs its view."""
    app = of(Route("/", type("Raw", (), {"__call__": staticmethod(raw)})()), inside=[CORS])()
    assert AsgiClient(app).statuses("/", "/", method=method, headers=PREFLIGHT) == [200, 429]


def test_only_a_charged_preflight_uses_the_budget_of_a_decorator() -> None:
    @limit("1/minute")
    async def rare(request: Request) -> Response:
        return await view(request)

    free = Route("/free", rare)
    charged = Route("/charged", rare, methods=["GET", "OPTIONS"])
    app = Starlette(routes=[free, charged], middleware=[Middleware(RateLimitMiddleware, clock=ManualClock())])
    client = AsgiClient(app)
    assert client.statuses("/free", "/free", method="OPTIONS", headers=PREFLIGHT) == [405, 405]
    assert client.statuses("/charged", "/charged", method="OPTIONS", headers=PREFLIGHT) == [200, 429]


def fastapi(*dependencies: Any, cors: bool = False, **methods: Any) -> Any:
    inner = APIRouter(prefix="/in")
    inner.api_route("/", **methods)(lambda: ran.append("view"))
    outer = APIRouter(dependencies=list(dependencies))
    outer.include_router(inner)
    app = FastAPI()
    app.include_router(outer)
    if cors:
        app.add_middleware(FastAPICors, allow_origins=["*"], allow_methods=["*"])
    app.add_middleware(RateLimitMiddleware, default_limits="1/minute", clock=ManualClock())
    return app


@pytest.mark.parametrize(
    ("app", "expect"),
    [
        (fastapi(methods=["GET"]), [405, 405]),
        (fastapi(methods=["GET", "OPTIONS"]), [200, 429]),
        (fastapi(methods=["GET", "OPTIONS"], cors=True), [200, 200]),
    ],
    ids=["another method", "a view", "a CORS layer"],
)
def test_fastapi_s_routers(app: Any, expect: list[int]) -> None:
    assert AsgiClient(app).statuses("/in/", "/in/", method="OPTIONS", headers=PREFLIGHT) == expect


def test_fastapi_s_dependency_is_charged_if_a_view_runs() -> None:
    app = FastAPI()
    app.api_route("/", methods=["OPTIONS"], dependencies=[Depends(RateLimit("1/minute"))])(lambda: "x")
    app.add_middleware(RateLimitMiddleware, clock=ManualClock())
    assert statuses(app) == [200, 429, 429]


def test_a_sub_application_of_fastapi_with_a_cors_layer() -> None:
    sub = FastAPI()
    sub.options("/")(lambda: ran.append("view"))
    sub.add_middleware(FastAPICors, allow_origins=["*"], allow_methods=["*"])
    app = FastAPI()
    app.mount("/sub", sub)
    app.mount("/plain", FastAPI())
    app.add_middleware(RateLimitMiddleware, default_limits="1/minute", clock=ManualClock())
    paths = ["/sub/"] * 3 + ["/plain/"] * 3
    assert AsgiClient(app).statuses(*paths, method="OPTIONS", headers=PREFLIGHT) == [200] * 3 + [404] * 3
    assert ran == []


def test_a_denied_client_is_refused_also_for_a_free_preflight() -> None:
    app = of(ANY, inside=[CORS])()
    client = AsgiClient(RateLimitMiddleware(app, deny=["192.0.2.0/24"]))
    assert client.statuses("/", method="OPTIONS", headers=PREFLIGHT, peer="192.0.2.7") == [403]
