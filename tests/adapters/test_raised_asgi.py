"""`raise RateLimitExceeded` in an application under an ASGI adapter: the adapter handles it as its own refusal."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI
from fastapi import Request as FastAPIRequest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from sluicegate import AsyncLimiter, Concurrency, Decision, Limiter, ManualClock, RateLimitExceeded, Rule
from sluicegate.asgi import RateLimitMiddleware as AsgiMiddleware
from sluicegate.fastapi import RateLimit
from sluicegate.plan import FORBIDDEN
from sluicegate.starlette import RateLimitMiddleware, Refused, decision, limit
from sluicegate.testing import BrokenStore
from sluicegate.testing.charges import wrong
from tests.adapters.asgi_client import AsgiClient, make_scope
from tests.adapters.wsgi_client import check_fields

TEXT = [("Accept", "text/plain")]


def refused(action: str = "post", quota: str = "1/minute", **options: Any) -> Decision:
    """A refusal of the application's own limiter."""
    limiter = Limiter(clock=ManualClock(), **options)
    limiter.hit(quota, "alice", action=action)
    return limiter.hit(quota, "alice", action=action)


def fail(action: str = "post") -> Any:
    raise RateLimitExceeded(refused(action))


async def endpoint(request: Request) -> Response:
    return fail()


async def inner_page(request: Request) -> Response:
    return PlainTextResponse("page")


def sync_endpoint(request: Request) -> Response:
    return fail()


class Page(HTTPEndpoint):
    def get(self, request: Request) -> Response:
        return fail()


async def inner_limiter(request: Request) -> Response:
    async with AsyncLimiter(clock=ManualClock()) as limiter:
        while True:
            found = await limiter.hit("1/minute", "alice", action="post")
            if not found:
                raise RateLimitExceeded(found)


class Failing(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: Callable[..., Any]) -> Response:
        return fail()


class Passing(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: Callable[..., Any]) -> Response:
        response: Response = await call_next(request)
        return response


class PassingToo(Passing):
    pass


async def bare(scope: Any, receive: Any, send: Any) -> None:
    fail()


def limiter(**options: Any) -> Middleware:
    return Middleware(RateLimitMiddleware, **{"default_limits": "9/minute", "clock": ManualClock(), **options})


def starlette(view: Any = endpoint, *, inside: Any = (), handlers: Any = None, **options: Any) -> Starlette:
    stack = [limiter(**options), *map(Middleware, inside)]
    return Starlette(routes=[Route("/", view)], middleware=stack, exception_handlers=handlers)


def of_dependency(dependency: Any) -> FastAPI:
    app = FastAPI(dependencies=[Depends(dependency)])
    app.get("/")(lambda: "x")
    return app


def dependency() -> None:
    fail()


async def yielding() -> AsyncIterator[None]:
    fail()
    yield


def yielding_around() -> Iterator[None]:
    try:
        yield
    finally:
        pass


def of_view(view: Any) -> FastAPI:
    app, router = FastAPI(), APIRouter()
    router.get("/")(view)
    app.include_router(router)
    return app


def view_with_cleanup(cleaned: Annotated[None, Depends(yielding_around)]) -> None:
    fail()


async def async_view() -> None:
    fail()


def fastapi(app: FastAPI) -> FastAPI:
    app.add_middleware(RateLimitMiddleware, default_limits="9/minute", clock=ManualClock())
    return app


def mounting(sub: Any) -> FastAPI:
    app = FastAPI()
    app.mount("/", sub)
    return app


APPS: dict[str, Callable[[], Any]] = {
    "a bare application": lambda: AsgiMiddleware(bare, default_limits="9/minute", clock=ManualClock()),
    "an async endpoint": starlette,
    "a sync endpoint": lambda: starlette(sync_endpoint),
    "a class": lambda: starlette(Page),
    "an async limiter": lambda: starlette(inner_limiter),
    "a middleware inside": lambda: starlette(inside=[Failing]),
    "below a middleware": lambda: starlette(inside=[Passing]),
    "below two middleware": lambda: starlette(inside=[Passing, PassingToo]),
    "an application around": lambda: RateLimitMiddleware(
        Starlette(routes=[Route("/", endpoint)]), default_limits="9/minute", clock=ManualClock()
    ),
    "an application around, in debug": lambda: RateLimitMiddleware(
        Starlette(routes=[Route("/", endpoint)], debug=True), default_limits="9/minute", clock=ManualClock()
    ),
    "a bare middleware around an application": lambda: AsgiMiddleware(
        Starlette(routes=[Route("/", endpoint)]), default_limits="9/minute", clock=ManualClock()
    ),
    "the middleware of a route": lambda: Starlette(routes=[Route("/", endpoint, middleware=[limiter()])]),
    "a mounted application": lambda: Starlette(
        routes=[Mount("/", Starlette(routes=[Route("/", endpoint)]))], middleware=[limiter()]
    ),
    "a view of a router": lambda: fastapi(of_view(fail)),
    "an async view": lambda: fastapi(of_view(async_view)),
    "a view with a dependency that yields": lambda: fastapi(of_view(view_with_cleanup)),
    "a dependency": lambda: fastapi(of_dependency(dependency)),
    "a dependency that yields": lambda: fastapi(of_dependency(yielding)),
    "a sub-application": lambda: fastapi(mounting(of_view(async_view))),
}


@pytest.mark.parametrize("make", APPS.values(), ids=APPS)
def test_the_adapter_sends_429(make: Any) -> None:
    client = AsgiClient(make())
    answer = client.serve(make_scope(path="/"), raising=True).answer
    assert (answer.status, answer.one("content-type")) == (429, "application/problem+json")
    assert json.loads(answer.body)["violated-policies"] == ["post"]
    assert (answer.one("retry-after"), answer.one("cache-control")) == ("60", "no-store")
    assert answer.one("ratelimit-policy") == '"default";q=9;w=60, "post";q=1;w=60'
    assert answer.one("ratelimit") == '"post";r=0;t=60'
    check_fields(answer)
    text = client.get("/", headers=TEXT)
    assert text.body == b"Quota Exceeded. Retry after 60 seconds.\n"
    head = client.serve(make_scope("HEAD", "/"))
    if head.answer.status == 429:  # FastAPI's routes for GET take no HEAD
        assert b"".join(each.get("body", b"") for each in head.messages) == b""


def handler(request: Request, error: Any) -> Response:
    return PlainTextResponse(f"wait {error.decision.retry_after:g}", 429)


def unrelated(request: Request, error: Any) -> Response:
    return PlainTextResponse("some error", 418)


@pytest.mark.parametrize("kind", [RateLimitExceeded, 429, HTTPException])
@pytest.mark.parametrize("inside", [[], [Passing]], ids=["", "below a middleware"])
@pytest.mark.parametrize("where", ["inside", "around", "mounted", "mounted and itself"])
def test_a_handler_of_the_application_is_used(kind: Any, inside: Any, where: str) -> None:
    if where == "around":
        app: Any = RateLimitMiddleware(
            Starlette(routes=[Route("/", endpoint)], exception_handlers={kind: handler}),
            default_limits="9/minute",
            clock=ManualClock(),
        )
    elif where == "inside":
        app = starlette(inside=inside, handlers={kind: handler})
    else:
        own = {kind: handler} if where == "mounted and itself" else {}
        outer = {kind: unrelated if own else handler}
        sub = Starlette(routes=[Route("/", endpoint)], exception_handlers=own)
        app = Starlette(routes=[Mount("/", sub)], exception_handlers=outer, middleware=[limiter()])
    answer = AsgiClient(app).serve(make_scope(path="/"), raising=True).answer
    assert (answer.status, answer.body) == (429, b"wait 60")
    if not inside or kind != RateLimitExceeded:
        assert (answer.one("retry-after"), answer.one("ratelimit")) == ("60", '"post";r=0;t=60')
    check_fields(answer)


@pytest.mark.parametrize("raised", [False, True], ids=["by the limiter", "in a mounted application"])
def test_each_application_around_one_limiter_has_its_own_handlers(raised: bool) -> None:
    """One route with a limiter may be in two applications. The one without a handler has the usual answer."""
    view = endpoint if raised else inner_page
    shared = Mount("/", Starlette(routes=[Route("/", view)]), middleware=[limiter(default_limits="2/minute")])
    one = AsgiClient(Starlette(routes=[shared], exception_handlers={429: handler}))
    two = AsgiClient(Starlette(routes=[shared]))
    three = AsgiClient(Starlette(routes=[shared], exception_handlers={429: lambda request, error: Response("3", 420)}))
    for client in () if raised else (one, two):
        assert client.get("/").status == 200
    assert [client.get("/").status for client in (one, two, three)] == [429, 429, 420]
    assert one.get("/").body == b"wait 60"
    assert json.loads(two.get("/").body)["detail"] == "Retry after 60 seconds."


def test_on_denied_makes_the_response() -> None:
    def on_denied(request: Request, decision: Decision) -> Response:
        return PlainTextResponse(f"{request.url.path} {decision.rule}", 420)

    answer = AsgiClient(starlette(on_denied=on_denied)).get("/")
    assert (answer.status, answer.body) == (420, b"/app/ post")
    assert (answer.one("retry-after"), answer.one("ratelimit")) == ("60", '"post";r=0;t=60')


def test_a_handler_may_send_500() -> None:
    app = starlette(handlers={RateLimitExceeded: lambda request, error: PlainTextResponse("mine", 500)})
    answer = AsgiClient(app).serve(make_scope(path="/"), raising=True).answer
    assert (answer.status, answer.body, answer.one("retry-after")) == (500, b"mine", "60")


def never() -> Decision:
    return Limiter(clock=ManualClock()).hit("1/minute", "alice", cost=2)


def allowed() -> Decision:
    return Limiter(clock=ManualClock()).hit("1/minute", "alice", action="post")


def unavailable() -> Decision:
    return Limiter(BrokenStore(), on_store_failure="deny").hit("1/minute", "alice")


@pytest.mark.parametrize(
    ("make", "status", "wait"),
    [
        (refused, 429, "60"),
        (lambda: refused("回复"), 429, "60"),
        (lambda: refused("x" * 200), 429, "60"),
        (never, 429, None),
        (allowed, 429, "1"),
        (unavailable, 503, "1"),
        (lambda: FORBIDDEN, 403, None),
    ],
    ids=["refused", "not ASCII", "long", "never", "allowed", "unavailable", "forbidden"],
)
@pytest.mark.parametrize("options", [{}, {"default_limits": ()}, {"headers": "draft-7"}, {"enabled": False}], ids=str)
def test_every_kind_of_decision(make: Any, status: int, wait: str | None, options: Any) -> None:
    async def view(request: Request) -> Response:
        raise RateLimitExceeded(make())

    answer = AsgiClient(starlette(view, **options)).serve(make_scope(path="/"), raising=True).answer
    assert (answer.status, answer.one("retry-after"), answer.one("cache-control")) == (status, wait, "no-store")
    if "headers" not in options:
        check_fields(answer)


def test_the_decision_of_the_middleware_can_be_raised() -> None:
    async def view(request: Request) -> Response:
        found = decision(request)
        assert found is not None
        raise RateLimitExceeded(found)

    answer = AsgiClient(starlette(view)).get("/")
    assert (answer.status, answer.one("retry-after")) == (429, "1")
    assert answer.one("ratelimit-policy") == '"default";q=9;w=60'


def test_two_limiters_refuse_once() -> None:
    inner = starlette(default_limits="5/minute")
    client = AsgiClient(RateLimitMiddleware(inner, default_limits="9/minute", clock=ManualClock()))
    answer = client.serve(make_scope(path="/"), raising=True).answer
    assert answer.one("ratelimit-policy") == '"default";q=5;w=60, "post";q=1;w=60, "default-2";q=9;w=60'
    assert (answer.status, answer.one("ratelimit"), answer.one("retry-after")) == (429, '"post";r=0;t=60', "60")
    check_fields(answer)


def test_refused_without_a_handler_is_added_once() -> None:
    """Refused is an HTTPException. Outside Starlette's own middleware it is an ordinary error."""

    class Raising(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: Callable[..., Any]) -> Response:
            raise Refused(refused())

    answer = AsgiClient(starlette(inside=[Raising])).serve(make_scope(path="/"), raising=True).answer
    assert answer.one("ratelimit-policy") == '"default";q=9;w=60, "post";q=1;w=60'
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute", name="one"))])
    app.get("/")(lambda: "x")
    app.add_middleware(RateLimitMiddleware, default_limits="9/minute", clock=ManualClock())
    outer = RateLimitMiddleware(app, default_limits="99/minute", clock=ManualClock())
    last = [AsgiClient(outer).get("/") for _ in range(2)][-1]
    assert last.one("ratelimit-policy") == '"default";q=9;w=60, "one";q=1;w=60, "default-2";q=99;w=60'


@pytest.mark.parametrize("after", [False, True], ids=["in the stream", "in the background"])
def test_a_response_that_has_started_is_not_changed(after: bool) -> None:
    async def chunks() -> AsyncIterator[str]:
        yield "one"
        fail()

    async def view(request: Request) -> Response:
        return PlainTextResponse("done", background=BackgroundTask(fail)) if after else StreamingResponse(chunks())

    server = AsgiClient(starlette(view))
    with pytest.raises(RateLimitExceeded):
        server.serve(make_scope(path="/"), raising=True)
    answer = AsgiClient(starlette(view)).get("/")
    assert (answer.status, answer.body) == (200, b"done" if after else b"one")
    assert answer.one("ratelimit") == '"default";r=8;t=60'


def test_a_refusal_in_a_background_task_of_fastapi_sends_nothing() -> None:
    app = FastAPI()

    @app.get("/")
    def view(tasks: BackgroundTasks) -> str:
        tasks.add_task(fail)
        return "done"

    answer = AsgiClient(fastapi(app)).get("/")
    assert (answer.status, answer.body, answer.one("ratelimit")) == (200, b'"done"', '"default";r=8;t=60')


@pytest.mark.parametrize("error", [RuntimeError("boom"), ValueError("boom"), HTTPException(500)], ids=repr)
def test_other_errors_pass(error: Exception) -> None:
    async def view(request: Request) -> Response:
        try:
            fail()
        except RateLimitExceeded as refusal:
            raise error from refusal
        raise AssertionError

    client = AsgiClient(starlette(view))
    assert client.get("/").status == 500
    assert client.get("/").one("retry-after") is None


def test_a_view_may_handle_the_refusal_itself() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            fail()
        except RateLimitExceeded:
            await PlainTextResponse("less", 200)(scope, receive, send)

    answer = AsgiClient(AsgiMiddleware(app, default_limits="9/minute", clock=ManualClock())).get("/")
    assert (answer.status, answer.body) == (200, b"less")


@pytest.mark.parametrize("denial", [True, False])
@pytest.mark.parametrize("kind", ["starlette", "fastapi"])
def test_a_handshake_is_refused(denial: bool, kind: str) -> None:
    async def socket(websocket: WebSocket) -> None:
        fail()

    app: Any
    if kind == "starlette":
        app = Starlette(routes=[WebSocketRoute("/", socket)], middleware=[limiter()])
    else:
        app = FastAPI(dependencies=[Depends(dependency)])
        app.websocket("/")(socket)
        app = fastapi(app)
    found = AsgiClient(app).connect("/", denial=denial)
    if denial:
        assert found.answer is not None
        assert (found.answer.status, found.answer.one("ratelimit")) == (429, '"post";r=0;t=60')
        check_fields(found.answer)
    else:
        assert found == (False, None, 1008, ())


@pytest.mark.parametrize("denial", [True, False])
def test_an_open_socket_is_closed_and_a_closed_one_gets_nothing(denial: bool) -> None:
    async def opened(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        fail()

    async def closed(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close(1000)
        fail()

    app = Starlette(
        routes=[WebSocketRoute("/opened", opened), WebSocketRoute("/closed", closed)], middleware=[limiter()]
    )
    client = AsgiClient(app)
    assert client.connect("/opened", denial=denial) == (True, None, 1008, ["hello"])
    with pytest.raises(RateLimitExceeded):
        client.serve(make_scope(path="/closed", type="websocket", extensions={}), raising=True)
    assert client.connect("/closed", denial=denial).code == 1000


async def answering(connection: Any, error: Exception) -> Response:
    return PlainTextResponse("slow down", 429)


def answering_sync(connection: Any, error: Exception) -> Response:
    return PlainTextResponse("slow down", 429)


async def closing(connection: Any, error: Exception) -> None:
    await connection.close(4029)


@pytest.mark.parametrize("rules", [[], [Rule(name="busy", quota=Concurrency(9))]], ids=["plain", "settled"])
@pytest.mark.parametrize("denial", [True, False])
@pytest.mark.parametrize("handler", [answering, answering_sync, closing])
@pytest.mark.parametrize("kind", [RateLimitExceeded, Refused, 429, HTTPException])
def test_an_http_response_of_a_handler_never_goes_to_an_open_socket(
    kind: Any, handler: Any, denial: bool, rules: Any
) -> None:
    """A handler that closes the socket itself does so (issue 26)."""
    error = RateLimitExceeded if kind is RateLimitExceeded else Refused

    async def opened(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        raise error(refused())

    async def early(websocket: WebSocket) -> None:
        raise error(refused())

    routes = [WebSocketRoute("/opened", opened), WebSocketRoute("/early", early)]
    app = Starlette(routes=routes, middleware=[limiter(rules=rules)], exception_handlers={kind: handler})
    client, code = AsgiClient(app), 4029 if handler is closing else 1008
    assert client.connect("/opened", denial=denial) == (True, None, code, ["hello"])
    found = client.connect("/early", denial=denial)
    if denial and handler is not closing:
        assert found.answer is not None
        assert (found.answer.status, found.answer.body) == (429, b"slow down")
    else:
        assert found == (False, None, code, ())


@pytest.mark.parametrize("by", ["middleware", "decorator"])
@pytest.mark.parametrize(("handler", "code"), [(closing, 4029), (answering, None)])
def test_a_handler_answers_a_handshake_that_is_refused(by: str, handler: Any, code: int | None) -> None:
    """It gets the WebSocket, as for an error that a view raises (issue 26)."""

    async def view(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    routes = [WebSocketRoute("/", limit("1/minute")(view) if by == "decorator" else view)]
    options: dict[str, Any] = {} if by == "decorator" else {"default_limits": ["1/minute"]}
    handlers = {RateLimitExceeded: handler}
    client = AsgiClient(Starlette(routes=routes, middleware=[limiter(**options)], exception_handlers=handlers))
    assert client.connect("/").accepted
    found = client.connect("/")
    assert not found.accepted
    answer = found.answer
    assert (found.code if answer is None else (answer.status, answer.body)) == (code or (429, b"slow down"))


def test_the_response_settles_the_charges() -> None:
    """The predicate of a rule gets the 429, and the slot is free again."""
    seen: list[int] = []

    def watch(response: Any) -> bool:
        seen.append(response.status_code)
        return wrong(response)

    rules = [Rule(name="wrong", quota="5/minute", charge_when=watch), Rule(name="busy", quota=Concurrency(1))]
    client = AsgiClient(starlette(rules=rules))
    answers = [client.get("/") for _ in range(3)]
    assert [answer.status for answer in answers] == [429] * 3
    assert seen == [429] * 3
    assert {answer.one("ratelimit") for answer in answers} == {'"post";r=0;t=60'}


def test_without_a_middleware_it_is_an_ordinary_error() -> None:
    assert AsgiClient(Starlette(routes=[Route("/", endpoint)])).get("/").status == 500


def test_a_view_may_read_the_body_first() -> None:
    app = FastAPI()

    @app.post("/")
    async def view(request: FastAPIRequest) -> None:
        await request.body()
        fail()

    assert AsgiClient(fastapi(app)).request("POST", "/", body=b"x").status == 429
