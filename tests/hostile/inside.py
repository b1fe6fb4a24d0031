"""Every adapter in this process, under any settings, called as by its server.

A request is a path, a query and header lines. `ready` turns it into a call without arguments. The preparation is
outside the call and is not measured.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pytest

from tests.adapters.django_app import AUTH, COMMON, OURS, SESSIONS, serving

PEER: Final = "198.51.100.9"
ROUTE: Final = "/team/"  # what follows is the parameter "name"


class Request(NamedTuple):
    """A client's request, with the path as the application reads it."""

    path: str = "/"
    query: str = ""
    lines: tuple[tuple[str, str], ...] = ()
    method: str = "GET"


quoted: Final = cache(quote)  # the same long texts go to every adapter

Call = Callable[[], int]  # the status
Ready = Callable[[Request], Call]
Shop = Callable[[Mapping[str, Any]], AbstractContextManager[Ready]]


def _by_asgi(app: Any, runner: asyncio.Runner) -> Ready:
    def ready(request: Request) -> Call:
        raw = quoted(request.path, errors="surrogatepass")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "root_path": "",
            "path": request.path,
            "raw_path": raw.encode(),
            "query_string": quoted(request.query, errors="surrogatepass").encode(),
            "headers": [(b"host", b"shop"), *[(name.lower().encode(), _sent(value)) for name, value in request.lines]],
            "client": (PEER, 50_000),
            "server": ("shop", 80),
            "state": {},
        }
        statuses: list[int] = []
        body = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if body:
                return body.pop()
            return await asyncio.Event().wait()  # a client that stays connected

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        async def call() -> int:
            await app(scope, receive, send)
            return statuses[0]

        return lambda: runner.run(call())

    return ready


def _by_wsgi(app: Any) -> Ready:
    def ready(request: Request) -> Call:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": request.path.encode("utf-8", "surrogatepass").decode("latin-1"),
            "QUERY_STRING": quoted(request.query, errors="surrogatepass"),
            "SERVER_NAME": "shop",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": PEER,
            "HTTP_HOST": "shop",
            "wsgi.input": io.BytesIO(),
            "wsgi.errors": io.StringIO(),
            "wsgi.url_scheme": "http",
        }
        for name, value in request.lines:
            key, text = "HTTP_" + name.upper().replace("-", "_"), _sent(value).decode("latin-1")
            environ[key] = f"{environ[key]},{text}" if key in environ else text
        statuses: list[int] = []

        def start(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], object]:
            statuses.append(int(status[:3]))
            return bool

        def call() -> int:
            chunks: Iterable[bytes] = app(environ, start)
            for _ in chunks:
                pass
            getattr(chunks, "close", bool)()
            return statuses[-1]

        return call

    return ready


def _sent(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


@contextmanager
def _asgi(options: Mapping[str, Any]) -> Iterator[Ready]:
    from sluicegate.asgi import RateLimitMiddleware

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with asyncio.Runner() as runner:
        yield _by_asgi(RateLimitMiddleware(page, **options), runner)


@contextmanager
def _starlette(options: Mapping[str, Any]) -> Iterator[Ready]:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request as Native
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    from sluicegate.starlette import RateLimitMiddleware, limit

    async def page(request: Native) -> Response:
        return Response()

    marked = limit("1000000/day", key="path:name", scope="team")(page)
    routes = [Route("/", page), Route(ROUTE + "{name:path}", marked), Mount("/api", routes=[Route("/{rest}", page)])]
    with asyncio.Runner() as runner:
        yield _by_asgi(Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, **options)]), runner)


@contextmanager
def _fastapi(options: Mapping[str, Any]) -> Iterator[Ready]:
    from fastapi import Depends, FastAPI, Response

    from sluicegate.fastapi import RateLimit, RateLimitMiddleware

    app = FastAPI()

    async def page() -> Response:
        return Response()

    async def team(name: str) -> Response:
        return Response()

    of_team = RateLimit("1000000/day", key="path:name", scope="team")
    app.add_api_route("/", page)
    app.add_api_route(ROUTE + "{name:path}", team, dependencies=[Depends(of_team)])
    app.add_middleware(RateLimitMiddleware, **options)
    with asyncio.Runner() as runner:
        yield _by_asgi(app, runner)


@contextmanager
def _wsgi(options: Mapping[str, Any]) -> Iterator[Ready]:
    from sluicegate.wsgi import RateLimitMiddleware

    def page(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b""]

    yield _by_wsgi(RateLimitMiddleware(page, **options))


@contextmanager
def _flask(options: Mapping[str, Any]) -> Iterator[Ready]:
    from flask import Flask, Response

    from sluicegate.flask import RateLimiter, limit

    app = Flask(__name__, static_folder=None)
    app.add_url_rule("/", "home", Response)
    team = limit("1000000/day", key="path:name", scope="team")(lambda name: Response())
    app.add_url_rule(ROUTE + "<path:name>", "team", team)
    RateLimiter(app, **options)
    yield _by_wsgi(app)


def _django_urls() -> Sequence[Any]:
    from django.http import HttpRequest, HttpResponse
    from django.urls import path

    from sluicegate.django import limit

    def page(request: HttpRequest, **values: Any) -> HttpResponse:
        return HttpResponse()

    async def async_page(request: HttpRequest, **values: Any) -> HttpResponse:
        return HttpResponse()

    marked = limit("1000000/day", key="path:name", scope="team")(page)
    return path("", page), path("async", async_page), path(ROUTE[1:] + "<path:name>", marked)


@contextmanager
def _django_wsgi(options: Mapping[str, Any]) -> Iterator[Ready]:
    with serving(asgi=False, middleware=DJANGO, urls=_django_urls(), **options) as site:
        yield _by_wsgi(site.app)


@contextmanager
def _django_asgi(options: Mapping[str, Any]) -> Iterator[Ready]:
    with asyncio.Runner() as runner, serving(asgi=True, middleware=DJANGO, urls=_django_urls(), **options) as site:
        yield _by_asgi(site.app, runner)


DJANGO: Final = (OURS, SESSIONS, COMMON, AUTH)

SHOPS: Final[dict[str, Shop]] = {
    "asgi": _asgi,
    "starlette": _starlette,
    "fastapi": _fastapi,
    "wsgi": _wsgi,
    "flask": _flask,
    "django_wsgi": _django_wsgi,
    "django_asgi": _django_asgi,
}


def in_each_shop(options: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrize a test with each shop and each of these options. Without --matrix a sample has each at least once."""
    cases = []
    for number, shop in enumerate(SHOPS):
        for place, name in enumerate(options):
            sampled = (number - place) % min(len(SHOPS), len(options)) == 0
            cases.append(pytest.param(shop, name, marks=() if sampled else pytest.mark.matrix))
    return pytest.mark.parametrize(("shop", "options"), cases)


_LIMITS: Final[dict[str, Any]] = {
    "default_limits": ["1000000000/day"],
    "rules": [
        {"name": "keyed", "quota": "1000000000/day", "key": "header:X-API-Key"},
        {"name": "both", "quota": "1000000000/day", "key": ("user", "header:X-API-Key", "ip")},
        {"name": "api", "quota": "1000000000/day", "key": "ip", "path": "/api/*"},
        {"name": "deep", "quota": "1000000000/day", "key": "ip", "path": "/*/*/*a*/*.json"},
    ],
    "allow": ["192.0.2.0/24", ("user", "alice")],
    "deny": ["203.0.113.0/24", ("user", "bob")],
}
REFUSED: Final = 403

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "by default": {"default_limits": ["1000000000/day"]},
    "everything, nobody trusted": _LIMITS,
    "refused, in text": {**_LIMITS, "deny": [PEER]},
    "networks": {**_LIMITS, "trusted_proxies": ["198.51.100.0/24", "10.0.0.0/8"]},
    "networks, Forwarded": {**_LIMITS, "trusted_proxies": ["0.0.0.0/1"], "trusted_header": "Forwarded"},
    "hops": {**_LIMITS, "trusted_proxies": 32, "secret": "only for these tests"},
    "hops, Forwarded": {**_LIMITS, "trusted_proxies": 32, "trusted_header": "Forwarded"},
}

PLACES: Final[dict[str, Callable[[str], Request]]] = {
    "Forwarded": lambda text: Request(lines=(("Forwarded", text),)),
    "X-Forwarded-For": lambda text: Request(lines=(("X-Forwarded-For", text),)),
    "Accept": lambda text: Request(lines=(("Accept", text),)),
    "Cookie": lambda text: Request(lines=(("Cookie", text),)),
    "Authorization": lambda text: Request(lines=(("Authorization", text),)),
    "Origin": lambda text: Request(lines=(("Origin", text), ("Access-Control-Request-Method", text)), method="OPTIONS"),
    "X-API-Key": lambda text: Request(lines=(("X-API-Key", text),)),
    "path": lambda text: Request(path="/" + text),
    "path below a pattern": lambda text: Request(path="/api/" + text),
    "path parameter": lambda text: Request(path=ROUTE + text),
    "query": lambda text: Request(query=text),
    "many Forwarded": lambda text: Request(lines=(("Forwarded", "a"),) * (len(text) // 16)),
    "many X-Forwarded-For": lambda text: Request(lines=(("X-Forwarded-For", "10.0.0.1"),) * (len(text) // 26)),
    "many headers": lambda text: Request(lines=tuple((f"x{number}", "a") for number in range(len(text) // 16))),
}
"""Where a hostile text is put. "many" varies the number of lines, not their text."""
