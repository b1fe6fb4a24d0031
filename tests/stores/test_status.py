"""`status()`: what it shows of a store that works, hangs and comes back. It charges nothing and is never late."""

from __future__ import annotations

import json
from time import monotonic, time
from typing import Any
from uuid import uuid4

import pytest

from sluicegate import AsyncLimiter, Limiter
from sluicegate.observe.status import CircuitStatus, Status, describe
from sluicegate.stores.async_adapter import AsyncAdapter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import ShutStore
from tests.cluster import Cluster
from tests.sentinels import Sentinels
from tests.servers import Server, ask, free_port, valkey_server, wait_until
from tests.stores.test_reset_all import opened

HANGING = 0.2  # seconds: the deadline for a server that never answers
VERSIONS = {"valkey": "valkey 9.", "redis6": "redis 6.2."}

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])


def status_of(limiter: Any, wait: Any) -> Status:
    """The status, after a check of what holds for every one."""
    begun = monotonic()
    found: Status = wait(limiter.status())
    assert monotonic() - begun < 10  # a hung server must not hang this; the machine may be busy
    assert "password" not in json.dumps(found.as_dict())
    is_open = any([circuit.state == "open" for circuit in found.circuits])
    assert not (found.available and is_open)
    assert found.available or found.last_error
    return found


def test_the_connection_that_it_opens_serves_the_first_charge(kind: str, valkey: Server) -> None:
    def connections() -> int:
        return int(valkey.command("INFO stats").partition("total_connections_received:")[2].split()[0])

    with opened(kind, valkey.url) as (limiter, wait):
        wait_until("available", lambda: status_of(limiter, wait).available)
        before = connections()
        assert not wait(limiter.hit("5/minute", "alice")).degraded
        assert connections() == before + 1, "that of the second INFO"


def test_memory(kind: str) -> None:
    with opened(kind, "memory://?max_keys=3") as (limiter, wait):
        for number in range(5):
            wait(limiter.hit("5/hour", number))
        assert status_of(limiter, wait) == Status("memory://", topology="memory", entries=3, max_entries=3, evictions=2)


def test_a_server_that_works(kind: str, server: Server) -> None:
    before = time()
    url = server.url.replace("redis://", "redis://:@")
    with opened(kind, url, prefix=f"status-{uuid4()}") as (limiter, wait):
        wait(limiter.hit("5/hour", "alice"))
        keys = ask(server, "DBSIZE")
        found = [status_of(limiter, wait) for _ in range(3)][-1]
        assert ask(server, "DBSIZE") == keys
        assert (found.available, found.topology, found.last_error) == (True, "single", None)
        assert found.store == f"redis://127.0.0.1:{server.port}/0"
        assert (found.server or "").startswith(VERSIONS.get(server.name, ""))
        assert found.round_trip is not None
        assert 0 < found.round_trip[0] <= found.round_trip[1]
        [circuit] = found.circuits
        assert circuit == CircuitStatus(part="", state="closed", since=circuit.since, error=None)
        assert before <= circuit.since <= time()


@pytest.mark.parametrize("topology", ["cluster", "sentinel"])
def test_several_servers(kind: str, topology: str, request: pytest.FixtureRequest) -> None:
    servers: Cluster | Sentinels = request.getfixturevalue("cluster" if topology == "cluster" else "sentinels")
    with opened(kind, servers.url) as (limiter, wait):
        found = status_of(limiter, wait)
        assert (found.available, found.topology) == (True, topology)
        assert (found.server or "").startswith("valkey ")


def test_a_server_that_hangs_and_comes_back(kind: str) -> None:
    with valkey_server() as server, opened(kind, server.url, prefix="hang") as (limiter, wait):
        limiter_with_deadline = type(limiter)(server.url, deadline=HANGING)
        hit = lambda: wait(limiter_with_deadline.hit("5/hour", "alice"))  # noqa: E731
        wait_until("the first answer", lambda: status_of(limiter_with_deadline, wait).available)
        server.pause()
        found = status_of(limiter_with_deadline, wait)  # no request has noticed it yet
        assert not found.available
        assert found.last_error
        begun = time()
        assert hit().allowed
        found = status_of(limiter_with_deadline, wait)
        [circuit] = found.circuits
        assert (found.available, circuit.state, circuit.error) == (False, "open", found.last_error)
        assert begun <= circuit.since <= time()
        assert (found.degraded_decisions, found.degraded_allowed) == (1, 1)
        server.resume()
        wait_until("the circuit closes", lambda: hit() and status_of(limiter_with_deadline, wait).available)
        wait_until("a trial", lambda: hit() and status_of(limiter_with_deadline, wait).circuits[0].state == "closed")
        last = status_of(limiter_with_deadline, wait)
        assert last.circuits[0].since >= circuit.since
        assert (last.circuits[0].error, last.last_error) == (None, circuit.error)
        wait(limiter_with_deadline.close())


def test_a_server_that_is_not_there(kind: str) -> None:
    with opened(kind, f"redis://:password@127.0.0.1:{free_port()}/0") as (limiter, wait):
        found = status_of(limiter, wait)
        assert (found.available, found.server, found.round_trip) == (False, None, None)
        assert "Error 111" in (found.last_error or "")
        assert [(circuit.state, circuit.error) for circuit in found.circuits] == [("closed", None)]  # of requests
        wait(limiter.hit("5/hour", "alice"))
        found = status_of(limiter, wait)
        assert [(circuit.state, circuit.error) for circuit in found.circuits] == [("open", found.last_error)]
        assert not found.available


def test_a_user_who_may_ask_nothing(kind: str, valkey: Server) -> None:
    ask(valkey, "ACL", "SETUSER", "mute", "on", ">password", "~*", "+eval", "+evalsha", "-info", "-ping")
    with opened(kind, f"redis://mute:password@127.0.0.1:{valkey.port}/0") as (limiter, wait):
        found = status_of(limiter, wait)
        assert (found.available, found.server, found.last_error) == (True, None, None)
        assert found.round_trip is not None


def test_what_this_process_counts(kind: str, valkey: Server) -> None:
    with opened(kind, valkey.url, prefix=f"count-{uuid4()}", deny_cache=60) as (limiter, wait):
        for _ in range(4):
            wait(limiter.hit("1/hour", "alice"))  # allowed, refused, refused by the cache twice
        wait(limiter.peek("1/hour", "alice"))
        found = status_of(limiter, wait)
        assert (found.cached_refusals, found.degraded_decisions) == (2, 0)


@pytest.mark.parametrize("quota", ["100/hour", "100/hour; 200/day", "1/hour"])  # the last refuses every second hit
def test_the_round_trips_of_decisions(kind: str, quota: str, valkey: Server) -> None:
    seen: list[float | None] = []
    options: Any = {"prefix": f"trips-{uuid4()}", "on_decision": lambda event: seen.append(event.store_seconds)}
    with opened(kind, valkey.url, **options) as (limiter, wait):
        assert limiter._known().round_trip is None
        for number in range(120):
            wait(limiter.hit(quota, number % 60))
        wait(limiter.peek(quota, "alice"))
        last = sorted([seconds for seconds in seen[-100:] if seconds is not None])
        assert len(last) == 100
        assert status_of(limiter, wait).round_trip == (last[50], last[99])  # not of the peek, nor of `status`


def test_the_policies_of_an_outage(kind: str) -> None:
    closed = f"redis://127.0.0.1:{free_port()}"
    with opened(kind, closed, on_store_failure="deny") as (limiter, wait):
        wait(limiter.hit("1/hour", "alice"))
        wait(limiter.peek("1/hour", "alice"))
        found = status_of(limiter, wait)
        assert (found.degraded_decisions, found.degraded_allowed) == (1, 0)


def test_a_store_of_another_program(kind: str) -> None:
    made: Any = Limiter(ShutStore()) if kind == "sync" else AsyncLimiter(AsyncAdapter(ShutStore()))
    assert describe(made.store) == Status("ShutStore", circuits=describe(made.store).circuits)
    assert describe(AsyncAdapter(MemoryStore())).topology == "memory"
