"""Servers so far away that a request has no time for two round trips: their stores work, since each step is kept.

A proxy beside the application answers for TCP, as a service mesh does, so that an opening may take one round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from sluicegate import StoreError
from sluicegate.plan import Check, Plan
from sluicegate.testing.driver import Driver
from sluicegate.testing.store import terms
from tests.proxies import Wire
from tests.servers import HOST, Server, ask, valkey_server, wait_until
from tests.stores.test_openings import Scripted
from tests.stores.test_sentinel import OPENERS

DEADLINE = 0.5
ONE_WAY = 0.35 * DEADLINE
ENOUGH = 12  # attempts: an opening, a look-up and an unknown script take one each, and a busy machine spoils some
PLAN = Plan((Check(terms("gcra", "5000/hour"), "alice", 1),))


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def single(opened: ExitStack, valkey: Server) -> tuple[str, Wire]:
    wire = opened.enter_context(Wire(valkey.port))
    return f"redis://{HOST}:{wire.port}", wire


def sentinel(opened: ExitStack, valkey: Server) -> tuple[str, Wire]:
    """The first Sentinel hangs. The second one is as far away as the master."""
    master = opened.enter_context(Wire(valkey.port))
    named = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(master.port)), master.port)
    answers = {"PING": b"+PONG\r\n", "SENTINEL": named}
    hung, second = Scripted(lambda number, name: None), Scripted(lambda number, name: answers[name])
    opened.callback(hung.close)
    opened.callback(second.close)
    far = opened.enter_context(Wire(second.port))
    far.slow(latency=ONE_WAY, handshake=False)
    return f"redis+sentinel://{HOST}:{hung.port},{HOST}:{far.port}/service", master


def cluster(opened: ExitStack, valkey: Server) -> tuple[str, Wire]:
    """A cluster of one node, which announces the wire's port."""
    node = opened.enter_context(valkey_server("--cluster-enabled", "yes"))
    wire = opened.enter_context(Wire(node.port))
    ask(node, "CONFIG", "SET", "cluster-announce-port", wire.port)
    ask(node, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    wait_until("the cluster to serve", lambda: "cluster_state:ok" in str(ask(node, "CLUSTER", "INFO")))
    return f"redis+cluster://{HOST}:{wire.port}", wire


@pytest.mark.parametrize("place", [single, sentinel, cluster])
@pytest.mark.parametrize("how", OPENERS)
def test_the_store_decides_after_a_few_attempts(
    opened: ExitStack, valkey: Server, place: Callable[[ExitStack, Server], tuple[str, Wire]], how: str
) -> None:
    """Also after an outage in which the server has forgotten the scripts. Then one connection serves each request."""
    url, wire = place(opened, valkey)
    runner = opened.enter_context(asyncio.Runner())
    store = Driver(OPENERS[how](url, prefix=uuid4().hex, deadline=DEADLINE), runner)
    opened.callback(store.close)

    def attempts() -> int:
        for number in range(1, ENOUGH + 1):
            try:
                store.run(PLAN)
            except StoreError as error:
                print(number, error.concerns, error)
            else:
                return number
        raise AssertionError(f"no decision by the store in {ENOUGH} attempts")

    wire.slow(latency=ONE_WAY, handshake=False)
    attempts()
    ask(valkey, "SCRIPT", "FLUSH")
    wire.cut()
    attempts()
