"""The kinds of failure: what an error reply or a missing reply says, what it concerns, and what to do. One table.

docs/outages.md explains the kinds. Only a failure that concerns a node or the store opens a circuit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeGuard

from redis.exceptions import AuthenticationError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sluicegate.errors import Concerns, StoreError, cause_text
from sluicegate.stores.redis.steps import NoReplyError


class Kind(NamedTuple):
    """One kind of failure."""

    concerns: Concerns
    advice: str = ""  # what to do, for the log


_PASSWORD: Final = Kind("node", "give the user and the password of this server in the URL")
_PERMISSION: Final = Kind("rule", 'grant this user what the page "Redis and Valkey" lists under Permissions')

KINDS: Final[Mapping[str, Kind]] = {  # by words in an error reply; the first ones that it has decide
    "NOPERM": _PERMISSION,
    "ACL failure": _PERMISSION,  # in a script, since 7.0
    "can't run this command": _PERMISSION,  # in a script, before 7.0
    "WRONGTYPE": Kind("rule", "another program wrote this key: delete the key, or give sluicegate another prefix"),
    "TRYAGAIN": Kind("plan", "the keys of the plan are on two nodes until the migration of their slot ends"),
    "MOVED": Kind("plan", "the nodes of the cluster do not agree yet which of them serves the slot"),
    "CLUSTERDOWN Hash slot": Kind(
        "plan", "no node serves the slot: check the cluster with `redis-cli --cluster check`"
    ),
    "CLUSTERDOWN": Kind("node", "check the cluster with `redis-cli --cluster check`"),
    "MASTERDOWN": Kind("node", "it is a replica that has lost its master"),
    "READONLY": Kind("node", "it is a replica: give the URL of the master, of Sentinels or of a cluster"),
    "NOREPLICAS": Kind("node", "it has fewer replicas than its min-replicas-to-write"),
    "LOADING": Kind("node", "it is reading its data from disk or from its master"),
    "OOM": Kind("node", "its memory is full: raise its maxmemory"),
    "MISCONF": Kind("node", "it cannot save its data to disk: see its log"),
    "BUSY": Kind("node", "a script of another program blocks it: end it with SCRIPT KILL"),
    "NOAUTH": _PASSWORD,
    "WRONGPASS": _PASSWORD,
    "max number of clients": Kind("node", "raise its maxclients"),
    "DB index is out of range": Kind("node", "give a database in the URL that the server has: see its `databases`"),
}
_OTHER_REPLY: Final = Kind("rule", "see the reply of the server")  # the server works: it has answered
_NO_REPLY: Final = Kind("node")
_PLAN: Final = Kind("plan")  # only this plan or its connection failed: the server answers others


def kind_of(failure: Exception) -> Kind:
    """Return the kind of an error reply or of a NoReplyError."""
    if isinstance(failure, NoReplyError):
        if failure.concerns != "server":
            return _PLAN
        if isinstance(failure.cause, AuthenticationError):
            return _PASSWORD
        # If the server turned the connection away, redis-py has raised its error reply.
        return (_kind_of_text(failure.cause) or _NO_REPLY)._replace(concerns="node")
    return _kind_of_text(failure) or _OTHER_REPLY


def _kind_of_text(failure: object) -> Kind | None:
    words = f" {str(failure).translate(_SEPARATORS)} "
    return next((kind for sign, kind in KINDS.items() if f" {sign} " in words), None)


_SEPARATORS: Final = str.maketrans(":-", "  ")  # older servers report "… @user_script: 1: -READONLY You can't write"


def store_error(where: str, failure: Exception) -> StoreError:
    """Return the StoreError of an error reply or of a NoReplyError. `where` is the name of the server."""
    kind = kind_of(failure)
    cause = failure.cause if isinstance(failure, NoReplyError) else str(failure)
    error = StoreError(where, cause, concerns=kind.concerns, advice=kind.advice)
    error.__cause__ = failure
    return error


def said(failure: object) -> str:
    """Return what a server replied to a look-up, or why it did not reply, for an error message."""
    if isinstance(failure, NoReplyError):
        return cause_text(failure.cause)
    return str(failure) if isinstance(failure, Exception) else "knows no such service"


def timed_out(failure: object) -> TypeGuard[NoReplyError]:
    """True for a NoReplyError because of a timeout."""
    return isinstance(failure, NoReplyError) and isinstance(failure.cause, (TimeoutError, RedisTimeoutError))


def may_succeed_elsewhere(error: NoReplyError) -> bool:
    """True if the command did not run, and there is time left to send it to another server."""
    return not error.sent and not timed_out(error) and not isinstance(error.cause, AuthenticationError)
