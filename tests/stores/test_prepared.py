"""The prepared function of a wrapped store: what is unusual goes the general way, and nothing is charged twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluicegate import AsyncLimiter, Decision, Limiter
from sluicegate.observe.events import DecisionEvent
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


@pytest.fixture(params=["sync", "async", "sync watched", "async watched"])
def hit(request: pytest.FixtureRequest, own_server: Server, quotas: str, events: list[DecisionEvent]) -> Iterator[Hit]:
    """A hit of 3 a day, whose connection is open and whose function decides."""
    how, _, watched = request.param.partition(" ")
    options: dict[str, Any] = {"on_decision": events.append} if watched else {}
    if how == "sync":
        with Limiter(own_server.url, deadline=PATIENCE, **options) as limiter:
            limit = limiter.limit(quotas)
            limit.hit("first")
            yield limit.hit
        return
    with asyncio.Runner() as runner:
        later = AsyncLimiter(own_server.url, deadline=PATIENCE, **options)
        prepared = later.limit(quotas)
        runner.run(prepared.hit("first"))
        yield lambda identity: runner.run(prepared.hit(identity))
        runner.run(later.close())


@pytest.fixture
def events() -> list[DecisionEvent]:
    return []


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


@pytest.mark.parametrize("hit", ["sync watched", "async watched"], indirect=True)
def test_events_say_who_decided_and_how_long_the_store_took(
    own_server: Server, hit: Hit, events: list[DecisionEvent]
) -> None:
    events.clear()
    for _ in range(5):
        hit("alice")
    own_server.stop()
    hit("bob")
    sources = [{rule.source for rule in event.rules} for event in events]
    assert sources == [{"store"}] * 4 + [{"cache"}] + [{"local"}]
    assert [event.store_seconds is None for event in events] == [False] * 4 + [True, False]
    assert all(event.store_seconds > 0 for event in events if event.store_seconds is not None)
