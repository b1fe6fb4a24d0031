"""The servers that a URL names, and the connections to them: redis-py authenticates and encrypts.

The whole URL is checked when a store is made. This module sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

import redis
import redis.asyncio.connection
import redis.connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from sluicegate.errors import StoreURLError
from sluicegate.runtime.hidden import Hidden, shown_url
from sluicegate.stores.redis.steps import Address

CONNECTIONS: Final = 50
OPENING: Final = 5.0  # seconds that the opening of one connection may take, also when no request waits for it any more
STUCK: Final = 1.0  # seconds after which another opening may begin beside one, whose packets may be lost
_DEADLINE: Final = ("socket_timeout", "socket_connect_timeout", "timeout", "retry_on_timeout")
# Without these two round trips (CLIENT SETINFO) a connection to a distant server is open earlier.
_UNNAMED: Final = {"driver_info": None} if hasattr(redis, "DriverInfo") else {"lib_name": None, "lib_version": None}
_EXAMPLES: Final = {
    "": "redis://user:password@host:port/db?option=value",
    "sentinel": "redis+sentinel://user:password@host:port,host:port/service/db",
    "cluster": "redis+cluster://user:password@host:port,host:port",
    "cell": "redis+cell://user:password@host:port/db?option=value",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers of one store.

    `kind` is "" or "cell" for one server, "sentinel" or "cluster"; `seeds` are the addresses in the URL (of the
    Sentinels, if there are any). `service` is the Sentinels' name of the master. `prepare` is called before a
    connection is opened. `connection_classes` replace redis-py's classes: the sync one and the async one.
    """

    kind: str
    seeds: tuple[Address, ...]
    service: str
    connections: int  # the most connections to one address at a time, in synchronous code
    options: Mapping[str, Any]  # the arguments of redis-py's connections
    sentinel_options: Mapping[str, Any]
    prepare: Callable[[], None] | None = None
    connection_classes: tuple[type, type] | None = None

    def connection(
        self, address: Address, *, timeout: float, asynchronous: bool, sentinel: bool = False, **more: Any
    ) -> Any:
        """Return a connection of redis-py to this address, not opened yet. It is for asyncio if `asynchronous`.

        `more` are other arguments of redis-py. Replies are bytes, whatever the URL says.
        """
        options = dict(self.sentinel_options if sentinel else self.options)
        kind = options.pop("connection_class", "Connection")
        location = {"host": address.host, "port": address.port} if address.port else {"path": address.host}
        made = getattr(redis.asyncio.connection if asynchronous else redis.connection, kind)
        if self.connection_classes is not None:
            made = self.connection_classes[asynchronous]
        return made(
            **{"protocol": 2, **_UNNAMED, **options, **location, **more, "decode_responses": False},
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=(AsyncRetry if asynchronous else Retry)(NoBackoff(), 0),
        )

    def shown(self, error: Exception) -> Exception:
        """Return the error of opening a connection, without passwords.

        The variables of redis-py hold the password, and a server may repeat a command that it does not know.
        """
        text = whole = str(error)
        for name, value in (*self.options.items(), *self.sentinel_options.items()):
            if "password" in name and value:
                text = text.replace(value, "…")
        if text != whole:
            return type(error)(text)
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


def servers(
    url: str, *, prepare: Callable[[], None] | None = None, connection_classes: tuple[type, type] | None = None
) -> Servers:
    """Read the servers from a URL. Raises StoreURLError for a URL that cannot work. Nothing is sent."""
    kind, shown = url.partition("://")[0].lower().partition("+")[2], shown_url(url)
    try:
        found = replace(_read(url, kind, prepare), connection_classes=connection_classes)
        for asynchronous in (False, True):  # redis-py refuses an unknown option here, not in the first request
            for sentinel in (False, True):
                made = found.connection(found.seeds[0], timeout=1, asynchronous=asynchronous, sentinel=sentinel)
                made.pack_command("PING")
    except (ValueError, TypeError, LookupError, AttributeError, RedisError) as error:
        problem = "a part of it cannot be read" if shown.endswith("…") else str(error)
    else:
        return found
    # Raised outside the except block: the error caught there, and its variables, can show a part of the password.
    expected = f"use {_EXAMPLES.get(kind, _EXAMPLES[''])}, percent-encoded"
    raise StoreURLError("store", shown, problem=problem, expected=expected)


def _read(url: str, kind: str, prepare: Callable[[], None] | None) -> Servers:
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower().partition("+")[0]
    scheme = {"valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme)
    service = ""
    if kind in ("", "cell"):
        urls = [f"{scheme}://{rest}"]
    else:
        rest, mark, query = rest.partition("?")
        rest, _, path = rest.partition("/")
        user, at, hosts = rest.rpartition("@")
        if kind == "sentinel":
            service, _, path = path.partition("/")
            if not service:
                raise ValueError("it names no service of the Sentinels")
        urls = [f"{scheme}://{user}{at}{host}/{path}{mark}{query}" for host in hosts.split(",")]
    read = [_options(each) for each in urls]
    options = read[0]
    if kind == "cluster" and options.get("db"):
        raise ValueError("a cluster has only database 0")
    sentinel = {"username": options.pop("sentinel_username", None), "password": options.pop("sentinel_password", None)}
    connections = int(options.pop("max_connections", CONNECTIONS))
    if connections < 1:
        raise ValueError("max_connections is below 1")
    seeds = tuple([_address(each, 26379 if kind == "sentinel" else 6379) for each in read])
    return Servers(
        kind=kind,
        seeds=seeds,
        service=service,
        connections=connections,
        options=options,
        sentinel_options={**options, **sentinel, "db": 0},
        prepare=prepare,
    )


def _options(url: str) -> dict[str, Any]:
    """Return the options that redis-py reads from a URL. The class is kept by name: sync and async have one each."""
    options = redis.connection.parse_url(url)
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not (database.isascii() and database.isdecimal()):
        raise ValueError("its path is not the number of a database")  # redis-py would take database 0
    for name in _DEADLINE:
        if name in options:
            raise ValueError(f"{name} cannot be set in a URL: the option `deadline` bounds every call of a store")
    if "connection_class" in options:
        options["connection_class"] = options["connection_class"].__name__
    return {name: Hidden(value) if "password" in name else value for name, value in options.items()}


def _address(options: dict[str, Any], port: int) -> Address:
    """Take the address out of the options."""
    path = options.pop("path", None)
    host, port = options.pop("host", "localhost"), options.pop("port", port)
    try:
        host.encode("idna")  # as a socket does in each request
    except UnicodeError:
        raise ValueError("a part of its host is empty, too long, or cannot be encoded") from None
    return Address(host, port) if path is None else Address(path, 0)
