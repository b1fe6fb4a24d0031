"""What is asked of a server, and how it can fail: the words between the routes and the links.

The routes say what to ask of whom, in steps; the links of either colour do it. Values only.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from sluicegate.stores.redis.commands import AnyCommand

T = TypeVar("T")


class Address(NamedTuple):
    """Where a server listens: a host and a port, or a path and 0."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else self.host


class Ask(NamedTuple):
    """One command for one server."""

    address: Address
    command: AnyCommand
    share: float = 1.0  # of the time that is left
    sentinel: bool = False  # whether it is a Sentinel, which may want another password

    def limit(self, until: float, now: float) -> float:
        """When the answer must be there, if everything must be over by `until`."""
        return until - (until - now) * (1 - self.share)


class Tried(NamedTuple):
    """What was asked already, and what came of it: an error reply, or a LinkError."""

    ask: Ask
    reply: Any


class Pause(NamedTuple):
    """A moment for a server to finish what it is doing."""

    seconds: float


class Leave(NamedTuple):
    """Connections not to be used again: what is at the other end is not what it was, but may be if called anew."""

    address: Address


Steps = Generator[Ask | Pause | Leave, Any, T]
"""Steps yield what they ask for and are sent the reply, which may be an error reply; a LinkError is thrown in."""


class LinkError(Exception):
    """A command got no answer. `sent`: it may have been run all the same."""

    def __init__(self, address: Address, cause: BaseException | str, *, sent: bool) -> None:
        self.address, self.cause, self.sent = address, cause, sent
        super().__init__(f"{address}: {cause}")
