"""The store on Redis and Valkey servers: a single server, behind Sentinels, or a cluster; for threads and for asyncio.

A plan is one script run on each server that holds its keys. The sync and the async store share everything but the I/O:
`url` reads the URL, `topology` finds the server of a key, `encoding` encodes a plan and decodes its reply, and
`operations` makes the steps of each operation. `connections` or `async_connections` sends the commands, or
`user_clients` through a client that the user made. `failures` says what a failure concerns.

A key is `prefix:{digest}:rule_id`. The digest of the identity is the hash tag. The clock is the server's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Self

from sluicegate.clock import Clock
from sluicegate.errors import needs, shows_half_made
from sluicegate.observe.status import Status, TopologyName, percentiles
from sluicegate.plan import Checks, Network, Outcome, Outcomes, Plan, Terms
from sluicegate.runtime.hidden import hide_store, shown_url
from sluicegate.stores import DEADLINE, AsyncRun, AsyncRunsPlans, Counted, Mode, Run, RunsPlans, plan_of

with needs("redis"):
    import redis
    import redis.asyncio

    if [int(part) for part in redis.__version__.split(".") if part.isdecimal()] < [5, 0, 1]:
        raise ImportError(f"its version is {redis.__version__}, sluicegate needs 5.0.1 or later", name="redis")

    from sluicegate.stores.redis.async_connections import AsyncConnections
    from sluicegate.stores.redis.connections import Connections
    from sluicegate.stores.redis.encoding import Encoder, decoder
    from sluicegate.stores.redis.operations import Operations
    from sluicegate.stores.redis.scan import Position, scan_bans, scan_budgets, scan_page, send_to
    from sluicegate.stores.redis.server_info import warn_of_eviction
    from sluicegate.stores.redis.steps import Address, Steps
    from sluicegate.stores.redis.topology import Cluster, Sentinel, Topology, topology
    from sluicegate.stores.redis.url import Host, servers
    from sluicegate.stores.redis.user_clients import (
        AsyncUserClient,
        UserClient,
        UserTopology,
        address_of,
        check_client,
        decodes,
        warn_about,
    )

_ROUND_TRIPS: Final = 100  # the last ones, for the status


@shows_half_made
class _RedisStore:
    """What the sync and the async store share: everything but the I/O."""

    parts: Callable[..., tuple[str, ...]] | None = None  # of a cluster: the nodes of identities
    serving: Callable[[], str] | None = None  # under Sentinels: the master
    clock: Clock | None
    _connect: Callable[..., Any]  # makes the connections for a URL
    _connections: Any

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "sg",
        clock: Clock | None = None,
        deadline: float = DEADLINE,
        host: Host | None = None,
    ) -> Self:
        """Return a store with its own connections, which `close` closes. It connects when it is first used.

        `deadline` is the longest time in seconds of a call. `host` starts the server and checks whose it is.
        """
        url = hide_store(url)
        found = servers(url, host=host)
        store, where = cls.__new__(cls), topology(found)
        store._set_up(cls._connect(found, deadline=deadline), where, prefix=prefix, clock=clock, shown=shown_url(url))
        if host is not None:
            store._topology = "embedded"
        elif isinstance(where, Cluster):
            store.parts = where.parts
        elif isinstance(where, Sentinel):
            store.serving = where.serving
        return store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"

    def warn(self, *, strict: bool) -> None:
        """Warn of a client that retries (SG106) or may hang (SG107), and from `run` of a server that evicts (SG109)."""
        if isinstance(self._connections, (UserClient, AsyncUserClient)):
            warn_about(self._connections.client, strict=strict)
        self._operations.check_memory = partial(warn_of_eviction, self._shown, strict=strict)

    def _set_up(self, connections: Any, where: Topology, *, prefix: str, clock: Clock | None, shown: str) -> None:
        self._connections, self._where, self._shown = connections, where, shown
        self._round_trips: deque[float] = deque(maxlen=_ROUND_TRIPS)
        self._version: str | None = None
        self._topology: TopologyName = where.name
        self._keep_under(prefix, clock)

    def _keep_under(self, prefix: str, clock: Clock | None) -> None:
        decoded = isinstance(self._connections, (UserClient, AsyncUserClient)) and decodes(self._connections.client)
        batches = isinstance(self._connections, AsyncConnections)
        self._encoder = Encoder(prefix=prefix, clock=clock, split=self._where.split, decoded=decoded, batches=batches)
        self._operations = Operations(self._where, self._encoder)
        self._prefix, self.clock = prefix, clock

    def separate(self, name: str, *, clock: Clock | None = None) -> Self:
        """Return a store on the same connections whose keys have this name after the prefix, on this clock unless the
        store has one.
        """
        other = copy(self)
        other._keep_under(f"{self._prefix}:{name}", self.clock or clock)
        other._operations.check_memory = self._operations.check_memory
        return other

    def describe(self) -> Status:
        """Return the status: the topology, and what the server has last said."""
        return Status(
            str(self._shown),
            server=self._version,
            topology=self._topology,
            round_trip=percentiles(tuple(self._round_trips)),
        )

    def refund(self, plan: Plan, outcomes: Outcomes) -> Any:
        """Refund each charge to its window."""
        return self._connections.drive(self._operations.refund(plan, outcomes))

    def renew(self, plan: Plan, outcomes: Outcomes) -> Any:
        """Refund each charge, then charge it again as of now. Return the outcomes."""
        return self._connections.drive(self._operations.renew(plan, outcomes))

    def forget(self, rule_id: str, identity: str) -> Any:
        """Drop one budget."""
        return self._connections.drive(self._operations.forget(rule_id, identity))

    def bans(self, terms: Terms) -> Any:
        """Return the digests of identities that this ban blocks, with the microseconds left. Scans every server."""
        return self._connections.drive(scan_bans(self._where, self._encoder, terms))

    def rule_ids(self, identity: str) -> Any:
        """Return the ids of the rules under which this identity has a budget. Scans every server."""
        return self._connections.drive(scan_budgets(self._where, self._encoder, identity))

    def read_overrides(self, known: bytes) -> Any:
        """Return the document of the overrides; None if it begins with `known`."""
        return self._connections.drive(self._operations.read_overrides(known))

    def write_overrides(self, before: bytes, after: bytes, entry: str) -> Any:
        """Replace the document, and add an entry to the history. False if it is not what it was `before`."""
        return self._connections.drive(self._operations.write_overrides(before, after, entry))

    def override_entries(self, count: int) -> Any:
        """Return the last entries of the history, the newest first."""
        return self._connections.drive(self._operations.override_entries(count))

    def add_counts(self, tables: Sequence[Counted]) -> Any:
        """Add to some tables of counts, in one command."""
        return self._connections.drive(self._operations.add_counts(tables))

    def read_counts(self, names: Sequence[str]) -> Any:
        """Return the tables of these names."""
        return self._connections.drive(self._operations.read_counts(names))

    def page(self, position: Position | None, identity: str | None = None) -> Any:
        """Return the budgets among the next few keys, of one identity or of all. Start with None."""
        return self._connections.drive(scan_page(self._where, self._encoder, position, identity=identity))

    def ask(self) -> Any:
        """Ask the server for its version, for `describe`. Raises StoreError if it does not reply in time."""
        return self._connections.drive(self._ask())

    def _ask(self) -> Steps[None]:
        self._version, seconds = yield from self._operations.identify()
        self._round_trips.append(seconds)


class RedisStore(_RedisStore, RunsPlans):
    """A store over a `redis.Redis` or `redis.RedisCluster` client that you made. Give a URL to Limiter instead.

    The client is used as it is and never closed. Give it timeouts and `Retry(NoBackoff(), 0)`: a client that
    retries can charge one request several times, and a client without a timeout hangs with its server.
    `prefix` begins every key. `clock` is for tests and replaces the server's clock.
    """

    _connect = Connections
    _connections: Connections | UserClient

    def __init__(
        self, client: redis.Redis | redis.RedisCluster, *, prefix: str = "sg", clock: Clock | None = None
    ) -> None:
        client = hide_store(client)
        check_client(client, asynchronous=False)
        shown = str(address_of(client))
        self._set_up(UserClient(client), UserTopology(client), prefix=prefix, clock=clock, shown=shown)

    def compile(self, terms: tuple[Terms, ...], mode: Mode) -> Run:
        """Return what decides checks of these terms: one command and its reply. What is left is for the operations: an
        error reply, no reply, a server that is not known, or checks on several servers.
        """
        connections, operations = self._connections, self._operations
        first, make = operations.first_step(terms, mode), decoder(terms, mode, operations.decode)
        send, looks = connections.send, connections.patience.looks

        def run(checks: Checks, network: Network = None) -> Outcomes:
            step = first(checks)
            reply = None if step is None else send(step, looks)
            if step is None or isinstance(reply, Exception):
                return connections.drive(operations.run(plan_of(checks, mode), step, reply))
            return make(checks, reply)

        return run

    def servers(self) -> tuple[Address, ...]:
        """Return every server that is not a replica."""
        return self._connections.drive(self._where.masters())

    def send(self, address: Address, words: list[str | bytes | int]) -> Any:
        """Send one command to one server, for the command line. Raises StoreError for an error reply."""
        return self._connections.drive(send_to(address, words))

    def close(self) -> None:
        """Close the connections that this store has opened."""
        self._connections.close()


class AsyncRedisStore(_RedisStore, AsyncRunsPlans):
    """A store over a `redis.asyncio.Redis` or `RedisCluster` client that you made. Give a URL to AsyncLimiter instead.

    The same as RedisStore, for asynchronous code. Your client belongs to one event loop, as all asyncio clients do. A
    store made from a URL has connections for each event loop, one to each server. `close` closes those of the running
    loop.
    """

    needs_asyncio = True
    _connect = AsyncConnections
    _connections: AsyncConnections | AsyncUserClient

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        prefix: str = "sg",
        clock: Clock | None = None,
        deadline: float = DEADLINE,
    ) -> None:
        client = hide_store(client)
        check_client(client, asynchronous=True)
        connections, shown = AsyncUserClient(client, deadline=deadline), str(address_of(client))
        self._set_up(connections, UserTopology(client), prefix=prefix, clock=clock, shown=shown)

    def compile(self, terms: tuple[Terms, ...], mode: Mode) -> AsyncRun:
        connections, operations = self._connections, self._operations
        first, make = operations.first_step(terms, mode), decoder(terms, mode, operations.decode)
        send, looks = connections.send, connections.patience.looks

        async def run(checks: Checks, network: Network = None) -> Outcomes:
            step = first(checks)
            reply = None if step is None else await send(step, looks)
            if type(reply) is Outcome:  # read already, as a part of a batch
                return (reply,)
            if step is None or isinstance(reply, Exception):
                return await connections.drive(operations.run(plan_of(checks, mode), step, reply))
            return make(checks, reply)

        return run

    async def close(self) -> None:
        """Close the running loop's connections, if this store has opened them."""
        await self._connections.close()


def open_sync(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> RedisStore:
    """Return a store for every scheme of Redis and Valkey. It accepts the URL options of redis-py."""
    return RedisStore.from_url(url, prefix=prefix, clock=clock, deadline=deadline)


def open_async(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> AsyncRedisStore:
    """Open the store for an AsyncLimiter."""
    return AsyncRedisStore.from_url(url, prefix=prefix, clock=clock, deadline=deadline)
