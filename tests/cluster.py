"""A real cluster for the tests: servers of tests/servers.py with other flags and a few commands.

What the nodes agree on among themselves is waited for, never assumed. They listen on 127.0.0.1 alone, each on its port
and on that port + 10000, and end with whoever started them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from redis.crc import key_slot

from tests.servers import HOST, PATIENCE, Server, ask, is_master, valkey_server, wait_until

SLOTS = 16384


class Cluster:
    """Masters that share the slots evenly, each on a port of its own, and replicas of the first master.

    A node that was killed keeps its place: `start()` it, or `restore()` the whole. Slots move by `move_slot`, or step
    by step: `begin_migration`, `move_keys` and `finish_migration`.
    """

    def __init__(
        self,
        make: Callable[..., Server] = valkey_server,
        *,
        masters: int = 3,
        replicas: int = 0,
        full_coverage: bool = True,
        node_timeout: float = 1.0,
    ) -> None:
        flags = ["--cluster-enabled", "yes", "--cluster-announce-ip", HOST, "--repl-diskless-sync-delay", "0"]
        flags += ["--cluster-node-timeout", str(int(node_timeout * 1000)), "--cluster-replica-validity-factor", "0"]
        flags += ["--cluster-require-full-coverage", "yes" if full_coverage else "no"]
        self.masters = tuple(make(*flags) for _ in range(masters))
        self.replicas = tuple(make(*flags) for _ in range(replicas))
        self.nodes = self.masters + self.replicas
        self._touched: set[int] = set()  # slots that began to move
        self._running = ExitStack()

    def __repr__(self) -> str:
        return f"<cluster of {', '.join(map(repr, self.nodes))}>"

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in self.nodes)}"

    def start(self) -> Self:
        """Start every node, and return once each knows all and answers for its slots: after about two seconds."""
        with ExitStack() as running:
            for node in self.nodes:
                running.enter_context(node)
            for number, node in enumerate(self.masters):
                ask(node, "CLUSTER", "ADDSLOTS", *self._home_slots(number))
                ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for node in self.nodes[1:]:
                ask(self.nodes[0], "CLUSTER", "MEET", HOST, node.port)
            for node in self.replicas:
                first = self.id_of(self.masters[0])
                wait_until(f"{node} to follow", ask, node, "CLUSTER", "REPLICATE", first)
            self.wait_ready()
            self._running = running.pop_all()
        return self

    def stop(self) -> None:
        self._running.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def wait_ready(self) -> None:
        """Wait until every node is up, knows all the others, and says that the cluster is well."""
        wait_until("the cluster to be well", lambda: all([self._is_well(node) for node in self.nodes]))

    def slot_of(self, key: str) -> int:
        return key_slot(key.encode())

    def key_in(self, slot: int, name: str) -> str:
        """A key of this slot, with `name` in it."""
        tags = (f"{{{number}}}:{name}" for number in range(100 * SLOTS))
        return next(key for key in tags if self.slot_of(key) == slot)

    def node_of(self, slot: int, *, told_by: Server | None = None) -> Server:
        """The node that serves the slot now, as one node tells it: any that runs, or this one."""
        ports = {node.port: node for node in self.nodes}
        for first, last, master, *_ in ask(told_by or self._some_node(), "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return ports[master[1]]
        raise LookupError(f"nobody serves slot {slot}")

    def move_slot(self, slot: int, to: Server) -> None:
        """Move the slot with its keys; nothing when it is there already."""
        if self.node_of(slot) is not to:
            self.begin_migration(slot, to)
            self.finish_migration(slot, to)

    def begin_migration(self, slot: int, to: Server) -> None:
        """Half-way: the old owner answers for the keys that it has, and says ASK for all others."""
        self._touched.add(slot)
        owner = self.node_of(slot)
        ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(owner))
        ask(owner, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(to))

    def move_keys(self, slot: int, to: Server, *keys: str) -> None:
        """Move these keys, or all of the slot. With half of a script's keys moved, the script gets TRYAGAIN."""
        owner = self.node_of(slot)
        if keys := keys or tuple(ask(owner, "CLUSTER", "GETKEYSINSLOT", slot, 1_000_000)):
            ask(owner, "MIGRATE", HOST, to.port, "", 0, int(PATIENCE * 1000), "KEYS", *keys)

    def finish_migration(self, slot: int, to: Server) -> None:
        """Move the keys that are left and tell every master who owns the slot now."""
        self.move_keys(slot, to)
        owner = self.node_of(slot)
        for node in dict.fromkeys([to, owner, *self._acting_masters()]):
            ask(node, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(to))
        wait_until(
            f"every node to know where slot {slot} is",
            lambda: all([self.node_of(slot, told_by=node) is to for node in self.nodes if node.up]),
        )

    def flush(self) -> None:
        """Empty every master."""
        for node in self._acting_masters():
            node.flush()

    def restore(self) -> None:
        """As after the start: every node runs and has its first role, every slot is at home, nothing is stored."""
        for node in self.nodes:
            if node.process is None:
                node.start()
            node.resume()
        self.wait_ready()
        for node in self.masters:
            if not is_master(node):
                ask(node, "CLUSTER", "FAILOVER")
                wait_until(f"{node} to be a master again", is_master, node)
        wait_until("one master for each slot", lambda: set(self._acting_masters()) == set(self.masters))
        self.wait_ready()
        self.flush()
        for slot in self._touched:
            for node in self.masters:
                ask(node, "CLUSTER", "SETSLOT", slot, "STABLE")
            home = next(number for number in range(len(self.masters)) if slot in self._home_slots(number))
            self.move_slot(slot, self.masters[home])
        self._touched.clear()

    def id_of(self, node: Server) -> str:
        """The name of a node in the cluster."""
        return str(ask(node, "CLUSTER", "MYID"))

    def _home_slots(self, number: int) -> range:
        count = len(self.masters)
        return range(SLOTS * number // count, SLOTS * (number + 1) // count)

    def _some_node(self) -> Server:
        return next(node for node in self.nodes if node.up)

    def _acting_masters(self) -> list[Server]:
        return [node for node in self.nodes if node.up and is_master(node)]

    def _is_well(self, node: Server) -> bool:
        info = ask(node, "CLUSTER INFO")
        known = len(self.nodes)
        return (
            info["cluster_state"] == "ok"
            and int(info["cluster_known_nodes"]) == known
            and int(info["cluster_slots_ok"]) == SLOTS
            and (is_master(node) or ask(node, "ROLE")[3] == "connected")
        )
