"""The Redis store on a real cluster: the exam, plans across slots, and slots that move."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from time import monotonic
from typing import Any, ClassVar
from uuid import uuid4

import hiredis
import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluicegate import AsyncLimiter, Limiter, ManualClock, Quota, StoreError
from sluicegate.clock import Clock
from sluicegate.identity import identity_text
from sluicegate.plan import Check, Decision, Outcome, Plan, Terms
from sluicegate.rules.ban import Ban
from sluicegate.rules.rollout import shadows
from sluicegate.rules.terms import make_terms
from sluicegate.stores import AsyncStore, Store, StoreChange, open_async_store, open_store
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import AsyncRedisStore, RedisStore
from sluicegate.stores.redis.encoding import Encoder
from sluicegate.stores.redis.operations import Operations
from sluicegate.stores.redis.steps import Address, NoReplyError, Pause, Send
from sluicegate.stores.redis.topology import slot_of, topology
from sluicegate.stores.redis.url import servers
from sluicegate.testing import StoreExam
from sluicegate.testing.driver import Driver
from sluicegate.testing.scenarios import examples
from sluicegate.testing.store import NAMES, terms
from tests.cluster import Cluster
from tests.servers import ask, wait_until
from tests.stores.modes import PATIENCE

OURS, THEIRS = ("sync", "async"), ("sync client", "async client")


class Maker:
    """Makes stores on a cluster: with their own connections, or over one client of redis-py."""

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


IDENTITIES = ("a", "b", "c", "d")  # in four slots, on all three nodes
SEVERAL = st.tuples(st.sampled_from(NAMES), st.booleans(), st.sampled_from([False, False, True]))
CHECKS = st.tuples(SEVERAL, st.sampled_from(IDENTITIES), st.integers(0, 3))
STORIES = st.lists(st.tuples(st.integers(0, 40), st.lists(CHECKS, min_size=1, max_size=4), st.booleans()), max_size=12)


def test_a_plan_across_slots_is_all_or_nothing(maker: Maker, runner: asyncio.Runner) -> None:
    """If any identity of a plan is refused, none is charged. Compared with the same acts in memory."""

    def rule(name: str, counted: bool, shadow: bool) -> Terms:
        return terms(name, "4/minute", scope=f"{name}{counted}", counted=counted, shadow=shadow)

    @examples(25)
    @given(STORIES)
    def run_story(story: list[tuple[int, list[tuple[tuple[str, bool, bool], str, int]], bool]]) -> None:
        clock = ManualClock()
        store, reference = maker.drive(clock), Driver(MemoryStore(clock=clock), runner)
        for wait, drawn, charge in story:
            clock.advance(wait)
            checks = {(facts, identity): Check(rule(*facts), identity, cost) for facts, identity, cost in drawn}
            plan = Plan(tuple(checks.values()), charge, forced=wait % 5 == 1)
            results = store.run(plan)
            assert results == reference.run(plan)
            if wait % 3 == 1:
                results, renewed = store.renew(plan, results), reference.renew(plan, results)
                assert results == renewed
            if wait % 3 < 2:
                for each in (store, reference):
                    each.refund(plan, results)
        store.close()

    run_story()


def test_the_tighter_slot_is_charged_first(cluster: Cluster) -> None:
    """A client above its own limit never charges the budget that it shares, not even for a moment."""
    own, shared = terms("fixed-window", "1/minute", scope="own"), terms("fixed-window", "1000/minute", scope="all")
    me, common = uuid4().hex, uuid4().hex
    plan = Plan((Check(shared, common, 1), Check(own, me, 1)))
    store = open_store(cluster.url, prefix="t", deadline=PATIENCE)
    assert [outcome.allowed for outcome in store.run(plan)] == [True, True]
    shared_node = cluster.node_of(slot_of(common))
    before = _writes(shared_node)
    results = store.run(plan)
    assert [(outcome.allowed, outcome.remaining) for outcome in results] == [(True, 999), (False, 0)]
    assert _writes(shared_node) == before, "the shared budget was charged for a request that its subject may not make"
    store.close()


def _writes(node: Any) -> int:
    """How many SETs the node has done."""
    for line in node.command("INFO commandstats").splitlines():
        if line.startswith("cmdstat_set:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


def test_requests_are_charged_once_while_slots_move(moving: Maker) -> None:
    """After MOVED and ASK every request gets its outcome and is charged once."""
    cluster, store = moving.cluster, moving.drive()
    identity = uuid4().hex
    slot = slot_of(store._tag + identity)  # the driver's own name for it
    two = Plan(tuple(Check(terms("fixed-window", "100/hour", scope=scope), identity, 1) for scope in "xy"))

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


def test_a_plan_with_half_of_its_keys_migrated(moving: Maker) -> None:
    """TRYAGAIN: then each check is charged where its key is, and the charges of a refused plan are given back."""
    cluster, store = moving.cluster, moving.drive()
    identity = uuid4().hex
    slot = slot_of(store._tag + identity)
    quotas = {"x": "100/hour", "y": "4/hour"}
    plan = Plan(tuple(Check(terms("fixed-window", quotas[scope], scope=scope), identity, 1) for scope in quotas))

    def remaining(plan: Plan = plan) -> list[int]:
        return [outcome.remaining for outcome in store.run(plan)]

    assert remaining() == [99, 3]
    to = next(node for node in cluster.masters if node is not cluster.node_of(slot))
    cluster.begin_migration(slot, to)
    first, _ = sorted(_keys(cluster, slot))
    cluster.move_keys(slot, to, first)
    assert remaining() == [98, 2]
    results = store.run(plan)
    assert [outcome.remaining for outcome in results] == [97, 1]
    results = store.renew(plan, results)
    store.refund(plan, results)
    assert remaining(plan._replace(charge=False)) == [98, 2]
    assert remaining() == [97, 1]
    assert remaining() == [96, 0]
    results = store.run(plan)
    assert [(outcome.allowed, outcome.remaining) for outcome in results] == [(True, 96), (False, 0)]
    cluster.finish_migration(slot, to)
    assert remaining(plan._replace(charge=False)) == [96, 0]
    store.close()


def test_a_plan_with_a_ban_and_half_of_its_keys_migrated(moving: Maker) -> None:
    """Its checks cannot be sent one by one. TRYAGAIN, a few times, and then a StoreError without a charge."""
    cluster, store = moving.cluster, moving.drive()
    identity = uuid4().hex
    slot = slot_of(store._tag + identity)
    checks = [Check(terms("fixed-window", "100/hour", scope=scope), identity, 1) for scope in "xy"]
    plan = Plan((*checks, Check(Ban(after=3, within=60, duration=60).terms, identity, 1)))
    assert [outcome.remaining for outcome in store.run(plan)][:2] == [99, 99]
    to = next(node for node in cluster.masters if node is not cluster.node_of(slot))
    cluster.begin_migration(slot, to)
    first, *_ = sorted(_keys(cluster, slot))
    cluster.move_keys(slot, to, first)
    with pytest.raises(StoreError, match="TRYAGAIN") as caught:
        store.run(plan)
    assert caught.value.concerns == "plan"
    cluster.finish_migration(slot, to)
    assert [outcome.remaining for outcome in store.run(plan)][:2] == [98, 98]
    store.close()


def _keys(cluster: Cluster, slot: int) -> list[str]:
    with redis.Redis(port=cluster.node_of(slot).port, decode_responses=True) as node:
        return list(node.execute_command("CLUSTER GETKEYSINSLOT", slot, 10))


def test_scripts_are_loaded_on_every_node(maker: Maker) -> None:
    store = maker.drive()
    rule = terms("gcra", "5/hour")
    for remaining in (4, 3):
        for identity in range(10):
            assert store.run(Plan((Check(rule, str(identity), 1),)))[0].remaining == remaining
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
def test_a_dead_node_does_not_affect_the_others(moving_cluster: Cluster, ours: str, runner: asyncio.Runner) -> None:
    """Without full coverage two nodes continue: only identities of the third node are decided in this process."""
    for node in moving_cluster.nodes:
        node.command("CONFIG SET cluster-require-full-coverage no")
    changes: list[tuple[str, bool]] = []
    options: dict[str, Any] = {"on_store_change": lambda change: changes.append((change.store, change.available))}
    limiter: Any = (Limiter if ours == "sync" else AsyncLimiter)(moving_cluster.url, deadline=1, **options)

    def degraded(identity: str) -> bool:
        decision = limiter.hit("1000/day", identity)
        return bool((runner.run(decision) if ours == "async" else decision).degraded)

    dead = moving_cluster.masters[1]
    people = [uuid4().hex for _ in range(60)]
    theirs = {identity for identity in people if moving_cluster.node_of(slot_of(identity_text(identity))) is dead}
    assert 0 < len(theirs) < 60
    assert not any(map(degraded, people))
    dead.kill()
    assert {identity for identity in people if degraded(identity)} == theirs
    assert changes == [(f"127.0.0.1:{dead.port}", False)]
    if ours == "sync":
        limiter.close()
    else:
        runner.run(limiter.close())


class Watched:
    """A limiter of either kind, called without await, with what it reported."""

    def __init__(self, url: str, ours: str, runner: asyncio.Runner, **options: Any) -> None:
        self.changes: list[tuple[str, bool]] = []
        self._runner, self._ours = runner, ours
        kind: Any = Limiter if ours == "sync" else AsyncLimiter
        self.limiter = kind(url, on_store_change=self._note, **options)

    def hit(self, quota: str, who: str) -> Decision:
        decision: Any = self.limiter.hit(quota, who)
        return decision if self._ours == "sync" else self._runner.run(decision)

    def degraded(self, *people: str) -> set[str]:
        """Return those of these identities that the store did not decide about."""
        return {who for who in people if self.hit("1000/day", who).degraded}

    def close(self) -> None:
        done: Any = self.limiter.close()
        if self._ours == "async":
            self._runner.run(done)

    def _note(self, change: StoreChange) -> None:
        self.changes.append((change.store, change.available))


def people_of(cluster: Cluster, count: int = 60) -> dict[Any, set[str]]:
    """Identities, by the node that keeps their budgets."""
    found: dict[Any, set[str]] = {node: set() for node in cluster.nodes}
    for _ in range(count):
        who = uuid4().hex
        found[cluster.node_of(slot_of(identity_text(who)))].add(who)
    return found


@pytest.mark.parametrize("ours", OURS)
def test_a_slot_that_is_half_moved_degrades_no_request(
    moving_cluster: Cluster, ours: str, runner: asyncio.Runner
) -> None:
    """A new identity under two rules gets ASK, then TRYAGAIN. It is counted as all others."""
    watched = Watched(moving_cluster.url, ours, runner, deadline=PATIENCE)
    people = {who for group in people_of(moving_cluster).values() for who in group}
    assert watched.degraded(*people) == set()
    new = uuid4().hex
    slot = slot_of(identity_text(new))
    to = next(node for node in moving_cluster.masters if node is not moving_cluster.node_of(slot))
    moving_cluster.begin_migration(slot, to)
    for remaining in (9, 8, 7):
        decision = watched.hit("1000/day; 10/minute", new)
        assert (decision.allowed, decision.remaining, decision.degraded) == (True, remaining, False)
    assert watched.degraded(new, *people) == set()
    moving_cluster.finish_migration(slot, to)
    decision = watched.hit("1000/day; 10/minute", new)
    assert (decision.remaining, decision.degraded) == (6, False)
    assert watched.changes == []
    watched.close()


@pytest.mark.parametrize("ours", OURS)
def test_a_plan_of_two_identities_waits_for_a_move(moving_cluster: Cluster, ours: str, runner: asyncio.Runner) -> None:
    """One identity has two budgets of which one has moved, and a ban, so that its checks must run together."""
    watched = Watched(moving_cluster.url, ours, runner, deadline=PATIENCE)
    moved, other = "moved", "other"
    slot = slot_of(moved)
    to = next(node for node in moving_cluster.masters if node is not moving_cluster.node_of(slot))
    rules = [terms("fixed-window", "1000/day", scope=scope) for scope in ("one", "two")]
    ban = Ban(after=100, within="1 day", duration="1 hour").terms
    checks = [Check(each, moved, 1) for each in rules]
    plan = Plan((*checks, Check(rules[0], other, 1), Check(ban, moved, 0)))

    def run() -> tuple[Outcome, ...]:
        done: Any = watched.limiter.store.run(plan)
        outcomes: tuple[Outcome, ...] = done if ours == "sync" else runner.run(done)
        return outcomes

    run()
    moving_cluster.begin_migration(slot, to)
    moving_cluster.move_keys(slot, to, ask(moving_cluster.node_of(slot), "CLUSTER", "GETKEYSINSLOT", slot, 10)[0])
    later = threading.Timer(0.1, lambda: moving_cluster.finish_migration(slot, to))
    later.start()
    outcomes = run()
    later.join()
    assert {each.source for each in outcomes} == {"store"}
    assert [each.remaining for each in outcomes[:3]] == [998] * 3
    assert watched.changes == []
    watched.close()


@pytest.mark.parametrize("ours", OURS)
def test_a_slot_without_a_node_concerns_its_own_plans(
    moving_cluster: Cluster, ours: str, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    for node in moving_cluster.nodes:
        node.command("CONFIG SET cluster-require-full-coverage no")
    watched = Watched(moving_cluster.url, ours, runner, deadline=PATIENCE)
    alone = uuid4().hex
    people = {who for group in people_of(moving_cluster).values() for who in group}
    slot = slot_of(identity_text(alone))
    home = moving_cluster.node_of(slot)
    wait_until("the nodes to agree", lambda: watched.degraded(alone, *people) == set())
    try:
        for node in moving_cluster.nodes:
            node.command(f"CLUSTER DELSLOTS {slot}")
        for _ in range(5):
            assert watched.degraded(alone, *people) == {alone}
        assert watched.changes == []
        [line] = [record.getMessage() for record in caplog.records if record.name == "sluicegate"]
        assert "redis-cli --cluster check" in line
    finally:
        home.command(f"CLUSTER ADDSLOTS {slot}")
        moving_cluster.wait_ready()
    wait_until("the slot to be found", lambda: watched.degraded(alone) == set())
    watched.close()


@pytest.mark.parametrize("ours", OURS)
def test_a_hung_node_does_not_delay_the_others(moving_cluster: Cluster, ours: str, runner: asyncio.Runner) -> None:
    """It hangs before the first request. Only that request, which knows no node, asks it for the map."""
    for node in moving_cluster.nodes:
        node.command("CONFIG SET cluster-require-full-coverage no")
    hung = moving_cluster.masters[0]
    people = people_of(moving_cluster)
    theirs = people.pop(hung)
    others = {who for group in people.values() for who in group}
    hung.pause()
    watched = Watched(moving_cluster.url, ours, runner, deadline=2.0)
    assert watched.degraded(*sorted(others)[:1]) == set()
    longest = 0.0
    for number, who in enumerate(sorted(others) * 5):
        if number % 20 == 0:
            assert watched.degraded(sorted(theirs)[0]) == theirs & {sorted(theirs)[0]}
        begun = monotonic()
        assert not watched.hit("1000/day", who).degraded
        longest = max(longest, monotonic() - begun)
    assert longest < 0.9, "no other request has asked the hung node"
    assert watched.changes == [(f"127.0.0.1:{hung.port}", False)]
    hung.resume()
    wait_until("the node to be used", lambda: watched.degraded(*theirs) == set())
    assert watched.changes == [(f"127.0.0.1:{hung.port}", False), (f"127.0.0.1:{hung.port}", True)]
    watched.close()


@pytest.mark.parametrize("ours", OURS)
def test_a_node_that_is_replaced_is_reported_by_its_own_name(
    ours: str, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Cluster(replicas=1, full_coverage=False) as cluster:
        watched = Watched(cluster.url, ours, runner, deadline=1.0)
        dead, replica = cluster.masters[0], cluster.replicas[0]
        people = people_of(cluster)
        theirs = people[dead]
        others = {who for group in people.values() for who in group} - theirs
        assert watched.degraded(*theirs, *others) == set()
        name = f"127.0.0.1:{dead.port}"
        dead.kill()
        assert watched.degraded(*theirs, *others) == theirs
        assert watched.changes == [(name, False)]
        wait_until("the replica to be a master", lambda: cluster.node_of(0, seen_by=cluster.masters[1]) is replica)
        wait_until("the replica to be used", lambda: watched.degraded(*theirs) == set())
        assert watched.degraded(*theirs, *others) == set()
        assert watched.changes == [(name, False), (name, True)]
        assert watched.limiter.store._breakers._of == {}, "nobody probes a server that no request needs"
        watched.close()
    lines = [record.getMessage() for record in caplog.records if record.name == "sluicegate"]
    assert len(lines) == 2
    assert lines[1] == f"sluicegate: store {name} replaced by another server: circuit closed"


def test_nodes_that_redirect_to_each_other_are_asked_with_pauses() -> None:
    """During a failover two nodes may not agree who serves a slot."""
    operations = Operations(topology(servers("redis+cluster://a:1,b:2")), Encoder(prefix="t", clock=None, split=True))
    steps = operations.forget("rule", "x")
    sent: list[Any] = []

    def drive() -> None:
        reply: Any = None
        while True:
            step: Any = steps.send(reply)
            sent.append(step.seconds if isinstance(step, Pause) else step.address.host)
            slots = isinstance(step, Send) and b"SLOTS" in step.command.whole.frame
            other = {"a": "b:2", "b": "a:1"}.get(sent[-1], "")
            reply = [[0, 16383, [b"a", 1]]] if slots else hiredis.ReplyError(f"MOVED {slot_of('x')} {other}")

    with pytest.raises(StoreError, match="do not agree") as caught:
        drive()
    assert caught.value.concerns == "plan"
    assert sent == ["a", "a", "b", 0.005, "a", 0.01, "b", 0.02, "a", 0.04, "b"]


def test_a_node_that_is_gone_is_looked_up_at_once() -> None:
    """Its last slot has moved and it has ended since the map was loaded, which was a moment ago. Two requests find out
    at the same time, and neither waits for the map of the other.
    """
    operations = Operations(topology(servers("redis+cluster://a:1,b:2")), Encoder(prefix="t", clock=None, split=True))
    one, other = operations.forget("rule", "x"), operations.forget("rule", "x")
    assert "map" in _asked(one.send(None))
    assert _asked(one.send([[0, 16383, [b"a", 1]]])) == _asked(other.send(None)) == "a command"
    gone = NoReplyError(Address("a", 1), ConnectionRefusedError(), sent=False)
    assert [_asked(steps.send(gone)) for steps in (one, other)] == ["b map", "b map"]
    for steps in (one, other):
        assert _asked(steps.send([[0, 16383, [b"b", 2]]])) == "b command"
        with pytest.raises(StopIteration):
            steps.send(1)


def test_a_map_that_is_loaded_for_a_lost_node_concerns_no_other_node() -> None:
    """The node that is asked for it hangs too, so other requests need not wait for the map, nor load it."""
    where: Any = topology(servers("redis+cluster://a:1,b:2,c:3"))
    steps = where.find(0)
    assert "map" in _asked(steps.send(None))
    with pytest.raises(StopIteration):
        steps.send([[0, 8000, [b"a", 1]], [8001, 16383, [b"c", 3]]])
    where.lost(Address("a", 1))
    assert "map" in _asked(where.find(0).send(None))
    where._asked_at -= 1.0  # so long ago
    assert where.known(16000) == Address("c", 3)


def _key_count(frame: bytes) -> int:
    """The number of keys of a script's command."""
    reader = hiredis.Reader()
    reader.feed(frame)
    return int(reader.gets()[2])


def test_a_slot_that_begins_to_move_while_a_plan_is_given_back() -> None:
    """The refund and the look at what is left get TRYAGAIN. The refund is made check by check."""
    operations = Operations(topology(servers("redis+cluster://a:1")), Encoder(prefix="t", clock=None, split=True))
    checks = [Check(terms("fixed-window", "5/minute", scope=scope), "x", 1) for scope in "pq"]
    plan = Plan((*checks, Check(terms("fixed-window", "100/minute", scope="all"), "everybody", 1)))
    steps = operations.run(plan)
    moving = hiredis.ReplyError("TRYAGAIN Multiple keys request during rehashing of slot")
    assert "map" in _asked(steps.send(None))
    steps.send([[0, 16383, [b"a", 1]]])
    steps.send([0, 1, *(1, 4, 0, 60, 60), *(1, 4, 0, 60, 60)])  # both are charged
    steps.send([0, 1, 0, 0, 30, 30, 30])  # everybody is refused
    refunds: list[Any] = [steps.send(reply) for reply in (moving, [0, 2])]
    assert [_key_count(each.command.frame) for each in refunds] == [1, 1]
    steps.send([0, 2])
    with pytest.raises(StopIteration) as ended:
        steps.send(moving)
    assert [outcome.allowed for outcome in ended.value.value] == [True, True, False]


def test_a_shadow_rule_whose_quotas_are_on_two_nodes() -> None:
    """TRYAGAIN: each check is sent alone. If one would refuse, the charges of the others of its rule are refunded."""
    operations = Operations(topology(servers("redis+cluster://a:1")), Encoder(prefix="t", clock=None, split=True))
    rule = make_terms("guess", (Quota(5, 60), Quota(20, 3600)), algorithm="fixed-window")
    other = terms("fixed-window", "9/minute", scope="other", shadow=True)
    plan = Plan(tuple([Check(each, "x", 1) for each in (*shadows(rule), other)]))
    steps = operations.run(plan)
    assert "map" in _asked(steps.send(None))
    steps.send([[0, 16383, [b"a", 1]]])
    steps.send(hiredis.ReplyError("TRYAGAIN Multiple keys request during rehashing of slot"))
    steps.send(b"0 0 1 ")  # the first quota is charged
    steps.send(b"0 0 1 =0 0 30 60 60")  # the second would refuse
    refund: Any = steps.send(b"0 0 1 ")  # the other rule is charged
    assert (_key_count(refund.command.frame), rule[0].rule_id.encode() in refund.command.frame) == (1, True)
    steps.send([0, 2])
    with pytest.raises(StopIteration) as ended:
        steps.send([0, 3, *(1, 5, 0, 0, 0)])
    outcomes = ended.value.value
    assert [(each.remaining, each.retry_after) for each in outcomes] == [(5, 0), (0, 30), (8, 0)]


def _asked(step: Any) -> str:
    return f"{step.address.host} {'map' if b'SLOTS' in step.command.frame else 'command'}"
