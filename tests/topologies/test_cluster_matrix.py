"""A cluster of three masters and three replicas under load, with every disturbance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Event
from uuid import uuid4

import pytest
import redis

from sluicegate import Limiter
from sluicegate.identity import identity_text
from sluicegate.stores.redis.topology import slot_of
from tests.cluster import Cluster
from tests.servers import Server, ask, is_master, wait_until
from tests.topologies.load import BACK, QUOTA, Load

SAMPLE = ("hang",)  # what a run without --matrix does


class Site:
    """The cluster, the identities on its nodes, and the node that is disturbed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node, self.replica = cluster.masters[0], cluster.replicas[0]
        self.other = cluster.masters[1]
        people = [uuid4().hex for _ in range(24)]
        self.people = {who: cluster.node_of(self.slot(who)) for who in people}
        self.theirs = {who for who, node in self.people.items() if node is self.node}

    @staticmethod
    def slot(who: str) -> int:
        return slot_of(identity_text(who))

    def wait_served_by(self, node: Server) -> None:
        """Wait until the nodes agree who serves the slots of the disturbed node."""
        nodes = [self.other, self.cluster.masters[2]]
        served = lambda: all([self.cluster.node_of(0, seen_by=each) is node for each in nodes])  # noqa: E731
        wait_until(f"{node} to be a master", served)
        wait_until(
            "the cluster to be up", lambda: all([ask(each, "CLUSTER INFO")["cluster_state"] == "ok" for each in nodes])
        )


def kill(site: Site) -> set[str]:
    site.node.kill()
    site.wait_served_by(site.replica)
    return site.theirs


def hang(site: Site) -> set[str]:
    site.node.pause()
    site.wait_served_by(site.replica)
    return site.theirs


def hang_and_return(site: Site) -> set[str]:
    """Shorter than the cluster takes to notice it."""
    site.node.pause()
    Event().wait(0.6)
    site.node.resume()
    return site.theirs


def restart(site: Site) -> set[str]:
    """The node loses its data."""
    site.node.kill()
    site.node.start()
    wait_until("one master", lambda: is_master(site.node) or is_master(site.replica))
    site.cluster.wait_ready()
    return site.theirs


def planned(site: Site) -> set[str]:
    ask(site.replica, "CLUSTER", "FAILOVER")
    site.wait_served_by(site.replica)
    return site.theirs


def planned_and_back(site: Site) -> set[str]:
    planned(site)
    wait_until("the old master to follow", lambda: ask(site.node, "ROLE")[3] == "connected")
    ask(site.node, "CLUSTER", "FAILOVER")
    site.wait_served_by(site.node)
    return site.theirs


def slots_move(site: Site) -> set[str]:
    """To another node and back, half of the way with a pause in between. No request is degraded."""
    for who in sorted(site.theirs):
        site.cluster.begin_migration(site.slot(who), site.other)
        site.cluster.finish_migration(site.slot(who), site.other)
    for who in sorted(site.theirs):
        site.cluster.begin_migration(site.slot(who), site.node)
    Event().wait(0.5)
    for who in sorted(site.theirs):
        site.cluster.finish_migration(site.slot(who), site.node)
    return set()


def node_added_and_removed(site: Site) -> set[str]:
    """The slots of the identities move to a new node and back, and the new node ends. No request is degraded."""
    node = site.cluster.add()
    try:
        for who in sorted(site.theirs):
            site.cluster.move_slot(site.slot(who), node)
        Event().wait(0.5)
        for who in sorted(site.theirs):
            site.cluster.move_slot(site.slot(who), site.node)
    finally:
        site.cluster.remove(node)
    return set()


def unowned(site: Site) -> set[str]:
    who = sorted(site.theirs)[0]
    for node in site.cluster.nodes:
        node.command(f"CLUSTER DELSLOTS {site.slot(who)}")
    Event().wait(0.5)
    ask(site.node, "CLUSTER", "ADDSLOTS", site.slot(who))
    site.cluster.wait_ready()
    return {who}


def password(site: Site) -> set[str]:
    """A node demands a password that the URL does not have."""
    ask(site.node, "CONFIG", "SET", "requirepass", "secret")
    with closing(redis.Redis(unix_socket_path=site.node.socket, password="secret")) as admin:
        admin.execute_command("CLIENT KILL TYPE normal SKIPME yes")
        Event().wait(0.8)
        admin.config_set("requirepass", "")
    return site.theirs


def full(site: Site) -> set[str]:
    ask(site.node, "CONFIG", "SET", "maxmemory", "1mb")
    Event().wait(0.8)
    ask(site.node, "CONFIG", "SET", "maxmemory", "0")
    return site.theirs


KEEP = {"slots_move", "node_added_and_removed", "unowned", "hang_and_return", "password", "full"}  # no data is lost
DISTURBANCES: list[Callable[[Site], set[str]]] = [
    kill,
    hang,
    hang_and_return,
    restart,
    planned,
    planned_and_back,
    slots_move,
    node_added_and_removed,
    unowned,
    password,
    full,
]


@pytest.fixture(scope="module")
def whole() -> Iterator[Cluster]:
    with Cluster(replicas=3, full_coverage=False) as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["threads", "tasks"])
@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(each, id=each.__name__, marks=() if each.__name__ in SAMPLE else pytest.mark.matrix)
        for each in DISTURBANCES
    ],
)
def test_a_disturbance_affects_only_its_own_and_ends(
    whole: Cluster, disturb: Callable[[Site], set[str]], how: str
) -> None:
    site = Site(whole)
    try:
        with Load(whole.url, how, site.people) as load:
            load.run_for(0.3)
            disturbed = disturb(site)
            back_at = load.run_for(0) + BACK
            load.run_for(BACK + 0.7)
        names = {f"127.0.0.1:{node.port}" for node in (site.node, site.replica)}
        load.check(disturbed=disturbed, names=names, back_at=back_at)
        if disturb.__name__ in KEEP:
            with Limiter(whole.url, deadline=5) as limiter:
                for who in site.people:
                    used = 1_000_000 - limiter.peek(QUOTA, who, cost=0).outcomes[0].remaining
                    lost = sum([each.who == who and each.degraded for each in load.requests])
                    assert load.decided(who) <= used <= load.decided(who) + lost
    finally:
        whole.restore()
