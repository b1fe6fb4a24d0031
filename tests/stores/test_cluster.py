"""The Redis store on a real cluster: the exam, plans across slots, and slots that move."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluicegate import AsyncLimiter, Limiter, ManualClock, StoreError
from sluicegate.clock import Clock
from sluicegate.identity import identity_text
from sluicegate.plan import Check, Plan, Terms
from sluicegate.stores import AsyncStore, Store, open_async_store, open_store
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import AsyncRedisStore, RedisStore
from sluicegate.stores.redis.servers import servers
from sluicegate.stores.redis.topology import slot_of
from sluicegate.testing import StoreExam
from sluicegate.testing.scenarios import examples
from sluicegate.testing.store import NAMES, Driver, terms
from tests.cluster import Cluster
from tests.stores.colours import PATIENCE

OURS, THEIRS = ("sync", "async"), ("sync client", "async client")


class Maker:
    """Makes stores on a cluster: of our own connections, or over one client of redis-py's."""

    def __init__(self, how: str, cluster: Cluster, runner: asyncio.Runner) -> None:
        self.cluster, self._how, self._runner = cluster, how, runner
        if how in OURS:
            return
        options: dict[str, Any] = {"host": "127.0.0.1", "port": cluster.masters[0].port, "socket_timeout": PATIENCE}
        kinds: dict[str, Any] = {"sync client": (redis.RedisCluster, Retry)}
        kind, retry = kinds.get(how, (redis.asyncio.RedisCluster, AsyncRetry))
        self._client: Any = kind(**options, retry=retry(NoBackoff(), 0))

    def store(self, clock: Clock | None) -> Store | AsyncStore:
        match self._how:
            case "sync":
                return open_store(self.cluster.url, prefix="exam", clock=clock, deadline=PATIENCE)
            case "async":
                return open_async_store(self.cluster.url, prefix="exam", clock=clock, deadline=PATIENCE)
            case "sync client":
                return RedisStore(self._client, prefix="exam", clock=clock)
        return AsyncRedisStore(self._client, prefix="exam", clock=clock, deadline=PATIENCE)

    def drive(self, clock: Clock | None = None) -> Driver:
        return Driver(self.store(clock), self._runner)

    def close(self) -> None:
        if self._how == "sync client":
            self._client.close()
        elif self._how == "async client":
            self._runner.run(self._client.aclose())


class TestOnACluster(StoreExam):
    examples = 15
    maker: ClassVar[Maker]

    @pytest.fixture(autouse=True, scope="class", params=(*OURS, "sync client"))
    @classmethod
    def _place(cls, request: pytest.FixtureRequest, each_cluster: Cluster, _loop: None) -> Iterator[None]:
        with closing(Maker(request.param, each_cluster, cls.runner)) as cls.maker:
            yield

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return self.maker.store(clock)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=(*OURS, *THEIRS))
def maker(request: pytest.FixtureRequest, cluster: Cluster, runner: asyncio.Runner) -> Iterator[Maker]:
    with closing(Maker(request.param, cluster, runner)) as made:
        yield made


@pytest.fixture(params=OURS)
def moving(request: pytest.FixtureRequest, moving_cluster: Cluster, runner: asyncio.Runner) -> Iterator[Maker]:
    with closing(Maker(request.param, moving_cluster, runner)) as made:
        yield made


WHO = ("a", "b", "c", "d")  # of as many slots, on all three nodes
SEVERAL = st.tuples(st.sampled_from(NAMES), st.booleans(), st.sampled_from([False, False, True]))
CHECKS = st.tuples(SEVERAL, st.sampled_from(WHO), st.integers(0, 3))
STORIES = st.lists(st.tuples(st.integers(0, 40), st.lists(CHECKS, min_size=1, max_size=4), st.booleans()), max_size=12)


def test_a_plan_across_slots_is_all_or_nothing(maker: Maker, runner: asyncio.Runner) -> None:
    """Whoever of several identities refuses, nobody is charged: told by the same story in memory."""

    def rule(name: str, counted: bool, shadow: bool) -> Terms:
        return terms(name, "4/minute", scope=f"{name}{counted}", counted=counted, shadow=shadow)

    @examples(25)
    @given(STORIES)
    def tell(story: list[tuple[int, list[tuple[tuple[str, bool, bool], str, int]], bool]]) -> None:
        clock = ManualClock()
        store, reference = maker.drive(clock), Driver(MemoryStore(clock=clock), runner)
        for wait, drawn, charge in story:
            clock.advance(wait)
            checks = {(facts, who): Check(rule(*facts), who, cost) for facts, who, cost in drawn}
            plan = Plan(tuple(checks.values()), charge, forced=wait % 5 == 1)
            told = store.run(plan)
            assert told == reference.run(plan)
            if wait % 3 == 1:
                told, renewed = store.renew(plan, told), reference.renew(plan, told)
                assert told == renewed
            if wait % 3 < 2:
                for each in (store, reference):
                    each.refund(plan, told)
        store.close()

    tell()


def test_the_tighter_slot_is_asked_first(cluster: Cluster) -> None:
    """A subject that is over its own limit costs what it shares nothing, not even for a moment."""
    own, shared = terms("fixed-window", "1/minute", scope="own"), terms("fixed-window", "1000/minute", scope="all")
    me, everybody = uuid4().hex, uuid4().hex
    plan = Plan((Check(shared, everybody, 1), Check(own, me, 1)))
    store = open_store(cluster.url, prefix="t", deadline=PATIENCE)
    assert [outcome.allowed for outcome in store.run(plan)] == [True, True]
    shared_node = cluster.node_of(slot_of(everybody))
    before = _writes(shared_node)
    told = store.run(plan)
    assert [(outcome.allowed, outcome.remaining) for outcome in told] == [(True, 999), (False, 0)]
    assert _writes(shared_node) == before, "the shared budget was charged for a request that its subject may not make"
    store.close()


def _writes(node: Any) -> int:
    """How many SETs the node has done."""
    for line in node.command("INFO commandstats").splitlines():
        if line.startswith("cmdstat_set:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


def test_slots_may_move_and_be_on_their_way(moving: Maker) -> None:
    """MOVED and ASK: every request is answered, and charged once."""
    cluster, store = moving.cluster, moving.drive()
    who = uuid4().hex
    slot = slot_of(store._tag + who)  # the driver's own name for it
    two = Plan(tuple(Check(terms("fixed-window", "100/hour", scope=scope), who, 1) for scope in "xy"))

    def remaining() -> list[int]:
        return [outcome.remaining for outcome in store.run(two)]

    assert remaining() == [99, 99]
    to = next(node for node in cluster.masters if node is not cluster.node_of(slot))
    cluster.move_slot(slot, to)
    assert remaining() == [98, 98]  # MOVED
    home = next(node for node in cluster.masters if node is not to)
    cluster.begin_migration(slot, home)
    assert remaining() == [97, 97]  # still there
    cluster.move_keys(slot, home)
    assert remaining() == [96, 96]  # ASK
    assert remaining() == [95, 95]
    cluster.finish_migration(slot, home)
    assert remaining() == [94, 94]
    store.close()


def test_half_of_a_plan_s_keys_on_their_way(moving: Maker) -> None:
    """TRYAGAIN until the deadline, then a StoreError, and nothing was charged; as soon as all have moved, an answer."""
    cluster, store = moving.cluster, moving.drive()
    who = uuid4().hex
    slot = slot_of(store._tag + who)
    plan = Plan(tuple(Check(terms("fixed-window", "100/hour", scope=scope), who, 1) for scope in "xy"))
    assert [outcome.remaining for outcome in store.run(plan)] == [99, 99]
    to = next(node for node in cluster.masters if node is not cluster.node_of(slot))
    cluster.begin_migration(slot, to)
    first, _ = sorted(_keys(cluster, slot))
    cluster.move_keys(slot, to, first)
    with pytest.raises(StoreError):
        store.run(plan)
    cluster.finish_migration(slot, to)
    assert [outcome.remaining for outcome in store.run(plan)] == [98, 98]
    store.close()


def _keys(cluster: Cluster, slot: int) -> list[str]:
    with redis.Redis(port=cluster.node_of(slot).port, decode_responses=True) as node:
        return list(node.execute_command("CLUSTER GETKEYSINSLOT", slot, 10))


def test_scripts_are_brought_to_every_node(maker: Maker) -> None:
    store = maker.drive()
    rule = terms("gcra", "5/hour")
    for remaining in (4, 3):
        for who in range(10):
            assert store.run(Plan((Check(rule, str(who), 1),)))[0].remaining == remaining
        for node in maker.cluster.masters:
            node.command("SCRIPT FLUSH")
    store.close()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+cluster://a:1,b:2/3", "database 0"),
        ("redis+sentinel://a:1,b:2", "names no service"),
        ("redis+cluster://a:x", "SG004"),
        ("redis+cluster://a:1?nonsense=1", "nonsense"),
        ("redis://a?socket_timeout=3", "deadline"),
        ("redis://a?max_connections=0", "max_connections"),
    ],
)
def test_urls_that_cannot_work(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        servers(url)


@pytest.mark.parametrize(
    ("url", "kind", "seeds", "service"),
    [
        ("redis://h", "", ["h:6379"], ""),
        ("unix:///tmp/s", "", ["/tmp/s"], ""),
        ("valkeys+cluster://u:p@a:1,[::1]:2", "cluster", ["a:1", "[::1]:2"], ""),
        ("redis+sentinel://a,b:2/front/3", "sentinel", ["a:26379", "b:2"], "front"),
    ],
)
def test_urls(url: str, kind: str, seeds: list[str], service: str) -> None:
    found = servers(url)
    assert (found.kind, list(map(str, found.seeds)), found.service) == (kind, seeds, service)
    assert found.options.get("db", 0) == (3 if service else 0)


@pytest.mark.parametrize("ours", OURS)
def test_a_dead_node_is_no_trouble_of_the_others(moving_cluster: Cluster, ours: str, runner: asyncio.Runner) -> None:
    """Without full coverage two nodes go on: only the third one's identities are decided in this process."""
    for node in moving_cluster.nodes:
        node.command("CONFIG SET cluster-require-full-coverage no")
    changes: list[tuple[str, bool]] = []
    options: dict[str, Any] = {"on_store_change": lambda change: changes.append((change.store, change.available))}
    limiter: Any = (Limiter if ours == "sync" else AsyncLimiter)(moving_cluster.url, deadline=1, **options)

    def degraded(who: str) -> bool:
        decision = limiter.hit("1000/day", who)
        return bool((runner.run(decision) if ours == "async" else decision).degraded)

    dead = moving_cluster.masters[1]
    people = [uuid4().hex for _ in range(60)]
    theirs = {who for who in people if moving_cluster.node_of(slot_of(identity_text(who))) is dead}
    assert 0 < len(theirs) < 60
    assert not any(map(degraded, people))
    dead.kill()
    assert {who for who in people if degraded(who)} == theirs
    assert changes == [(f"127.0.0.1:{dead.port}", False)]
    if ours == "sync":
        limiter.close()
    else:
        runner.run(limiter.close())
