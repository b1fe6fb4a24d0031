"""The middleware for Starlette, among other middleware and with routes (ST in our checklist)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, SimpleUser
from starlette.convertors import CONVERTOR_TYPES, Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from sluicegate import ManualClock, RateLimitExceeded, Rule
from sluicegate.asgi import AsgiCaller
from sluicegate.errors import AlgorithmError, ConfigurationError, SettingsError
from sluicegate.identity import identity_text
from sluicegate.plan import Plan
from sluicegate.starlette import RateLimitMiddleware, decision, exempt, limit
from sluicegate.testing import AsyncAdapter
from sluicegate.web.http import EXPOSED
from sluicegate.web.settings import Settings
from tests.adapters.asgi_client import AsgiClient, at_once, make_scope
from tests.adapters.wsgi_client import Recorder, addresses, check_fields


async def page(request: Request) -> Response:
    return PlainTextResponse("page")


@limit("1/minute")
async def rare(request: Request) -> Response:
    return PlainTextResponse("rare")


def limiter(**options: Any) -> Middleware:
    return Middleware(RateLimitMiddleware, **{"clock": ManualClock(), **options})


def app_of(*routes: Any, middleware: Any = (), **options: Any) -> Starlette:
    """An application with the limiter innermost."""
    return Starlette(routes=list(routes), middleware=[*middleware, limiter(**options)])


def client_of(*routes: Any, middleware: Any = (), **options: Any) -> AsgiClient:
    return AsgiClient(app_of(*routes, middleware=middleware, **options))


def recorded(*routes: Any, **options: Any) -> tuple[AsgiClient, list[Plan]]:
    """An application that refuses nothing, and the plans that its store gets."""
    recorder = Recorder()
    return client_of(*routes, store=AsyncAdapter(recorder), clock=None, **options), recorder.plans


def rule_ids(plans: list[Plan]) -> list[list[str]]:
    return [[check.terms.rule_id.partition(":")[0] for check in plan.checks] for plan in plans]


# ---- ST1, ST3, ST4: among other middleware -----------------------------------------------------------------------


def test_st01_lifespan_and_its_state_reach_the_application() -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
        yield {"pool": "open"}

    async def state(request: Request) -> Response:
        return PlainTextResponse(request.state.pool)

    app = Starlette(routes=[Route("/", state)], lifespan=lifespan, middleware=[limiter(default_limits="1/minute")])
    with TestClient(app) as client:
        assert [client.get("/").text for _ in range(1)] == ["open"]
        assert client.get("/").status_code == 429


def test_st01_a_lifespan_state_with_our_name_stops_the_start() -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
        yield {"sluicegate": "a limiter of the application's own"}

    app = Starlette(routes=[Route("/", page)], lifespan=lifespan, middleware=[limiter(default_limits="1/minute")])
    with pytest.raises(SettingsError, match=r"state .sluicegate.: .* another name .*\[SG003\]"), TestClient(app):
        pass
    scope = make_scope(path="/", state={"sluicegate": "of a server that keeps the state without us"})
    with pytest.raises(SettingsError, match="SG003"):
        AsgiClient(app_of(Route("/", page))).serve(scope, raising=True)


def test_st03_a_refusal_is_429_and_not_500() -> None:
    with TestClient(app_of(Route("/", page), default_limits="1/minute"), raise_server_exceptions=False) as client:
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]


def test_st04_under_cors_the_refusal_is_readable_and_preflights_are_free() -> None:
    cors = Middleware(CORSMiddleware, allow_origins=["https://a.example"], expose_headers=list(EXPOSED))
    client = client_of(Route("/", page), middleware=[cors], default_limits="1/minute")
    origin = [("Origin", "https://a.example")]
    preflight = [*origin, ("Access-Control-Request-Method", "GET")]
    assert client.statuses("/", "/", "/", method="OPTIONS", headers=preflight) == [200, 200, 200]
    assert client.get("/", headers=origin).status == 200
    refused = client.get("/", headers=origin)
    assert refused.status == 429
    assert refused.one("access-control-allow-origin") == "https://a.example"
    assert (refused.one("access-control-expose-headers") or "").split(", ") == list(EXPOSED)
    assert client.request("OPTIONS", "/", headers=preflight).status == 200


class Passing(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: Callable[..., Any]) -> Response:
        response: Response = await call_next(request)
        found = decision(request)
        response.headers["x-seen"] = "nothing" if found is None else str(found.remaining)
        return response


@pytest.mark.parametrize("outside", [True, False])
def test_st08_it_works_on_either_side_of_a_base_http_middleware(outside: bool) -> None:
    @limit("3/minute")
    def view(request: Request) -> Response:
        return PlainTextResponse("view")

    stack = [Middleware(Passing), limiter(default_limits="2/minute")]
    client = AsgiClient(Starlette(routes=[Route("/", view)], middleware=stack if outside else stack[::-1]))
    answers = [client.get("/") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert [answer.one("x-seen") for answer in answers] == ["1", "0", "0" if outside else None]
    for answer in answers:
        check_fields(answer)


class Tokens:
    """An authentication backend: the token is the name."""

    async def authenticate(self, conn: HTTPConnection) -> Any:
        name = conn.headers.get("Authorization")
        return None if name is None else (AuthCredentials(["authenticated"]), SimpleUser(name))


def test_the_user_is_known_when_authentication_is_outside() -> None:
    tokens = Middleware(AuthenticationMiddleware, backend=cast(Any, Tokens()))
    client = client_of(Route("/", page), middleware=[tokens], default_limits="1/minute")
    a, b = [("Authorization", "a")], [("Authorization", "b")]
    statuses = [client.get("/", headers=headers).status for headers in (a, b, a, [], [])]
    assert statuses == [200, 200, 429, 200, 429]
    assert client.get("/", headers=a, peer="203.0.113.1").status == 429  # the user, not the address


def test_a_key_may_read_the_session() -> None:
    async def enter(request: Request) -> Response:
        request.session["name"] = request.path_params["name"]
        return PlainTextResponse("in")

    routes = [Route("/enter/{name}", enter), Route("/", page)]
    rule = Rule(name="one", quota="1/minute", path="/", key=lambda request: request.session.get("name"))
    app = app_of(*routes, middleware=[Middleware(SessionMiddleware, secret_key="s")], rules=[rule])
    for name in ("a", "b"):
        with TestClient(app) as client:
            client.get(f"/enter/{name}")
            assert [client.get("/").status_code for _ in range(2)] == [200, 429]


# ---- ST9, ST10 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("peer", "expect"), [(None, "no-peer"), ("testclient", "peer testclient"), ("::1", "::1")])
def test_st09_any_peer_is_accepted(peer: str | None, expect: str) -> None:
    client, plans = recorded(Route("/", page), default_limits="1/minute")
    assert client.get("/", peer=peer).status == 200
    assert plans[0].checks[0].identity == identity_text(("ip", expect))


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("row", addresses())
def test_c07_the_table_of_addresses(row: dict[str, Any]) -> None:
    options = {option: row[option] for option in ("trusted_proxies", "trusted_header")}
    client, plans = recorded(Route("/", page), default_limits="1/minute", **options)
    client.get("/", peer=row["peer"], headers=[(row["trusted_header"], line) for line in row["lines"]])
    assert plans[0].checks[0].identity == identity_text(("ip", row["expect"]))


def test_st10_the_fields_come_with_the_first_chunk_and_chunks_are_not_held_back() -> None:
    seen: list[str] = []

    async def chunks() -> AsyncIterator[str]:
        for number in range(2):
            seen.append(f"made {number}")
            yield str(number)

    async def stream(request: Request) -> Response:
        return StreamingResponse(chunks())

    async def send(message: Any) -> None:
        names = [name.decode() for name, _ in message.get("headers", ())]
        seen.append("start" if "ratelimit" in names else message.get("body", b"").decode())

    async def main() -> None:
        app: Any = app_of(Route("/", stream), default_limits="1/minute")
        await app(make_scope(path="/"), anyio.sleep_forever, send)

    anyio.run(main)
    assert seen == ["start", "made 0", "0", "made 1", "1", ""]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_st10_a_cancelled_request_is_cancelled(backend: str) -> None:
    ended: list[str] = []

    async def slow(request: Request) -> Response:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("slow")
        raise AssertionError

    app: Any = app_of(Route("/", slow), default_limits="9/minute")

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, make_scope(path="/"), None, None)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    assert ended == ["slow"]


def test_c12_concurrent_requests_are_admitted_exactly() -> None:
    app = app_of(Route("/", page), default_limits="7/minute")
    statuses = at_once(app, "/")
    assert (statuses.count(200), statuses.count(429)) == (7, 43)


# ---- ST11, ST12, ST14: routes ------------------------------------------------------------------------------------


def test_st11_a_view_has_one_budget_wherever_it_is_mounted() -> None:
    sub = Starlette(routes=[Route("/rare", rare)])
    client, plans = recorded(Route("/rare", rare), Mount("/v1", routes=[Route("/rare", rare)]), Mount("/v2", app=sub))
    client.statuses("/rare", "/v1/rare", "/v2/rare")
    assert rule_ids(plans) == [[f"{__name__}.rare"]] * 3


def test_st11_views_made_by_one_function_have_a_budget_per_route() -> None:
    def make() -> Any:
        @limit("1/minute")
        async def view(request: Request) -> Response:
            return PlainTextResponse("made")

        return view

    client = client_of(Route("/a", make()), Mount("/b", routes=[Route("/a", make())]))
    assert client.statuses("/a", "/b/a", "/a", "/b/a") == [200, 200, 429, 429]


def test_st12_a_request_without_a_route_is_charged_to_the_defaults_only() -> None:
    routes = [Route("/rare", rare), Route("/slash/", page), Mount("/sub", routes=[Route("/rare", rare)])]
    client, plans = recorded(*routes, default_limits="9/minute")
    requests = ("/nowhere", "/sub/nowhere", "/slash")
    assert client.statuses(*requests) == [404, 404, 307]
    assert client.statuses("/rare", "/sub/rare", method="DELETE") == [405, 405]
    assert rule_ids(plans) == [["default"]] * 5
    free, plans = recorded(*routes)
    assert free.statuses(*requests) == [404, 404, 307]
    assert plans == []


def test_st14_the_middleware_of_a_route_a_mount_and_a_router() -> None:
    @limit("2/minute")
    async def often(request: Request) -> Response:
        return PlainTextResponse("often")

    one = {"default_limits": "1/minute"}
    client = AsgiClient(
        Starlette(
            routes=[
                Route("/route", often, middleware=[limiter()], methods=["GET"]),
                Route("/default/{name}", page, middleware=[limiter(**one, key="path:name")]),
                Mount("/mount", routes=[Route("/often", often), Route("/page", page)], middleware=[limiter(**one)]),
                Mount("/router", app=Router([Route("/often", often)], middleware=[limiter()])),
                Route("/free", page),
            ]
        )
    )
    assert client.statuses("/route", "/route", "/route") == [200, 200, 429]
    assert client.request("POST", "/route").status == 405  # the response is from before the limiter
    assert client.statuses("/default/a", "/default/b", "/default/a") == [200, 200, 429]
    assert client.statuses("/mount/often", "/mount/page") == [200, 429]
    assert client.statuses("/router/often", "/router/often", "/router/often") == [200, 200, 429]
    assert client.statuses("/free", "/free") == [200, 200]


def test_st14_a_limiter_inside_another_adds_its_rules_and_charges_no_view_twice() -> None:
    @limit("3/minute", override_defaults=True)
    async def often(request: Request) -> Response:
        return PlainTextResponse("often")

    @limit("3/minute")
    async def seldom(request: Request) -> Response:
        return PlainTextResponse("seldom")

    inner = [limiter(default_limits="2/minute")]
    routes = [Route("/often", often, middleware=inner), Route("/seldom", seldom, middleware=inner)]
    client = client_of(*routes, default_limits="9/minute")
    assert client.statuses(*["/often"] * 4) == [200, 200, 200, 429]
    answer = client.get("/seldom")
    assert answer.one("ratelimit") == '"default";r=1;t=60, "default-2";r=8;t=60, "seldom";r=2;t=60'
    check_fields(answer)
    assert client.statuses("/seldom", "/seldom") == [200, 429]


def test_a_mounted_application_with_a_limiter_keeps_it() -> None:
    @limit("1/minute")
    async def inside(request: Request) -> Response:
        return PlainTextResponse("inside")

    routes = [Route("/", inside), Route("/page", page)]
    own = Starlette(routes=routes, middleware=[limiter(default_limits="5/hour")])
    wrapped = RateLimitMiddleware(Starlette(routes=routes), clock=ManualClock())
    client = client_of(Mount("/own", app=own), Mount("/wrapped", app=wrapped), default_limits="9/minute")
    answer = client.get("/own/")
    assert answer.one("ratelimit-policy") == '"default";q=5;w=3600, "inside";q=1;w=60, "default-2";q=9;w=60'
    check_fields(answer)
    assert client.statuses("/own/", "/own/page", "/wrapped/", "/wrapped/") == [429, 200, 200, 429]


def test_hosts_sockets_and_names_are_found_before_the_call() -> None:
    @limit("1/minute", key="path:room")
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(websocket.path_params["room"])

    @exempt
    async def free(request: Request) -> Response:
        return PlainTextResponse("free")

    routes = [
        Host("{team}.example.org", app=Router([Route("/rare", rare), Route("/free", free)]), name="team"),
        WebSocketRoute("/rooms/{room}", socket),
        Mount("/admin", routes=[Route("/page", page, name="page")], name="admin"),
    ]
    client = client_of(
        *routes, default_limits="9/minute", rules=[Rule(name="named", quota="1/minute", route="admin:page")]
    )
    team = [("Host", "blue.example.org")]
    # The header is the second one of that name, so only the raw scope can carry it.
    assert [_host(client, path, team) for path in ("/rare", "/rare", "/free")] == [200, 429, 200]
    assert [client.connect(f"/rooms/{room}").accepted for room in "aba"] == [True, True, False]
    assert client.statuses("/admin/page", "/admin/page") == [200, 429]


def _host(client: AsgiClient, path: str, headers: Any) -> int:
    scope = make_scope(path=path, headers=headers)
    scope["headers"] = scope["headers"][1:]
    return client.serve(scope).answer.status


class Hex(Convertor[int]):
    regex = "[^/]+"

    def convert(self, value: str) -> int:
        if value == "teapot":
            raise TeapotError
        return int(value, 16)

    def to_string(self, value: int) -> str:
        return f"{value:x}"


class TeapotError(Exception):
    pass


def test_a_convertor_raises_in_the_router_and_not_in_the_limiter() -> None:
    register_url_convertor("hex", Hex())
    try:
        app = app_of(Route("/{number:hex}", rare), default_limits="9/minute", key="path:number")
    finally:
        del CONVERTOR_TYPES["hex"]
    app.add_exception_handler(TeapotError, lambda request, error: PlainTextResponse("short and stout", 418))
    client = AsgiClient(app)
    answer = client.get("/teapot")
    assert (answer.status, answer.one("ratelimit")) == (418, '"default";r=8;t=60')
    assert client.statuses("/a", "/0A", "/b") == [200, 429, 200]  # by the converted value


def test_routes_that_are_added_later_are_found() -> None:
    app = app_of(Route("/", page))
    client = AsgiClient(app)
    assert client.get("/").status == 200
    app.router.routes.append(Route("/rare", rare))
    answer = client.get("/rare")
    assert (answer.status, answer.one("ratelimit")) == (200, '"rare";r=0;t=60')


# ---- responses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_on_denied_makes_the_response(is_async: bool) -> None:
    def plain(request: Request, decision: Any) -> Response:
        return JSONResponse({"path": request.url.path, "wait": decision.retry_after}, 429)

    async def awaited(request: Request, decision: Any) -> Response:
        return plain(request, decision)

    client = client_of(Route("/{x}", page), default_limits="1/minute", on_denied=awaited if is_async else plain)
    assert client.get("/a").status == 200
    refused = client.get("/a")
    assert json.loads(refused.body) == {"path": "/app/a", "wait": 60}
    assert (refused.one("retry-after"), refused.one("cache-control")) == ("60", "no-store")
    check_fields(refused)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("own", ["no", {"error": "no"}, ("no", 429), 429], ids=repr)
def test_on_denied_that_returns_no_response_is_an_error_that_says_so(own: Any, is_async: bool) -> None:
    async def awaited(request: Request, decision: Any) -> Any:
        return own

    client = client_of(Route("/", page), default_limits="1/minute", on_denied=awaited if is_async else lambda *_: own)
    assert client.get("/").status == 200
    with pytest.raises(SettingsError, match=rf"on_denied .*{type(own).__name__}.*: not a response; return "):
        client.serve(make_scope(path="/"), raising=True)


class Named:
    """A user of an authentication middleware, with some of the names that a user may have."""

    is_authenticated = True

    def __init__(self, **names: Any) -> None:
        vars(self).update(names)


@pytest.mark.parametrize(
    ("names", "expect"),
    [
        ({"identity": "alice", "display_name": "Alice"}, "alice"),
        ({"display_name": "alice"}, "alice"),
        ({"identity": None, "display_name": "alice"}, "alice"),
        ({"identity": "", "display_name": "alice"}, "alice"),
        ({"identity": 0}, "0"),
        ({"identity": None, "display_name": None}, None),
        ({"identity": None}, None),
        ({}, None),
    ],
    ids=repr,
)
def test_a_user_is_known_by_the_first_name_that_it_has(names: dict[str, Any], expect: str | None) -> None:
    """Two users without an identity are not one, and a user without any name is limited by the address."""
    user = Named(**names)
    assert AsgiCaller(make_scope(user=user)).user() == expect
    client = AsgiClient(RateLimitMiddleware(Starlette(routes=[Route("/", page)]), default_limits="1/minute"))
    scope = make_scope(path="/", user=user)
    assert [client.serve({**scope}, raising=True).answer.status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("kind", [RateLimitExceeded, 429, HTTPException])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("late", [False, True], ids=["", "added in the lifespan"])
def test_the_application_s_own_handler_is_used(kind: Any, is_async: bool, late: bool) -> None:
    def plain(request: Request, error: Any) -> Response:
        assert isinstance(error, RateLimitExceeded)
        return PlainTextResponse(f"not now: {error.decision.rule}", error.status_code)  # type: ignore[attr-defined]

    async def awaited(request: Request, error: Any) -> Response:
        return plain(request, error)

    app = app_of(Route("/", page), default_limits="1/minute")
    if late:
        AsgiClient(app).get("/elsewhere")  # the middleware binds its rules before the lifespan
    app.add_exception_handler(kind, awaited if is_async else plain)
    answers = [AsgiClient(app).get("/") for _ in range(2)]
    assert answers[1].body == b"not now: default"
    check_fields(answers[1])
    assert answers[1].one("retry-after") == "60"


def test_c22_the_decision_can_be_read_by_the_view() -> None:
    async def view(request: Request) -> Response:
        found = decision(request)
        assert found is request.state.sluicegate.decision
        return PlainTextResponse("none" if found is None else f"{found.rule} {found.remaining}")

    client = client_of(Route("/{x}", view), rules=[Rule(name="mine", quota="2/minute", path="/a")])
    assert [client.get(path).body for path in ("/a", "/b")] == [b"mine 1", b"none"]


# ---- start-up ----------------------------------------------------------------------------------------------------


@limit("5/minute burst 9")
async def bursting(request: Request) -> Response:
    return PlainTextResponse("")


@pytest.mark.parametrize(
    "routes", [[Route("/", bursting)], [Mount("/a", routes=[Mount("/b", routes=[Route("/", bursting)])])]]
)
def test_c26_a_rule_that_cannot_work_stops_the_start(routes: list[Any]) -> None:
    client = client_of(*routes, Route("/page", page))
    sent: list[Any] = []
    with pytest.raises(AlgorithmError, match="burst"):
        sent = client.live("startup")
    assert sent == []
    with pytest.raises(AlgorithmError, match="burst"):  # a server without lifespan
        client.serve(make_scope(path="/page"), raising=True)
    assert client_of(*routes, algorithm="gcra").live("startup", "shutdown")[0] == {"type": "lifespan.startup.complete"}


WRONG: list[dict[str, Any]] = [
    {"default_limits": ["10/fortnight"]},
    {"stroe": "memory://"},
    {"store": "redsi://localhost"},
    {"rules": [{"name": "writes", "quota": "1/minute", "route": "pgae"}]},
    {"settings": Settings(), "enabled": False},
    {"settings": {"default_limits": ["1/minute"]}},
    {"settings": Settings},
    {"clock": ManualClock},
]


@pytest.mark.parametrize("options", WRONG, ids=lambda options: next(iter(options)))
def test_c26_a_wrong_option_of_add_middleware_stops_the_start(options: dict[str, Any]) -> None:
    app = Starlette(routes=[Route("/page", page)])
    app.add_middleware(RateLimitMiddleware, **options)
    messages: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        messages.append(message)

    async def main() -> None:
        for _ in range(2):  # a second try fails as well
            with pytest.raises(ConfigurationError):
                await app({"type": "lifespan", "state": {}}, receive, send)
        with pytest.raises(ConfigurationError):  # a server without lifespan never gets an unlimited response
            await app(make_scope(path="/page"), receive, send)

    anyio.run(main)
    assert [message["type"] for message in messages[:2]] == ["lifespan.startup.failed"] * 2
    assert "SG00" in messages[0]["message"]
    assert [message["status"] for message in messages[2:] if "status" in message] == [500]


@pytest.mark.parametrize("options", WRONG[:3], ids=lambda options: next(iter(options)))
def test_c26_a_wrong_option_raises_where_the_middleware_is_made_by_hand(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RateLimitMiddleware(Starlette(routes=[Route("/page", page)]), **options)


def test_c26_the_server_gets_the_reason() -> None:
    messages: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        messages.append(message)

    async def main() -> None:
        with pytest.raises(AlgorithmError):
            await app_of(Route("/", bursting))({"type": "lifespan", "state": {}}, receive, send)

    anyio.run(main)
    assert messages[0]["type"] == "lifespan.startup.failed"
    assert "SG005" in messages[0]["message"]
