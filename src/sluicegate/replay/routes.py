"""Routes of logged paths: the variable parts of a path become `*`, and their number is bounded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from sluicegate.extras import needs

with needs("replay"):
    pass

MOST: Final = 400  # different routes; the others are one
OTHER: Final = "(other)"
_DEEPEST: Final = 6  # parts; the rest of a path is one `*`
_VARIABLE: Final = re.compile(
    r"[0-9]+|(?=[^0-9]*[0-9])[0-9A-Fa-f-]{8,}|(?=(?:[^0-9]*[0-9]){3})[\w.~-]{16,}|.{48,}|.*[@%=:,;].*"
)


def route_of(path: str) -> str:
    """Return the route of a path.

    >>> route_of("/users/17/orders/9f1b3c2d"), route_of("/login")
    ('/users/*/orders/*', '/login')
    """
    parts = path[:2048].split("/")
    shown = ["*" if _VARIABLE.fullmatch(part) else part for part in parts[: _DEEPEST + 1]]
    return "/".join([*shown, *(["*"] if len(parts) > _DEEPEST + 1 else [])]) or "/"


class Routes:
    """The routes of a log, numbered as they come. Number 0 is all the others."""

    def __init__(self) -> None:
        self.names = [OTHER]
        self._numbers: dict[str, int] = {}

    def number(self, values: Sequence[Any]) -> int:
        """Return the number of a path's route."""
        route = route_of(values[0] or "/") if values else "/"
        found = self._numbers.get(route)
        if found is None:
            if len(self.names) > MOST:
                return 0
            found = self._numbers[route] = len(self.names)
            self.names.append(route)
        return found
