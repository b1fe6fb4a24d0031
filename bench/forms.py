"""Forms of a limit: what each form that users write adds to one request, beside the decorators of the peers.

The requests are those of `bench.requests`: inside this process, without sockets. "least" is the CPU of one request, the
least of all rounds, less the same of the application without a limiter; for the application without a limiter it is the
whole. Over a server, "both" is the CPU of the application and of the server, which share one CPU: on an idle machine,
the time of the request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import flask_limiter
import slowapi
from flask import Flask
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bench.budgets import (
    ADDRESS,
    ASYNC_KEY,
    BY_FORM,
    BY_FORM_OVER_REDIS,
    DECORATOR,
    DEFAULT_KEY,
    FUNCTION,
    LAST,
    NONE,
    NONE_OF_MANY,
    STRING,
    TWO,
)
from bench.clocks import cpu, on_one_cpu, process_of
from bench.figures import Figure
from bench.race import Contender, Course, Turn
from bench.requests import IDENTITIES, PLENTY, App, configure_django, on_loop, one_by_one
from sluicegate import flask, starlette
from tests.servers import Server, valkey_server

ROUTES = 200
FEW = 3  # requests that the proof of an application allows


class Form(NamedTuple):
    """One form: the key of the application's default limits if it has them, and the options of each decorator."""

    name: str
    defaults: dict[str, Any] | None = None
    decorators: tuple[dict[str, Any], ...] = ()

    def options(self, limit: int, store: str) -> dict[str, Any]:
        """The options of the application's limiter."""
        limits = {} if self.defaults is None else {"default_limits": [f"{limit}/hour"], **self.defaults}
        return {"store": store, "deadline": 10, **limits}

    def decorate(self, mark: Callable[..., Any], view: Any, limit: int) -> Any:
        """The view with its limits: one by the hour, another by the day."""
        for options, period in zip(self.decorators, ("hour", "day"), strict=False):
            view = mark(f"{limit}/{period}", **options)(view)
        return view


def user(request: Any) -> str:
    """A key function, for each of the frameworks."""
    name: str = request.headers["X-User"]
    return name


async def user_later(request: Any) -> str:
    """An async key function."""
    return user(request)


DECORATED = Form(DECORATOR, decorators=({"key": user},))
FORMS = (
    Form(STRING, {"key": "header:X-User"}),
    Form(ADDRESS, {}),
    Form(FUNCTION, {"key": user}),
    Form(DEFAULT_KEY, decorators=({},)),
    DECORATED,
    Form(TWO, decorators=({"key": user}, {"key": user})),
)
ASYNC_FORM = Form(ASYNC_KEY, decorators=({"key": user_later},))

Maker = Callable[[int, str], App]
"""Makes an application with this limit an hour and this store."""


def measure(course: Course) -> list[Figure]:
    """Measure every form in memory, and those of sluicegate over a server."""
    figures = []
    loop = asyncio.new_event_loop()
    try:
        for framework, makers in _frameworks(loop):
            figures += _race_in_memory(course, BY_FORM.format(framework), makers)
        for framework, makers in _frameworks(loop):
            with valkey_server() as server, on_one_cpu(server):
                figures += _race_over(server, course, BY_FORM_OVER_REDIS.format(framework), makers)
    finally:
        loop.close()
    return figures


def _race_in_memory(course: Course, topic: str, makers: list[Maker]) -> list[Figure]:
    contenders = []
    for make in makers:
        _prove(make(FEW, "memory://"))
        app = make(PLENTY, "memory://")
        contenders.append(Contender(topic, app.name, app.role, _turn(course, app, "cpu", time.process_time)))
    found = course.race(contenders)
    least = {each.contender: min(each.samples) for each in found}
    bases = {NONE: 0.0, NONE_OF_MANY: 0.0, LAST: least.get(NONE_OF_MANY, 0.0)}
    return found + [
        each._replace(measure="least", samples=(least[each.contender] - bases.get(each.contender, least[NONE]),))
        for each in found
    ]


def _race_over(server: Server, course: Course, topic: str, makers: list[Maker]) -> list[Figure]:
    process = process_of(server)
    apps = [make(PLENTY, server.url) for make in makers]
    return course.race(
        [
            Contender(topic, app.name, app.role, _turn(course, app, "both", lambda: time.process_time() + cpu(process)))
            for app in apps
            if app.role == "sluicegate" and app.name != LAST
        ]
    )


def _turn(course: Course, app: App, measure: str, clock: Callable[[], float]) -> Turn:
    def turn(number: int) -> dict[str, float]:
        with app.context():
            app.prepare(IDENTITIES, True)()  # a new gate of Django's has no identities yet
            serve = app.prepare(course.effort.checks, True)
            began = clock()
            statuses = serve()
            took = clock() - began
            if statuses != {200}:
                raise RuntimeError(f"answered {statuses}")
            return {measure: took / course.effort.checks * 1e6}

    return turn


def _prove(app: App) -> None:
    """Raise unless an application allows exactly FEW requests, or has no limiter."""
    with app.context():
        answers = [app.prepare(1, False)() == {200} for _ in range(FEW + 1)]
    if answers != [True] * FEW + [app.role == "floor"]:
        raise RuntimeError(f"{app.name} does not limit as it should: {answers}")


def _frameworks(loop: asyncio.AbstractEventLoop) -> Iterator[tuple[str, list[Maker]]]:
    """Each framework, with the application without a limiter first."""
    yield (
        "Starlette",
        [
            partial(_starlette, loop, None),
            *[partial(_starlette, loop, form) for form in (*FORMS, ASYNC_FORM)],
            partial(_starlette, loop, None, routes=ROUTES),
            partial(_starlette, loop, DECORATED._replace(name=LAST), routes=ROUTES),
            partial(_slowapi, loop, fields=False),
            partial(_slowapi, loop, fields=True),
        ],
    )
    yield "Flask", [partial(_flask, form) for form in (None, *FORMS)] + [_flask_limiter]
    yield "Django", [partial(_django, form) for form in (None, *FORMS)] + [_django_ratelimit]


# Starlette


async def _other(request: Request) -> PlainTextResponse:
    return PlainTextResponse("other")


def _starlette(loop: asyncio.AbstractEventLoop, form: Form | None, limit: int, store: str, *, routes: int = 1) -> App:
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    view = home if form is None else form.decorate(starlette.limit, home, limit)
    app = Starlette(routes=[*[Route(f"/r{number}", _other) for number in range(routes - 1)], Route("/", view)])
    if form is None:
        return App(NONE if routes == 1 else NONE_OF_MANY, "floor", on_loop(app, loop))
    app.add_middleware(starlette.RateLimitMiddleware, **form.options(limit, store))
    return App(form.name, "sluicegate", on_loop(app, loop))


def _slowapi(loop: asyncio.AbstractEventLoop, limit: int, store: str, *, fields: bool) -> App:
    limiter = slowapi.Limiter(key_func=user, storage_uri=store, headers_enabled=fields)

    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/", limiter.limit(f"{limit}/hour")(home))])
    app.state.limiter = limiter
    return App(f"slowapi{', fields' if fields else ''}", "peer", on_loop(app, loop))


# Flask


def _flask(form: Form | None, limit: int, store: str) -> App:
    app = Flask(__name__)
    view: Any = lambda: "ok"  # noqa: E731
    if form is not None:
        flask.RateLimiter(app, **form.options(limit, store))
        view = form.decorate(flask.limit, view, limit)
    app.add_url_rule("/", view_func=view, endpoint="home")
    return App(NONE, "floor", one_by_one(app)) if form is None else App(form.name, "sluicegate", one_by_one(app))


def _flask_limiter(limit: int, store: str) -> App:
    app = Flask(__name__)
    limiter = flask_limiter.Limiter(lambda: user(flask_request), app=app, storage_uri=store, headers_enabled=True)
    app.add_url_rule("/", view_func=limiter.limit(f"{limit}/hour")(lambda: "ok"), endpoint="home")
    return App("Flask-Limiter", "peer", one_by_one(app))


# Django


def _django(form: Form | None, limit: int, store: str) -> App:
    configure_django()
    from sluicegate.django import limit as mark

    if form is None:
        return _of_django(NONE, "floor", lambda view: view)
    options = {name.upper(): value for name, value in form.options(limit, store).items()}
    middleware = ["sluicegate.django.RateLimitMiddleware"]
    return _of_django(
        form.name,
        "sluicegate",
        lambda view: form.decorate(mark, view, limit),
        MIDDLEWARE=middleware,
        SLUICEGATE=options,
    )


def _django_ratelimit(limit: int, store: str) -> App:
    configure_django()
    from django_ratelimit.decorators import ratelimit

    decorate = ratelimit(key=lambda group, request: user(request), rate=f"{limit}/h", block=True)
    return _of_django("django-ratelimit", "peer", decorate)


def _of_django(name: str, role: Any, decorate: Callable[[Any], Any], **settings: Any) -> App:
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpResponse
    from django.test.utils import override_settings
    from django.urls import path

    def home(request: Any) -> Any:
        return HttpResponse("ok")

    urls = ModuleType("urls")  # of this application alone, so no other route is matched before
    urls.urlpatterns = [path("", decorate(home))]  # type: ignore[attr-defined]
    context = partial(override_settings, ROOT_URLCONF=urls, **settings)
    with context():
        return App(name, role, one_by_one(WSGIHandler()), context=context)
