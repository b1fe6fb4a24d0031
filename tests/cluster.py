"""A real cluster for the tests: servers of tests/servers.py with other flags and a few commands.

Every method waits until the nodes agree on the change. A node listens on 127.0.0.1 only, on its port and on that port +
10000, and ends when the process that started it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Self

import redis
from redis.crc import key_slot

from tests.proxies import Wire
from tests.servers import HOST, PATIENCE, Server, ask, is_master, valkey_server, wait_until

SLOTS = 16384


class Cluster:
    """Masters that share the slots evenly, each on a port of its own, and a replica of the first, of the second, and so
    on.

    A killed node stays a member of the cluster: call its `start()`, or `restore()` for the whole cluster. `move_slot`
    moves a slot at once; `begin_migration`, `move_keys` and `finish_migration` move it in steps.

    If it is `wired`, all connections to a node, of clients and of other nodes, go through proxies, whose ports the node
    announces. Then `cut_off` separates a node from the others, from clients or from both, and `heal` ends that.
    """

    def __init__(
        self,
        make: Callable[..., Server] = valkey_server,
        *,
        masters: int = 3,
        replicas: int = 0,
        full_coverage: bool = True,
        node_timeout: float = 1.0,
        wired: bool = False,
    ) -> None:
        flags = ["--cluster-enabled", "yes", "--cluster-announce-ip", HOST]
        flags += ["--cluster-node-timeout", str(int(node_timeout * 1000)), "--cluster-replica-validity-factor", "0"]
        flags += ["--cluster-require-full-coverage", "yes" if full_coverage else "no"]
        self._make = partial(make, *flags)
        self._full_coverage = full_coverage
        self.masters = tuple(make(*flags) for _ in range(masters))
        self.replicas = tuple(make(*flags) for _ in range(replicas))
        self.nodes = self.masters + self.replicas
        self._wires = {node: _Wires(node, number) for number, node in enumerate(self.nodes, 11)} if wired else {}
        self._touched: set[int] = set()  # slots that began to move
        self._running = ExitStack()

    def __repr__(self) -> str:
        return f"<cluster of {', '.join(map(repr, self.nodes))}>"

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(map(self.name_of, self.nodes))}"

    def name_of(self, node: Server) -> str:
        """Return the address of a node for clients."""
        return f"{HOST}:{self.port_of(node)}"

    def port_of(self, node: Server) -> int:
        """Return the port that a node announces."""
        return self._wires[node].client.port if node in self._wires else node.port

    def start(self) -> Self:
        """Start every node. Returns when each knows all others and serves its slots: after about two seconds."""
        with ExitStack() as running:
            for wires in self._wires.values():
                running.enter_context(wires.client)
                running.enter_context(wires.bus)
            for node in self.nodes:
                running.enter_context(node)
            for number, node in enumerate(self.masters):
                ask(node, "CLUSTER", "ADDSLOTS", *self._home_slots(number))
                ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for node in self.nodes[1:]:
                bus = [self._wires[node].bus.port] if node in self._wires else []
                ask(self.nodes[0], "CLUSTER", "MEET", HOST, self.port_of(node), *bus)
            for number, node in enumerate(self.replicas):
                master = self.id_of(self.masters[number % len(self.masters)])
                wait_until(f"{node} to follow", ask, node, "CLUSTER", "REPLICATE", master)
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
        """Wait until every node runs, knows all the others, reports the cluster state ok, and all report one map."""
        wait_until("the cluster to be well", lambda: all([self._is_well(node) for node in self.nodes]))
        wait_until("the nodes to report one map", lambda: len({self._map_of(node) for node in self.nodes}) == 1)

    def slot_of(self, key: str) -> int:
        return key_slot(key.encode())

    def key_in(self, slot: int, name: str) -> str:
        """Return a key of this slot, with `name` in it."""
        tags = (f"{{{number}}}:{name}" for number in range(100 * SLOTS))
        return next(key for key in tags if self.slot_of(key) == slot)

    def node_of(self, slot: int, *, seen_by: Server | None = None) -> Server:
        """Return the node that serves the slot now, by the map of one node: `seen_by`, or any node that runs."""
        ports = {self.port_of(node): node for node in self.nodes}
        for first, last, master, *_ in ask(seen_by or self._some_node(), "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return ports[master[1]]
        raise LookupError(f"no node serves slot {slot}")

    def move_slot(self, slot: int, to: Server) -> None:
        """Move the slot with its keys. Does nothing if it is there already."""
        if self.node_of(slot) is not to:
            self.begin_migration(slot, to)
            self.finish_migration(slot, to)

    def begin_migration(self, slot: int, to: Server) -> None:
        """Begin to move a slot: the old owner serves the keys that it still has, and replies ASK for all others."""
        self._touched.add(slot)
        owner = self.node_of(slot)
        ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(owner))
        ask(owner, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(to))

    def move_keys(self, slot: int, to: Server, *keys: str) -> None:
        """Move these keys, or all keys of the slot. While only a part of a script's keys has moved, the script gets
        TRYAGAIN.
        """
        owner = self.node_of(slot)
        if keys := keys or tuple(ask(owner, "CLUSTER", "GETKEYSINSLOT", slot, 1_000_000)):
            ask(owner, "MIGRATE", HOST, to.port, "", 0, int(PATIENCE * 1000), "KEYS", *keys)

    def finish_migration(self, slot: int, to: Server) -> None:
        """Move the remaining keys, and announce the new owner to every master."""
        self.move_keys(slot, to)
        owner = self.node_of(slot)
        for node in dict.fromkeys([to, owner, *self._acting_masters()]):
            ask(node, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(to))
        wait_until(
            f"every node to know where slot {slot} is",
            lambda: all([self.node_of(slot, seen_by=node) is to for node in self.nodes if node.up]),
        )

    def add(self) -> Server:
        """Add a master without slots. It must be removed again before `restore`."""
        node = self._make().start()
        with suppress(redis.ResponseError):  # unknown to 6.2; else it becomes a replica when it loses its last slot
            ask(node, "CONFIG", "SET", "cluster-allow-replica-migration", "no")
        ask(node, "CLUSTER", "MEET", HOST, self.nodes[0].port)
        self.nodes += (node,)
        self.wait_ready()
        return node

    def remove(self, node: Server) -> None:
        """Remove a node that serves no slot, and stop it."""
        name = self.id_of(node)
        self.nodes = tuple(each for each in self.nodes if each is not node)
        node.stop()
        for each in self.nodes:
            ask(each, "CLUSTER", "FORGET", name)
        self.wait_ready()

    def fail_over_to(self, replica: Server) -> None:
        """Make a replica the master, by hand. The masters of 6.2 grant nothing for two node timeouts after an election
        about the same master, so it is requested again.
        """
        for _ in range(10):
            with suppress(redis.ResponseError):  # it is one already, or its master is not connected yet
                ask(replica, "CLUSTER", "FAILOVER")
            with suppress(TimeoutError):
                wait_until(f"{replica} to be a master", is_master, replica, patience=1.5)
                return
        raise TimeoutError(f"{replica} did not become a master")

    def cut_off(self, node: Server, *, clients: bool = True, nodes: bool = True) -> None:
        """Let nothing pass between a node and the clients, and between it and the other nodes. No connection is closed.
        Until `heal`.
        """
        one, others = self._wires[node], [wires for each, wires in self._wires.items() if each is not node]
        if clients:
            one.client.partition(HOST)
        if nodes:
            sources = [each.source for each in self.nodes if each is not node]
            for wire in (one.client, one.bus):
                wire.partition(*sources)
            for wire in [wire for each in others for wire in (each.client, each.bus)]:
                wire.partition(node.source)

    def heal(self) -> None:
        """End what `cut_off` did."""
        for wires in self._wires.values():
            wires.client.heal()
            wires.bus.heal()

    def flush(self) -> None:
        """Empty every master."""
        for node in self._acting_masters():
            node.flush()

    def restore(self) -> None:
        """Restore the state after the start: every node runs in its first role, with its first slots, empty."""
        self.heal()
        for node in self.nodes:
            if node.process is None:
                node.start()
            node.resume()
            ask(node, "CONFIG", "SET", "cluster-require-full-coverage", "yes" if self._full_coverage else "no")
        self.wait_ready()
        for node in self.masters:
            if not is_master(node):
                self.fail_over_to(node)
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
        """Return the name of a node in the cluster."""
        return str(ask(node, "CLUSTER", "MYID"))

    def _home_slots(self, number: int) -> range:
        count = len(self.masters)
        return range(SLOTS * number // count, SLOTS * (number + 1) // count)

    def _map_of(self, node: Server) -> tuple[tuple[int, int, int], ...]:
        """Return the first slot, the last slot and the port of each range, as this node reports them."""
        return tuple(sorted([(first, last, master[1]) for first, last, master, *_ in ask(node, "CLUSTER", "SLOTS")]))

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


class _Wires:
    """The proxies of a node."""

    def __init__(self, node: Server, number: int) -> None:
        self.client, self.bus = Wire(node.port), Wire(node.port + 10_000)
        node.comes_from(f"127.0.0.{number}")
        node.arguments += ("--cluster-announce-port", str(self.client.port))
        node.arguments += ("--cluster-announce-bus-port", str(self.bus.port))
