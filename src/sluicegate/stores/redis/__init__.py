"""The store on Redis and Valkey servers: single, behind Sentinels, or a cluster; for threads and for asyncio.

A plan is one script run on each server that holds its keys. Everything but the asking is shared by the two colours:
`servers` reads the URL, `topology` knows which server has a key, `wire` tells a plan and reads its reply, `routes` says
in steps what to ask of whom, and `links` or `shared` asks it (`given`, where the user brings a client). This package
imports redis-py and hiredis, and knows values, the scripts and the digest; nothing of rules, HTTP or frameworks.

Keys are `prefix:{digest}:rule_id`; the digest of the identity is the one hash tag. The clock is the server's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from sluicegate.clock import Clock
from sluicegate.errors import SluicegateWarning, StoreError, StrictError
from sluicegate.extras import needs
from sluicegate.hidden import hide_store, shown_url
from sluicegate.plan import Outcome, Plan, Terms
from sluicegate.stores import DEADLINE

with needs("redis"):
    import redis
    import redis.asyncio

    from sluicegate.stores.redis.eviction import warn_of_eviction
    from sluicegate.stores.redis.given import (
        GivenLinks,
        GivenSharedLinks,
        GivenTopology,
        address_of,
        check_client,
        warn_about,
    )
    from sluicegate.stores.redis.links import Links
    from sluicegate.stores.redis.routes import Routes
    from sluicegate.stores.redis.servers import servers
    from sluicegate.stores.redis.shared import SharedLinks
    from sluicegate.stores.redis.topology import Cluster, Topology, topology
    from sluicegate.stores.redis.wire import Wire, outcomes


class _Over:
    """What both colours share: everything but the asking."""

    parts: Callable[..., tuple[str, ...]] | None = None  # of a cluster: which nodes answer for whom
    clock: Clock | None
    _own: Callable[..., Any]  # makes links of our own
    _links: Any
    _strict = False
    _unread = False  # a limiter wants to know how the server forgets

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "sg",
        clock: Clock | None = None,
        deadline: float = DEADLINE,
        prepare: Callable[[], None] | None = None,
    ) -> Self:
        """A store with connections of its own, which `close` closes. Connects when first used.

        `deadline` is the time in seconds that a call may take in all; `prepare` is called before a connection opens.
        """
        url = hide_store(url)
        found = servers(url, prepare=prepare)
        store, where = cls.__new__(cls), topology(found)
        store._settle(cls._own(found, deadline=deadline), where, prefix=prefix, clock=clock, shown=shown_url(url))
        if isinstance(where, Cluster):
            store.parts = where.parts
        return store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"

    def caution(self, *, strict: bool) -> None:
        """Warn of a client that retries (SG106) or may wait for ever (SG107), and later of the server (SG109)."""
        if isinstance(self._links, (GivenLinks, GivenSharedLinks)):
            warn_about(self._links.client, strict=strict)
        self._strict, self._unread = strict, True

    def _settle(self, links: Any, where: Topology, *, prefix: str, clock: Clock | None, shown: str) -> None:
        self._links = links
        self._routes = Routes(where, Wire(prefix=prefix, clock=clock, split=where.split))
        self.clock = clock
        self._shown = shown

    def _heard(self, reply: Any) -> None:
        """Warn of how the server forgets: once, or where that is an error, each time."""
        try:
            warn_of_eviction(self._shown, reply, strict=self._strict)
        except (StrictError, SluicegateWarning):
            self._unread = True
            raise


class RedisStore(_Over):
    """A store over a `redis.Redis` or `redis.RedisCluster` client that you made; for a URL, hand the URL to Limiter.

    The client is used as it is and never closed. Give it timeouts and `Retry(NoBackoff(), 0)`: a client that
    retries can charge one request several times, and one without a timeout hangs with its server.
    `prefix` begins every key; `clock` is for tests, and replaces the server's.
    """

    _own = Links
    _links: Links | GivenLinks

    def __init__(
        self, client: redis.Redis | redis.RedisCluster, *, prefix: str = "sg", clock: Clock | None = None
    ) -> None:
        if isinstance(client, str):
            client = hide_store(client)
        check_client(client, later=False)
        shown = str(address_of(client))
        self._settle(GivenLinks(client), GivenTopology(client), prefix=prefix, clock=clock, shown=shown)

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none. StoreError when a server does not answer in time."""
        links, quick = self._links, self._routes.quick(plan)
        until = links.until()
        reply = None if quick is None else links.ask(quick, until)
        if type(reply) is list:
            told = outcomes(plan, reply)
        else:
            told = links.drive(self._routes.run(plan, quick, reply), until)
        if self._unread:
            self._read(until)
        return told

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give back what was charged, to the windows that it was taken from."""
        self._links.drive(self._routes.refund(plan, outcomes), self._links.until())

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Give back what was charged, and charge it again as of now."""
        return self._links.drive(self._routes.renew(plan, outcomes), self._links.until())

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop what is known of one identity under one rule."""
        self._links.drive(self._routes.forget(rule_id, identity), self._links.until())

    def bans(self, terms: Terms) -> dict[str, int]:
        """The digests of all whom this ban holds for, with the microseconds that are left of it. Scans every server."""
        return self._links.walk(self._routes.bans(terms))

    def close(self) -> None:
        """Close the connections that this store has opened."""
        self._links.close()

    def _read(self, until: float) -> None:
        """Learn how the server forgets, in what is left of a request's time."""
        self._unread = False
        with suppress(StoreError):  # it may not be our business
            self._heard(self._links.drive(self._routes.memory(), until))


class AsyncRedisStore(_Over):
    """A store over a `redis.asyncio.Redis` or `RedisCluster` client that you made; for a URL, hand it to AsyncLimiter.

    As RedisStore, awaited. A client that was handed in belongs to one event loop, as all asyncio clients do; a
    store made from a URL has connections for each loop that uses it, one to each server, and `close` closes those of
    the running loop.
    """

    _own = SharedLinks
    _links: SharedLinks | GivenSharedLinks

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        prefix: str = "sg",
        clock: Clock | None = None,
        deadline: float = DEADLINE,
    ) -> None:
        if isinstance(client, str):
            client = hide_store(client)
        check_client(client, later=True)
        links, shown = GivenSharedLinks(client, deadline=deadline), str(address_of(client))
        self._settle(links, GivenTopology(client), prefix=prefix, clock=clock, shown=shown)

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none. StoreError when a server does not answer in time."""
        links, quick = self._links, self._routes.quick(plan)
        until = links.until()
        reply = None if quick is None else await links.ask(quick, until)
        if type(reply) is list:
            told = outcomes(plan, reply)
        else:
            told = await links.drive(self._routes.run(plan, quick, reply), until)
        if self._unread:
            await self._read(until)
        return told

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give back what was charged, to the windows that it was taken from."""
        await self._links.drive(self._routes.refund(plan, outcomes), self._links.until())

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Give back what was charged, and charge it again as of now."""
        return await self._links.drive(self._routes.renew(plan, outcomes), self._links.until())

    async def forget(self, rule_id: str, identity: str) -> None:
        """Drop what is known of one identity under one rule."""
        await self._links.drive(self._routes.forget(rule_id, identity), self._links.until())

    async def bans(self, terms: Terms) -> dict[str, int]:
        """The digests of all whom this ban holds for, with the microseconds that are left of it. Scans every server."""
        return await self._links.walk(self._routes.bans(terms))

    async def close(self) -> None:
        """Close the running loop's connections, if this store has opened them."""
        await self._links.close()

    async def _read(self, until: float) -> None:
        """Learn how the server forgets, in what is left of a request's time."""
        self._unread = False
        with suppress(StoreError):  # it may not be our business
            self._heard(await self._links.drive(self._routes.memory(), until))


def open_sync(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> RedisStore:
    """A store for every scheme of Redis and Valkey. What redis-py reads from a URL works here."""
    return RedisStore.from_url(url, prefix=prefix, clock=clock, deadline=deadline)


def open_async(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> AsyncRedisStore:
    """The same for an AsyncLimiter."""
    return AsyncRedisStore.from_url(url, prefix=prefix, clock=clock, deadline=deadline)
