"""Of many concurrent requests exactly the limit passes: processes, threads and tasks, every algorithm."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier
from threading import Barrier as ThreadBarrier
from time import monotonic
from typing import Any, cast
from uuid import uuid4

import pytest

from sluicegate import AsyncLimiter, Ban, Limiter, Rule
from sluicegate.testing.store import NAMES
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import Gate
from sluicegate.web.settings import Settings
from sluicegate.wsgi import WsgiCaller
from tests.cluster import Cluster
from tests.sentinels import Sentinels
from tests.servers import Server
from tests.stores.places import PATIENCE, url

PROCESSES, HITS, LIMIT = 8, 400, 1000  # no budget refills within a test: a thousandth of a day is 86 s
ALGORITHMS = pytest.mark.parametrize("algorithm", NAMES)

_barrier: Barrier | None = None


def _join(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603 - how a pool's worker receives what cannot be pickled
    _barrier = barrier


def wait_for_all() -> None:
    """Return when all processes of the pool have called this."""
    assert _barrier is not None
    _barrier.wait(60)


def _hammer(work: tuple[str, str, str, Any, int]) -> int:
    """How many hits of one process are allowed. All processes start together."""
    where, quota, identity, algorithm, hits = work
    with Limiter(where, algorithm=algorithm, deadline=PATIENCE) as limiter:
        limiter.peek(quota, identity)
        wait_for_all()
        return sum(limiter.hit(quota, identity).allowed for _ in range(hits))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Eight fresh processes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(PROCESSES, _join, (context.Barrier(PROCESSES),)) as workers:
        yield workers
        workers.close()
        workers.join()


@ALGORITHMS
def test_8_processes(pool: Pool, server: Server, algorithm: Any) -> None:
    work = (url(server), f"{LIMIT}/day", uuid4().hex, algorithm, HITS)
    assert sum(pool.map(_hammer, [work] * PROCESSES, chunksize=1)) == LIMIT


def test_8_processes_on_a_cluster(pool: Pool, each_cluster: Cluster) -> None:
    work = (each_cluster.url, f"{LIMIT}/day", uuid4().hex, "sliding-window", HITS)
    assert sum(pool.map(_hammer, [work] * PROCESSES, chunksize=1)) == LIMIT


def test_8_processes_under_sentinels(pool: Pool, sentinels: Sentinels) -> None:
    work = (sentinels.url, f"{LIMIT}/day", uuid4().hex, "sliding-window", HITS)
    assert sum(pool.map(_hammer, [work] * PROCESSES, chunksize=1)) == LIMIT


def test_s10_500_requests_against_50_per_5_seconds(pool: Pool, server: Server) -> None:
    began = monotonic()
    work = (url(server), "50 per 5 seconds", uuid4().hex, "sliding-window", 63)
    admitted = sum(pool.map(_hammer, [work] * PROCESSES, chunksize=1))
    if (elapsed := monotonic() - began) < 5:
        assert admitted == 50
    else:  # on a slow machine the requests fall into more than one window
        assert 50 <= admitted <= 50 * (1 + elapsed // 5)


BAN = Ban(after=100, within="1 day", duration="1 hour")


def _overstep(work: tuple[str, str, int]) -> list[str]:
    """The results of one process: "passed", "refused" or "banned". All processes start together."""
    where, identity, hits = work
    settings = Settings(
        store=where,
        deadline=PATIENCE,
        deny_cache=0,
        key=lambda request: identity,
        rules=[Rule(name="login", quota="5/day", ban=BAN)],
    )
    gate = Gate(settings)
    caller, bounds = WsgiCaller({}), gate.bind(Endpoint())
    wait_for_all()
    decisions = [gate.decide(caller, bounds) for _ in range(hits)]
    gate.close()
    return ["passed" if each else "banned" if cast("Any", each).banned else "refused" for each in decisions]


@pytest.mark.parametrize("topology", ["server", "cluster"])
def test_8_processes_are_banned_after_exactly_the_set_refusals(
    pool: Pool, topology: str, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue("valkey" if topology == "server" else topology)
    parts = pool.map(_overstep, [(found.url, uuid4().hex, 50)] * PROCESSES, chunksize=1)
    results = [each for part in parts for each in part]
    assert [results.count(each) for each in ("passed", "refused")] == [5, BAN.after - 1]
    assert results.count("banned") == PROCESSES * 50 - 5 - BAN.after + 1


@pytest.fixture
def hasty() -> Iterator[None]:
    """Makes the interpreter switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(threads: int, work: Callable[[], int]) -> int:
    """The sum of the results of threads that start together."""
    barrier = ThreadBarrier(threads)

    def run() -> int:
        barrier.wait(30)
        return work()

    with ThreadPoolExecutor(threads) as executor:
        return sum(future.result(60) for future in [executor.submit(run) for _ in range(threads)])


@ALGORITHMS
def test_16_threads_in_memory(hasty: None, algorithm: Any) -> None:
    limiter = Limiter(algorithm=algorithm)
    admitted = at_once(16, lambda: sum(limiter.hit("1000/day", "one").allowed for _ in range(100)))
    assert admitted == 1000


@ALGORITHMS
def test_16_threads_in_memory_under_three_rules(hasty: None, algorithm: Any) -> None:
    limiter = Limiter(algorithm=algorithm)
    quota = "500/day; 1000/week; 250/month"
    assert at_once(16, lambda: sum(limiter.hit(quota, "one").allowed for _ in range(40))) == 250
    assert [outcome.remaining for outcome in limiter.peek(quota, "one").outcomes] == [250, 750, 0]


@ALGORITHMS
def test_16_threads_use_one_limiter_on_a_server(server: Server, algorithm: Any) -> None:
    identity = uuid4().hex
    with Limiter(url(server), algorithm=algorithm, deadline=PATIENCE) as limiter:
        admitted = at_once(16, lambda: sum(limiter.hit("200/day; 300/week", identity).allowed for _ in range(25)))
        assert admitted == 200
        assert limiter.peek("300/week", identity, algorithm=algorithm).remaining == 100


async def tasks(where: str, algorithm: Any) -> int:
    identity = uuid4().hex
    async with AsyncLimiter(where, algorithm=algorithm, deadline=PATIENCE) as limiter:
        decisions = await asyncio.gather(*[limiter.hit("100/day", identity) for _ in range(400)])
    return sum(decision.allowed for decision in decisions)


@ALGORITHMS
def test_400_tasks_in_memory(algorithm: Any) -> None:
    assert asyncio.run(tasks("memory://", algorithm)) == 100


@ALGORITHMS
def test_400_tasks_on_a_server(server: Server, algorithm: Any) -> None:
    assert asyncio.run(tasks(url(server), algorithm)) == 100


def test_memory_store_starts_no_thread() -> None:
    import threading

    before = threading.active_count()
    limiter = Limiter("memory://?max_keys=10")
    for number in range(100):
        limiter.hit("1/minute", number)
    assert threading.active_count() == before
