"""The places where budgets can be kept, each sync and async: memory, fakeredis, every real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import fakeredis
import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluicegate.clock import Clock
from sluicegate.stores import AsyncStore, Store, open_async_store, open_store
from sluicegate.stores.redis import AsyncRedisStore, RedisStore
from tests.servers import MAKERS, Server

PATIENCE = 10.0  # seconds: CI machines may be busy


@dataclass
class Place:
    """How to make a store there, and the number of examples."""

    make: Callable[[Clock | None], Store | AsyncStore]
    examples: int


def url(server: object, *options: str) -> str:
    """A server's URL, with options."""
    return f"{server.url}?{'&'.join(options)}"  # type: ignore[attr-defined]


def client(server: object, **options: object) -> redis.Redis:
    """A client with the recommended settings: no retries, and a timeout."""
    settings = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 10, **options}
    return redis.Redis.from_url(server.url, **settings)  # type: ignore[attr-defined]


@contextmanager
def monitored(server: Server) -> Iterator[list[dict[str, str]]]:
    """Note the commands that the server gets in the block, also from scripts. The list has them after the block."""
    seen: list[dict[str, str]] = []
    with client(server, decode_responses=True) as plain, plain.monitor() as monitor:
        yield seen
        server.command("ECHO the-end")
        for command in monitor.listen():
            if "the-end" in command["command"]:
                break
            seen.append(command)


def sent_by_clients(seen: list[dict[str, str]]) -> list[str]:
    """The names of the commands that clients sent."""
    return [command["command"].split()[0] for command in seen if command["client_type"] != "lua"]


@contextmanager
def memory(request: pytest.FixtureRequest) -> Iterator[Place]:
    yield Place(lambda clock: open_store("memory://", prefix="exam", clock=clock), examples=150)


@contextmanager
def memory_async(request: pytest.FixtureRequest) -> Iterator[Place]:
    yield Place(lambda clock: open_async_store("memory://", prefix="exam", clock=clock), examples=20)


@contextmanager
def fake(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fakeredis.FakeRedis(socket_timeout=10) as given:
        yield Place(lambda clock: RedisStore(given, prefix="exam", clock=clock), examples=30)


@contextmanager
def fake_async(request: pytest.FixtureRequest) -> Iterator[Place]:
    server = fakeredis.FakeServer()

    def make(clock: Clock | None) -> AsyncStore:
        client = fakeredis.FakeAsyncRedis(server=server, socket_timeout=10)
        return AsyncRedisStore(client, prefix="exam", clock=clock, deadline=PATIENCE)

    yield Place(make, examples=10)


def real(name: str) -> Callable[[pytest.FixtureRequest], AbstractContextManager[Place]]:
    @contextmanager
    def place(request: pytest.FixtureRequest) -> Iterator[Place]:
        with client(request.getfixturevalue(name)) as given:
            yield Place(lambda clock: RedisStore(given, prefix="exam", clock=clock), examples=100)

    place.__name__ = name
    return place


def real_async(name: str) -> Callable[[pytest.FixtureRequest], AbstractContextManager[Place]]:
    @contextmanager
    def place(request: pytest.FixtureRequest) -> Iterator[Place]:
        where = url(request.getfixturevalue(name))
        yield Place(lambda clock: open_async_store(where, prefix="exam", clock=clock, deadline=PATIENCE), examples=30)

    place.__name__ = f"{name}_async"
    return place


PLACES = [
    pytest.param(place, id=place.__name__)
    for place in (
        memory, memory_async, fake, fake_async,
        *[kind(name) for name in MAKERS for kind in (real, real_async)],
    )
]  # fmt: skip
