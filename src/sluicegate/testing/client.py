"""The HTTP client that an adapter gives to its exam, and the responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """A response: the status, the header lines with names in lower case, and the whole body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def one(self, name: str) -> str | None:
        """Return the value of a header that has at most one line. None if the header is missing."""
        lines = self.all(name)
        assert len(lines) <= 1, f"the header {name} has {len(lines)} lines: {lines}"
        return lines[0] if lines else None


class AdapterClient(Protocol):
    """A running application that can be requested. `calls` has the name of each view that ran, in order."""

    calls: list[str]

    def request(
        self, method: str, path: str, *, headers: Headers = (), peer: str | None = "198.51.100.9", body: bytes = b""
    ) -> Answer: ...


class AdapterLaws:
    """The base of the parts of AdapterExam."""

    is_async = False
    """Whether the adapter is async and takes an async store."""

    def client(self, **options: Any) -> AdapterClient:
        """Return the application, limited by the adapter with these options."""
        raise NotImplementedError
