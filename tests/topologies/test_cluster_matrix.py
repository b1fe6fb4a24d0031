"""A cluster of three masters and three replicas under load, with every disturbance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
import redis

from sluicegate import AsyncLimiter, Limiter
from sluicegate.identity import identity_text
from sluicegate.stores.redis.topology import slot_of
from tests.cluster import Cluster
from tests.servers import MAKERS, Server, ask, is_master, wait_until
from tests.topologies.load import DEADLINE, QUOTA, RUNS, Load, check_counts, check_lines, retried, run_on

USER = "limiter"


class Site:
    """The cluster, the identities on its nodes, and the node that is disturbed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.url = cluster.url
        self.node, self.replica = cluster.masters[0], cluster.replicas[0]
        self.other = cluster.masters[1]
        people = [uuid4().hex for _ in range(24)]
        self.people = {who: cluster.node_of(self.slot(who)) for who in people}
        self.theirs = {who for who, node in self.people.items() if node is self.node}
        self.scarce = {*sorted(self.theirs)[:2], *sorted(set(people) - self.theirs)[:2]}

    def with_user(self) -> None:
        """Let the requests come from a user with a password."""
        for node in self.cluster.nodes:
            ask(node, "ACL", "SETUSER", USER, "reset", "on", ">one", "~*", "&*", "+@all")
        self.url = self.url.replace("://", f"://{USER}:one@")

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
    site.cluster.fail_over_to(site.replica)
    site.wait_served_by(site.replica)
    return site.theirs


def planned_and_back(site: Site) -> set[str]:
    planned(site)
    wait_until("the old master to follow", lambda: ask(site.node, "ROLE")[3] == "connected")
    site.cluster.fail_over_to(site.node)
    site.wait_served_by(site.node)
    return site.theirs


def cut_off(site: Site) -> set[str]:
    """From the clients and from the other nodes."""
    site.cluster.cut_off(site.node)
    site.wait_served_by(site.replica)
    return site.theirs


def cut_off_and_back(site: Site) -> set[str]:
    """As a replica."""
    cut_off(site)
    site.cluster.heal()
    wait_until("the old master to follow", lambda: not is_master(site.node))
    return site.theirs


def cut_off_from_clients(site: Site) -> set[str]:
    """The other nodes reach it, so it stays the master."""
    site.cluster.cut_off(site.node, nodes=False)
    Event().wait(1.5)
    site.cluster.heal()
    return site.theirs


def cut_off_from_nodes(site: Site) -> set[str]:
    """The clients reach it. It serves them until it knows that it is alone, and says so from then on."""
    site.cluster.cut_off(site.node, clients=False)
    site.wait_served_by(site.replica)
    wait_until("it to know", lambda: ask(site.node, "CLUSTER INFO")["cluster_state"] == "fail")
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
    _demand_password([site.node])
    return site.theirs


def passwords(site: Site) -> set[str]:
    """All nodes do."""
    _demand_password(site.cluster.nodes)
    return set(site.people)


def password_changed(site: Site) -> set[str]:
    """On a node, the user of the URL gets another password."""
    _change_password([site.node])
    return site.theirs


def passwords_changed(site: Site) -> set[str]:
    """On all nodes."""
    _change_password(site.cluster.nodes)
    return set(site.people)


def _demand_password(nodes: Iterable[Server]) -> None:
    """For a while. The nodes know it too, so they stay together."""
    with ExitStack() as admins:
        clients = []
        for node in nodes:
            ask(node, "CONFIG", "SET", "masterauth", "secret")
            ask(node, "CONFIG", "SET", "requirepass", "secret")
            admin = redis.Redis(unix_socket_path=node.socket, password="secret")
            clients.append(admins.enter_context(closing(admin)))
        for admin in clients:
            admin.execute_command("CLIENT KILL TYPE normal SKIPME yes")
        Event().wait(0.8)
        for admin in clients:
            admin.config_set("requirepass", "")


def _change_password(nodes: Iterable[Server]) -> None:
    """For a while."""
    for node in nodes:
        ask(node, "ACL", "SETUSER", USER, "resetpass", ">two")
    for node in nodes:
        ask(node, "CLIENT", "KILL", "USER", USER)
    Event().wait(0.8)
    for node in nodes:
        ask(node, "ACL", "SETUSER", USER, "resetpass", ">one")


def full(site: Site) -> set[str]:
    ask(site.node, "CONFIG", "SET", "maxmemory", "1mb")
    Event().wait(0.8)
    ask(site.node, "CONFIG", "SET", "maxmemory", "0")
    return site.theirs


PARTITIONS = {cut_off, cut_off_and_back, cut_off_from_clients, cut_off_from_nodes}
WITH_USER = {password_changed, passwords_changed}
EVERYWHERE = {passwords, passwords_changed}
KEEP = {  # no data is lost
    slots_move,
    node_added_and_removed,
    unowned,
    hang_and_return,
    cut_off_from_clients,
    password,
    password_changed,
    full,
    *EVERYWHERE,
}
SAMPLE = {hang}  # what a run without --matrix does
DISTURBANCES: list[Callable[[Site], set[str]]] = [
    kill,
    hang,
    hang_and_return,
    restart,
    planned,
    planned_and_back,
    cut_off,
    cut_off_and_back,
    cut_off_from_clients,
    cut_off_from_nodes,
    slots_move,
    node_added_and_removed,
    unowned,
    password,
    passwords,
    password_changed,
    passwords_changed,
    full,
]


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three masters and three replicas, of one kind of server, wired or not."""
    kind, wired = request.param
    with Cluster(MAKERS[kind], replicas=3, full_coverage=False, wired=wired) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def seven(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Seven masters of one kind of server."""
    with Cluster(MAKERS[request.param], masters=7, full_coverage=False) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("whole", "disturb", "how"),
    [
        pytest.param(
            (kind, disturb in PARTITIONS),
            disturb,
            how,
            id=f"{kind}-{disturb.__name__}-{how}",
            marks=() if kind == "valkey" and disturb in SAMPLE else pytest.mark.matrix,
        )
        for kind, how in RUNS
        for disturb in DISTURBANCES
    ],
    indirect=["whole"],
)
@retried
def test_a_disturbance_affects_only_its_own_and_ends(
    whole: Cluster, disturb: Callable[[Site], set[str]], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate")
    site = Site(whole)
    try:
        if disturb in WITH_USER:
            site.with_user()
        with ExitStack() as running:
            loads = [
                running.enter_context(Load(site.url, each, site.people, scarce=site.scarce)) for each in how.split("+")
            ]
            loads[0].run_for(0.3)
            disturbed = disturb(site)
            back_at = run_on(loads, disturbed or site.theirs)
        nodes = whole.masters if disturb in EVERYWHERE else (site.node, site.replica)
        names = {whole.name_of(node) for node in nodes}
        for load in loads:
            load.check(disturbed=disturbed, names=names, back_at=back_at)
        check_lines(loads, caplog.messages, names)
        if disturb in KEEP:
            with Limiter(whole.url, deadline=5) as limiter:
                check_counts(loads, partial(_remaining, limiter), site.people)
    finally:
        whole.restore()


@pytest.mark.parametrize(
    ("seven", "how"),
    [pytest.param(kind, how, marks=pytest.mark.matrix) for kind, how in RUNS],
    indirect=["seven"],
)
@retried
def test_three_hung_nodes_of_seven_do_not_affect_the_others(
    seven: Cluster, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate")
    people = {who: seven.node_of(Site.slot(who)) for who in [uuid4().hex for _ in range(42)]}
    hung = seven.masters[:3]  # the first ones in the URL
    theirs = {who for who, node in people.items() if node in hung}
    scarce = {*sorted(theirs)[:2], *sorted(set(people) - theirs)[:2]}
    try:
        with ExitStack() as running:
            loads = [running.enter_context(Load(seven.url, each, people, scarce=scarce)) for each in how.split("+")]
            loads[0].run_for(0.3)
            for node in hung:
                node.pause()
            loads[0].run_for(2.5)
            for node in hung:
                node.resume()
            seven.wait_ready()
            back_at = run_on(loads, theirs)
        names = {seven.name_of(node) for node in hung}
        for load in loads:
            load.check(disturbed=theirs, names=names, back_at=back_at)
            assert {change.store for change in load.changes} == names
        check_lines(loads, caplog.messages, names)
        with Limiter(seven.url, deadline=5) as limiter:
            check_counts(loads, partial(_remaining, limiter), people)
    finally:
        seven.restore()


@pytest.mark.matrix
@pytest.mark.parametrize("ours", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("seven", ["valkey"], indirect=True)
def test_three_nodes_of_seven_that_hang_before_the_first_request(seven: Cluster, ours: Any) -> None:
    """They are the first ones in the URL, so the first request asks them for the map. No later request is affected."""
    people = [uuid4().hex for _ in range(42)]
    theirs = {who for who in people if seven.node_of(Site.slot(who)) in seven.masters[:3]}
    try:
        for node in seven.masters[:3]:
            node.pause()
        with asyncio.Runner() as runner:
            limiter = ours(seven.url, deadline=4 * DEADLINE)

            def is_decided(who: str) -> bool:
                decision = limiter.hit(QUOTA, who)
                return not (decision if ours is Limiter else runner.run(decision)).degraded

            others = sorted(set(people) - theirs)
            wait_until("the map to be known", is_decided, others[0])
            assert all([is_decided(who) for who in 5 * others])
            if ours is AsyncLimiter:
                runner.run(limiter.close())
            else:
                limiter.close()
    finally:
        seven.restore()


def _remaining(limiter: Limiter, quota: str, who: str) -> int:
    return limiter.peek(quota, who, cost=0).outcomes[0].remaining
