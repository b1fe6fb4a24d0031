"""A server that loads its data runs no command: an error in time, no charge, and normal replies after that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from sluicegate import Limiter, StoreError
from tests.servers import MAKERS, Server, wait_until
from tests.stores.modes import MODES

KEYS = 200  # one is loaded every ten milliseconds
SLOWLY = ("--key-load-delay", "10000")
SIZE = 100_000  # bytes of each: while it loads, a server reads from its clients once in two megabytes


@pytest.fixture(params=MAKERS.values(), ids=list(MAKERS))
def loaded(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with data to load, for these tests only."""
    with request.param("--rdbcompression", "no") as server:
        with closing(redis.Redis(port=server.port)) as client:
            for number in range(KEYS):
                client.set(f"other:{number}", "x" * SIZE)
        yield server


def begin_to_load(server: Server) -> None:
    server.command("SAVE")
    server.kill()
    server.arguments = SLOWLY
    server.start()


def has_loaded(server: Server) -> bool:
    try:
        return server.command("PING") == "PONG"
    except ValueError:  # "LOADING …"
        return False


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_it_is_an_error_without_a_charge(loaded: Server, mode: Callable[..., Any]) -> None:
    with mode(loaded.url) as limiter:
        assert [limiter.hit("5/day", "alice").remaining for _ in range(2)] == [4, 3]
        begin_to_load(loaded)
        with pytest.raises(StoreError, match=r"(?i)loading"):
            limiter.hit("5/day", "alice")
        wait_until("the data is loaded", has_loaded, loaded)
        assert limiter.hit("5/day", "alice").remaining == 2


def test_a_limiter_counts_locally_until_the_server_has_loaded(loaded: Server) -> None:
    with Limiter(loaded.url, deadline=1.0) as limiter:
        limiter.hit("5/day", "alice")
        begin_to_load(loaded)
        decision = limiter.hit("5/day", "alice")
        assert (decision.allowed, decision.degraded, decision.remaining) == (True, True, 3)
        wait_until("the data is loaded", has_loaded, loaded)
        wait_until("the limiter has noticed", lambda: not limiter.hit("5/day", "alice", cost=0).degraded)
        assert limiter.peek("5/day", "alice", cost=0).remaining == 4
