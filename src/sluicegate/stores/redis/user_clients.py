"""Clients that the user made. Commands go through the client: its pool, its retries, its routing.

Such a client is used as it is and never closed.
"""

from __future__ import annotations

import asyncio
from inspect import iscoroutinefunction
from typing import Any, Final

import hiredis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from sluicegate.errors import AsyncMismatchError, ConfigurationError, StoreURLError, warn
from sluicegate.observe.status import TopologyName
from sluicegate.stores.redis.drivers import AsyncDriver, Driver
from sluicegate.stores.redis.patience import Patience
from sluicegate.stores.redis.steps import MALFORMED, Address, NoReplyError, Send, Steps
from sluicegate.stores.redis.topology import Topology

_ENDLESS: Final = 86_400.0  # seconds: no deadline is used, because a call of the client cannot be interrupted
_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (  # redis-py removes the code from a reply
    (NoScriptError, "NOSCRIPT"),
    (NoPermissionError, "NOPERM"),
    (OutOfMemoryError, "OOM"),
    (ReadOnlyError, "READONLY"),
    (MasterDownError, "MASTERDOWN"),
    (ClusterDownError, "CLUSTERDOWN"),
    (BusyLoadingError, "LOADING"),
    (MovedError, "MOVED"),
    (AskError, "TRYAGAIN"),  # the client cannot follow it
    (TryAgainError, "TRYAGAIN"),
)

RedisClient = Any
"""A client of redis-py: for threads or for asyncio, of one server or of a cluster. Their classes share no base."""

RedisPool = Any
"""The pool of such a client, or the nodes of a cluster."""


class UserTopology(Topology):
    """The client finds its servers itself. The client of a cluster accepts the keys of one slot at a time."""

    def __init__(self, client: RedisClient) -> None:
        self.address = address_of(client)
        self.split = hasattr(client, "get_node_from_key")
        self.name: TopologyName = "cluster" if self.split else "single"

    def masters(self) -> Steps[tuple[Address, ...]]:
        """Return the one server. Raises ConfigurationError for a cluster: only the user's client knows its nodes."""
        if self.split:
            problem, expected = "its nodes cannot be asked one by one", "make a limiter of its URL, redis+cluster://"
            raise ConfigurationError("store", "a client of a cluster", problem=problem, expected=expected)
        return (yield from super().masters())


class UserClient(Driver):
    """A client for threads. Its own timeouts apply, because a call cannot be interrupted from outside."""

    def __init__(self, client: RedisClient) -> None:
        self.client = client
        self.patience = Patience(_ENDLESS)

    def send(self, step: Send, looks: float) -> object:
        try:
            return self.client.execute_command(*_words(step))
        except (RedisError, RedisClusterException, OSError, *MALFORMED) as error:
            return _failed(step, error)

    def retire(self, address: Address) -> None:
        """Do nothing: the client manages its connections."""

    def close(self) -> None:
        """Do nothing: the user closes the client."""


class AsyncUserClient(AsyncDriver):
    """A client for asyncio."""

    def __init__(self, client: RedisClient, *, deadline: float) -> None:
        self.client = client
        self.patience = Patience(deadline)

    async def send(self, step: Send, looks: float) -> object:
        try:
            async with asyncio.timeout(looks * self.patience.look):
                return await self.client.execute_command(*_words(step))
        except (RedisError, RedisClusterException, OSError, *MALFORMED) as error:
            return _failed(step, error)

    def retire(self, address: Address) -> None:
        """Do nothing: the client manages its connections."""

    async def close(self) -> None:
        """Do nothing: the user closes the client."""


def check_client(client: RedisClient, *, asynchronous: bool) -> None:
    """Raise StoreURLError for what is no client, AsyncMismatchError for a sync client in async code or the reverse."""
    call = None if isinstance(client, type) else getattr(client, "execute_command", None)
    shown = client if isinstance(client, type) else f"{type(client).__module__}.{type(client).__qualname__}"
    if not callable(call):
        problem, expected = "not a client of redis-py", "give one, or give a URL to Limiter or AsyncLimiter"
        raise StoreURLError("store", shown, problem=problem, expected=expected)
    if iscoroutinefunction(call) is not asynchronous:
        kind, store = ("synchronous", "RedisStore") if asynchronous else ("asynchronous", "AsyncRedisStore")
        problem, expected = f"its methods are {kind}", f"give it to {store}"
        raise AsyncMismatchError("store", shown, problem=problem, expected=expected)


def address_of(client: RedisClient) -> Address:
    """Return the address of a client's Redis server, in the form that errors show."""
    if not hasattr(client, "connection_pool"):
        return Address("a cluster", 0)
    options = client.connection_pool.connection_kwargs
    if "path" in options:
        return Address(str(options["path"]), 0)
    return Address(str(options.get("host", "localhost")), int(options.get("port", 6379)))


def warn_about(client: RedisClient, *, strict: bool) -> None:
    """Warn of a client that can charge twice (SG106) or hang (SG107)."""
    shown = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}({address_of(client)})"
    retry = client.get_retry() if hasattr(client, "get_retry") else getattr(client, "retry", None)
    retries = getattr(retry, "_retries", 0)
    if retries:
        warn("SG106", shown, strict=strict, count=retries)
    pool = _pool(client)
    if pool is not None and pool.connection_kwargs.get("socket_timeout") is None:
        warn("SG107", shown, strict=strict)


def _pool(client: RedisClient) -> RedisPool:
    return getattr(client, "connection_pool", getattr(client, "nodes_manager", None))


def decodes(client: RedisClient) -> bool:
    """True if the client decodes replies as text. Not every version can leave the reply of one command as it is."""
    pool = _pool(client)
    return pool is not None and bool(pool.connection_kwargs.get("decode_responses"))


def _words(step: Send) -> list[str | bytes]:
    """Return the words of a packed command. The client looks the command's name up, so the name is text."""
    reader = hiredis.Reader()
    reader.feed(step.command.whole.frame)
    name, *words = reader.gets()
    return [name.decode(), *words]


def _failed(step: Send, error: BaseException) -> Exception | bytes | list[bytes]:
    """Return the failure as an error reply, or as a NoReplyError; for a text that is not UTF-8, its bytes: to a client
    that decodes replies, a document or an entry that somebody else wrote must be no silence.
    """
    if isinstance(error, UnicodeDecodeError) and (name := _words(step)[0]) in {"GET", "GETRANGE", "LRANGE"}:
        return error.object if name != "LRANGE" else [error.object]
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "")
    if code or (isinstance(error, ResponseError) and not isinstance(error, AuthenticationError)):
        return hiredis.ReplyError(f"{code} {error}".strip())
    only_one_slot = isinstance(error, (ClusterError, RedisClusterException))
    return NoReplyError(step.address, error, sent=True, concerns="plan" if only_one_slot else "server")
