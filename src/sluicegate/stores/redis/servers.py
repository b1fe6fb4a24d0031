"""Which servers a URL names, and how redis-py makes a connection to one of them: it authenticates and encrypts.

Everything that a URL can say is read, and refused, when a store is made. This module imports redis-py; it sends
nothing and knows no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio.connection
import redis.connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from sluicegate.errors import StoreURLError
from sluicegate.hidden import Hidden, shown_url
from sluicegate.stores.redis.asks import Address

CONNECTIONS: Final = 50
_DEADLINE: Final = ("socket_timeout", "socket_connect_timeout", "timeout", "retry_on_timeout")
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
    Sentinels, if there are any); `service` is what the Sentinels call the master. `prepare` is called before a
    connection is opened.
    """

    kind: str
    seeds: tuple[Address, ...]
    service: str
    connections: int  # at most so many at a time to one address, in synchronous code
    options: Mapping[str, Any]  # what redis-py's connections take
    sentinel_options: Mapping[str, Any]
    prepare: Callable[[], None] | None = None

    def connection(self, address: Address, *, timeout: float, later: bool, sentinel: bool = False) -> Any:
        """A connection of redis-py's to this address, not opened yet; `later`: one for asyncio."""
        options = dict(self.sentinel_options if sentinel else self.options)
        kind = options.pop("connection_class", "Connection")
        place = {"host": address.host, "port": address.port} if address.port else {"path": address.host}
        made = getattr(redis.asyncio.connection if later else redis.connection, kind)
        return made(
            **{"protocol": 2, **options, **place},
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=(AsyncRetry if later else Retry)(NoBackoff(), 0),
        )

    def shown(self, error: Exception) -> Exception:
        """What went wrong when a connection was opened, as it may be shown.

        redis-py's variables hold the password as it is sent, and a server may repeat a command that it does not know.
        """
        text = whole = str(error)
        for name, value in (*self.options.items(), *self.sentinel_options.items()):
            if "password" in name and value:
                text = text.replace(value, "…")
        if text != whole:
            return type(error)(text)
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


def servers(url: str, *, prepare: Callable[[], None] | None = None) -> Servers:
    """The servers of a URL. StoreURLError for one that cannot work: nobody is asked."""
    kind, shown = url.partition("://")[0].lower().partition("+")[2], shown_url(url)
    try:
        found = _read(url, kind, prepare)
        for later in (False, True):  # an option that redis-py does not know shows here, not with the first request
            for sentinel in (False, True):
                made = found.connection(found.seeds[0], timeout=1, later=later, sentinel=sentinel)
                made.pack_command("PING")
    except (ValueError, TypeError, LookupError, AttributeError, RedisError) as error:
        problem = "a part of it cannot be read" if shown.endswith("…") else str(error)
    else:
        return found
    # Not where it was caught: that error, and its variables, can show a part of the password.
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
    """What redis-py reads from a URL, its class by name, for both colours have one of each."""
    options = redis.connection.parse_url(url)
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not (database.isascii() and database.isdecimal()):
        raise ValueError("its path is not the number of a database")  # redis-py would take database 0
    for name in _DEADLINE:
        if name in options:
            raise ValueError(f"{name} is not read from a URL: the option `deadline` holds for all that a store does")
    if "connection_class" in options:
        options["connection_class"] = options["connection_class"].__name__
    return {name: Hidden(value) if "password" in name else value for name, value in options.items()}


def _address(options: dict[str, Any], port: int) -> Address:
    """Take the address out of the options."""
    path = options.pop("path", None)
    host, port = options.pop("host", "localhost"), options.pop("port", port)
    return Address(host, port) if path is None else Address(path, 0)
