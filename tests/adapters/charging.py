"""Applications whose views charge, in every framework and mode. What a view does is written once, as a generator.

A view yields each charge that it makes, and gets the decision, or the refusal as an exception. It returns its text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.urls import path as url
from fastapi import FastAPI
from flask import Flask
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import sluicegate.asgi
import sluicegate.django
import sluicegate.fastapi
import sluicegate.flask
import sluicegate.starlette
import sluicegate.wsgi
from sluicegate import Decision, Rule
from sluicegate.errors import SluicegateError
from sluicegate.testing.client import Answer
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.django_app import OURS, serving
from tests.adapters.wsgi_client import WsgiClient


class Ask(NamedTuple):
    """A charge that a view makes."""

    quota: Any
    options: dict[str, Any]
    block: bool = False  # as a `with` block, which lasts until the view yields END or ends
    forgotten: bool = False  # an async charge that is not awaited


END = Ask("", {})
Body = Callable[[], Generator[Ask, Decision, str]]


def ask(quota: Any, **options: Any) -> Ask:
    return Ask(quota, options)


def block(quota: Any, **options: Any) -> Ask:
    return Ask(quota, options, block=True)


def forget(quota: Any, **options: Any) -> Ask:
    return Ask(quota, options, forgotten=True)


def play(body: Body, charge: Any, request: Any) -> str:
    """Run what a view does, with a sync charge."""
    steps = body()
    with ExitStack() as blocks:
        try:
            wanted = next(steps)
            while True:
                if wanted is END:
                    blocks.close()
                    wanted = next(steps)
                    continue
                try:
                    made = charge(request, wanted.quota, **wanted.options)
                    made = blocks.enter_context(made) if wanted.block else made
                except SluicegateError as error:
                    wanted = steps.throw(error)
                else:
                    wanted = steps.send(made)
        except StopIteration as end:
            return str(end.value)


async def play_async(body: Body, charge: Any, request: Any) -> str:
    """Do the same with an async charge."""
    steps = body()
    async with AsyncExitStack() as blocks:
        try:
            wanted = next(steps)
            while True:
                if wanted is END:
                    await blocks.aclose()
                    wanted = next(steps)
                    continue
                try:
                    made = charge(request, wanted.quota, **wanted.options)
                    if wanted.forgotten:
                        del made  # now Python warns
                        wanted = next(steps)
                        continue
                    made = await (blocks.enter_async_context(made) if wanted.block else made)
                except SluicegateError as error:
                    wanted = steps.throw(error)
                else:
                    wanted = steps.send(made)
        except StopIteration as end:
            return str(end.value)


class Site:
    """An application, limited by an adapter, with a client."""

    def __init__(self, stack: ExitStack, client: Any) -> None:
        self._stack, self._client = stack, client

    def get(self, path: str = "/a") -> Answer:
        answer: Answer = self._client.request("GET", path)
        return answer

    def statuses(self, *paths: str) -> list[int]:
        return [self.get(path).status for path in paths]

    def left(self, path: str = "/plain") -> str | None:
        """The RateLimit fields of a request whose view charges nothing."""
        return self.get(path).one("ratelimit")


Views = Mapping[str, Body]
Limits = Mapping[str, Any]


def plain() -> Generator[Ask, Decision, str]:
    """A view that charges nothing."""
    return "plain"
    yield END


def limited(limit: Any, limits: Limits, where: str, view: Any) -> Any:
    return limit(**_options_of(limits[where]))(view) if where in limits else view


def _options_of(limit: Any) -> dict[str, Any]:
    """The options of a view's limit, which a test gives as they are or as a quota."""
    return {"name": "view", **(limit if isinstance(limit, dict) else {"quota": limit})}


def django_site(
    stack: ExitStack,
    views: Views,
    limits: Limits,
    *,
    asgi: bool,
    is_async: bool,
    middleware: Any = (OURS,),
    **options: Any,
) -> Site:
    """A project of Django."""

    def view_of(body: Body) -> Any:
        def view(request: HttpRequest) -> HttpResponse:
            return HttpResponse(play(body, sluicegate.django.charge, request))

        async def async_view(request: HttpRequest) -> HttpResponse:
            return HttpResponse(await play_async(body, sluicegate.django.acharge, request))

        return async_view if is_async else view

    made = {where: limited(sluicegate.django.limit, limits, where, view_of(body)) for where, body in views.items()}
    urls = [url(where.lstrip("/"), view) for where, view in made.items()]
    return Site(stack, stack.enter_context(serving(asgi=asgi, urls=urls, middleware=middleware, **options)))


def endpoint_of(body: Body, *, is_async: bool) -> Any:
    def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse(play(body, sluicegate.starlette.charge_sync, request))

    async def async_endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await play_async(body, sluicegate.starlette.charge, request))

    return async_endpoint if is_async else endpoint


def starlette_site(
    stack: ExitStack, views: Views, limits: Limits, *, is_async: bool, middleware: bool = True, **options: Any
) -> Site:
    """An application of Starlette."""
    made = {where: endpoint_of(body, is_async=is_async) for where, body in views.items()}
    for where, view in made.items():
        view.__qualname__ += where  # older Starlette does not tell a view its route
    routes = [Route(where, limited(sluicegate.starlette.limit, limits, where, view)) for where, view in made.items()]
    limiters = [Middleware(sluicegate.starlette.RateLimitMiddleware, **options)] if middleware else []
    return Site(stack, AsgiClient(Starlette(routes=routes, middleware=limiters)))


def fastapi_site(
    stack: ExitStack, views: Views, limits: Limits, *, is_async: bool, middleware: bool = True, **options: Any
) -> Site:
    """An application of FastAPI."""
    app = FastAPI()
    if middleware:
        app.add_middleware(sluicegate.fastapi.RateLimitMiddleware, **options)
    for where, body in views.items():
        app.get(where)(limited(sluicegate.fastapi.limit, limits, where, endpoint_of(body, is_async=is_async)))
    return Site(stack, AsgiClient(app))


def by_path(charge: Any, where: str) -> Any:
    """A charge of a bare application, which has no views: its budgets are apart by the path."""
    return lambda native, quota, **options: charge(native, quota, **{"scope": f"{where} {quota}", **options})


def rules_of(limits: Limits, options: dict[str, Any]) -> list[Rule]:
    own = [Rule(**_options_of(limit), path=where) for where, limit in limits.items()]
    return [*options.pop("rules", ()), *own]


def asgi_site(stack: ExitStack, views: Views, limits: Limits, *, middleware: bool = True, **options: Any) -> Site:
    """A bare ASGI application."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        where = scope["path"].removeprefix(scope["root_path"])
        text = await play_async(views[where], by_path(sluicegate.asgi.charge, where), scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text.encode()})

    rules = rules_of(limits, options)
    limiter: Any = sluicegate.asgi.RateLimitMiddleware(app, rules=rules, **options) if middleware else app
    return Site(stack, AsgiClient(limiter))


def wsgi_site(stack: ExitStack, views: Views, limits: Limits, *, middleware: bool = True, **options: Any) -> Site:
    """A bare WSGI application."""

    def app(environ: Any, start_response: Any) -> Any:
        where = environ["PATH_INFO"]
        text = play(views[where], by_path(sluicegate.wsgi.charge, where), environ)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [text.encode()]

    rules = rules_of(limits, options)
    return Site(
        stack, WsgiClient(sluicegate.wsgi.RateLimitMiddleware(app, rules=rules, **options) if middleware else app)
    )


def flask_site(
    stack: ExitStack, views: Views, limits: Limits, *, is_async: bool, middleware: bool = True, **options: Any
) -> Site:
    """An application of Flask."""
    app = Flask(__name__)

    def view_of(body: Body) -> Any:
        def view() -> str:
            return play(body, sluicegate.flask.charge, flask_request)

        async def async_view() -> str:
            return play(body, sluicegate.flask.charge, flask_request)

        return async_view if is_async else view

    for where, body in views.items():
        app.add_url_rule(where, where, limited(sluicegate.flask.limit, limits, where, view_of(body)))
    if middleware:
        sluicegate.flask.RateLimiter(app, **options)
    return Site(stack, WsgiClient(app))


SITES: dict[str, tuple[Any, dict[str, Any]]] = {
    "django": (django_site, {"asgi": False, "is_async": False}),
    "django-async-view": (django_site, {"asgi": False, "is_async": True}),
    "django-asgi": (django_site, {"asgi": True, "is_async": True}),
    "django-asgi-sync-view": (django_site, {"asgi": True, "is_async": False}),
    "starlette": (starlette_site, {"is_async": True}),
    "starlette-sync": (starlette_site, {"is_async": False}),
    "fastapi": (fastapi_site, {"is_async": True}),
    "fastapi-sync": (fastapi_site, {"is_async": False}),
    "asgi": (asgi_site, {}),
    "wsgi": (wsgi_site, {}),
    "flask": (flask_site, {"is_async": False}),
    "flask-async-view": (flask_site, {"is_async": True}),
}


class Sites:
    """Makes the applications of one test, in one framework and mode."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self.name = name
        self._stack = stack
        self._make, self._mode = SITES[name]

    def __call__(self, body: Body | Views, limits: Limits | None = None, **options: Any) -> Site:
        views = {"/plain": plain, **({"/a": body} if callable(body) else body)}
        site: Site = self._make(self._stack, views, limits or {}, **self._mode, **options)
        return site

    def without_middleware(self, body: Body) -> Site:
        """The application without its limiter."""
        return self(body, middleware=() if "django" in self.name else False)
