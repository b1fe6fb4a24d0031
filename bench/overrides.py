"""Overrides: what 1,000 of them add to one request, by a decorator with a key function.

Three applications of a framework differ only in the overrides that they follow: none, 1,000 that concern others, and
1,000 of which one is the caller's. They take turns request by request, so each of them meets the same machine. The CPU
of the application for a request is the least of all rounds, as in `bench.forms`. "p50" and "p99" are of these requests,
less the same without overrides.

One caller comes again and again. "A new caller" comes once: the process does not know yet whether an override concerns
it. A store on a server needs the digest of an identity too, so there it is computed once for both.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from statistics import quantiles
from typing import Any, NamedTuple

from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bench.budgets import NEW_CALLER, NEW_OVER_REDIS, OF_OTHERS, OVERRIDES, WITH_ONE_OF_CALLER
from bench.figures import Figure
from bench.forms import user
from bench.race import FEWEST, Course
from bench.requests import PLENTY, _environ, _Receive, _scope
from sluicegate import Limiter, flask, starlette
from sluicegate.identity import digest, identity_text
from sluicegate.overrides.override import Document, Override
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from tests.servers import valkey_server

NUMBER = 1_000
CALLER = "caller"
OTHERS = [f"other{number}" for number in range(NUMBER)]
RULE = "home"
FOLLOWED = {"": [], OF_OTHERS: OTHERS, WITH_ONE_OF_CALLER: [*OTHERS[1:], CALLER]}

Options = dict[str, Any]
Serve = Callable[[str], Awaitable[int]]
"""Serves one request of a user. Returns its status."""


class App(NamedTuple):
    """One application, with the name of the overrides that it follows."""

    name: str
    serve: Serve


def _write(store: Any, callers: list[str]) -> None:
    """Write an override for each of these callers: ten times the quota."""
    quota = f"{PLENTY * 10}/hour"
    digests = [digest(identity_text(each)) for each in callers]
    held = [Override(rule=RULE, action="quota", quota=quota, digests=(each,), id=each) for each in digests]
    store.write_overrides(b"", Document(1, tuple(held)).text(), "{}")


def _in_memory() -> Iterator[tuple[str, Options]]:
    for name, callers in FOLLOWED.items():
        store = MemoryStore()
        _write(store, callers)
        yield name, {"store": store}


def _on_server(url: str, framework: str) -> Iterator[tuple[str, Options]]:
    for number, (name, callers) in enumerate(FOLLOWED.items()):
        prefix = f"{framework}{number}"
        with closing(Limiter(url, prefix=prefix, deadline=5)) as limiter:
            _write(limiter.opened, callers)
        yield name, {"store": url, "prefix": prefix, "deadline": 5}


def _starlette(options: Options) -> Serve:
    @starlette.limit(f"{PLENTY}/hour", key=user, name=RULE)
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    store = options["store"]
    store = AsyncMemoryStore(store) if isinstance(store, MemoryStore) else store
    app = Starlette(routes=[Route("/", home)])
    app.add_middleware(starlette.RateLimitMiddleware, **{**options, "store": store})

    async def serve(caller: str) -> int:
        statuses: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await app(_scope(caller), _Receive(), send)
        return statuses[0]

    return serve


def _flask(options: Options) -> Serve:
    app = Flask(__name__)
    flask.RateLimiter(app, **options)
    app.add_url_rule("/", view_func=flask.limit(f"{PLENTY}/hour", key=user, name=RULE)(lambda: "ok"), endpoint="home")

    async def serve(caller: str) -> int:
        statuses: list[str] = []
        chunks: Any = app(_environ(caller), lambda status, headers, exc_info=None: statuses.append(status))
        b"".join(chunks)
        chunks.close()
        return int(statuses[0][:3])

    return serve


def measure(course: Course) -> list[Figure]:
    """Measure both frameworks, with a known caller and with new ones."""
    figures = []
    for framework, make in (("Starlette", _starlette), ("Flask", _flask)):
        topic = OVERRIDES.format(framework)
        apps = [App(name, make(options)) for name, options in _in_memory()]
        figures += asyncio.run(_race(course, topic, apps, lambda number, at: CALLER))
        figures += asyncio.run(_race(course, topic, _renamed(apps[:2], NEW_CALLER), _new))
        with valkey_server() as server:
            apps = [App(name, make(options)) for name, options in _on_server(server.url, framework)]
            figures += asyncio.run(_race(course, topic, _renamed(apps[:2], NEW_OVER_REDIS), _new))
    return figures


def _renamed(apps: list[App], name: str) -> list[App]:
    return [app._replace(name=name) for app in apps]


def _new(number: int, at: int) -> str:
    return f"new{number}-{at}"


async def _race(course: Course, topic: str, apps: list[App], caller: Callable[[int, int], str]) -> list[Figure]:
    """Let the applications take turns. The first of them has no overrides."""
    least = [[float("inf")] * course.effort.checks for _ in apps]
    began = time.monotonic()
    for number in range(course.effort.rounds + 1):
        if number > FEWEST and time.monotonic() - began > course.effort.seconds:
            break
        gc.collect()
        callers = [caller(number, at) for at in range(course.effort.checks)]
        for place, times in enumerate(await _round(apps, callers, number)):
            least[place] = [*map(min, least[place], times)] if number else least[place]  # the first round warms up
    base, *others = [quantiles(times, n=100) for times in least]
    return [
        Figure(topic, measure, app.name, "sluicegate", (found[at] - base[at],))
        for app, found in zip(apps[1:], others, strict=True)
        for measure, at in (("p50 added", 49), ("p99 added", 98))
    ]


async def _round(apps: list[App], callers: list[str], number: int) -> list[list[float]]:
    """Return the microseconds of CPU of each request, for each application."""
    times: list[list[float]] = [[] for _ in apps]
    for at, caller in enumerate(callers):
        first = (number + at) % len(apps)
        for place in [*range(first, len(apps)), *range(first)]:
            began = time.process_time_ns()
            status = await apps[place].serve(caller)
            times[place].append((time.process_time_ns() - began) / 1_000)
            if status != 200:
                raise RuntimeError(f"{apps[place].name} answered {status}")
    return times
