"""Clients that the user hands in, asked by calls of their own: their pool, their retries, their routing.

Such a client is used as it is and never closed. This module knows packed commands, and nothing of plans.
"""

from __future__ import annotations

import asyncio
from inspect import iscoroutinefunction
from typing import Any, Final

import hiredis
from redis.exceptions import NoScriptError, RedisError

from sluicegate.cautions import caution
from sluicegate.errors import ColourError, ConfigurationError, StoreURLError
from sluicegate.stores.redis.asks import Address, Ask, LinkError, Steps
from sluicegate.stores.redis.drivers import AsyncDriver, Driver
from sluicegate.stores.redis.topology import Single

_NO_SCRIPT: Final = hiredis.ReplyError("NOSCRIPT")


class GivenTopology(Single):
    """The client finds its servers by itself; that of a cluster takes the keys of one slot at a time."""

    def __init__(self, client: Any) -> None:
        self._address = address_of(client)
        self.split = hasattr(client, "get_node_from_key")

    def masters(self) -> Steps[tuple[Address, ...]]:
        """The one; ConfigurationError for a cluster, whose nodes only its client knows."""
        if self.split:
            problem, expected = "its nodes cannot be asked one by one", "make a limiter of its URL, redis+cluster://"
            raise ConfigurationError("bans", "a client of a cluster", problem=problem, expected=expected)
        return (yield from super().masters())


class GivenLinks(Driver):
    """A client for threads. Its own timeouts hold, for nobody else can interrupt it."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def until(self) -> float:
        """Nobody can interrupt a call of the client's."""
        return 0.0

    def ask(self, ask: Ask, until: float) -> Any:
        """The reply, or the LinkError there is instead."""
        try:
            return self.client.execute_command(*_words(ask))
        except NoScriptError:
            return _NO_SCRIPT
        except (RedisError, OSError) as error:
            return _failed(ask, error)

    def leave(self, address: Address) -> None:
        """The client's connections are its own."""

    def close(self) -> None:
        """The client belongs to whoever made it."""


class GivenSharedLinks(AsyncDriver):
    """A client for asyncio."""

    def __init__(self, client: Any, *, deadline: float) -> None:
        self.client = client
        self._deadline = deadline

    def until(self) -> float:
        """When a call that begins now must be over."""
        return asyncio.get_running_loop().time() + self._deadline

    async def ask(self, ask: Ask, until: float) -> Any:
        """The reply, or the LinkError there is instead."""
        try:
            async with asyncio.timeout_at(until):
                return await self.client.execute_command(*_words(ask))
        except NoScriptError:
            return _NO_SCRIPT
        except (RedisError, OSError) as error:
            return _failed(ask, error)

    def leave(self, address: Address) -> None:
        """The client's connections are its own."""

    async def close(self) -> None:
        """The client belongs to whoever made it."""


def check_client(client: Any, *, later: bool) -> None:
    """Refuse what is no client, and a client of the other kind."""
    call = None if isinstance(client, type) else getattr(client, "execute_command", None)
    shown = client if isinstance(client, type) else f"{type(client).__module__}.{type(client).__qualname__}"
    if not callable(call):
        problem, expected = "not a client of redis-py", "give one, or hand a URL to Limiter or AsyncLimiter"
        raise StoreURLError("store", shown, problem=problem, expected=expected)
    if iscoroutinefunction(call) is not later:
        expected = "give it to RedisStore" if later else "give it to AsyncRedisStore"
        raise ColourError("store", shown, problem="its calls are of the other colour", expected=expected)


def address_of(client: Any) -> Address:
    """The address of a client's server, for people."""
    if not hasattr(client, "connection_pool"):
        return Address("a cluster", 0)
    options = client.connection_pool.connection_kwargs
    if "path" in options:
        return Address(str(options["path"]), 0)
    return Address(str(options.get("host", "localhost")), int(options.get("port", 6379)))


def warn_about(client: Any, *, strict: bool) -> None:
    """Warn of a client that can charge twice (SG106), or hang (SG107)."""
    shown = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}({address_of(client)})"
    retry = client.get_retry() if hasattr(client, "get_retry") else getattr(client, "retry", None)
    retries = getattr(retry, "_retries", 0)
    if retries:
        caution("SG106", shown, strict=strict, count=retries)
    pool = getattr(client, "connection_pool", getattr(client, "nodes_manager", None))
    if pool is not None and pool.connection_kwargs.get("socket_timeout") is None:
        caution("SG107", shown, strict=strict)


def _words(ask: Ask) -> list[Any]:
    """The words of a packed command. The client wants the name as text, to look it up."""
    reader = hiredis.Reader()
    reader.feed(ask.command.frame)
    name, *words = reader.gets()
    return [name.decode(), *words]


def _failed(ask: Ask, error: BaseException) -> LinkError:
    return LinkError(ask.address, error, sent=True)
