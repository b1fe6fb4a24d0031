"""Published advisories about rate limits and client addresses, and known faults of peers: each is a test.

Advisories about addresses alone are rows of one table. Each other one has a test with its name.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from django.core.handlers.asgi import ASGIRequest
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

import tests.adapters.django_app  # noqa: F401  # configures Django
from sluicegate import Limiter, ManualClock
from sluicegate.address import Trust, client_address
from sluicegate.django import conf
from sluicegate.django.request import DjangoRequestState
from sluicegate.identity import digest, identity_text
from sluicegate.starlette import RateLimitMiddleware, limit
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from sluicegate.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.adapters.asgi_client import AsgiClient, make_scope
from tests.adapters.wsgi_client import make_environ

LISTED: Final = (
    "CVE-2025-59152", "CVE-2025-46814", "django-allauth 65.14.2", "CVE-2026-23848", "CVE-2026-110723",
    "CVE-2026-110724", "CVE-2026-110726", "CVE-2026-30827", "express-rate-limit 8.6.2", "GHSA-5847-rm3g-23mw",
    "CVE-2026-45364", "CVE-2026-39409", "CVE-2026-47674", "CVE-2025-71399", "CVE-2023-38507", "CVE-2026-48710",
    "CVE-2026-33808", "GHSA-vpvj-hfh8-388m", "CVE-2026-30972", "GHSA-rq42-58qf-v3qx", "CVE-2026-25480",
    "CVE-2026-28461", "mcp-context-forge 4607", "django-allauth 65.9.0", "Parse Server 10266", "CVE-2026-3902",
)  # fmt: skip
HERE: Final = Path(__file__)


@pytest.mark.parametrize("advisory", LISTED)
def test_every_advisory_has_its_test(advisory: str) -> None:
    """Advisories about addresses alone are rows of a table in tests/test_address.py."""
    assert advisory in HERE.read_text().partition("HERE: Final")[2] + (HERE.parents[1] / "test_address.py").read_text()


async def _login(request: Request) -> Response:
    return Response("in")


class _Session(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        return Response("form")

    async def post(self, request: Request) -> Response:
        return Response("in")


@limit("1/day", key="ip")
async def _reset(request: Request) -> Response:
    return Response("in")


def shop(**options: Any) -> AsgiClient:
    """Starlette with a login that rules of the settings limit, and a view with its own `@limit`."""
    routes = [
        Route("/login", _login, methods=["GET", "POST"], name="login"),
        Route("/session", _Session, name="session"),
        Route("/reset", _reset, methods=["GET", "POST"]),
        Mount("/api", routes=[Route("/login", _login, methods=["GET", "POST"])], name="api"),
    ]
    return AsgiClient(Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, **options)]))


RULES: Final = {
    "by its path": {"name": "login", "quota": "1/day", "path": "/login", "key": "ip"},
    "by its route": {"name": "login", "quota": "1/day", "route": "login", "key": "ip"},
}


@pytest.fixture(params=RULES)
def guarded(request: pytest.FixtureRequest) -> AsgiClient:
    """A login whose budget is used up."""
    client = shop(rules=[RULES[request.param]])
    assert client.statuses("/login", "/login", "/reset", method="POST") == [200, 429, 200]
    return client


def _bodies(client: AsgiClient, *paths: str) -> Iterator[bytes]:
    return (client.request("POST", path).body for path in paths)


@pytest.mark.parametrize("path", ["//{}", "///{}", "/./{}", "/x/../{}", "//{}/", "/{}//", "/%2f{}", "/api/..//{}"])
def test_cve_2025_71399_a_doubled_slash_leaves_the_limit(guarded: AsgiClient, path: str) -> None:
    """CVE-2025-71399 (Better Auth, rou3)."""
    assert b"in" not in _bodies(guarded, path.format("login"), path.format("reset"))


@pytest.mark.parametrize("path", ["/LOGIN", "/Login", "/login/", "/login%0a", "/login%20", "/ｌogin", "/%6cogin"])
def test_cve_2023_38507_the_case_or_a_trailing_slash_leaves_the_limit(guarded: AsgiClient, path: str) -> None:
    """CVE-2023-38507 (Strapi); Starlette itself serves "/login" for "/login%0a"."""
    assert b"in" not in _bodies(guarded, path)


@pytest.mark.parametrize("path", ["/login;", "/login;a=b", "/;/login", "//login;a", "/login;/", "/login%3b"])
def test_cve_2026_33808_a_semicolon_leaves_the_limit(guarded: AsgiClient, path: str) -> None:
    """CVE-2026-33808 (@fastify/express)."""
    assert b"in" not in _bodies(guarded, path)


@pytest.mark.parametrize("host", ["a/free?", "a/free#", "a/free/../", "login", "", "a:80/x", "[::1]/x?"])
def test_cve_2026_48710_the_host_header_changes_the_path(guarded: AsgiClient, host: str) -> None:
    """CVE-2026-48710 (Starlette before 1.0.1): `request.url.path` is made from the Host header."""
    for path in ("/login", "/reset"):
        scope = make_scope("POST", path)
        scope["headers"] = [(b"host", host.encode())]
        assert guarded.serve(scope).answer.status == 429


@pytest.mark.parametrize("method", ["post", "Post", "pOST"])
def test_ghsa_vpvj_hfh8_388m_another_method_than_the_one_that_is_served(method: str) -> None:
    """GHSA-vpvj-hfh8-388m (Parse Server): what is limited is the method that the application will serve.

    Older Starlette serves "post" by a class's `post`; Flask and Django put every method in capitals.
    """
    client = shop(rules=[{"name": "session", "quota": "1/day", "methods": ["POST"], "key": "ip"}])
    assert client.statuses("/session", "/session", method="POST") == [200, 429]
    assert client.request(method, "/session").status == 429
    served = RateLimitMiddleware(_served, rules=[{"name": "session", "quota": "1/day", "methods": ["POST"]}])
    assert [AsgiClient(served).request(each, "/session").status for each in ("POST", method)] == [200, 429]
    wsgi = WsgiMiddleware(_served_wsgi, rules=[{"name": "session", "quota": "1/day", "methods": ["POST"]}])
    assert [b"".join(wsgi(make_environ(each), _ignore)) == b"in" for each in ("POST", method)] == [True, False]


def test_ghsa_vpvj_hfh8_388m_a_method_override_outside_the_limiter_is_what_counts() -> None:
    """GHSA-vpvj-hfh8-388m (Parse Server): the override is outside, so the limiter reads the same method as the view."""
    app = RateLimitMiddleware(_served, rules=[{"name": "session", "quota": "1/day", "methods": ["POST"]}])

    async def override(scope: Any, receive: Any, send: Any) -> None:
        override = dict(scope["headers"]).get(b"x-http-method-override")
        await app({**scope, "method": override.decode()} if override else scope, receive, send)

    client = AsgiClient(override)
    assert client.statuses("/", "/", method="GET", headers=[("X-HTTP-Method-Override", "POST")]) == [200, 429]


def test_cve_2026_30972_a_batch_is_one_request() -> None:
    """CVE-2026-30972 (Parse Server): each operation of a batch is charged, by its number or one by one."""
    limiter = Limiter(clock=ManualClock())
    assert limiter.hit("10/minute", "alice", cost=8)
    assert not limiter.hit("10/minute", "alice", cost=3)
    assert [bool(limiter.hit("10/minute", "alice")) for _ in range(3)] == [True, True, False]
    whole = {"name": "batch", "quota": "10/minute", "cost": lambda request: int(request.headers["x-operations"])}
    client = shop(rules=[whole], clock=ManualClock())
    statuses = [client.get("/login", headers=[("X-Operations", count)]).status for count in ("8", "3", "2", "1")]
    assert statuses == [200, 429, 200, 429]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "FOO", "get"])
def test_ghsa_rq42_58qf_v3qx_another_method_is_not_limited(guarded: AsgiClient, method: str) -> None:
    """GHSA-rq42-58qf-v3qx (LibreNMS): a login by GET was free. A rule holds for all methods unless it names some."""
    assert guarded.request(method, "/login").status == (405 if _misses(guarded, method) else 429)
    assert guarded.request(method, "/reset").status == (405 if method not in ("GET", "HEAD", "POST") else 429)


def _misses(guarded: AsgiClient, method: str) -> bool:
    """A rule for a route does not hold where the route does not serve the method."""
    (rule,) = guarded.app.user_middleware[0].kwargs["rules"]  # type: ignore[attr-defined]
    return "route" in rule and method not in ("GET", "HEAD", "POST")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), ("a:b",)), (("a:", "b"), ("a", ":b")), (("ab", "c"), ("a", "bc")), ("k\uff25y", "kEy"),
        ("\ufb00", "ff"), ("\u2460", "1"), ("e\u0301", "\u00e9"), ("\u1e9b\u0323", "\u1e69"), ("a/b", "a\u2215b"),
    ],
)  # fmt: skip
def test_cve_2026_25480_normalised_and_joined_keys_collide(one: Any, other: Any) -> None:
    """CVE-2026-25480 (Litestar's FileStore): NFKD, and parts without a separator."""
    assert digest(identity_text(one)) != digest(identity_text(other))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["ip", "user", "header:X-API-Key"])
def test_cve_2026_28461_a_query_string_mints_keys(key: str) -> None:
    """CVE-2026-28461 (OpenClaw): no named key reads the query; what a client does mint is bounded."""
    store = MemoryStore(max_keys=100)
    client = shop(default_limits=["3/day"], key=key, store=AsyncMemoryStore(store))
    for number in range(300):
        client.get(f"/login?x={number}", headers=[("X-API-Key", str(number)), ("Cookie", f"session={number}")])
    assert len(store) == (100 if key.startswith("header") else 1)


def test_mcp_context_forge_4607_a_dictionary_without_bound() -> None:
    """mcp-context-forge 4607 (CWE-400): an entry for each address, forever."""
    clock = ManualClock()
    store = MemoryStore(max_keys=1_000, clock=clock)
    limiter = Limiter(store)
    refused = [bool(limiter.hit("1/hour", "refused")) for _ in range(2)]
    for number in range(5_000):
        limiter.hit("1/hour", number)
        clock.advance_us(1)
    assert refused == [True, False]
    assert len(store) == 1_000
    assert not limiter.hit("1/hour", "refused")


def test_django_allauth_65_9_0_a_success_clears_the_failures_of_the_address() -> None:
    """django-allauth 65.9.0: a successful login resets the failures of the account, and none of the address."""
    limiter = Limiter(clock=ManualClock())
    account, address = ("account", "alice"), ("ip", "203.0.113.7")
    for _ in range(3):
        limiter.hit("5/hour", account, action="login")
        limiter.hit("5/hour", address, action="login")
    limiter.reset("5/hour", account, action="login")
    assert limiter.peek("5/hour", account, action="login").remaining == 5
    assert limiter.peek("5/hour", address, action="login").remaining == 2


def test_parse_server_10266_a_lockout_that_races() -> None:
    """Parse Server 10266, and the read-then-write of REST framework, Flask-Limiter and quart-rate-limiter."""
    limiter = Limiter(clock=ManualClock())
    barrier = threading.Barrier(30)

    def sign_in(_: int) -> bool:
        barrier.wait()
        return bool(limiter.hit("5/minute", "alice"))

    with ThreadPoolExecutor(30) as threads:
        assert sum(threads.map(sign_in, range(60))) == 5


def test_cve_2026_3902_an_underscore_stands_for_a_hyphen() -> None:
    """CVE-2026-3902 (Django before 5.2.13): X_Forwarded_For is joined to what the proxy wrote."""
    scope = make_scope(headers=[("X-Forwarded-For", "203.0.113.7"), ("X_Forwarded_For", "6.6.6.6")])
    request = ASGIRequest(scope, io.BytesIO())
    request.META["HTTP_X_FORWARDED_FOR"] = "203.0.113.7,6.6.6.6"  # as those versions of Django do
    caller = DjangoRequestState(request, conf.async_gate())
    assert caller.header("X-Forwarded-For") == ("203.0.113.7",)
    assert caller.header("X-Real-IP") == ()


# Known faults of peers that allow abuse and that no other test covers.


def test_slowapi_each_value_of_a_path_parameter_has_a_budget() -> None:
    @limit("2/day")
    async def item(request: Request) -> Response:
        return Response("item")

    client = AsgiClient(Starlette(routes=[Route("/i/{n}", item)], middleware=[Middleware(RateLimitMiddleware)]))
    assert client.statuses("/i/1", "/i/2", "/i/3", "/i/4") == [200, 200, 429, 429]


def test_slowapi_the_defaults_do_not_hold_for_decorated_views_and_mounts() -> None:
    client = shop(default_limits=["3/day"])
    assert client.statuses("/login", "/api/login", "/nowhere", "/session", "/reset") == [200, 200, 404, 429, 429]


def test_django_smart_ratelimit_a_view_spends_the_budget_of_another() -> None:
    limiter = Limiter(clock=ManualClock())
    assert all([limiter.hit("100/minute", "alice", action="read") for _ in range(6)])
    assert limiter.hit("5/minute", "alice", action="write").remaining == 4


def test_limits_a_slash_in_an_identity_reaches_another_limit() -> None:
    limiter = Limiter(clock=ManualClock())
    assert limiter.hit("1/minute", "alice", action="a/b")
    for identity, action in [("b/alice", "a"), ("alice", "a"), ("a/b/alice", ""), ("alice/1/1/minute", "a/b")]:
        assert limiter.hit("1/minute", identity, action=action)


def test_fastapi_limiter_all_clients_share_one_budget() -> None:
    client = shop(default_limits=["1/day"])
    assert [client.get("/login", peer=f"203.0.113.{number}").status for number in (1, 1, 2, 2)] == [200, 429, 200, 429]


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("forwarded", ["6.6.6.{}", "2001:db8::{}", "6.6.6.6, 7.7.7.{}", "x{}"])
def test_seven_libraries_believe_what_a_client_forwards(forwarded: str) -> None:
    """fastapi-limiter, django-smart-ratelimit, REST framework, Ninja, quart-rate-limiter, fastlimit, waygate."""
    client = shop(default_limits=["1/day"])
    answers = [client.get("/login", headers=[("X-Forwarded-For", forwarded.format(n))]) for n in range(5)]
    assert [answer.status for answer in answers] == [200, 429, 429, 429, 429]


def test_rest_framework_the_whole_chain_is_the_identity() -> None:
    trust = Trust.of("10.0.0.0/8")
    assert {client_address("10.0.0.1", [f"{n}.1.1.1, 203.0.113.7"], trust) for n in range(1, 9)} == {"203.0.113.7"}


async def _served(scope: Any, receive: Any, send: Any) -> None:
    await Response("in")(scope, receive, send)


def _served_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"in"]


def _ignore(*_: object) -> Any:
    """A start_response. The validator would not have such methods."""
