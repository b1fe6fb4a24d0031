"""The steps of the operations: the commands to send, to which server, and the error when there is no reply.

The operations yield steps; a sync or an async driver takes them. Values only.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, Literal, NamedTuple, TypeVar

from sluicegate.stores.redis.commands import AnyCommand

T = TypeVar("T")

MALFORMED: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError)
"""What reading or decoding raises for a wrong reply: a proxy, or another program's server, has answered."""
NO_SENSE: Final = "the reply makes no sense"


class Address(NamedTuple):
    """The address of a server: a host and a port, or a path and 0."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else self.host


def address_from(host: str, port: Any) -> Address:
    """Return an address that a server has named. Raises one of MALFORMED if it is none."""
    number = int(port)
    if not 0 < number < 65536:
        raise ValueError(f"the port {number} does not exist")
    return Address(host, number)


class Send(NamedTuple):
    """A step that sends one command to one server."""

    address: Address
    command: AnyCommand
    part: float = 1.0  # of the patience that is left
    sentinel: bool = False  # whether the server is a Sentinel, which may need another password


class Pause(NamedTuple):
    """A step that waits until a server has finished its work. The driver sends True if patience is left."""

    seconds: float


class Reconnect(NamedTuple):
    """A step that replaces the open connections: after a failover the address may lead to another server."""

    address: Address


class NewDeadline(NamedTuple):
    """A step of a long operation: the next steps have a deadline of their own."""


Steps = Generator[Send | Pause | Reconnect | NewDeadline, Any, T]
"""Steps of one operation. It is sent each reply, which may be an error reply or a NoReplyError."""


Concerns = Literal["plan", "connection", "server"]
"""What a missing reply concerns: one plan, the plans that were sent over one connection, or all plans of the server."""


class NoReplyError(Exception):
    """The value in place of a reply: a command got none. If it was `sent`, the server may have run it all the same.

    The error concerns the server, or only this plan or its connection: the server answers others.
    """

    def __init__(
        self,
        address: Address,
        cause: BaseException | str,
        *,
        sent: bool,
        concerns: Concerns = "server",
    ) -> None:
        self.address, self.cause, self.sent, self.concerns = address, cause, sent, concerns
        super().__init__(f"{address}: {cause}")
