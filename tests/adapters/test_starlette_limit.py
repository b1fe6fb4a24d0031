"""`@limit` on each kind of endpoint of Starlette, found before the call and not (ST6 and ST7 of our checklist)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket

from sluicegate import ManualClock, RateLimitExceeded
from sluicegate.errors import NotEnforcedError, RuleError
from sluicegate.starlette import RateLimitMiddleware, exempt, limit
from sluicegate.testing import AsyncAdapter
from tests.adapters.asgi_client import AsgiClient, at_once, make_scope
from tests.adapters.wsgi_client import Recorder, check_fields

MAIN = threading.get_ident()
once = limit("1/minute")


def where() -> Response:
    """A response that says where the view ran."""
    return PlainTextResponse("loop" if threading.get_ident() == MAIN else "thread")


# ---- the endpoints: what is decorated, and where it runs ---------------------------------------------------------


def make_async() -> Any:
    @once
    async def view(request: Request) -> Response:
        return where()

    return view


def make_sync() -> Any:
    @once
    def view(request: Request) -> Response:
        return where()

    return view


def make_wrapped() -> Any:
    """Another decorator outside."""
    view = make_async()

    @wraps(view)
    async def outer(request: Request) -> Response:
        response: Response = await view(request)
        return response

    return outer


def make_partial() -> Any:
    @once
    def view(number: int, request: Request) -> Response:
        return where()

    return partial(view, 1)


def make_partial_inside() -> Any:
    async def view(number: int, request: Request) -> Response:
        return where()

    return once(partial(view, 1))


def make_bound() -> Any:
    class Shop:
        @once
        async def view(self, request: Request) -> Response:
            return where()

    return Shop().view


def make_bound_outside() -> Any:
    class Shop:
        def view(self, request: Request) -> Response:
            return where()

    return once(Shop().view)


def make_class() -> Any:
    @once
    class View(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return where()

    return View


def make_inherited() -> Any:
    class View(make_class()):  # type: ignore[misc]
        pass

    return View


def make_method() -> Any:
    class View(HTTPEndpoint):
        @once
        async def get(self, request: Request) -> Response:
            return where()

    return View


def make_sync_method() -> Any:
    class View(HTTPEndpoint):
        @once
        def get(self, request: Request) -> Response:
            return where()

    return View


ENDPOINTS: dict[Callable[[], Any], bytes] = {
    make_async: b"loop",
    make_sync: b"thread",
    make_wrapped: b"loop",
    make_partial: b"thread",
    make_partial_inside: b"loop",
    make_bound: b"loop",
    make_bound_outside: b"thread",
    make_class: b"loop",
    make_inherited: b"loop",
    make_method: b"loop",
    make_sync_method: b"thread",
}
endpoints = pytest.mark.parametrize(("make", "ran"), ENDPOINTS.items(), ids=lambda each: getattr(each, "__name__", ""))


def opaque(app: Any) -> Any:
    """The application, behind a function that hides its routes."""

    async def hidden(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return hidden


def middleware(**options: Any) -> list[Middleware]:
    return [Middleware(RateLimitMiddleware, **{"clock": ManualClock(), **options})]


def visible(*routes: Any, **options: Any) -> AsgiClient:
    return AsgiClient(Starlette(routes=list(routes), middleware=middleware(**options)))


def mounted(*routes: Any, **options: Any) -> AsgiClient:
    return AsgiClient(Starlette(routes=[Mount("/m", routes=list(routes))], middleware=middleware(**options)))


def hidden(*routes: Any, **options: Any) -> AsgiClient:
    inner = opaque(Starlette(routes=list(routes)))
    return AsgiClient(Starlette(routes=[Mount("/m", app=inner)], middleware=middleware(**options)))


def hidden_router(*routes: Any, **options: Any) -> AsgiClient:
    """A router without an application, so without exception handlers."""
    return AsgiClient(RateLimitMiddleware(opaque(Mount("/m", routes=list(routes)).app), clock=ManualClock(), **options))


WAYS = {visible: "/", mounted: "/m/", hidden: "/m/", hidden_router: "/"}


@endpoints
@pytest.mark.parametrize("way", WAYS)
def test_st06_every_endpoint_is_limited_wherever_it_is(way: Any, make: Any, ran: bytes) -> None:
    client = way(Route("/", make()), default_limits="5/minute")
    answers = [client.get(WAYS[way]) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 429, 429]
    assert answers[0].body == ran
    for answer in answers:
        check_fields(answer)
    assert answers[1].one("retry-after") == "60"
    assert answers[1].one("content-type") == "application/problem+json"
    assert answers[1].one("cache-control") == "no-store"


@endpoints
def test_st07_without_the_middleware_a_limited_view_is_an_error(make: Any, ran: bytes) -> None:
    client = AsgiClient(Starlette(routes=[Route("/", make())]))
    with pytest.raises(NotEnforcedError, match=r"reached without RateLimitMiddleware.*SG008"):
        client.serve(make_scope(path="/"), raising=True)


@endpoints
@pytest.mark.parametrize("way", [visible, hidden])
def test_disabled_everything_passes(way: Any, make: Any, ran: bytes) -> None:
    client = way(Route("/", make()), enabled=False)
    assert [client.get(WAYS[way]).status for _ in range(3)] == [200, 200, 200]


# ---- plans: once, together, and for the right part ---------------------------------------------------------------


def recorded(way: Any, *routes: Any, **options: Any) -> tuple[AsgiClient, Recorder]:
    recorder = Recorder()
    return way(*routes, store=AsyncAdapter(recorder), clock=None, **options), recorder


def names(recorder: Recorder) -> list[list[str]]:
    return [[check.terms.name for check in plan.checks] for plan in recorder.plans]


@once
@limit("9/hour")
async def twice(request: Request) -> Response:
    return where()


def test_one_plan_has_all_rules_of_a_view_that_is_found() -> None:
    client, recorder = recorded(visible, Route("/", twice), default_limits="5/minute")
    client.get("/")
    assert names(recorder) == [["default", "twice", "twice-2"]]


def test_a_view_that_is_not_found_is_charged_by_a_second_plan() -> None:
    client, recorder = recorded(hidden, Route("/", twice), default_limits="5/minute")
    answer = client.get("/m/")
    assert names(recorder) == [["default"], ["twice", "twice-2"]]
    check_fields(answer)


def test_the_budget_is_the_same_whether_the_view_is_found_or_not() -> None:
    ids = []
    for way in (visible, hidden):
        client, recorder = recorded(way, Route("/", twice))
        client.get(WAYS[way])
        ids.append([check.terms.rule_id for plan in recorder.plans for check in plan.checks])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2


@limit("9/minute")
class Both(HTTPEndpoint):
    @limit("2/minute")
    async def get(self, request: Request) -> Response:
        return where()

    @limit("1/minute")
    def post(self, request: Request) -> Response:
        return where()

    async def put(self, request: Request) -> Response:
        return where()


@pytest.mark.parametrize("way", [visible, hidden])
def test_methods_have_budgets_apart_from_each_other_and_from_their_class(way: Any) -> None:
    client = way(Route("/", Both))
    path = WAYS[way]
    assert [client.request(method, path).status for method in ("HEAD", "GET", "GET", "POST", "POST", "PUT")] == [
        *(200, 200, 429),
        *(200, 429),
        200,
    ]
    answer = client.request("PUT", path)
    assert answer.one("ratelimit") == '"Both";r=4;t=60'  # 4 passed before, this is the fifth
    client, recorder = recorded(way, Route("/", Both))
    client.request("GET", path)
    assert names(recorder) == [["Both", "Both.get"]]
    assert client.request("BREW", path).status == 405
    assert names(recorder)[1:] == [["Both"]]


@pytest.mark.parametrize("way", [visible, hidden])
def test_exempt_cancels_the_limits_of_the_view(way: Any) -> None:
    @exempt
    @once
    async def view(request: Request) -> Response:
        return where()

    client = way(Route("/", view))
    assert [client.get(WAYS[way]).status for _ in range(3)] == [200, 200, 200]


def test_a_preflight_that_an_endpoint_handles_itself_is_charged_by_the_guard_too() -> None:
    client = hidden(Route("/", make_async(), methods=["OPTIONS"]))
    headers = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT")]
    assert [client.request("OPTIONS", "/m/", headers=headers).status for _ in range(3)] == [200, 429, 429]


# ---- functions that are not endpoints ----------------------------------------------------------------------------


@once
async def costly() -> str:
    return "done"


@once
def costly_and_sync() -> str:
    return "done"


async def calling(request: Request) -> Response:
    return PlainTextResponse(await costly())


def calling_sync(request: Request) -> Response:
    return PlainTextResponse(costly_and_sync())


async def calling_wrongly(request: Request) -> Response:
    return PlainTextResponse(costly_and_sync())


@pytest.mark.parametrize("view", [calling, calling_sync])
def test_a_decorated_function_that_a_view_calls_refuses_the_request(view: Any) -> None:
    client = visible(Route("/", view))
    answers = [client.get("/") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert json.loads(answers[1].body)["detail"] == "Retry after 60 seconds."
    for answer in answers:
        check_fields(answer)


def test_one_decorator_on_two_functions_makes_two_budgets() -> None:
    @once
    async def view(request: Request) -> Response:
        return PlainTextResponse(await costly())

    client, recorder = recorded(visible, Route("/", view))
    client.get("/")
    assert names(recorder) == [["view"], ["costly"]]


def test_a_decorated_function_that_blocks_the_loop_is_an_error() -> None:
    client = visible(Route("/", calling_wrongly))
    with pytest.raises(NotEnforcedError, match=r"called on the event loop.*make it an async def"):
        client.serve(make_scope(path="/"), raising=True)


def test_the_request_is_the_one_that_is_served_after_another_was_served_inside_it() -> None:
    """A view that calls another application in the same task, and only then a decorated function."""

    async def other(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def view(request: Request) -> Response:
        async def send(message: Any) -> None:
            pass

        await RateLimitMiddleware(other)(make_scope(path="/", peer="203.0.113.1"), request.receive, send)
        return PlainTextResponse(await costly())

    recorder = Recorder()
    visible(Route("/", view), store=AsyncAdapter(recorder), clock=None).get("/")
    assert "198.51.100.9" in recorder.identity


# ---- responses of the guard ---------------------------------------------------------------------------------------


def test_on_denied_and_handlers_are_used_by_the_guard_too() -> None:
    def shrug(request: Request, decision: Any) -> Response:
        return JSONResponse({"wait": decision.retry_after}, 429)

    client = hidden(Route("/", make_sync()), on_denied=shrug)
    answers = [client.get("/m/") for _ in range(2)]
    assert answers[1].body == b'{"wait":60.0}'
    assert answers[1].one("retry-after") == "60"
    handlers: Any = {RateLimitExceeded: lambda request, error: shrug(request, error.decision)}
    inner = opaque(Starlette(routes=[Route("/", make_async())], exception_handlers=handlers))
    client = AsgiClient(Starlette(routes=[Mount("/m", app=inner)], middleware=middleware()))
    answers = [client.get("/m/") for _ in range(2)]
    assert answers[1].body == b'{"wait":60.0}'
    check_fields(answers[1])


# ---- WebSockets --------------------------------------------------------------------------------------------------


@once
async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")


@once
class Socket(WebSocketEndpoint):
    async def on_connect(self, websocket: WebSocket) -> None:
        await socket.__wrapped__(websocket)  # type: ignore[attr-defined]


class SocketMethod(WebSocketEndpoint):
    @once
    async def on_connect(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")


@pytest.mark.parametrize("endpoint", [socket, Socket, SocketMethod])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("denial", [True, False])
def test_st05_sockets_are_refused_before_they_are_accepted(way: Any, endpoint: Any, denial: bool) -> None:
    client = way(WebSocketRoute("/", endpoint))
    path = WAYS[way]
    assert client.connect(path, denial=denial).sent == ["hello"]
    refused = client.connect(path, denial=denial)
    assert not refused.accepted
    if denial:
        assert (refused.answer.status, refused.answer.one("retry-after")) == (429, "60")
        check_fields(refused.answer)
    else:
        assert refused.code == 1008


def test_a_socket_that_was_accepted_already_is_closed() -> None:
    class Late(WebSocketEndpoint):
        async def on_connect(self, websocket: WebSocket) -> None:
            await websocket.accept()
            await self.begin(websocket)

        @limit("1/minute")
        async def begin(self, websocket: WebSocket) -> None:
            await websocket.send_text("begun")

    client = visible(WebSocketRoute("/", Late))
    assert client.connect("/").sent == ["begun"]
    assert client.connect("/") == (True, None, 1008, [])


# ---- what cannot be decorated ------------------------------------------------------------------------------------


class Application:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


@pytest.mark.parametrize("view", [Application(), Application, staticmethod(where), 5])
def test_only_what_can_have_a_guard_can_be_limited(view: Any) -> None:
    with pytest.raises(RuleError, match="not something that can be guarded"):
        once(view)


@pytest.mark.parametrize(
    "options", [{"quota": "2/minut"}, {"quota": "2/minute", "key": "usr"}, {"quota": "1/s", "cost": 2}]
)
def test_c26_a_typo_raises_at_the_decorator(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="SG00"):
        limit(**options)


def test_st13_a_thread_s_view_is_charged_on_trio_as_well() -> None:
    inner = opaque(Starlette(routes=[Route("/", make_sync())]))
    app = Starlette(routes=[Mount("/m", app=inner)], middleware=middleware())
    client = AsgiClient(app, backend="trio")
    assert client.statuses("/m/", "/m/") == [200, 429]


def test_c12_by_the_guard_exactly_the_limit_passes() -> None:
    @limit("7/minute")
    def view(request: Request) -> Response:
        return where()

    app = Starlette(routes=[Mount("/m", app=opaque(Router([Route("/", view)])))], middleware=middleware())
    statuses = at_once(app, "/m/")
    assert (statuses.count(200), statuses.count(429)) == (7, 43)
