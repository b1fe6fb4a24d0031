"""Fixtures for every test: real servers, started when the first test asks, one of each per worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.servers import Server, redis_server, valkey_server

# A real server may be slow once; that is no error. (In CI the parent is Hypothesis's own "ci" profile.)
settings.register_profile("headgate", settings(), deadline=None)
settings.load_profile("headgate")

SERVERS = ("valkey", "redis6")  # the names of the fixtures, for indirect use and for `server`


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """Valkey 9, shared by the worker's tests: use keys of your own, or `valkey.flush()`."""
    with valkey_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis6() -> Iterator[Server]:
    """Redis 6.2, shared by the worker's tests: use keys of your own, or `redis6.flush()`."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the real servers in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found
