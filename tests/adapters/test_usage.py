"""The page of one's own usage in every adapter: what counts for the caller. It charges nothing, and has a limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from sluicegate import AsyncLimiter, Ban, Limiter, ManualClock, Tiers, django, fastapi, flask, starlette
from sluicegate.errors import NotEnforcedError, QuotaError, SettingsError
from sluicegate.observe.usage import Budget
from sluicegate.stores import Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.web.usage import SCHEMA
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import Server, ask

Opened = Iterator[Any]
LIMIT = "3/hour"  # of each view
ALICE = "header:X-User", "alice"


@contextmanager
def in_starlette(given: dict[str, Any], **options: Any) -> Opened:
    @starlette.limit(LIMIT)
    async def pay(request: Request) -> PlainTextResponse:
        return PlainTextResponse("paid")

    @starlette.exempt
    async def of_alice(request: Request) -> JSONResponse:
        return JSONResponse([each._asdict() for each in await starlette.usage_of(request, ALICE)])

    routes = [Route("/pay", pay, methods=["POST"]), Route("/usage", starlette.usage(**given)), Route("/of", of_alice)]
    app = Starlette(routes=routes)
    app.add_middleware(starlette.RateLimitMiddleware, **options)
    yield AsgiClient(app)


@contextmanager
def in_fastapi(given: dict[str, Any], **options: Any) -> Opened:
    app = FastAPI()
    app.add_middleware(fastapi.RateLimitMiddleware, **options)
    app.include_router(fastapi.usage_router(**given))

    @app.post("/pay")
    @fastapi.limit(LIMIT)
    def pay() -> str:
        return "paid"

    @app.get("/of")
    @fastapi.exempt
    async def of_alice(request: Request) -> list[dict[str, Any]]:
        return [each._asdict() for each in await fastapi.usage_of(request, ALICE)]

    yield AsgiClient(app)


@contextmanager
def in_flask(given: dict[str, Any], **options: Any) -> Opened:
    app = Flask("app")
    limiter = flask.RateLimiter(app, **options)
    app.register_blueprint(flask.usage(limiter, **given))

    @app.post("/pay")
    @flask.limit(LIMIT)
    def pay() -> str:
        return "paid"

    @app.get("/of")
    @flask.exempt
    def of_alice() -> list[dict[str, Any]]:
        return [each._asdict() for each in limiter.usage(ALICE)]

    yield WsgiClient(app)


def in_django(*, is_asgi: bool) -> Any:
    @contextmanager
    def project(given: dict[str, Any], **options: Any) -> Opened:
        @django.limit(LIMIT)
        def pay(request: HttpRequest) -> HttpResponse:
            return HttpResponse("paid")

        @django.exempt
        def of_alice(request: HttpRequest) -> JsonResponse:
            return JsonResponse([each._asdict() for each in django.usage_of(ALICE)], safe=False)

        urls = [path("pay", pay), path("usage", django.usage(**given)), path("of", of_alice)]
        with serving(asgi=is_asgi, urls=urls, **options) as site:
            yield site

    return project


ADAPTERS = {
    "starlette": in_starlette,
    "fastapi": in_fastapi,
    "flask": in_flask,
    "django wsgi": in_django(is_asgi=False),
    "django asgi": in_django(is_asgi=True),
}
every_adapter = pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=list(ADAPTERS))


@pytest.fixture(params=["memory", "valkey"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    server: Server = request.getfixturevalue("valkey")
    server.flush()
    return server.url


def plan_of(request: Any) -> str:
    return str(request.headers.get("X-Plan", "free"))


def sent(client: Any, method: str, path: str, who: str = "alice", plan: str = "free") -> Any:
    return client.request(method, path, headers=[("X-User", who), ("X-Plan", plan)])


def usage(client: Any, who: str = "alice", plan: str = "free") -> dict[str, dict[str, Any]]:
    """The budgets of somebody, by their rules."""
    answer = sent(client, "GET", "/usage", who, plan)
    assert answer.status == 200, answer.body
    found = json.loads(answer.body)
    assert all(tuple(each) == Budget._fields for each in found["budgets"])
    return {each["rule"]: each for each in found["budgets"]}


OPTIONS: dict[str, Any] = {
    "key": "header:X-User",
    "default_limits": ["10/hour"],
    "rules": [
        {"name": "tiers", "quota": Tiers({"free": "4/day", "pro": "40/day", "staff": None}, by=plan_of)},
        {"name": "posts", "unit": "tokens", "quota": "5/hour", "methods": ["POST"], "path": "/pay", "cost": 2},
        {"name": "trial", "quota": "1/hour", "mode": "shadow"},
        {"name": "team", "quota": "1/hour", "key": "path:team"},
        {"name": "slots", "quota": "2 at once"},
    ],
}


@every_adapter
def test_what_counts_for_the_caller(adapter: Any, store: str) -> None:
    with adapter({}, store=store, **OPTIONS) as client:
        assert sent(client, "POST", "/pay").status == 200
        for _ in range(3):  # it charges nothing
            found = usage(client)
            rows = {rule: (each["used"], each["limit"], each["remaining"]) for rule, each in found.items()}
            view = {rule: row for rule, row in rows.items() if rule in ("pay", "limit")}
            assert list(view.values()) == [(1, 3, 2)]
            assert {rule: row for rule, row in rows.items() if rule not in view} == {
                "default": (1, 10, 9),
                "tiers": (1, 4, 3),
                "posts": (2, 5, 3),
                "slots": (0, 2, 2),
            }
        assert {rule: (each["tier"], each["kind"], each["unit"]) for rule, each in found.items()} | {
            "tiers": ("free", "budget", None),
            "slots": (None, "slots", None),
            "posts": (None, "budget", "tokens"),
        } == {rule: (each["tier"], each["kind"], each["unit"]) for rule, each in found.items()}
        assert 3590 < found["default"]["reset_after"] <= 3600 + 36
        assert {each["used"] for each in usage(client, "bob").values()} == {0}
        assert usage(client, plan="pro")["tiers"]["limit"] == 40
        assert "tiers" not in usage(client, plan="staff")


@every_adapter
@pytest.mark.parametrize("given", [{}, {"limit": "2/minute", "max_age": 30}])
def test_its_own_limit_and_its_fields(adapter: Any, given: dict[str, Any]) -> None:
    most = 2 if given else 60
    with adapter(given, default_limits=["1/hour"], key="header:X-User", clock=ManualClock()) as client:
        answers = [sent(client, "GET", "/usage") for _ in range(most + 1)]
        assert [each.status for each in answers] == [200] * most + [429]
        assert answers[0].one("cache-control") == f"private, max-age={given.get('max_age', 5)}"
        assert answers[0].one("content-type") == "application/json"
        assert answers[0].one("vary") == "Authorization, Cookie"
        assert answers[0].one("ratelimit") == f'"usage";r={most - 1};t=60' if most > 2 else True
        assert sent(client, "GET", "/usage", "bob").status == 200
        assert sent(client, "POST", "/pay").status == 200  # nothing of the default limit was charged


@every_adapter
def test_lists_and_bans(adapter: Any) -> None:
    rule = {"name": "posts", "quota": "1/hour", "path": "/pay", "ban": Ban(after=1, within=60, duration=300)}
    options: dict[str, Any] = {"key": "header:X-User", "allow": [["header:x-user", "root"]], "rules": [rule]}
    with adapter({}, **options, deny=[["header:x-user", "mallory"]]) as client:
        assert usage(client, "root") == {}
        assert sent(client, "GET", "/usage", "mallory").status == 403
        assert "ban" not in usage(client)
        assert [sent(client, "POST", "/pay").status for _ in range(2)] == [200, 429]
        banned = usage(client)["ban"]
        assert (banned["kind"], banned["remaining"]) == ("ban", 0)
        assert 290 < banned["next_after"] <= 300


@every_adapter
def test_an_override_that_holds(adapter: Any, valkey: Server) -> None:
    valkey.flush()
    with Limiter(valkey.url) as limiter:
        limiter.overrides.set("default", action="quota", quota="7/hour", identities=[("header:x-user", "alice")])
    with adapter({}, store=valkey.url, key="header:X-User", default_limits=["2/hour"]) as client:
        assert [usage(client, who)["default"]["limit"] for who in ("alice", "bob")] == [7, 2]


def by_contract(request: Any) -> str:
    return "5/day"


@every_adapter
def test_of_anybody_from_a_process_that_has_served_nobody(adapter: Any, valkey: Server) -> None:
    valkey.flush()
    ban = Ban(after=1, within=60, duration=300)
    rules = [
        *OPTIONS["rules"],
        {"name": "each", "quota": "9/hour", "per_method": True},
        {"name": "percent", "quota": "9/hour", "enforce_percent": 0},
        {"name": "contract", "quota": by_contract},
        {"name": "month", "quota": "7/calendar month"},
        {"name": "addresses", "quota": "9/hour", "key": "ip"},
        {"name": "once", "quota": "1/hour", "path": "/pay", "ban": ban},
    ]
    options = {**OPTIONS, "store": valkey.url, "rules": rules}
    with Limiter(valkey.url) as limiter:
        limiter.overrides.set("default", action="quota", quota="8/hour", identities=[("header:x-user", "alice")])
    with adapter({}, **options) as client:
        assert [sent(client, "POST", "/pay").status for _ in range(2)] == [200, 429]
    with adapter({}, **options) as client:
        answer = sent(client, "GET", "/of", "operator")
        assert answer.status == 200, answer.body
        rows = [(each["rule"], each["tier"], each["used"], each["limit"]) for each in json.loads(answer.body)]
        view = [row for row in rows if row[0] in ("pay", "limit")]
        assert [row[1:] for row in view] == [(None, 1, 3)], "the view that this process has not served"
        assert sorted(row for row in rows if row not in view) == [
            ("ban", None, 1, 1),
            ("default", None, 1, 8),
            ("each", None, 0, 9),
            ("month", None, 1, 7),
            ("once", None, 1, 1),
            ("posts", None, 2, 5),
            ("slots", None, 0, 2),
            ("tiers", "free", 1, 4),
            ("tiers", "pro", 1, 40),
        ]


def test_it_takes_one_command_beside_the_charge_of_its_own_limit(valkey: Server) -> None:
    valkey.flush()
    with in_flask({}, store=valkey.url, overrides=False, **OPTIONS) as client:
        usage(client)
        ask(valkey, "CONFIG RESETSTAT")
        usage(client)
        assert int(ask(valkey, "INFO", "commandstats")["cmdstat_evalsha"]["calls"]) == 2


@every_adapter
def test_while_the_limits_are_off(adapter: Any) -> None:
    with adapter({}, enabled=False, default_limits=["1/hour"]) as client:
        assert [sent(client, "GET", "/usage").status for _ in range(2)] == [200, 200]


@every_adapter
def test_while_the_store_is_down(adapter: Any) -> None:
    with adapter({}, store="redis://127.0.0.1:1/0", default_limits=["2/hour"], key="header:X-User") as client:
        assert usage(client)["default"]["remaining"] == 2


@pytest.mark.parametrize("make", [starlette.usage, fastapi.usage_router, django.usage])
@pytest.mark.parametrize(
    ("given", "error"),
    [({"limit": "often"}, QuotaError), ({"max_age": -1}, SettingsError), ({"max_age": True}, SettingsError)],
)
def test_wrong_arguments(make: Any, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make(**given)


def test_openapi() -> None:
    app = FastAPI()
    app.include_router(fastapi.usage_router(), prefix="/me")
    answers = app.openapi()["paths"]["/me/usage"]["get"]["responses"]
    assert answers["200"]["content"]["application/json"]["schema"] == SCHEMA
    assert "429" in answers


def test_the_schema_has_every_field() -> None:
    found: Any = SCHEMA
    assert tuple(found["properties"]["budgets"]["items"]["properties"]) == Budget._fields


def test_a_limiter_tells_no_quota_that_may_be_of_another_customer(store: str) -> None:
    with Limiter(store) as limiter:
        limiter.hit("5/calendar month", "acme", action="contract")
        limiter.hit("5/minute", "acme", action="reply")
        assert [each.rule for each in limiter.usage("acme")] == ["contract", "reply"]
        limiter.hit("3/calendar month", "globex", action="contract")
        assert [(each.rule, each.used, each.limit) for each in limiter.usage("acme")] == [("reply", 1, 5)]


@pytest.mark.parametrize("is_async", [False, True])
def test_for_the_back_office(store: str, *, is_async: bool) -> None:
    async def later() -> tuple[Budget, ...]:
        async with AsyncLimiter(store) as limiter:
            await limiter.hit("5/minute; 9/hour", "alice", action="reply", cost=2)
            await limiter.hit("5/minute", "bob", action="like")
            return await limiter.usage("alice")

    def now() -> tuple[Budget, ...]:
        with Limiter(store) as limiter:
            limiter.hit("5/minute; 9/hour", "alice", action="reply", cost=2)
            limiter.hit("5/minute", "bob", action="like")
            assert limiter.usage("carol") == ()
            return limiter.usage("alice")

    found = asyncio.run(later()) if is_async else now()
    assert [(each.rule, each.used, each.limit) for each in found] == [("reply-minute", 2, 5), ("reply-hour", 2, 9)]


def test_for_the_back_office_in_flask() -> None:
    app = Flask("app")
    limiter = flask.RateLimiter(app, default_limits=["5/minute"])
    app.add_url_rule("/", view_func=lambda: "ok")
    app.test_client().get("/")
    with pytest.raises(NotEnforcedError, match="usage"):
        limiter.usage(("ip", "127.0.0.1"))
    with app.app_context():
        assert [each.used for each in limiter.usage(("ip", "127.0.0.1"))] == [1]
        assert [each.used for each in limiter.usage(("ip", "127.0.0.2"))] == [0]


def test_a_store_of_ones_own() -> None:
    assert isinstance(MemoryStore(), Store)
    assert Limiter(MemoryStore()).usage("alice") == ()
