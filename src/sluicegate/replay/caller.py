"""A logged request as the gate sees it: the log is one more adapter. Also the keys and costs that only a log has."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluicegate.quota import MAX_LIMIT
from sluicegate.replay.traffic import FIELD, HEADER
from sluicegate.rules.response import Response

Row = tuple[Any, ...]
Places = Mapping[str, int]
"""For a column, the place of its value in a row."""


class LoggedRequest:
    """One row of traffic: the `Caller` of the gate, and the request that the functions of rules are called with."""

    __slots__ = ("_at", "_forwarding", "_values")

    def __init__(self, values: Row, at: Places, forwarding: str = "x-forwarded-for") -> None:
        self._values = values
        self._at = at
        self._forwarding = forwarding  # the header that the column `forwarded` has, in small letters

    @property
    def native(self) -> LoggedRequest:
        return self

    def column(self, name: str) -> Any:
        """Return the value of a column of traffic; None if the log does not have it."""
        place = self._at.get(name)
        return None if place is None else self._values[place]

    def field(self, name: str) -> str | None:
        """Return a field of the log by the log's own name for it; None if the line does not have it."""
        found = self.column(f"{FIELD}{name}")
        return None if found is None else str(found)

    @property
    def method(self) -> str:
        """The method in capitals; "GET" if it was not logged."""
        return self.column("method") or "GET"

    @property
    def path(self) -> str:
        """The path, without the query."""
        return self.column("path") or "/"

    @property
    def query(self) -> str:
        """The query, without the question mark."""
        return self.column("query") or ""

    @property
    def host(self) -> str | None:
        found: str | None = self.column("host")
        return found

    @property
    def status(self) -> int | None:
        found: int | None = self.column("status")
        return found

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end."""
        found: str | None = self.column("address")
        return found

    def header(self, name: str) -> Sequence[str]:
        """Return a logged header of the request as one line; nothing if it was not logged."""
        name = name.lower()
        found = self.column(f"{HEADER}{name}")
        if found is None and name == "user-agent":
            found = self.column("agent")
        if found is None and name == self._forwarding:
            found = self.column("forwarded")
        return () if found is None else (found,)

    def path_value(self, name: str) -> str | None:
        """Return None: a log does not know the routes of the application."""
        return None

    def user(self) -> Hashable | None:
        found: str | None = self.column("user")
        return found

    def signs_in_later(self) -> bool:
        """False: no log has the credentials of a request."""
        return False


@dataclass(frozen=True, slots=True)
class LogKey:
    """A key that only a log has: `field:NAME`, or `path:2`, the second part of the path. The rule does not apply to a
    request without it.
    """

    kind: str  # "field" or "path"
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return ("path",) if self.kind == "path" else (f"{FIELD}{self.name}",)

    def __call__(self, request: LoggedRequest) -> Hashable | None:
        value = request.field(self.name) if self.kind == "field" else self._part(request.path)
        return None if value is None else (str(self), value)

    def _part(self, path: str) -> str | None:
        parts = path.strip("/").split("/")
        return parts[int(self.name) - 1] or None if int(self.name) <= len(parts) else None


@dataclass(frozen=True, slots=True)
class FieldCost:
    """A cost from a field of the log: one unit for each `unit` of it, rounded up. Without a number, one unit. A client
    may choose the number: a cost above each limit is as good as any higher one.
    """

    column: str
    unit: int = 1

    def __str__(self) -> str:
        return self.column.removeprefix(FIELD) + ("" if self.unit == 1 else f"/{self.unit}")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def __call__(self, request: LoggedRequest) -> int:
        try:
            value = int(request.column(self.column))
        except (TypeError, ValueError):
            return 1
        return min(max(0, -(-value // self.unit)), MAX_LIMIT + 1)


@dataclass(frozen=True, slots=True)
class StatusIn:
    """A condition of a charge: the status of the response is one of these, or begins with one of these digits."""

    statuses: frozenset[int]
    hundreds: frozenset[int] = frozenset()

    columns = ("status",)

    def __call__(self, response: Response) -> bool:
        return response.status_code in self.statuses or response.status_code // 100 in self.hundreds
