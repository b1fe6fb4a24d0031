"""Which server answers for a key: the one in the URL, the master that Sentinels name, or a node of a cluster.

What has to be asked for that is asked in steps, which either colour takes. This module reads the clock for one thing
only, the age of a cluster's map; it does no I/O and knows no plan.
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import Any, Final, Protocol

from sluicegate.clock import monotonic
from sluicegate.errors import StoreError
from sluicegate.stores.redis.asks import Address, Ask, LinkError, Steps
from sluicegate.stores.redis.commands import Command, pack
from sluicegate.stores.redis.servers import Servers
from sluicegate.stores.redis.wire import packed_digest

SLOTS: Final = 16384
_FRESH: Final = 0.1  # seconds for which a map of the cluster is not asked for again


def slot_of(identity: str) -> int:
    """The cluster's slot of an identity's keys: the digest is their hash tag."""
    return crc_hqx(packed_digest(identity), 0) % SLOTS


class Topology(Protocol):
    """Which address serves a slot."""

    split: bool  # whether keys of different slots may be on different servers

    def known(self, slot: int) -> Address | None:
        """Where to ask at once, if that is known."""
        ...

    def find(self, slot: int) -> Steps[Address]: ...

    def lost(self, address: Address) -> bool:
        """Note that it cannot be reached or does not take writes; True if looking again may find another."""
        ...

    def moved(self, slot: int, address: Address) -> None: ...

    def masters(self) -> Steps[tuple[Address, ...]]:
        """Every server that has keys of its own."""
        ...


class Single:
    """One server, whoever it is at the moment."""

    split = False

    def __init__(self, servers: Servers) -> None:
        self._address = servers.seeds[0]

    def known(self, slot: int) -> Address | None:
        """Always known."""
        return self._address

    def find(self, slot: int) -> Steps[Address]:
        """The address in the URL."""
        return self._address
        yield

    def lost(self, address: Address) -> bool:
        """There is no other."""
        return False

    def moved(self, slot: int, address: Address) -> None:
        """Only a cluster's node says so: its URL should have said it too."""
        raise StoreError(str(self._address), "it is a node of a cluster; use redis+cluster://")

    def masters(self) -> Steps[tuple[Address, ...]]:
        """The one."""
        return (self._address,)
        yield


class Sentinel:
    """The master that Sentinels name."""

    split = False

    def __init__(self, servers: Servers) -> None:
        self._seeds = list(servers.seeds)
        self._service = servers.service
        self._question = Command(pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", servers.service))
        self._master: Address | None = None

    def known(self, slot: int) -> Address | None:
        """The master, once a Sentinel has named it."""
        return self._master

    def find(self, slot: int) -> Steps[Address]:
        """The master, asked for when none is known. The Sentinel that answered is asked first next time."""
        if self._master is not None:
            return self._master
        for seed in tuple(self._seeds):
            try:
                reply = yield Ask(seed, self._question, share=0.5, sentinel=True)
            except LinkError:
                continue
            if isinstance(reply, list) and len(reply) == 2:
                self._seeds.remove(seed)
                self._seeds.insert(0, seed)
                self._master = Address(reply[0].decode(), int(reply[1]))
                return self._master
        raise StoreError(", ".join(map(str, self._seeds)), f"no Sentinel names a master of {self._service!r}")

    def lost(self, address: Address) -> bool:
        """Another may be the master by now."""
        self._master = None
        return True

    def moved(self, slot: int, address: Address) -> None:
        """Sentinels and clusters do not go together."""
        raise StoreError(str(address), "the master is a node of a cluster; use redis+cluster://")

    def masters(self) -> Steps[tuple[Address, ...]]:
        """The one."""
        return ((yield from self.find(0)),)


class Cluster:
    """The nodes of a cluster, by slot."""

    split = True

    def __init__(self, servers: Servers) -> None:
        self._seeds = servers.seeds
        self._slots: list[Address | None] = []
        self._asked = 0.0
        self._stale = True

    def parts(self, *identities: str) -> tuple[str, ...]:
        """The nodes of these identities by the last map, by the names that errors have."""
        if not self._slots:
            return ()
        found = [self._slots[slot_of(identity)] for identity in identities]
        return tuple([str(address) for address in found if address is not None])

    def known(self, slot: int) -> Address | None:
        """The node of a slot, while the map has not proved wrong."""
        return None if self._stale else self._slots[slot]

    def find(self, slot: int) -> Steps[Address]:
        """The node of a slot; the map is asked for when there is none, or when it has proved wrong."""
        if self._stale and (not self._slots or monotonic() - self._asked > _FRESH):
            yield from self._ask()
        address = self._slots[slot]
        if address is None:
            self._stale = True
            raise StoreError(f"slot {slot}", "no node of the cluster serves it")
        return address

    def lost(self, address: Address) -> bool:
        """A replica may have taken its place."""
        self._stale = True
        return True

    def moved(self, slot: int, address: Address) -> None:
        """One slot is certain now; others may have moved too."""
        self._slots[slot] = address
        self._stale = True

    def masters(self) -> Steps[tuple[Address, ...]]:
        """All nodes that serve a slot, by a map that is asked for now."""
        yield from self._ask()
        return tuple(dict.fromkeys(filter(None, self._slots)))

    def _ask(self) -> Steps[None]:
        known = dict.fromkeys([*filter(None, dict.fromkeys(self._slots)), *self._seeds])
        for address in known:
            try:
                reply = yield Ask(address, _MAP, share=0.5)
            except LinkError:
                continue
            if isinstance(reply, list) and reply:
                self._slots, self._asked, self._stale = _map(reply, address), monotonic(), False
                return
        raise StoreError(", ".join(map(str, self._seeds)), "no node tells the slots of the cluster")


_MAP: Final = Command(pack("CLUSTER", "SLOTS"))


def _map(reply: list[Any], asked: Address) -> list[Address | None]:
    """The master of every slot. A node that does not know its own host is the one that was asked."""
    slots: list[Address | None] = [None] * SLOTS
    for first, last, master, *_ in reply:
        host = master[0].decode() if master[0] else asked.host
        slots[first : last + 1] = [Address(host, master[1])] * (last + 1 - first)
    return slots


def topology(servers: Servers) -> Topology:
    """The topology that a URL names."""
    kinds: dict[str, type[Single] | type[Sentinel] | type[Cluster]] = {"sentinel": Sentinel, "cluster": Cluster}
    return kinds.get(servers.kind, Single)(servers)
