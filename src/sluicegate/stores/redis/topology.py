"""The topologies: the server of a key is the one in the URL, the master that Sentinels name, or a node of a cluster.

Look-ups on servers are steps for a sync or an async driver. The clock is read only for the age of a cluster's map.

A node that did not answer is a suspect. Requests for other nodes do not notice it: they use the map that they have. A
request for a suspect loads the map first, and asks the suspects for it last.
"""

from __future__ import annotations

from binascii import crc_hqx
from math import inf
from typing import Any, Final, cast

from sluicegate.clock import monotonic
from sluicegate.errors import StoreError
from sluicegate.observe.status import TopologyName
from sluicegate.stores.redis.commands import Command, pack
from sluicegate.stores.redis.encoding import packed_digest
from sluicegate.stores.redis.failures import said
from sluicegate.stores.redis.patience import PART
from sluicegate.stores.redis.steps import MALFORMED, NO_SENSE, Address, NoReplyError, Send, Steps, address_from
from sluicegate.stores.redis.url import Servers

SLOTS: Final = 16384  # of every Redis Cluster
_FRESH: Final = 0.1  # seconds before the map of a cluster may be loaded again
_ADVICE: Final = "check the hosts and the passwords in the URL"
_UNKNOWN: Final = (
    "the Sentinels do not know this service name: compare the name in the URL with `redis-cli -p 26379 SENTINEL "
    "MASTERS`, and check that the hosts in the URL are the Sentinels of this service"
)


def slot_of(identity: str) -> int:
    """Return the cluster's slot of an identity's keys: the digest is their hash tag."""
    return crc_hqx(packed_digest(identity), 0) % SLOTS


class Topology:
    """The addresses of slots: here those of one server at a fixed address. What is written here is for one server at a
    time.
    """

    name: TopologyName = "single"
    split = False  # whether keys of different slots may be on different servers
    address: Address | None = None  # the server of all slots, if there is one and no look-up is needed

    def __init__(self, servers: Servers) -> None:
        self.address = servers.seeds[0]

    def known(self, slot: int) -> Address | None:
        """Return the address of a slot, if no look-up is needed."""
        return self.address

    def find(self, slot: int) -> Steps[Address]:
        """Return the address of a slot."""
        return cast(Address, self.address)
        yield  # never reached: it makes this a generator, as the others are

    def lost(self, address: Address) -> bool:
        """Note that an address cannot be reached or refuses writes. True if a new look-up may find another server."""
        return False

    def answered(self, address: Address) -> None:
        """Note that an address has answered a command. Only a cluster has another server to prefer."""

    def moved(self, slot: int, address: Address) -> None:
        """Note that another node has a slot. Raises StoreError if the URL is not the URL of a cluster."""
        raise StoreError(str(self.address), "it is a node of a cluster; use redis+cluster://")

    def masters(self) -> Steps[tuple[Address, ...]]:
        """Return every server that is not a replica."""
        return ((yield from self.find(0)),)


class Sentinel(Topology):
    """The master that Sentinels name. `address` is None until a Sentinel has named it."""

    name = "sentinel"

    def __init__(self, servers: Servers) -> None:
        self._seeds = list(servers.seeds)
        self._names = ", ".join(map(str, servers.seeds))
        self._service = servers.service
        self._command = Command(pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", servers.service))

    def serving(self) -> str:
        """Return the master as errors show it; "" while no Sentinel has named it."""
        return "" if self.address is None else str(self.address)

    def find(self, slot: int) -> Steps[Address]:
        """Return the master. If it is unknown, query the Sentinels, first the one that replied last time."""
        if self.address is not None:
            return self.address
        answers: list[str] = []
        unknown = False  # whether a Sentinel has replied that it does not know the service
        for seed, part in _parts(self._seeds):
            reply = yield Send(seed, self._command, part, sentinel=True)
            if isinstance(reply, list):
                try:
                    host, port = reply
                    self.address = address_from(host.decode(), port)
                except MALFORMED:
                    answers.append(f"{seed}: {NO_SENSE}")
                    continue
                self._seeds.sort(key=seed.__ne__)
                return self.address
            answers.append(f"{seed}: {said(reply)}")
            unknown |= reply is None
        first, *others = self._seeds
        self._seeds = [*others, first]  # the one that is asked first has the most time
        problem = f"no Sentinel names a master of {self._service!r} ({'; '.join(answers)})"
        raise StoreError(self._names, problem, advice=_UNKNOWN if unknown else _ADVICE)

    def lost(self, address: Address) -> bool:
        """Forget the lost master, and return True: another server may be the master by now."""
        if self.address == address:  # else another request has found a new one already
            self.address = None
        return True

    def moved(self, slot: int, address: Address) -> None:
        """Raise StoreError, because Sentinels do not manage clusters."""
        raise StoreError(str(address), "the master is a node of a cluster; use redis+cluster://")


class Cluster(Topology):
    """The nodes of a cluster, by slot."""

    name = "cluster"
    split = True

    def __init__(self, servers: Servers) -> None:
        self._seeds = servers.seeds
        self._slots: list[Address | None] = []
        self._nodes: tuple[Address, ...] = ()  # those that serve a slot
        self._suspects: set[Address] = set()
        self._asked_at = -inf  # when a request began to load the map, or when the map came: the later of the two
        self._loaded_at = -inf  # when the map came
        self._stale = True  # slots may have moved: one request loads the map, the others use the one that is here
        self._node_lost = False  # since the last load began: a request for a suspect loads the map at once

    def parts(self, *identities: str) -> tuple[str, ...]:
        """Return the nodes that keep the keys of these identities, or all nodes, according to the last map. A node is
        shown as its address, as in errors.
        """
        if not identities or not self._slots:
            return tuple(map(str, self._nodes))
        found = [self._slots[slot_of(identity)] for identity in identities]
        return tuple([str(address) for address in found if address is not None])

    def known(self, slot: int) -> Address | None:
        """Return the node of a slot, unless it is a suspect, or unless this request is the one that loads a new map."""
        if self._stale and (not self._slots or monotonic() - self._asked_at > _FRESH):
            return None
        address = self._slots[slot]
        return None if address in self._suspects else address

    def find(self, slot: int) -> Steps[Address]:
        """Return a slot's node. The map is loaded first if there is none, it is stale or the node is a suspect."""
        address = self.known(slot)
        if address is not None:
            return address
        if not self._slots or self._node_lost or monotonic() - self._asked_at > _FRESH:
            answers = yield from self._load_map()
            if not self._slots:
                raise self._no_map(answers)
        address = self._slots[slot]
        if address is None:
            problem = "no node of the cluster serves it"
            raise StoreError(f"slot {slot}", problem, concerns="plan", advice=_CHECK)
        return address

    def lost(self, address: Address) -> bool:
        """Suspect the node, and return True: a replica may have replaced it."""
        self._suspects.add(address)
        self._node_lost = True
        return True

    def answered(self, address: Address) -> None:
        """Note that the node has replied, so it is no longer a suspect."""
        self._suspects.discard(address)

    def moved(self, slot: int, address: Address) -> None:
        """Set the node of this slot. Other slots may have moved too."""
        self._slots[slot] = address
        self._stale = True

    def masters(self) -> Steps[tuple[Address, ...]]:
        """Return all nodes that serve a slot, by a map that is loaded now."""
        self._stale = True
        answers = yield from self._load_map()
        if self._stale:
            raise self._no_map(answers)
        return self._nodes

    def _load_map(self) -> Steps[list[str]]:
        """Load the map from the first node that has one, else keep the old map. Return the answers that were no map."""
        self._asked_at = asked = monotonic()
        self._node_lost = False
        answers: list[str] = []
        nodes = sorted(dict.fromkeys([*self._nodes, *self._seeds]), key=self._suspects.__contains__)
        for address, part in _parts(nodes):
            reply = yield Send(address, _MAP, part)
            if isinstance(reply, NoReplyError) and reply.concerns == "server":
                self._suspects.add(address)
            if self._loaded_at > asked:  # another request has, and reading 16,384 slots again would take its time
                break
            if isinstance(reply, list) and reply:
                try:
                    self._slots = _slots_of(reply, address)
                except MALFORMED:
                    answers.append(f"{address}: {NO_SENSE}")
                    continue
                self._nodes = tuple(dict.fromkeys(filter(None, self._slots)))
                self._suspects &= {*self._nodes, *self._seeds}
                self._stale = False
                self._asked_at = self._loaded_at = monotonic()
                break
            answers.append(f"{address}: {said(reply)}")
        return answers

    def _no_map(self, answers: list[str]) -> StoreError:
        problem = f"no node reports the slots of the cluster ({'; '.join(answers)})"
        return StoreError(", ".join(map(str, self._seeds)), problem, advice=_ADVICE)


_MAP: Final = Command(pack("CLUSTER", "SLOTS"))  # not SHARDS, which servers before 7.0 do not have
_CHECK: Final = "check the cluster with `redis-cli --cluster check`"


def _parts(servers: list[Address]) -> list[tuple[Address, float]]:
    """Return the servers that are asked in turn until one answers, each with its part of the patience that is left."""
    return [*[(address, PART) for address in servers[:-1]], (servers[-1], 1.0)]


def _slots_of(reply: list[Any], asked: Address) -> list[Address | None]:
    """Return the master of every slot. A node without a host in the reply is the node that replied. Raises one of
    MALFORMED for a reply that is no map.
    """
    slots: list[Address | None] = [None] * SLOTS
    for first, last, (name, port, *_), *_ in reply:
        if not 0 <= first <= last < SLOTS:
            raise ValueError(f"{first} to {last} are no slots")
        host = name.decode() if name else asked.host
        slots[first : last + 1] = [address_from(host, port)] * (last + 1 - first)
    return slots


def topology(servers: Servers) -> Topology:
    """Return the topology that a URL names."""
    kinds = {"sentinel": Sentinel, "cluster": Cluster}
    return kinds.get(servers.kind, Topology)(servers)
