"""A login with 5 failures allowed lets 5 wrong passwords through, also concurrently: all frameworks, two stores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from fastapi import FastAPI, HTTPException
from flask import Flask, request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sluicegate.django import conf
from sluicegate.django import limit as django_limit
from sluicegate.fastapi import limit as fastapi_limit
from sluicegate.flask import RateLimiter
from sluicegate.flask import limit as flask_limit
from sluicegate.starlette import RateLimitMiddleware
from sluicegate.starlette import limit as starlette_limit
from sluicegate.testing.charges import wrong
from sluicegate.testing.client import Answer
from tests.adapters.asgi_client import Server, make_scope
from tests.adapters.django_app import by_wsgi, call_asgi, serving
from tests.adapters.wsgi_client import WsgiClient

MANY = 60
PATIENCE = 10.0  # long enough for a busy machine: the local fallback would count again
LIMIT: Any = {"quota": "5/minute", "key": "ip", "charge_when": wrong}


class Tried:
    """The passwords that reached a view."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._lock = Lock()

    def status(self, password: str) -> int:
        with self._lock:
            self.seen.append(password)
        return 200 if password == "right" else 401


def header(password: str) -> list[tuple[str, str]]:
    return [("X-Password", password)]


# `all` of each class sends these passwords concurrently and returns the responses.


def starlette_app(tried: Tried) -> Any:
    @starlette_limit(**LIMIT)
    async def login(request: Request) -> Response:
        await asyncio.sleep(0)  # as if it looked the password up
        return PlainTextResponse("", tried.status(request.headers["X-Password"]))

    return Starlette(routes=[Route("/login", login, methods=["POST"])])


def fastapi_app(tried: Tried) -> Any:
    app = FastAPI()

    @app.post("/login")
    @fastapi_limit(**LIMIT)
    async def login(request: Request) -> None:
        await asyncio.sleep(0)
        if tried.status(request.headers["X-Password"]) != 200:
            raise HTTPException(401)

    return app


class ByASGI:
    """Tasks on one event loop. The loop stays open, as do the store's connections."""

    def __init__(self, app: Any, **options: Any) -> None:
        self._app = RateLimitMiddleware(app, **options)
        self._runner = asyncio.Runner()

    def all(self, passwords: Iterable[str]) -> list[Answer]:
        async def one(password: str) -> Answer:
            server = Server(make_scope("POST", "/login", headers=header(password)))
            await server.run(self._app, raising=True)
            return server.answer

        async def main() -> list[Answer]:
            return await asyncio.gather(*[one(password) for password in passwords])

        return self._runner.run(main())

    def close(self) -> None:
        self._runner.run(self._app.gate.close())
        self._runner.close()


def in_threads(ask: Any, passwords: Iterable[Any]) -> list[Answer]:
    tried = list(passwords)
    ready = Barrier(len(tried))

    def one(password: Any) -> Answer:
        ready.wait()
        answer: Answer = ask(password)
        return answer

    with ThreadPoolExecutor(len(tried)) as pool:
        return list(pool.map(one, tried))


class ByFlask:
    """Threads that call one application."""

    def __init__(self, tried: Tried, **options: Any) -> None:
        app = Flask("board")

        @app.post("/login")
        @flask_limit(**LIMIT)
        def login() -> tuple[str, int]:
            return "", tried.status(request.headers["X-Password"])

        self._limiter = RateLimiter(app, **options)
        self._client = WsgiClient(app)
        self._app = app

    def all(self, passwords: Iterable[str]) -> list[Answer]:
        return in_threads(lambda tried: self._client.request("POST", "/login", headers=header(tried)), passwords)

    def close(self) -> None:
        for installed in self._app.extensions["sluicegate"]:
            installed.close()


class ByDjango:
    """Threads under WSGI, tasks under ASGI."""

    def __init__(self, tried: Tried, *, is_async: bool, **options: Any) -> None:
        @django_limit(**LIMIT)
        def login(request: HttpRequest) -> HttpResponse:
            return HttpResponse(status=tried.status(request.headers["X-Password"]))

        self._serving = serving(asgi=is_async, urls=[path("login", login)], **options)
        self._app = self._serving.__enter__().app
        self._runner = asyncio.Runner() if is_async else None

    def all(self, passwords: Iterable[str]) -> list[Answer]:
        common = {"method": "POST", "path": "/login", "peer": "198.51.100.9"}
        requests = [{**common, "headers": header(password)} for password in passwords]
        if self._runner is None:
            return in_threads(lambda one: by_wsgi(self._app, one, b""), requests)

        async def main() -> list[Answer]:
            return await asyncio.gather(*[call_asgi(self._app, one) for one in requests])

        return self._runner.run(main())

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(conf.async_gate().close())
            self._runner.close()
        self._serving.__exit__(None, None, None)


SITES: Any = {
    "starlette": lambda tried, **options: ByASGI(starlette_app(tried), **options),
    "fastapi": lambda tried, **options: ByASGI(fastapi_app(tried), **options),
    "flask": ByFlask,
    "django-wsgi": lambda tried, **options: ByDjango(tried, is_async=False, **options),
    "django-asgi": lambda tried, **options: ByDjango(tried, is_async=True, **options),
}


@pytest.fixture(params=["memory", "valkey"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    server = request.getfixturevalue("valkey")
    server.flush()
    url: str = server.url
    return url


@pytest.mark.parametrize("name", SITES)
def test_of_60_wrong_logins_at_once_5_reach_the_view(name: str, store: str) -> None:
    tried = Tried()
    site = SITES[name](tried, store=store, deadline=PATIENCE)
    try:
        answers = site.all(["wrong"] * MANY)
        assert sorted(answer.status for answer in answers) == [401] * 5 + [429] * (MANY - 5)
        assert tried.seen == ["wrong"] * 5
        assert {answer.one("retry-after") is None for answer in answers if answer.status == 401} == {True}
        assert site.all(["right"])[0].status == 429  # a right password is refused too after five failures
    finally:
        site.close()


@pytest.mark.parametrize("name", SITES)
def test_right_logins_are_not_charged(name: str, store: str) -> None:
    tried = Tried()
    site = SITES[name](tried, store=store, deadline=PATIENCE)
    try:
        for _ in range(4):
            assert [answer.status for answer in site.all(["right"] * 5)] == [200] * 5  # five at once, none refused
        fields = [site.all([password])[0].one("ratelimit") for password in ("right", "wrong", "right")]
        assert [json.loads(line.partition(";r=")[2].partition(";")[0]) for line in fields] == [5, 4, 4]
        assert [site.all(["wrong"])[0].status for _ in range(5)] == [401] * 4 + [429]
        assert tried.seen.count("wrong") == 5
    finally:
        site.close()
