"""Routes of logged paths: the variable parts of a path become `*`, and their number is bounded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

MOST: Final = 400  # different routes; the others are one
OTHER: Final = "(other)"
_PATHS: Final = 20_000  # paths whose route is remembered
_DEEPEST: Final = 6  # parts; the rest of a path is one `*`
_VARIABLE: Final = re.compile(
    r"(?=[.+:-]*[0-9])[0-9.+:-]+"  # a number, a date, an address
    r"|(?=[^0-9]*[0-9])[0-9A-Fa-f-]{8,}|(?=(?:[^0-9]*[0-9]){3})[\w.~-]{16,}|[A-Za-z0-9]{20,}|.{48,}"
    r"|(?=[^A-Z]*[A-Z])(?=[^a-z]*[a-z])(?=[^0-9]*[0-9]).{8,}"
    r"|(?=[^A-Z]*[A-Z])(?=[^a-z]*[a-z])(?!(?:[a-z]+|[A-Z][a-z]+)(?:[A-Z][a-z]+)*$)[A-Za-z]{10,}"
    r"|~.*|.*[@%=:,;*?\[].*",
    re.DOTALL,
)


def route_of(path: str) -> str:
    """Return the route of a path, in printable characters. The path is taken as adapters match it, with one slash.

    >>> route_of("/users/17/orders/9f1b3c2d"), route_of("//login"), route_of("/reset/kJhGfDsAqWeRtYuIoPzX")
    ('/users/*/orders/*', '/login', '/reset/*')
    """
    parts = path[:2048].lstrip("/").removesuffix("\n").split("/")
    shown = ["*" if _VARIABLE.fullmatch(part) or not part.isprintable() else part for part in parts[:_DEEPEST]]
    return "/" + "/".join([*shown, *(["*"] if len(parts) > _DEEPEST else [])])


class Routes:
    """The routes of a log, numbered as they come. Number 0 is all the others."""

    def __init__(self) -> None:
        self.names = [OTHER]
        self._numbers: dict[str, int] = {}
        self._paths: dict[str, int] = {}  # the latest

    def number(self, values: Sequence[Any]) -> int:
        """Return the number of a path's route."""
        path = (values[0] if values else None) or "/"
        found = self._paths.get(path)
        if found is None:
            if len(self._paths) >= _PATHS:
                self._paths.clear()
            found = self._paths[path] = self._number(route_of(path))
        return found

    def _number(self, route: str) -> int:
        found = self._numbers.get(route)
        if found is None:
            if len(self.names) > MOST:
                return 0
            found = self._numbers[route] = len(self.names)
            self.names.append(route)
        return found
