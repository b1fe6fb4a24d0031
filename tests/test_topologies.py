"""The cluster and the Sentinels of other tests: redis-py works with them, and they recover."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError, TryAgainError
from redis.retry import Retry

from tests.cluster import SLOTS, Cluster
from tests.sentinels import Sentinels
from tests.servers import Server, ask, has_ended, wait_until


def pids(servers: list[Server]) -> list[int]:
    return [server.process.pid for server in servers if server.process is not None]


def outside(node: Server) -> list[str]:
    """The addresses beyond the loopback interface on which the node's process listens."""
    assert node.process is not None
    sockets = set()
    for descriptor in Path(f"/proc/{node.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the listing
            sockets.add(str(descriptor.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets and not local.startswith("0100007F:"):
                found.append(local)
    return found


def test_redis_py_works_on_a_cluster(each_cluster: Cluster) -> None:
    node = each_cluster.nodes[0]
    with redis.RedisCluster("127.0.0.1", node.port, socket_timeout=10) as client:
        for number in range(50):
            client.set(f"key {number}", number)
        assert [int(client.get(f"key {number}")) for number in range(50)] == list(range(50))
    assert all([int(node.command("DBSIZE")) > 5 for node in each_cluster.masters])
    each_cluster.flush()
    assert [node.command("DBSIZE") for node in each_cluster.masters] == ["0"] * 3


def test_slots_are_distributed_evenly(each_cluster: Cluster) -> None:
    first, second, third = each_cluster.masters
    edges = {0: first, 5460: first, 5461: second, 10_921: second, 10_922: third, SLOTS - 1: third}
    assert {slot: each_cluster.node_of(slot) for slot in edges} == edges
    assert each_cluster.url == f"redis+cluster://127.0.0.1:{first.port},127.0.0.1:{second.port},127.0.0.1:{third.port}"


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux lists the sockets of a process")
def test_nodes_listen_on_loopback_only(each_cluster: Cluster) -> None:
    assert [address for node in each_cluster.nodes for address in outside(node)] == []


def test_during_a_migration_the_old_owner_replies_ask_and_the_new_one_tryagain(moving_cluster: Cluster) -> None:
    old, new, _ = moving_cluster.masters
    here, moved = moving_cluster.key_in(7, "here"), moving_cluster.key_in(7, "moved")
    for key in (here, moved):
        ask(old, "SET", key, key)
    moving_cluster.begin_migration(7, new)
    moving_cluster.move_keys(7, new, moved)
    assert ask(old, "GET", here) == here
    with pytest.raises(AskError):
        ask(old, "GET", moved)
    with pytest.raises(MovedError):
        ask(new, "GET", moved)
    with redis.Redis(port=new.port, socket_timeout=10) as client:
        client.execute_command("ASKING")
        with pytest.raises(TryAgainError):
            client.mget(here, moved)
    moving_cluster.finish_migration(7, new)
    assert ask(new, "MGET", here, moved) == [here, moved]
    assert moving_cluster.node_of(7) is new
    with pytest.raises(MovedError):
        ask(old, "GET", here)
    moving_cluster.restore()
    assert moving_cluster.node_of(7) is old
    assert ask(old, "MGET", here, moved) == [None, None]


def test_a_client_follows_a_slot_that_moves(moving_cluster: Cluster) -> None:
    key = moving_cluster.key_in(0, "key")
    with redis.RedisCluster("127.0.0.1", moving_cluster.nodes[0].port, socket_timeout=10) as client:
        for expected, node in enumerate([*moving_cluster.masters, *moving_cluster.masters], 1):
            moving_cluster.move_slot(0, node)
            assert client.incr(key) == expected


def test_restore_ends_a_migration(moving_cluster: Cluster) -> None:
    moving_cluster.begin_migration(9, moving_cluster.masters[2])
    moving_cluster.restore()
    assert ask(moving_cluster.masters[0], "SET", moving_cluster.key_in(9, "key"), 1)


def test_a_killed_node_returns_with_its_slots(moving_cluster: Cluster) -> None:
    first, second, _ = moving_cluster.masters
    name = moving_cluster.id_of(first)
    first.kill()
    wait_until("the cluster to be down", down, moving_cluster, second)
    moving_cluster.restore()
    assert moving_cluster.id_of(first) == name
    assert moving_cluster.node_of(0) is first


def test_a_paused_node_replies_again_when_restored(moving_cluster: Cluster) -> None:
    first, *_ = moving_cluster.masters
    first.pause()
    assert moving_cluster.node_of(0) is first  # as the other nodes report
    moving_cluster.restore()
    assert ask(first, "SET", moving_cluster.key_in(0, "key"), 1)


def down(cluster: Cluster, node: Server) -> bool:
    try:
        ask(node, "GET", cluster.key_in(6000, "key"))
    except ClusterDownError:
        return True
    return False


def test_a_replica_is_promoted() -> None:
    with Cluster(replicas=1, full_coverage=False) as cluster:
        servers = pids(list(cluster.nodes))
        (replica,) = cluster.replicas
        cluster.masters[0].kill()
        wait_until("the replica to take over", lambda: cluster.node_of(0) is replica)
        cluster.restore()
        assert cluster.node_of(0) is cluster.masters[0]
    assert all(map(has_ended, servers))


def client_of(sentinels: Sentinels) -> redis.Redis:
    hosts = [("127.0.0.1", sentinel.port) for sentinel in sentinels.sentinels]
    found = redis.Sentinel(hosts, socket_timeout=5)
    return found.master_for(sentinels.service, socket_timeout=5, retry=Retry(NoBackoff(), 0))


def test_sentinels_know_the_master(each_sentinels: Sentinels) -> None:
    with client_of(each_sentinels) as client:
        assert client.set("key", 1)
    assert each_sentinels.master().command("GET key") == "1"
    ports = [sentinel.port for sentinel in each_sentinels.sentinels]
    assert each_sentinels.url == "redis+sentinel://{}/front/0".format(",".join(f"127.0.0.1:{port}" for port in ports))


def test_sentinels_fail_over_on_request(each_sentinels: Sentinels) -> None:
    old = each_sentinels.master()
    with client_of(each_sentinels) as client:
        client.set("key", 1)
        assert client.wait(1, 5000) == 1
        new = each_sentinels.failover()
        assert new is each_sentinels.master() is not old
        assert client.incr("key") == 2
    assert new.command("GET key") == "2"
    with pytest.raises(ReadOnlyError):
        ask(old, "SET", "key", 3)


def test_sentinels_promote_after_a_crash(each_sentinels: Sentinels) -> None:
    old = each_sentinels.master()
    with client_of(each_sentinels) as client:
        client.set("key", 1)
        assert client.wait(1, 5000) == 1
        new = each_sentinels.crash()
        assert new is not old
        assert client.incr("key") == 2
    each_sentinels.revive()
    assert ask(old, "GET", "key") == "2"


def test_sentinels_leave_nothing_behind() -> None:
    with Sentinels(replicas=2) as sentinels:
        servers = pids([*sentinels.servers, *sentinels.sentinels])
        assert len(servers) == 6
        sentinels.servers[2].kill()
        sentinels.sentinels[2].pause()
    assert all(map(has_ended, servers))
