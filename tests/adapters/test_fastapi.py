"""FastAPI's own features: included routers, the dependency, OpenAPI (FA in our checklist)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import fastapi.routing
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.openapi.models import OpenAPI
from fastapi.params import Depends as DependsMarker
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Mount, Route, WebSocketRoute

from sluicegate import Decision, ManualClock, RateLimitExceeded, Rule
from sluicegate.errors import NotEnforcedError, RuleError
from sluicegate.fastapi import RESPONSES, RateLimit, RateLimitMiddleware, charge, decision, exempt, limit
from sluicegate.starlette.routes import RouteFinder
from sluicegate.testing import AsyncAdapter
from sluicegate.web.http import PROBLEM
from tests.adapters.asgi_client import AsgiClient, make_scope
from tests.adapters.wsgi_client import Recorder, addresses, check_fields

JSON = [("Content-Type", "application/json")]
KEEPS_ROUTERS = hasattr(fastapi.routing, "iter_route_contexts")  # from 0.137 on
OUTER = "/outer" if KEEPS_ROUTERS else ""  # before, plain routes inside a router did not get its prefix


class Item(BaseModel):
    name: str


@limit("1/minute")
async def rare() -> dict[str, str]:
    return {"rare": "yes"}


@limit("1/minute")
async def rare_socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")


@limit("1/minute")
def sync_dependency(name: str = "x") -> str:
    return name


@limit("1/minute")
async def async_dependency(name: str = "x") -> str:
    return name


@exempt
def free() -> str:
    return "free"


@limit("1/minute")
async def old_view(request: Request) -> Response:
    return PlainTextResponse("old")


def limited(app: FastAPI, **options: Any) -> AsgiClient:
    app.add_middleware(RateLimitMiddleware, **{"clock": ManualClock(), **options})
    return AsgiClient(app)


def recorded(app: FastAPI, **options: Any) -> tuple[AsgiClient, Recorder]:
    recorder = Recorder()
    return limited(app, store=AsyncAdapter(recorder), clock=None, **options), recorder


def scopes(recorder: Recorder) -> list[list[str]]:
    return [[check.terms.rule_id.rpartition(":")[0] for check in plan.checks] for plan in recorder.plans]


# ---- FA1, FA2: routers inside routers ----------------------------------------------------------------------------


def nested() -> FastAPI:
    """Every kind of route, two routers deep, once under /v1 and once under /v2."""
    app, outer, inner = FastAPI(), APIRouter(prefix="/outer"), APIRouter(prefix="/inner")
    inner.get("/rare/{number}")(rare)
    inner.get("/free")(free)
    inner.websocket("/socket")(rare_socket)
    inner.routes.append(Route("/inner/route", old_view, name="old"))
    inner.routes.append(WebSocketRoute("/inner/plain", rare_socket))
    outer.include_router(inner)
    app.include_router(outer, prefix="/v1")
    app.include_router(outer, prefix="/v2")
    app.mount("/mounted", Mount("", routes=[Route("/rare", rare)]).app)
    return app


def test_fa01_views_of_included_routers_are_found_before_the_call() -> None:
    client, recorder = recorded(nested(), default_limits="9/minute")
    answers = [client.get(f"/{path}") for path in ("v1/outer/inner/rare/1", "v2/outer/inner/rare/2")]
    assert [answer.status for answer in answers] == [200, 200]
    assert client.connect("/v1/outer/inner/socket").accepted
    assert client.statuses("/v1/outer/inner/free", "/v1/outer/nowhere", "/outer/inner/rare/1") == [200, 404, 404]
    assert client.statuses("/v1/outer/inner/rare/1", method="PUT") == [405]
    assert scopes(recorder) == [
        ["default", f"{__name__}.rare"],
        ["default", f"{__name__}.rare"],  # the same function has the same budget
        ["default", f"{__name__}.rare_socket"],
        *[["default"]] * 3,
    ]


def test_fa01_views_that_are_not_found_are_charged_when_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI 0.137.0 keeps included routers, and has no public function that lists their routes."""
    monkeypatch.delattr(fastapi.routing, "iter_route_contexts", raising=False)
    client = limited(nested(), default_limits="9/minute")
    answers = [client.get(f"/v{number}/outer/inner/rare/1") for number in (1, 2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert answers[1].one("retry-after") == "60"
    for answer in answers:
        check_fields(answer)
    assert [client.connect("/v1/outer/inner/socket").accepted for _ in range(2)] == [True, False]


def test_fa02_the_endpoint_has_the_whole_path() -> None:
    app = nested()
    endpoints = RouteFinder(app).endpoints({"type": "lifespan", "app": app})
    routes = {endpoint.route for endpoint in endpoints if endpoint.marks}
    assert routes >= {
        "/v1/outer/inner/rare/{number}",
        "/v2/outer/inner/rare/{number}",
        "/v1/outer/inner/socket",
        f"/v1{OUTER}/inner/route",
        f"/v1{OUTER}/inner/plain",
        "/v1/outer/inner/free",
    }
    rule = Rule(name="by-template", quota="1/minute", route=f"/v1{OUTER}/inner/route")
    client, recorder = recorded(app, rules=[rule, Rule(name="by-name", quota="1/minute", route="old")])
    assert client.statuses(f"/v1{OUTER}/inner/route", f"/v2{OUTER}/inner/route") == [200, 200]
    assert [[each.rpartition(".")[2] for each in scope] for scope in scopes(recorder)] == [
        ["by-template", "by-name", "old_view"],
        ["by-name", "old_view"],
    ]


def test_fa02_the_budget_of_a_lambda_is_named_by_its_whole_path() -> None:
    app = FastAPI()
    for prefix in ("/a", "/b"):
        router = APIRouter(prefix=prefix)
        router.get("/x", dependencies=[Depends(RateLimit("9/hour"))])(limit("1/minute")(lambda: "x"))
        app.include_router(router)
    client = limited(app)
    assert client.statuses("/a/x", "/b/x", "/a/x", "/b/x") == [200, 200, 429, 429]


def test_fa10_a_mounted_application_keeps_its_own_limiter() -> None:
    sub = FastAPI()
    sub.get("/rare")(rare)
    sub.add_middleware(RateLimitMiddleware, default_limits=["5/hour"], clock=ManualClock())
    app = FastAPI()
    app.mount("/sub", sub)
    client = limited(app, default_limits=["9/minute"])
    answer = client.get("/sub/rare")
    assert answer.one("ratelimit-policy") == '"default";q=5;w=3600, "rare";q=1;w=60, "default-2";q=9;w=60'
    check_fields(answer)
    assert client.get("/sub/rare").status == 429


# ---- FA3, FA9: the dependency ------------------------------------------------------------------------------------


def test_fa03_the_dependency_limits_routes_routers_and_the_application() -> None:
    app = FastAPI(dependencies=[Depends(RateLimit("9/minute"))])
    router = APIRouter(prefix="/r", dependencies=[Depends(RateLimit("5/minute"))])

    @router.get("/a", dependencies=[Depends(RateLimit("2/minute"))])
    def view() -> str:
        return "x"

    app.include_router(router)
    client = limited(app, default_limits="20/minute")
    answer = client.get("/r/a")
    policies = (answer.one("ratelimit-policy") or "").split(", ")
    assert policies == ['"default";q=20;w=60', '"view";q=9;w=60', '"view-2";q=5;w=60', '"view-3";q=2;w=60']
    check_fields(answer)
    assert client.statuses("/r/a", "/r/a") == [200, 429]
    refused = client.get("/r/a")
    assert (refused.status, refused.one("retry-after"), refused.one("cache-control")) == (429, "60", "no-store")
    assert refused.body == b'{"detail":"Quota Exceeded. Retry after 60 seconds."}'
    assert refused.one("ratelimit") == '"view-3";r=0;t=60'
    check_fields(refused)


def test_fa03_the_dependency_limits_sockets() -> None:
    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(RateLimit("1/minute"))])
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()

    client = limited(app)
    assert client.connect("/").accepted
    refused = client.connect("/")
    assert refused.answer is not None
    assert (refused.answer.status, refused.answer.one("retry-after")) == (429, "60")
    check_fields(refused.answer)
    assert client.connect("/", denial=False) == (False, None, 1008, ())


def test_fa03_the_dependency_can_be_overridden_and_gives_the_decision() -> None:
    app = FastAPI()

    @app.get("/")
    def view(request: Request, found: Annotated[Decision | None, Depends(RateLimit("1/minute", name="mine"))]) -> Any:
        assert found is None or found == decision(request)
        return None if found is None else [found.rule, found.remaining]

    client = limited(app)
    assert client.get("/").body == b'["mine",0]'
    assert client.get("/").status == 429
    app.dependency_overrides[RateLimit("1/minute", name="mine")] = lambda: None
    assert client.get("/").body == b"null"


def test_fa09_the_same_dependency_is_charged_once() -> None:
    app = FastAPI(dependencies=[Depends(RateLimit("5/minute"))])
    shared = RateLimit("7/minute", scope="shared")
    both = [Depends(RateLimit("5/minute")), Depends(shared), Depends(shared, use_cache=False)]
    app.get("/", dependencies=both)(lambda: "x")
    client, recorder = recorded(app)
    answer = client.get("/")
    assert [plan.checks[0].terms.params[0] for plan in recorder.plans] == [5, 7]
    assert len(answer.all("ratelimit")) == 1


def test_fa09_equal_dependencies_are_one_and_different_ones_are_not() -> None:
    assert RateLimit("5/minute") == RateLimit("5 per minute")
    assert (
        len({RateLimit("5/minute"), RateLimit("5/minute", key="ip"), RateLimit("6/minute"), RateLimit("5/minute")}) == 3
    )
    assert RateLimit("5/minute", name="limit") != RateLimit("5/minute")


def test_without_scope_each_route_has_its_own_budget_and_with_it_they_share() -> None:
    app = FastAPI()
    own, shared = RateLimit("1/minute"), RateLimit("1/minute", scope="both")
    for number in range(2):
        app.get(f"/own/{number}", dependencies=[Depends(own)])(lambda: "x")
        app.get(f"/shared/{number}", dependencies=[Depends(shared)])(lambda: "x")
    client = limited(app)
    assert client.statuses("/own/0", "/own/1", "/own/0") == [200, 200, 429]
    assert client.statuses("/shared/0", "/shared/1") == [200, 429]


def test_the_dependency_needs_the_middleware_and_uses_its_settings() -> None:
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute"))])
    app.get("/")(lambda: "x")
    app.get("/free")(free)
    with pytest.raises(NotEnforcedError, match=r"RateLimit on.*reached without RateLimitMiddleware"):
        AsgiClient(app).serve(make_scope(path="/"), raising=True)
    app.middleware_stack = None
    assert limited(app, enabled=False).statuses("/", "/") == [200, 200]
    app.middleware_stack = None
    app.user_middleware.clear()
    assert limited(app).statuses("/free", "/free") == [200, 200]


def test_a_decorated_dependency_refuses_the_request_and_not_only_itself() -> None:
    app = FastAPI()

    app.get("/sync", dependencies=[Depends(sync_dependency)])(lambda: "x")
    app.get("/async", dependencies=[Depends(async_dependency)])(lambda: "x")
    client = limited(app)
    for path in ("/sync", "/async"):
        assert client.statuses(path, path) == [200, 429]


# ---- FA4, FA5: all kinds of responses ----------------------------------------------------------------------------


def answering(**options: Any) -> FastAPI:
    app = FastAPI(**options)
    app.get("/dict")(lambda: {"a": 1})
    app.get("/response")(lambda: JSONResponse({"a": 1}))
    app.get("/stream")(lambda: StreamingResponse(iter(["a"])))

    @app.get("/error")
    def error() -> None:
        raise HTTPException(418, headers={"X-Own": "1"})

    @app.get("/number")
    def number(number: Annotated[int, Query()]) -> int:
        return number

    @app.post("/item")
    async def item(item: Item) -> Item:
        return item

    return app


PATHS = {
    "/dict": 200,
    "/response": 200,
    "/stream": 200,
    "/error": 418,
    "/number?number=x": 422,
    "/number?number=5": 200,
}


@pytest.mark.parametrize(("path", "status"), PATHS.items())
@pytest.mark.parametrize("depends", [False, True])
def test_fa04_every_response_has_the_fields(path: str, status: int, depends: bool) -> None:
    if depends:
        client = limited(answering(dependencies=[Depends(RateLimit("5/minute", name="one"))]))
    else:
        client = limited(answering(), rules=[Rule(name="one", quota="5/minute")])
    answer = client.get(path)
    assert (answer.status, answer.one("ratelimit")) == (status, '"one";r=4;t=60')
    check_fields(answer)


def test_fa05_malformed_json_is_counted_by_the_middleware_and_not_by_the_dependency() -> None:
    client = limited(answering(dependencies=[Depends(RateLimit("9/minute", name="late"))]), default_limits="2/minute")
    answers = [client.request("POST", "/item", body=b"{", headers=JSON) for _ in range(3)]
    assert [answer.status for answer in answers] == [422, 422, 429]
    assert answers[0].one("ratelimit") == '"default";r=1;t=60'


# ---- FA6, FA7: OpenAPI -------------------------------------------------------------------------------------------


def documented(mark: Any) -> dict[str, Any]:
    app = FastAPI()

    @app.get("/{number}")
    @mark
    async def view(number: int, q: Annotated[str | None, Query(max_length=3)] = None) -> Item:
        return Item(name=f"{number}{q}")

    @app.post("/")
    @mark
    def create(item: Item, request: Request) -> Item:
        return item

    schema: dict[str, Any] = app.openapi()
    client = limited(app)
    assert client.get("/5?q=a").body == b'{"name":"5a"}'
    assert client.request("POST", "/", body=b'{"name": "x"}', headers=JSON).body == b'{"name":"x"}'
    return schema


def test_fa06_a_decorator_changes_nothing_in_openapi() -> None:
    assert documented(limit("5/minute")) == documented(exempt) == documented(lambda view: view)


def test_fa07_the_429_is_documented_and_valid() -> None:
    app = FastAPI(responses=RESPONSES)
    app.get("/")(lambda: "x")
    schema = AsgiClient(app).get("/openapi.json")
    assert schema.status == 200
    documented = app.openapi()["paths"]["/"]["get"]["responses"]["429"]
    assert set(documented["headers"]) == {"Retry-After", "RateLimit", "RateLimit-Policy"}
    assert set(documented["content"]) == {"application/problem+json", "application/json"}
    OpenAPI(**app.openapi())


def test_fa07_the_response_is_the_documented_one() -> None:
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute"))])
    app.get("/")(lambda: "x")
    app.get("/rare")(rare)
    client = limited(app)
    for path in ("/", "/rare"):
        client.get(path)
        answer = client.get(path)
        media = answer.one("content-type")
        schema = RESPONSES[429]["content"][media]["schema"]
        problem = json.loads(answer.body)
        assert set(schema["required"]) <= set(problem) <= set(schema["properties"])


# ---- FA8: handlers -----------------------------------------------------------------------------------------------


async def charging(request: Request) -> str:
    await charge(request, "1/minute", name="one")
    return "x"


def depending() -> str:
    return "x"


@limit("1/minute", name="one")
def decorated() -> str:
    return "x"


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Depends": (depending, {"dependencies": [Depends(RateLimit("1/minute", name="one"))]}),
    "@limit": (decorated, {}),
    "charge": (charging, {}),
}


@pytest.mark.parametrize("kind", [RateLimitExceeded, 429, StarletteHTTPException, None])
@pytest.mark.parametrize(("view", "options"), WAYS.values(), ids=WAYS)
def test_fa08_a_handler_of_the_application_wins(kind: Any, view: Any, options: dict[str, Any]) -> None:
    """The one for HTTPException too (issue 26)."""
    app = FastAPI()
    app.get("/", **options)(view)

    def handler(request: Request, error: Any) -> Response:
        return PlainTextResponse(f"wait {error.decision.retry_after:g}", 429)

    if kind is not None:
        app.add_exception_handler(kind, handler)
    client = limited(app)
    client.get("/")
    refused = client.get("/")
    if kind is not None:
        assert refused.body == b"wait 60"
    elif options:
        assert json.loads(refused.body) == {"detail": "Quota Exceeded. Retry after 60 seconds."}
    else:
        assert refused.one("content-type") == PROBLEM
    assert refused.one("retry-after") == "60"
    assert refused.one("ratelimit") == '"one";r=0;t=60'


@pytest.mark.parametrize("where", ["settings", "dependency"])
@pytest.mark.parametrize("kind", [RateLimitExceeded, 429, None])
@pytest.mark.parametrize("answers", [True, False])
def test_on_denied_answers_what_a_dependency_refuses(where: str, kind: Any, answers: bool) -> None:
    asked = []

    async def on_denied(request: Request, decision: Decision) -> Response | None:
        asked.append(decision.rule)
        return PlainTextResponse("sorry", 418) if answers else None

    given: dict[str, Any] = {"on_denied": on_denied}
    app = FastAPI(dependencies=[RateLimit("1/minute", name="one", **given if where == "dependency" else {})])
    app.get("/")(lambda: "x")
    if kind is not None:
        app.add_exception_handler(kind, lambda request, error: PlainTextResponse("wait", 429))
    client = limited(app, **given if where == "settings" else {})
    client.get("/")
    refused = client.get("/")
    handled = kind is RateLimitExceeded or (kind is not None and not answers)  # as for any refusal raised in a view
    assert asked == ([] if kind is RateLimitExceeded else ["one"])
    assert (refused.status, refused.body) == (429, b"wait") if handled else refused.status == (418 if answers else 429)
    assert refused.one("ratelimit") == '"one";r=0;t=60'


# ---- other kinds of endpoints ------------------------------------------------------------------------------------


@pytest.mark.skipif(not KEEPS_ROUTERS, reason="endpoints that yield came after the oldest FastAPI")
def test_endpoints_that_yield() -> None:
    app = FastAPI()

    @app.get("/async")
    @limit("1/minute")
    async def async_items() -> AsyncIterator[Item]:
        yield Item(name="a")
        yield Item(name="b")

    client = limited(app)
    assert client.get("/async").body.split() == [b'{"name":"a"}', b'{"name":"b"}']
    assert client.get("/async").status == 429


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("row", addresses())
def test_c07_the_table_of_addresses(row: dict[str, Any]) -> None:
    app = FastAPI()
    seen: list[Any] = []
    app.get("/", dependencies=[Depends(RateLimit("1/minute", key="ip"))])(lambda: "x")
    options = {option: row[option] for option in ("trusted_proxies", "trusted_header")}
    client, recorder = recorded(app, **options)
    client.get("/", peer=row["peer"], headers=[(row["trusted_header"], line) for line in row["lines"]])
    seen.append(recorder.identity)
    assert row["expect"] in seen[0]


def test_a_dependency_takes_the_options_of_limit_except_override_defaults() -> None:
    with pytest.raises(RuleError, match=r"override_defaults.*@limit"):
        RateLimit("5/minute", override_defaults=True)  # type: ignore[call-arg]
    with pytest.raises(RuleError):
        RateLimit("5/minute", cost=-1)


# ---- mistakes: without `Depends`, or without a quota ----------------------------------------------------------------


def with_dependencies(*given: Any) -> dict[str, Any]:
    """Each way to give a list of dependencies, as a function that makes an application with them."""

    def on_route() -> FastAPI:
        app = FastAPI()
        app.get("/", dependencies=list(given))(lambda: "x")
        return app

    def on_application() -> FastAPI:
        app = FastAPI(dependencies=list(given))
        app.get("/")(lambda: "x")
        return app

    def on_router() -> FastAPI:
        app, router = FastAPI(), APIRouter(dependencies=list(given))
        router.get("/")(lambda: "x")
        app.include_router(router)
        return app

    def on_including() -> FastAPI:
        app, router = FastAPI(), APIRouter()
        router.get("/")(lambda: "x")
        app.include_router(router, dependencies=list(given))
        return app

    def on_socket() -> FastAPI:
        app = FastAPI()
        app.websocket("/socket", dependencies=list(given))(rare_socket)
        app.get("/", dependencies=list(given))(lambda: "x")
        return app

    makers = (on_route, on_application, on_router, on_including, on_socket)
    return {maker.__name__: maker for maker in makers}


def as_parameter(annotation: Any, default: Any = ...) -> Callable[[], FastAPI]:
    def make() -> FastAPI:
        def view(found):
            return None if found is None else found.remaining

        view.__annotations__ = {"found": annotation}
        view.__defaults__ = None if default is ... else (default,)
        app = FastAPI()
        app.get("/")(view)
        return app

    return make


ONCE = RateLimit("1/minute")
WORKS = {
    **with_dependencies(ONCE),
    "annotated": as_parameter(Annotated[Decision | None, ONCE]),
    "by default": as_parameter(Decision | None, ONCE),
    "by default, of another type": as_parameter(int, ONCE),
    "with Depends": as_parameter(Annotated[Decision | None, Depends(ONCE)]),
}
FAILS = {
    **with_dependencies(RateLimit),
    **{f"{name}, in Depends": make for name, make in with_dependencies(Depends(RateLimit)).items()},
    "annotated": as_parameter(Annotated[Any, RateLimit]),
    "annotated, in Depends": as_parameter(Annotated[Any, Depends(RateLimit)]),
    "by default, in Depends": as_parameter(Any, Depends(RateLimit)),
    "Depends of the annotation": as_parameter(RateLimit, Depends()),
    "as the annotation": as_parameter(RateLimit),
}


@pytest.mark.parametrize("make", WORKS.values(), ids=WORKS)
def test_a_dependency_limits_also_without_depends(make: Callable[[], FastAPI]) -> None:
    client = limited(make())
    assert client.statuses("/", "/") == [200, 429]
    assert client.get("/openapi.json").body.count(b"quota") == 0


@pytest.mark.parametrize("make", FAILS.values(), ids=FAILS)
def test_the_class_instead_of_an_instance_is_an_error_at_the_start(make: Callable[[], FastAPI]) -> None:
    expect = r"the class itself, without a quota; give RateLimit\(\"10/minute\"\), or Depends.* \[SG002\]"
    with pytest.raises(RuleError, match=expect):
        limited(make()).live("startup")


def test_a_dependency_as_an_annotation_is_an_error() -> None:
    with pytest.raises(RuleError, match=r"an annotation; write Annotated\[Decision \| None, RateLimit.* \[SG002\]"):
        as_parameter(ONCE)()


def test_the_repr_of_a_dependency_has_its_quota() -> None:
    assert repr(RateLimit("5/minute")) == "RateLimit((Quota('5/minute'),))"
    assert isinstance(RateLimit("5/minute"), DependsMarker)


@pytest.mark.parametrize("option", ["key", "quota", "cost", "when"])
def test_a_callable_object_without_a_hash_is_an_error_where_it_is_written(option: str) -> None:
    unhashable = type("Unhashable", (), {"__call__": lambda self, request: None, "__hash__": None})()
    options: dict[str, Any] = {"quota": "5/minute", option: unhashable}
    with pytest.raises(RuleError, match=rf"{option} .*: it has no hash: .*@dataclass\(frozen=True\) \[SG002\]"):
        RateLimit(**options)
