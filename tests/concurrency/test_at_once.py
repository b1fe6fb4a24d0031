"""Concurrency limits on a real server: many processes never exceed the limit, also after one was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from time import monotonic
from typing import Any
from uuid import uuid4

from sluicegate import Concurrency, Limiter, Quota
from sluicegate.clock import MICROSECOND
from tests.cluster import Cluster
from tests.servers import Server
from tests.stores.places import PATIENCE, url

PROCESSES, LIMIT, TIMES = 8, 3, 150
CONTEXT = multiprocessing.get_context("spawn")

Count = Any  # a Synchronized[int], which is no class to annotate with when a process is spawned


def _come_and_go(where: str, identity: str, barrier: Barrier, shared: tuple[Count, Count, Count]) -> None:
    """Take and release a slot TIMES times. Count the slots in use: after a slot was taken and before it is released."""
    inside, most, taken = shared
    with Limiter(where, deadline=PATIENCE) as limiter:
        limiter.peek(Concurrency(LIMIT), identity)
        barrier.wait(60)
        mine = 0
        while mine < TIMES:
            with limiter.hold(Concurrency(LIMIT), identity) as slot:
                if not slot:
                    continue
                with inside.get_lock():
                    inside.value += 1
                    most.value = max(most.value, inside.value)
                if mine % 3 == 0:
                    slot.renew()
                limiter.hit("1000000/day", identity)  # takes some time
                mine += 1
                with inside.get_lock():
                    inside.value -= 1
        with taken.get_lock():
            taken.value += mine


def _of_processes(where: str) -> tuple[int, int, int | None]:
    """The most slots in use at once, how many were taken, and how many are free at the end."""
    identity, barrier = uuid4().hex, CONTEXT.Barrier(PROCESSES)
    shared: tuple[Synchronized[int], ...] = tuple(CONTEXT.Value("i", 0) for _ in range(3))
    work = (where, identity, barrier, shared)
    processes = [CONTEXT.Process(target=_come_and_go, args=work) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        assert process.exitcode == 0
    with Limiter(where, deadline=PATIENCE) as limiter:
        return shared[1].value, shared[2].value, limiter.peek(Concurrency(LIMIT), identity, cost=0).remaining


def test_8_processes_never_exceed_the_limit(server: Server) -> None:
    assert _of_processes(url(server)) == (LIMIT, PROCESSES * TIMES, LIMIT)


def test_8_processes_on_a_cluster(cluster: Cluster) -> None:
    assert _of_processes(cluster.url) == (LIMIT, PROCESSES * TIMES, LIMIT)


def _hold_on(where: str, identity: str, lease: float, line: Connection) -> None:
    """Take two of three slots and a reservation, send their times by the server's clock, and never release them."""
    with Limiter(where, deadline=PATIENCE) as limiter, limiter.hold(Concurrency(3, lease), identity, cost=2) as slot:
        reservation = limiter.reserve(Quota(10, lease), identity, cost=10)
        line.send((slot.decision.outcomes[0].at, reservation.decision.outcomes[0].at))
        line.recv()


@contextmanager
def _holder(where: str, identity: str, lease: float) -> Iterator[tuple[Any, tuple[int, int]]]:
    """A process that holds slots, and the times at which it took them."""
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_hold_on, args=(where, identity, lease, there))
    process.start()
    there.close()  # then this end sees when the process closes its end
    try:
        assert here.poll(60)
        yield process, here.recv()
    finally:
        process.kill()
        process.join(60)


def test_slots_of_a_killed_process_are_free_after_their_lease_and_not_before(server: Server) -> None:
    lease, identity = 2, uuid4().hex
    quotas: tuple[Concurrency | Quota, ...] = (Concurrency(3, lease), Quota(10, lease))
    with Limiter(url(server), deadline=PATIENCE) as limiter, _holder(url(server), identity, lease) as (process, began):
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        seen, until = 0, monotonic() + 60
        free = [False, False]
        while not all(free):
            assert monotonic() < until
            for number, quota in enumerate(quotas):
                [outcome] = limiter.peek(quota, identity, cost=0).outcomes
                over = outcome.at >= began[number] + lease * MICROSECOND
                assert outcome.remaining == (outcome.limit if over else outcome.limit - (2, 10)[number])
                free[number], seen = over, seen + (not over)
        assert seen > 0, "the slots were still in use after the process had ended"
        with limiter.hold(Concurrency(3, lease), identity, cost=3) as slot:
            assert slot
