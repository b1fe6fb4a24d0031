"""Every warning: given once, silenced by its code, an error under `strict`; and no false alarms."""

from __future__ import annotations

import asyncio
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast
from unittest.mock import patch
from uuid import uuid4

import flask_login
import pytest
import redis.asyncio
from django.core.signals import got_request_exception
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from flask import Flask
from redis.backoff import NoBackoff
from redis.retry import Retry
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix

from sluicegate import AsyncLimiter, ConfigurationError, Limiter, Rule, SluicegateWarning, asgi, errors, wsgi
from sluicegate.django import limit as django_limit
from sluicegate.errors import WARNINGS, StrictError
from sluicegate.flask import RateLimiter
from sluicegate.flask import limit as flask_limit
from sluicegate.starlette import RateLimitMiddleware as StarletteMiddleware
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from sluicegate.stores.redis import AsyncRedisStore, RedisStore
from tests.adapters.asgi_client import Server as AsgiServer
from tests.adapters.asgi_client import make_scope
from tests.adapters.django_app import OURS, serving
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import Server

PROXIED = [("X-Forwarded-For", "203.0.113.7")]
TOKEN = [("Authorization", "Bearer alice")]
LIMITED = {"default_limits": ["100/minute"]}
Ask = Callable[..., object]


def page(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"page"]


async def async_page(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"page"})


def flask_page(**options: Any) -> Flask:
    app = Flask(__name__)
    app.testing = True  # what is raised shows
    RateLimiter(app, **options)
    app.add_url_rule("/open", view_func=lambda: "page", endpoint="open")
    return app


def by_wsgi(headers: Any = (), **options: Any) -> None:
    WsgiClient(wsgi.RateLimitMiddleware(page, **options)).request("GET", "/open", headers=headers)


def by_asgi(headers: Any = (), **options: Any) -> None:
    ask_async(asgi.RateLimitMiddleware(async_page, **options), headers)


def ask_async(app: Any, headers: Any = ()) -> None:
    server = AsgiServer(make_scope(headers=headers))
    asyncio.run(server.run(app, raising=True))


def by_flask(headers: Any = (), **options: Any) -> None:
    WsgiClient(flask_page(**options)).request("GET", "/open", headers=headers)


def by_django(is_async: bool, *around: Any, headers: Any = (), **options: Any) -> None:
    raised: list[BaseException | None] = []

    def hear(**_: Any) -> None:
        raised.append(sys.exc_info()[1])

    got_request_exception.connect(hear)  # Django makes a 500 of it
    with serving(asgi=is_async, **options) as site:
        for wrap in around:
            site.app = wrap(site.app)
        site.request("GET", "/open", headers=headers)
    if raised and raised[0] is not None:
        raise raised[0]


def by_django_wsgi(**options: Any) -> None:
    by_django(is_async=False, **options)


def by_django_asgi(**options: Any) -> None:
    by_django(is_async=True, **options)


ADAPTERS = (by_wsgi, by_asgi, by_flask, by_django_wsgi, by_django_asgi)


@contextmanager
def gunicorn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["/usr/bin/gunicorn", "-w", "4"])
        yield


@gunicorn()
def several_workers(adapter: Ask, **options: Any) -> None:
    adapter(**LIMITED, **options)


def twice(outer: Ask, inner: Ask, store: object, **options: Any) -> None:
    """A request through two limiters over one store."""
    both = {"store": store, **LIMITED, **options}
    if inner in (by_django_wsgi, by_django_asgi):
        by_django(inner is by_django_asgi, lambda app: outer(app, **both), **both)
        return
    app: Any = outer(inner(**both), **both)
    if outer is asgi.RateLimitMiddleware:
        ask_async(app)
    else:
        WsgiClient(app).request("GET", "/open")


@django_limit("5/minute")
def decorated(request: HttpRequest) -> HttpResponse:
    return HttpResponse("page")


def decorator_alone(**options: Any) -> None:
    with override_settings(MIDDLEWARE=[], SLUICEGATE=options):
        decorated(RequestFactory().get("/"))


def given(module: Any, wrap: Any, limiter: Any, **options: Any) -> None:
    """A limiter over a client with these options; to make it sends nothing to the server."""
    strict = options.pop("strict", False)
    usual = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 1}
    limiter(wrap(module.Redis(**usual | options)), strict=strict)


def same_name(adapter: Ask, **options: Any) -> None:
    adapter(rules=[Rule(name="default", quota="9/hour", scope="other")], **LIMITED, **options)


def same_name_as_a_view(**options: Any) -> None:
    app = flask_page(rules=[Rule(name="view", quota="9/hour")], **options)
    app.add_url_rule("/view", view_func=flask_limit("5/minute")(view))
    WsgiClient(app).request("GET", "/view")


def view() -> str:
    return "view"


def beside(packages: list[str], adapter: Ask, **options: Any) -> None:
    """A request with a token, in a process that has imported these packages and no other that reads tokens."""
    with patch.dict(sys.modules, {name: ModuleType(name) for name in packages}):
        for name in {"ninja", "rest_framework"} - {*packages}:
            sys.modules.pop(name, None)
        adapter(headers=TOKEN, **LIMITED, **options)


def users_outside(**options: Any) -> Starlette:
    authentication = Middleware(AuthenticationMiddleware, backend=cast(Any, Nobody()))
    return Starlette(middleware=[authentication, Middleware(StarletteMiddleware, **options)])


def users_inside(**options: Any) -> Starlette:
    authentication = Middleware(AuthenticationMiddleware, backend=cast(Any, Nobody()))
    return Starlette(middleware=[Middleware(StarletteMiddleware, **options), authentication])


class Nobody:
    async def authenticate(self, connection: Any) -> None:
        return None


def start(make: Callable[..., Starlette], **options: Any) -> None:
    """Start an application of Starlette; no request follows."""
    app = make(**options)

    async def main() -> None:
        given = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def receive() -> Any:
            return next(given)

        async def send(message: Any) -> None: ...

        await app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)

    asyncio.run(main())


def all_adapters(trigger: Ask) -> list[Ask]:
    return [lambda adapter=adapter, **options: trigger(adapter, **options) for adapter in ADAPTERS]


def left_over(given: str = "RATELIMIT_DEFAULT", **options: Any) -> None:
    app = Flask("app")
    app.config[given] = "5/minute"
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "flask_limiter", raising=False)  # other tests import it
        RateLimiter(app, **options)


# code → ways to meet it; each is a function of the options of an adapter or a limiter
SEEN: dict[str, list[Ask]] = {
    "SG101": [
        *all_adapters(several_workers),
        gunicorn()(Limiter),
        gunicorn()(AsyncLimiter),
    ],
    "SG102": [
        *all_adapters(lambda adapter, **options: adapter(headers=PROXIED, **LIMITED, **options)),
        lambda **options: by_wsgi(headers=[("Forwarded", "for=203.0.113.7")], **LIMITED, **options),
        lambda **options: by_wsgi(headers=PROXIED, rules=[Rule(name="a", quota="9/hour", key="user")], **options),
    ],
    "SG103": [
        *all_adapters(lambda adapter, **options: adapter(trusted_proxies=["10.0.0.0/8", "0.0.0.0/0"], **options)),
        *[
            lambda network=network, **options: by_wsgi(trusted_proxies=network, **options)
            for network in ("::/0", "128.0.0.0/1", "::ffff:0:0/96", "2000::/3")
        ],
    ],
    "SG104": [decorator_alone],
    "SG105": [
        lambda **options: twice(
            wsgi.RateLimitMiddleware, lambda **more: wsgi.RateLimitMiddleware(page, **more), MemoryStore(), **options
        ),
        lambda **options: twice(wsgi.RateLimitMiddleware, flask_page, MemoryStore(), **options),
        lambda **options: twice(wsgi.RateLimitMiddleware, by_django_wsgi, MemoryStore(), **options),
        lambda **options: twice(
            asgi.RateLimitMiddleware,
            lambda **more: asgi.RateLimitMiddleware(async_page, **more),
            AsyncMemoryStore(MemoryStore()),
            **options,
        ),
        lambda **options: twice(asgi.RateLimitMiddleware, by_django_asgi, AsyncMemoryStore(MemoryStore()), **options),
    ],
    "SG106": [
        lambda **options: given(redis, RedisStore, Limiter, retry=Retry(NoBackoff(), 3), **options),
        lambda **options: given(redis.asyncio, AsyncRedisStore, AsyncLimiter, retry=Retry(NoBackoff(), 3), **options),
    ],
    "SG107": [
        lambda **options: given(redis, RedisStore, Limiter, socket_timeout=None, **options),
        lambda **options: given(redis.asyncio, AsyncRedisStore, AsyncLimiter, socket_timeout=None, **options),
    ],
    "SG108": [*all_adapters(same_name), same_name_as_a_view],
    "SG110": [
        *all_adapters(lambda adapter, **options: beside(["rest_framework"], adapter, **options)),
        lambda **options: beside(["ninja"], by_django_wsgi, **options),
        lambda **options: by_wsgi(headers=TOKEN, rules=[Rule(name="a", quota="9/hour", key=("ip", "user"))], **options),
        lambda **options: start(users_inside, **LIMITED, **options),
        lambda **options: start(users_inside, rules=[Rule(name="a", quota="9/hour", key="user")], key="ip", **options),
    ],
    "SG111": [left_over],
    "SG113": [
        *all_adapters(lambda adapter, **options: adapter(deadline=5.1, **options)),
        *[lambda kind=kind, **options: kind(deadline=60, **options) for kind in (Limiter, AsyncLimiter)],
    ],
}
LATER = {  # what is only known while the application runs, and is never an error: each has a test of its own
    "SG109": "here, with a server",
    "SG114": "tests/overrides/test_steering.py",
    "SG115": "tests/overrides/test_steering.py",
    "SG116": "tests/overrides/test_steering.py",
    "SG117": "tests/test_key.py",
}
ROWS = [(code, trigger) for code, triggers in SEEN.items() for trigger in triggers]
EACH = pytest.mark.parametrize(("code", "trigger"), ROWS, ids=[f"{code}-{n}" for n, (code, _) in enumerate(ROWS)])


def codes_of(trigger: Ask, times: int = 2) -> list[str]:
    """The codes of the warnings that this leads to."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            trigger()
    return [warning.message.code for warning in caught if isinstance(warning.message, SluicegateWarning)]


@EACH
def test_it_is_given_once(code: str, trigger: Ask) -> None:
    assert codes_of(trigger) == [code]


@pytest.mark.parametrize(
    ("given", "prefix", "text"),
    [
        ("RATELIMIT_STORAGE_URI", "ADMIN_", 'here it is store: .*; give it in app.config["ADMIN_STORE"]'),
        (
            "RATELIMIT_META",
            "SLUICEGATE_",
            'here it is ban: .*; give it in a Rule in app.config["SLUICEGATE_RULES"], or @limit',
        ),
        ("RATELIMIT_HEADER_RETRY_AFTER_VALUE", "SLUICEGATE_", "here there is none: Retry-After is in .*, in seconds"),
        ("RATELIMIT_FAIL_ON_FIRST_BREACH", "SLUICEGATE_", "here there is none: .*"),
    ],
)
def test_what_is_left_over_has_a_place_here(given: str, prefix: str, text: str) -> None:
    pattern = re.escape(text).replace(r"\.\*", ".*")
    with pytest.warns(SluicegateWarning, match=f"{pattern}; delete this one"):
        left_over(given, config_prefix=prefix)


def test_an_option_of_a_limiter_in_use_is_not_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flask_limiter", sys)
    app = Flask("app")
    app.config["RATELIMIT_DEFAULT"] = "5/minute"
    RateLimiter(app, strict=True)


@EACH
def test_it_can_be_silenced(code: str, trigger: Ask) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=rf".*\[{code}\]")
        trigger()


@EACH
def test_a_filter_makes_it_an_error_every_time(code: str, trigger: Ask) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", SluicegateWarning)
        for _ in range(2):
            with pytest.raises(SluicegateWarning, match=rf"\[{code}\]$"):
                trigger()


@EACH
def test_it_is_an_error_under_strict(code: str, trigger: Ask) -> None:
    for _ in range(2):
        with pytest.raises(StrictError, match=rf"\[{code}\]$") as caught:
            trigger(strict=True)
        assert caught.value.code == code
        assert isinstance(caught.value, ConfigurationError)
        assert caught.value.expected == WARNINGS[code].expected


# ---- a server's memory -------------------------------------------------------------------------------------------

POLICIES = [("allkeys-lru", "1mb", True), ("volatile-ttl", "1mb", True), ("noeviction", "1mb", False)]
POLICIES += [("allkeys-lru", "0", False)]


@pytest.fixture(params=POLICIES, ids=lambda row: f"{row[0]} {row[1]}")
def forgetful(request: pytest.FixtureRequest, server: Server) -> Iterator[tuple[Server, bool]]:
    """A server with such a policy, and whether it may drop keys."""
    policy, memory, drops = request.param
    with redis.Redis.from_url(server.url) as connection:
        connection.config_set("maxmemory-policy", policy)
        connection.config_set("maxmemory", "100mb" if memory == "1mb" else memory)
        yield server, drops
        connection.config_set("maxmemory", "0")
        connection.config_set("maxmemory-policy", "noeviction")


def hit_by_url(url: str, **options: Any) -> None:
    with Limiter(url, deadline=5, **options) as limiter:
        for _ in range(3):
            limiter.hit("5/minute", "a")


def hit_by_client(url: str, **options: Any) -> None:
    with redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=5) as client:
        Limiter(RedisStore(client), deadline=5, **options).hit("5/minute", "a")


def hit_async_by_url(url: str, **options: Any) -> None:
    async def main() -> None:
        async with AsyncLimiter(url, deadline=5, **options) as limiter:
            await asyncio.gather(*[limiter.hit("5/minute", "a") for _ in range(3)])

    asyncio.run(main())


def hit_async_by_client(url: str, **options: Any) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=5) as client:
            await AsyncLimiter(AsyncRedisStore(client), deadline=5, **options).hit("5/minute", "a")

    asyncio.run(main())


HITS = pytest.mark.parametrize("hit", [hit_by_url, hit_by_client, hit_async_by_url, hit_async_by_client])


@HITS
def test_a_server_that_drops_keys(hit: Ask, forgetful: tuple[Server, bool]) -> None:
    server, drops = forgetful
    codes = ["SG109"] if drops else []
    assert codes_of(lambda: hit(server.url)) == codes
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*\[SG109\]")
        hit(server.url)
    if drops:
        errors.forget_warnings()
        for expected, options in ((SluicegateWarning, {}), (StrictError, {"strict": True})):
            for _ in range(2):
                with pytest.raises(expected, match=r"evicts keys .+\[SG109\]$"):
                    hit(server.url, **options)


def test_under_strict_each_request_to_it_is_an_error(valkey: Server) -> None:
    identity = uuid4()
    with redis.Redis.from_url(valkey.url) as connection, Limiter(valkey.url, strict=True) as limiter:
        connection.config_set("maxmemory-policy", "allkeys-lru")
        connection.config_set("maxmemory", "100mb")
        for _ in range(2):
            with pytest.raises(StrictError, match=r"\[SG109\]$"):
                limiter.hit("5/minute", identity)
        connection.config_set("maxmemory", "0")
        connection.config_set("maxmemory-policy", "noeviction")
        assert limiter.hit("5/minute", identity)


@HITS
def test_a_setting_that_may_not_be_read_gives_no_warning(hit: Ask, valkey: Server) -> None:
    with redis.Redis.from_url(valkey.url) as connection:
        connection.config_set("maxmemory", "100mb")
        connection.config_set("maxmemory-policy", "allkeys-lru")
        connection.acl_setuser(
            "plain", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"], commands=["-info"]
        )
        try:
            assert codes_of(lambda: hit(valkey.url.replace("//", "//plain:secret@"))) == []
        finally:
            connection.acl_deluser("plain")
            connection.config_set("maxmemory-policy", "noeviction")
            connection.config_set("maxmemory", "0")


def test_the_server_is_queried_once_and_a_store_without_limiter_queries_nothing(valkey: Server) -> None:
    with redis.Redis.from_url(valkey.url) as connection:
        connection.config_resetstat()
        hit_by_url(valkey.url)
        assert connection.info("commandstats")["cmdstat_info"]["calls"] == 1


# ---- false alarms ------------------------------------------------------------------------------------------------


def behind_proxy_fix() -> None:
    app = flask_page(**LIMITED)
    app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]
    WsgiClient(app).request("GET", "/open", headers=PROXIED)


def by_flask_login() -> None:
    app = flask_page(**LIMITED)
    app.secret_key = "only for tests"
    flask_login.LoginManager(app).request_loader(lambda request: None)  # it knows all tokens: this one is wrong
    WsgiClient(app).request("GET", "/open", headers=TOKEN)


def the_middleware_is_there_and_was_not_met() -> None:
    with override_settings(MIDDLEWARE=[OURS], SLUICEGATE={}):
        decorated(RequestFactory().get("/"))


def apart(**outer: Any) -> None:
    store = MemoryStore()
    inner = wsgi.RateLimitMiddleware(page, store=store, default_limits=["9/minute"])
    WsgiClient(wsgi.RateLimitMiddleware(inner, **{"store": store, **outer})).request("GET", "/open")


def a_decorated_view(*quotas: str) -> None:
    app = flask_page(**LIMITED)
    stacked: Any = lambda: "page"  # noqa: E731
    for quota in quotas:
        stacked = flask_limit(quota)(stacked)
    app.add_url_rule("/view", view_func=stacked, endpoint="view")
    WsgiClient(app).request("GET", "/view")


QUIET: list[Ask] = [
    *all_adapters(lambda adapter: adapter(**LIMITED)),
    *all_adapters(lambda adapter: adapter(headers=PROXIED, trusted_proxies=["198.51.100.0/24"], **LIMITED)),
    lambda: by_wsgi(headers=PROXIED, default_limits=["9/minute"], key="header:Host"),  # no address is used
    lambda: by_wsgi(headers=[("X-Forwarded-For", "6.6.6.6, 198.51.100.9")], **LIMITED),  # as uvicorn leaves it
    behind_proxy_fix,
    lambda: by_wsgi(trusted_proxies=["10.0.0.0/8", "fc00::/7", "unix"], **LIMITED),
    *all_adapters(lambda adapter: beside(["rest_framework"], adapter, key="ip")),
    *[lambda adapter=adapter: beside([], adapter) for adapter in (by_django_wsgi, by_django_asgi)],
    lambda: ask_async(users_outside(**LIMITED), TOKEN),
    lambda: start(users_outside, **LIMITED),
    lambda: start(users_inside, rules=[Rule(name="a", quota="9/hour", key="ip")]),
    by_flask_login,
    the_middleware_is_there_and_was_not_met,
    lambda: apart(default_limits=["9/hour"]),
    lambda: apart(default_limits=["9/minute"], store=MemoryStore()),
    lambda: apart(default_limits=["9/minute"], secret="correct horse battery staple"),
    lambda: a_decorated_view("5/minute", "9/hour", "99/hour"),
    lambda: Limiter(strict=True),
    lambda: Limiter(deadline=5, strict=True),
    lambda: given(redis, RedisStore, Limiter, strict=True),
    lambda: given(redis.asyncio, AsyncRedisStore, AsyncLimiter, strict=True),
]


@pytest.mark.parametrize("use", QUIET, ids=range(len(QUIET)))
def test_nothing_is_said_without_a_reason(use: Ask) -> None:
    assert codes_of(use) == []


def test_each_code_has_its_row() -> None:
    assert {*SEEN, *LATER} == set(WARNINGS)


def test_a_warning_names_the_given_value_and_what_to_do() -> None:
    with pytest.warns(SluicegateWarning) as caught:
        by_wsgi(trusted_proxies="0.0.0.0/0")
    assert str(caught[0].message) == (
        "trusted_proxies '0.0.0.0/0': this network contains clients too, "
        "so each client can choose the address that is counted; "
        "give the networks of your own proxies [SG103]"
    )
    assert caught[0].filename == __file__


@pytest.mark.parametrize("strict", ["yes", 1, None])
def test_strict_is_true_or_false(strict: Any) -> None:
    for make in (Limiter, AsyncLimiter, by_wsgi):
        with pytest.raises(ConfigurationError, match="neither True nor False"):
            make(strict=strict)
