"""The servers that a URL names, and the connections to them: redis-py authenticates and encrypts.

The whole URL is checked when a store is made. This module sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from socket import socket
from typing import Any, Final, Protocol, cast
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

CONNECTIONS: Final = 50  # to one address, in synchronous code, unless the URL has `max_connections`
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


Options = dict[str, Any]
"""The arguments of a connection of redis-py."""


class Host(Protocol):
    """The server that this application starts itself."""

    def ensure(self, timeout: float) -> None:
        """Start the server if there is none. Called before a connection is opened."""
        ...

    def check(self, connection: socket) -> None:
        """Raise OSError if the server at the other end is another user's. Called before anything is sent."""
        ...

    def leave(self) -> None:
        """Stop using the server. Called when the store is closed."""
        ...


RedisConnection = Any
"""A connection of redis-py. The class for threads and the one for asyncio have no common base with types."""


def _greeting(parser: Any) -> Callable[..., object]:
    """Return a subclass of a parser of redis-py, for the opening of a connection. Its replies are few."""

    class Greeting(parser):  # type: ignore[misc]
        def __init__(self, *, host: Host | None, progress: Callable[[], object], **options: Any) -> None:
            super().__init__(**options)
            self._host, self._progress = host, progress

        def on_connect(self, connection: RedisConnection, **options: Any) -> None:
            """Check whose server it is: nothing was sent yet."""
            if self._host is not None:
                writer = getattr(connection, "_writer", None)  # on asyncio; redis-py has no public name for the socket
                self._host.check(connection._sock if writer is None else writer.get_extra_info("socket"))
            super().on_connect(connection, **options)

        def read_from_socket(self, *args: Any, **options: Any) -> object:
            """Note that the step before is done, then read. On asyncio the result is awaitable."""
            self._progress()
            return super().read_from_socket(*args, **options)

        def parse_error(self, response: str) -> Exception:
            """Return an error reply with the whole text of the server: redis-py removes the code."""
            error = cast(Exception, super().parse_error(response))
            error.args = (response,)
            return error

    return Greeting


# For threads, and for asyncio.
_PARSERS: Final = (_greeting(redis.connection.DefaultParser), _greeting(redis.asyncio.connection.DefaultParser))


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers of one store.

    `kind` is "" or "cell" for one server, "sentinel" or "cluster"; `seeds` are the addresses in the URL (of the
    Sentinels, if there are any). `service` is the Sentinels' name of the master.
    """

    kind: str
    seeds: tuple[Address, ...]
    service: str
    connections: int  # the most connections to one address at a time, in synchronous code
    options: Options  # the arguments of redis-py's connections
    sentinel_options: Options
    host: Host | None = None

    def connection(
        self, address: Address, *, timeout: float, asynchronous: bool, sentinel: bool, progress: Callable[[], object]
    ) -> RedisConnection:
        """Return a connection of redis-py to this address, not opened yet. It is for asyncio if `asynchronous`.

        `progress` is called for each step of the opening. Replies are bytes, whatever the URL says.
        """
        options = dict(self.sentinel_options if sentinel else self.options)
        kind = options.pop("connection_class", "Connection")
        location = {"host": address.host, "port": address.port} if address.port else {"path": address.host}
        made = getattr(redis.asyncio.connection if asynchronous else redis.connection, kind)
        return made(
            **{"protocol": 2, **_UNNAMED, **options, **location, "decode_responses": False},
            parser_class=partial(_PARSERS[asynchronous], host=self.host, progress=progress),
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


def is_silent(connection: RedisConnection) -> bool:
    """True if redis-py sends nothing when it opens this connection. Then a PING shows whether the server serves us."""
    return not (connection.username or connection.password or connection.db)


def servers(url: str, *, host: Host | None = None) -> Servers:
    """Read the servers from a URL. Raises StoreURLError for a URL that cannot work. Nothing is sent."""
    kind, shown = url.partition("://")[0].lower().partition("+")[2], shown_url(url)
    try:
        found = _read(url, kind, host)
        for asynchronous in (False, True):  # redis-py refuses an unknown option here, not in the first request
            for sentinel in (False, True):
                made = found.connection(
                    found.seeds[0], timeout=1, asynchronous=asynchronous, sentinel=sentinel, progress=list
                )
                made.pack_command("PING")
    except (ValueError, TypeError, LookupError, AttributeError, RedisError) as error:
        problem = "a part of it cannot be read" if shown.endswith("…") else str(error)
    else:
        return found
    # Raised outside the except block: the error caught there, and its variables, can show a part of the password.
    expected = f"use {_EXAMPLES.get(kind, _EXAMPLES[''])}, percent-encoded"
    raise StoreURLError("store", shown, problem=problem, expected=expected)


def _read(url: str, kind: str, host: Host | None) -> Servers:
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
        host=host,
    )


def _options(url: str) -> Options:
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


def _address(options: Options, port: int) -> Address:
    """Take the address out of the options."""
    path = options.pop("path", None)
    host, port = options.pop("host", "localhost"), options.pop("port", port)
    try:
        host.encode("idna")  # as a socket does in each request
    except UnicodeError:
        raise ValueError("a part of its host is empty, too long, or cannot be encoded") from None
    return Address(host, port) if path is None else Address(path, 0)
