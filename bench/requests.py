"""Requests inside this process, without sockets: the CPU and the function calls that a limiter adds to one request.

Each application is called with a prepared scope or environ, as a server would call it. So the figures contain the
framework and the limiter, and no kernel, no parser and no server. "allowed" is a thousand identities that all pass;
"refused" is one identity far above its limit. "events" has an `on_decision` that does nothing, "Prometheus" and
"OpenTelemetry" have their metrics as `on_decision`; the others have none. "events" is also the measure of what these
add to the same application without them.
"constant 429" is a middleware of five lines that always sends the same refusal with the same fields: the least that a
refusal can cost in that framework.
"""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import flask_limiter
import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
from django.conf import settings
from flask import Flask, Response, request
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bench.budgets import NONE, REDIS_STORE
from bench.figures import Figure, Role, added
from bench.race import Contender, Course, Turn
from sluicegate import asgi, flask, starlette
from sluicegate.observe.opentelemetry import OpenTelemetryMetrics
from sluicegate.observe.prometheus import PrometheusMetrics
from sluicegate.plan import Outcome, Terms
from sluicegate.stores import Mode, Run
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from tests.servers import valkey_server

IDENTITIES = 1_000
PLENTY, FEW = 1_000_000, 10
HOUR = 3600
AT_ONCE = 8  # requests that an event loop serves at the same time
COUNTED = 200  # requests whose function calls are counted
KEY = "header:X-User"
CONSTANT = "constant 429"
HOOKS = ("events", "Prometheus", "OpenTelemetry")
OURS = "sluicegate"

BODY = (
    b'{"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Quota Exceeded", '
    b'"status": 429, "detail": "Retry after 3600 seconds.", "violated-policies": ["default"]}'
)
FIELDS = {
    "Content-Type": "application/problem+json",
    "Content-Length": str(len(BODY)),
    "Cache-Control": "no-store",
    "Retry-After": "3600",
    "RateLimit-Policy": '"default";q=10;w=3600',
    "RateLimit": '"default";r=0;t=3600',
}
LINES = [(name.lower().encode(), value.encode()) for name, value in FIELDS.items()]

Prepare = Callable[[int, bool], Callable[[], set[int]]]
"""Prepare this many requests, of many identities or of one. The result serves them, and returns their statuses."""


class App(NamedTuple):
    """One application of a framework, and the status of its responses."""

    name: str
    role: Role
    prepare: Prepare
    status: int = 200
    context: Callable[[], AbstractContextManager[object]] = nullcontext  # Django's settings belong to the process


class InstantStore(MemoryStore):
    """A store that answers at once: with it, the figures are those of everything but the store."""

    def __init__(self, *, allows: bool) -> None:
        super().__init__()
        limit, wait = (PLENTY, 0) if allows else (FEW, HOUR * 1_000_000)
        self._outcomes = (Outcome(allows, limit, 0, wait, HOUR * 1_000_000, HOUR * 1_000_000),)

    def compile(self, terms: tuple[Terms, ...], mode: Mode) -> Run:
        outcomes = self._outcomes * len(terms)
        return lambda checks, network: outcomes


def _instant_async(*, allows: bool) -> AsyncMemoryStore:
    return AsyncMemoryStore(InstantStore(allows=allows))


def _options(limit: int, store: object = "memory://") -> dict[str, Any]:
    return {"store": store, "default_limits": [f"{limit}/hour"], "key": KEY, "deny_cache": 0}


# ASGI


def _listen(event: object) -> None:
    """Do nothing: the figure is that of the events themselves."""


def _hooks() -> dict[str, Any]:
    """What `on_decision` may be, by name."""
    provider = MeterProvider(metric_readers=[InMemoryMetricReader()])
    metrics = PrometheusMetrics(registry=CollectorRegistry()), OpenTelemetryMetrics(meter_provider=provider)
    return dict(zip(HOOKS, (_listen, *metrics), strict=True))


class Constant:
    """The floor of a refusal, in ASGI."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 429, "headers": LINES})
        await send({"type": "http.response.body", "body": BODY})


class ByHand:
    """The library limits in an ASGI middleware by hand, with the same fields as sluicegate's."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.limiter = limits.aio.strategies.FixedWindowRateLimiter(limits.aio.storage.MemoryStorage())
        self.item = limits.RateLimitItemPerHour(PLENTY)
        self.policy = (b"ratelimit-policy", f'"default";q={PLENTY};w={HOUR}'.encode())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        user = dict(scope["headers"])[b"x-user"].decode()
        allowed = await self.limiter.hit(self.item, user)
        reset, remaining = await self.limiter.get_window_stats(self.item, user)
        await self.answer(
            (scope, receive, send), allowed=allowed, remaining=remaining, wait=int(reset - time.time()) + 1
        )

    async def answer(self, call: tuple[Any, Any, Any], *, allowed: bool, remaining: int, wait: int) -> None:
        scope, receive, send = call
        fields = [self.policy, (b"ratelimit", b'"default";r=%d;t=%d' % (remaining, wait))]
        if not allowed:
            headers = [*LINES[:3], (b"retry-after", b"%d" % wait), *fields]
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": BODY})
            return

        async def send_with_fields(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *fields]
            await send(message)

        await self.app(scope, receive, send_with_fields)


class ByHandSync(ByHand):
    """The same with limits' synchronous storage, which never blocks in memory."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.sync = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        user = dict(scope["headers"])[b"x-user"].decode()
        allowed = self.sync.hit(self.item, user)
        reset, remaining = self.sync.get_window_stats(self.item, user)
        await self.answer(
            (scope, receive, send), allowed=allowed, remaining=remaining, wait=int(reset - time.time()) + 1
        )


async def pure(scope: Any, receive: Any, send: Any) -> None:
    """An application without a framework."""
    headers = [(b"content-length", b"2"), (b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def _home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


def _starlette(layer: Any = None, **options: Any) -> Any:
    app = Starlette(routes=[Route("/", _home)])
    if layer is not None:
        app.add_middleware(layer, **options)
    return app


def _pure(layer: Any = None, **options: Any) -> Any:
    return pure if layer is None else layer(pure, **options)


class _Receive:
    """The empty body of one request, and then silence, until the application cancels the call."""

    __slots__ = ("_read",)

    def __init__(self) -> None:
        self._read = False

    async def __call__(self) -> dict[str, Any]:
        if self._read:
            await asyncio.get_running_loop().create_future()
        self._read = True
        return {"type": "http.request", "body": b"", "more_body": False}


def _scope(user: str) -> dict[str, Any]:
    headers = [(b"host", b"127.0.0.1"), (b"user-agent", b"bench"), (b"accept", b"*/*"), (b"x-user", user.encode())]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


def on_loop(app: Any, loop: asyncio.AbstractEventLoop) -> Prepare:
    """Serve requests by an ASGI application: each in a task, several at the same time, as servers do."""
    statuses: set[int] = set()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.add(message["status"])

    async def serve_all(users: list[str]) -> None:
        for at in range(0, len(users), AT_ONCE):
            tasks = [loop.create_task(app(_scope(user), _Receive(), send)) for user in users[at : at + AT_ONCE]]
            for task in tasks:
                await task

    def prepare(count: int, many: bool) -> Callable[[], set[int]]:
        users = [f"u{at % IDENTITIES}" if many else "one" for at in range(count)]

        def serve() -> set[int]:
            statuses.clear()
            loop.run_until_complete(serve_all(users))
            return statuses

        return serve

    return prepare


# WSGI


def one_by_one(app: Any) -> Prepare:
    """Serve requests by a WSGI application, one after the other."""
    statuses: set[str] = set()

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
        statuses.add(status)

    def prepare(count: int, many: bool) -> Callable[[], set[int]]:
        users = [f"u{at % IDENTITIES}" if many else "one" for at in range(count)]

        def serve() -> set[int]:
            statuses.clear()
            for user in users:
                chunks = app(_environ(user), start_response)
                b"".join(chunks)
                if (close := getattr(chunks, "close", None)) is not None:
                    close()
            return {int(each[:3]) for each in statuses}

        return serve

    return prepare


def _environ(user: str) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/",
        "QUERY_STRING": "",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": "127.0.0.1",
        "HTTP_USER_AGENT": "bench",
        "HTTP_ACCEPT": "*/*",
        "HTTP_X_USER": user,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def _flask(install: Callable[[Flask], object] = lambda app: None) -> Flask:
    app = Flask(__name__)
    install(app)
    app.add_url_rule("/", view_func=lambda: "ok", endpoint="home")
    return app


def _flask_constant(app: Flask) -> None:
    app.before_request(lambda: Response(BODY, 429, FIELDS))


def _flask_limiter(app: Flask) -> None:
    flask_limiter.Limiter(
        lambda: request.headers["X-User"],
        app=app,
        default_limits=[f"{PLENTY}/hour"],
        storage_uri="memory://",
        headers_enabled=True,
    )


def _flask_ours(limit: int, store: object) -> Callable[[Flask], object]:
    return lambda app: flask.RateLimiter(app, **_options(limit, store))


# Django


def _django_home(request: Any) -> Any:
    from django.http import HttpResponse

    return HttpResponse("ok")


async def _django_async_home(request: Any) -> Any:
    return _django_home(request)


def constant(get_response: Any) -> Any:
    """The floor of a refusal, in Django."""
    from asgiref.sync import iscoroutinefunction
    from django.http import HttpResponse
    from django.utils.decorators import sync_and_async_middleware

    @sync_and_async_middleware
    def make(get_response: Any) -> Any:
        if iscoroutinefunction(get_response):

            async def middleware(request: Any) -> Any:
                return HttpResponse(BODY, status=429, headers=FIELDS)

        else:

            def middleware(request: Any) -> Any:  # type: ignore[misc]
                return HttpResponse(BODY, status=429, headers=FIELDS)

        return middleware

    return make(get_response)


constant.sync_capable = constant.async_capable = True  # type: ignore[attr-defined]


def configure_django() -> None:
    if settings.configured:
        return
    import django
    from django.urls import path

    settings.configure(
        SECRET_KEY="only for the benchmark",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        MIDDLEWARE=[],
        CACHES={
            "default": {
                "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
                "OPTIONS": {"MAX_ENTRIES": 10_000},
            }
        },
        SILENCED_SYSTEM_CHECKS=["django_ratelimit.E003", "django_ratelimit.W001"],
    )
    django.setup()
    from django_ratelimit.decorators import ratelimit

    limited = ratelimit(key="header:x-user", rate=f"{PLENTY}/h", block=True)(_django_home)
    urlpatterns.extend([path("", _django_home), path("limited", limited), path("async", _django_async_home)])


urlpatterns: list[Any] = []

_OURS_IN_DJANGO = "sluicegate.django.RateLimitMiddleware"


def _django(
    name: str,
    role: Role,
    middleware: str | None = None,
    *,
    path: str = "/",
    limit: int = PLENTY,
    status: int = 200,
    store: object = "memory://",
    loop: asyncio.AbstractEventLoop | None = None,
) -> App:
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler
    from django.test.utils import override_settings

    ours = {option.upper(): value for option, value in _options(limit, store).items()}
    context = partial(override_settings, MIDDLEWARE=[] if middleware is None else [middleware], SLUICEGATE=ours)
    with context():
        handler: Any = WSGIHandler() if loop is None else ASGIHandler()

    def of_path(at: str) -> Any:
        def app(facts: dict[str, Any], *others: Any) -> Any:
            facts[at] = path
            return handler(facts, *others)

        return app

    prepare = one_by_one(of_path("PATH_INFO")) if loop is None else on_loop(of_path("path"), loop)
    return App(name, role, prepare, status, context)


# The race


def measure(course: Course) -> list[Figure]:
    """Measure requests that pass, and requests that are refused."""
    figures = []
    loop = asyncio.new_event_loop()
    try:
        with valkey_server() as server:
            for framework, apps in _frameworks(loop, server.url):
                topic = f"request, {framework}"
                found = course.race([Contender(topic, app.name, app.role, _turn(course, app)) for app in apps])
                cpu = {each.contender: each for each in found if each.measure == "cpu"}
                figures += found
                for name, figure in cpu.items():
                    without = cpu.get(name.partition(", ")[0])
                    if name != NONE:
                        figures.append(added(figure, cpu[NONE]))
                    if name.rpartition(", ")[2] in HOOKS and without is not None:
                        figures.append(added(figure, without)._replace(measure="events"))
    finally:
        loop.close()
    return figures


def _turn(course: Course, app: App) -> Turn:
    def turn(number: int) -> dict[str, float]:
        many = app.status == 200
        with app.context():
            app.prepare(IDENTITIES, many)()  # a new gate of Django's has no identities yet
            serve = app.prepare(course.effort.checks, many)
            began = time.process_time()
            statuses = serve()  # with garbage collection, as in a server: what a request leaves behind is part of it
            took = time.process_time() - began
            if statuses != {app.status}:
                raise RuntimeError(f"answered {statuses}, expected {app.status}")
            return {"cpu": took / course.effort.checks * 1e6, "calls": _calls(app.prepare(COUNTED, many)) / COUNTED}

    return turn


def _calls(serve: Callable[[], object]) -> int:
    """Count the calls of functions, in Python and in C."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        serve()
    finally:
        sys.setprofile(None)
    return calls


def _frameworks(loop: asyncio.AbstractEventLoop, url: str) -> Iterator[tuple[str, list[App]]]:
    """All frameworks with their applications. The `url` is that of a server."""
    for name, make, ours in (
        ("pure ASGI", _pure, asgi.RateLimitMiddleware),
        ("Starlette", _starlette, starlette.RateLimitMiddleware),
    ):

        def limited(limit: int, store: object, make: Any = make, ours: Any = ours, **more: Any) -> Prepare:
            return on_loop(make(ours, **{**_options(limit, store), **more}), loop)

        yield (
            name,
            [
                App(NONE, "floor", on_loop(make(), loop)),
                *_ours(limited, _instant_async),
                *_watched(OURS, partial(limited, PLENTY, "memory://")),
                *([] if name == "pure ASGI" else _over_redis(partial(limited, PLENTY, url, deny_cache=1, deadline=5))),
                App("limits by hand, fields", "peer", on_loop(make(ByHand), loop)),
                App("limits by hand, fields, sync", "peer", on_loop(make(ByHandSync), loop)),
                App(CONSTANT, "floor", on_loop(make(Constant), loop), 429),
            ],
        )
    yield (
        "Flask",
        [
            App(NONE, "floor", one_by_one(_flask())),
            *_ours(lambda limit, store: one_by_one(_flask(_flask_ours(limit, store))), InstantStore),
            App("Flask-Limiter", "peer", one_by_one(_flask(_flask_limiter))),
            App(CONSTANT, "floor", one_by_one(_flask(_flask_constant)), 429),
        ],
    )
    configure_django()
    ours_in_django = "sluicegate.django.RateLimitMiddleware"
    for name, path, at, store in (
        ("Django", "/", None, InstantStore),
        ("Django, async", "/async", loop, _instant_async),
    ):
        django: Callable[..., App] = partial(_django, path=path, loop=at)
        yield (
            name,
            [
                django(NONE, "floor"),
                django(OURS, "sluicegate", ours_in_django),
                django(f"{OURS}, instant store", "sluicegate", ours_in_django, store=store(allows=True)),
                django(f"{OURS} refused", "sluicegate", ours_in_django, limit=FEW, status=429),
                django(
                    f"{OURS} refused, instant store",
                    "sluicegate",
                    ours_in_django,
                    limit=FEW,
                    status=429,
                    store=store(allows=False),
                ),
                *([_django("django-ratelimit", "peer", path="/limited")] if at is None else []),
                django(CONSTANT, "floor", f"{__name__}.constant", status=429),
            ],
        )


def _over_redis(limited: Callable[..., Prepare]) -> list[App]:
    return [App(REDIS_STORE, "sluicegate", limited()), *_watched(REDIS_STORE, limited)]


def _watched(name: str, limited: Callable[..., Prepare]) -> list[App]:
    return [App(f"{name}, {what}", "sluicegate", limited(on_decision=hook)) for what, hook in _hooks().items()]


def _ours(limited: Callable[[int, object], Prepare], instant: Callable[..., object]) -> list[App]:
    return [
        App(OURS, "sluicegate", limited(PLENTY, "memory://")),
        App(f"{OURS}, instant store", "sluicegate", limited(PLENTY, instant(allows=True))),
        App(f"{OURS} refused", "sluicegate", limited(FEW, "memory://"), 429),
        App(f"{OURS} refused, instant store", "sluicegate", limited(FEW, instant(allows=False)), 429),
    ]
