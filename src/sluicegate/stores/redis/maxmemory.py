"""The check whether a server evicts keys when its memory is full, read from its reply to INFO.

Evicting a refused client's key lets that client through. If a server does not allow INFO, there is no warning.
"""

from __future__ import annotations

from typing import Any, Final

from sluicegate.errors import warn
from sluicegate.stores.redis.server_info import facts_of

_KEEPS: Final = "noeviction"


def warn_of_eviction(server: str, reply: Any, *, strict: bool) -> None:
    """Warn (SG109) of a server that has a memory limit and evicts keys when it is reached."""
    policy = policy_of(reply)
    if policy:
        warn("SG109", server, strict=strict, policy=policy)


def policy_of(reply: Any) -> str:
    """Return the eviction policy of a server; "" if it evicts nothing or does not report it.

    >>> policy_of(b"# Memory\\r\\nmaxmemory:1048576\\r\\nmaxmemory_policy:allkeys-lru\\r\\n")
    'allkeys-lru'
    """
    facts = facts_of(reply)
    if str(facts.get("maxmemory", 0)) == "0":
        return ""
    policy = str(facts.get("maxmemory_policy", _KEEPS))
    return "" if policy == _KEEPS else policy
