"""Whether a server drops keys when its memory is full. To drop the budget of somebody who is refused is to let him in.

What a server does not let us read is not told of. This module knows what INFO answers; it asks nobody.
"""

from __future__ import annotations

from typing import Any, Final

from sluicegate.cautions import caution

_KEEPS: Final = "noeviction"


def warn_of_eviction(server: str, reply: Any, *, strict: bool) -> None:
    """Warn (SG109) of a server that has a limit to its memory, and drops keys when that is reached."""
    policy = policy_of(reply)
    if policy:
        caution("SG109", server, strict=strict, policy=policy)


def policy_of(reply: Any) -> str:
    """The policy by which a server drops keys; "" where it drops none, or does not say.

    >>> policy_of(b"# Memory\\r\\nmaxmemory:1048576\\r\\nmaxmemory_policy:allkeys-lru\\r\\n")
    'allkeys-lru'
    """
    facts = reply  # a client that was handed in has read it already
    if isinstance(reply, bytes):
        lines = reply.decode("utf-8", "replace").splitlines()
        facts = {name: value for name, _, value in [line.partition(":") for line in lines]}
    if not isinstance(facts, dict) or str(facts.get("maxmemory", 0)) == "0":
        return ""
    policy = str(facts.get("maxmemory_policy", _KEEPS))
    return "" if policy == _KEEPS else policy
