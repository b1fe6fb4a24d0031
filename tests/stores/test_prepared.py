"""The prepared function of a wrapped store: what is unusual goes the general way, and nothing is charged twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from sluicegate import AsyncLimiter, Decision, Limiter
from tests.servers import Server, valkey_server
from tests.stores.places import PATIENCE, client

Hit = Callable[[str], Decision]


@pytest.fixture
def own_server() -> Iterator[Server]:
    with valkey_server() as server:
        yield server


@pytest.fixture(params=["3/day", "9/week; 3/day"])
def quotas(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sync", "async"])
def hit(request: pytest.FixtureRequest, own_server: Server, quotas: str) -> Iterator[Hit]:
    """A hit of 3 a day, whose connection is open and whose function decides."""
    if request.param == "sync":
        with Limiter(own_server.url, deadline=PATIENCE) as limiter:
            limit = limiter.limit(quotas)
            limit.hit("first")
            yield limit.hit
        return
    with asyncio.Runner() as runner:
        later = AsyncLimiter(own_server.url, deadline=PATIENCE)
        prepared = later.limit(quotas)
        runner.run(prepared.hit("first"))
        yield lambda identity: runner.run(prepared.hit(identity))
        runner.run(later.close())


def test_a_lost_script_charges_once(own_server: Server, hit: Hit) -> None:
    with client(own_server) as given:
        for left in (2, 1, 0):
            given.script_flush()
            assert hit("alice").remaining == left
    assert not hit("alice")


def test_a_refusal_is_remembered(own_server: Server, hit: Hit) -> None:
    assert [hit("alice").allowed for _ in range(4)] == [True, True, True, False]
    with client(own_server) as given:
        given.config_resetstat()
        again = hit("alice")
        assert not again
        assert again.retry_after is not None
        assert "cmdstat_evalsha" not in given.info("commandstats")


def test_a_dead_server_opens_the_circuit(own_server: Server, hit: Hit) -> None:
    assert not hit("alice").degraded
    own_server.stop()
    found = [hit("alice") for _ in range(4)]
    assert all(decision.degraded for decision in found)
    assert [decision.allowed for decision in found] == [True, True, False, False]  # the note counts the first one
