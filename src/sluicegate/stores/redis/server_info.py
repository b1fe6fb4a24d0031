"""What a server says about itself: its reply to INFO, as facts by name, and the time of a round trip.

Evicting a refused client's key lets that client through. If a server does not allow INFO, there is no warning.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final

from sluicegate.clock import monotonic
from sluicegate.errors import StoreError, warn
from sluicegate.stores.redis.commands import Command, pack
from sluicegate.stores.redis.steps import Steps

_INFO: Final = Command(pack("INFO", "server"))
_PING: Final = Command(pack("PING"))  # the server does nothing for it: its time is that of the round trip
_OWN: Final = ("valkey", "dragonfly", "garnet")  # they report a version of Redis too, for old clients
_KEEPS: Final = "noeviction"


def facts_of(reply: object) -> Mapping[str, object]:
    """Return the facts in a reply to INFO, by name. A client that the user made has parsed the reply already.

    >>> facts_of(b"# Server\\r\\nredis_version:8.0.0\\r\\n")
    {'# Server': '', 'redis_version': '8.0.0'}
    """
    if isinstance(reply, bytes):
        lines = reply.decode("utf-8", "replace").splitlines()
        return {name: value for name, _, value in [line.partition(":") for line in lines]}
    return reply if isinstance(reply, dict) else {}


def version_of(facts: Mapping[str, object]) -> str | None:
    """Return the name and the version of a server.

    >>> version_of({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.0.0"})
    'valkey 9.0.0'
    """
    for name in (*_OWN, "redis"):
        if found := facts.get(f"{name}_version"):
            return f"{name} {str(found).removeprefix('df-v')}"
    return None


def warn_of_eviction(server: str, reply: object, *, strict: bool) -> None:
    """Warn (SG109) of a server that has a memory limit and evicts keys when it is reached."""
    policy = policy_of(reply)
    if policy:
        warn("SG109", server, strict=strict, policy=policy)


def policy_of(reply: object) -> str:
    """Return the eviction policy of a server; "" if it evicts nothing or does not report it.

    >>> policy_of(b"# Memory\\r\\nmaxmemory:1048576\\r\\nmaxmemory_policy:allkeys-lru\\r\\n")
    'allkeys-lru'
    """
    facts = facts_of(reply)
    if str(facts.get("maxmemory", 0)) == "0":
        return ""
    policy = str(facts.get("maxmemory_policy", _KEEPS))
    return "" if policy == _KEEPS else policy


def identify(send: Callable[[Command], Steps[object]]) -> Steps[tuple[str | None, float]]:
    """Return the version of the server, and the seconds of a round trip. `send` sends a command to the server.

    INFO comes first, because it may open the connection. A user without the permission gets no version.
    """
    version = None
    with if_permitted():
        version = version_of(facts_of((yield from send(_INFO))))
    began = monotonic()
    with if_permitted():
        yield from send(_PING)
    return version, monotonic() - began


@contextmanager
def if_permitted() -> Generator[None]:
    """End the block without an error if the server replies that the user may not do this."""
    try:
        yield
    except StoreError as error:
        if error.concerns != "rule":  # the server is down
            raise
