"""Routes of logged requests: a method, and a path whose variable parts become `*`. Their number is bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sluicegate.replay.caller import Places, Row
from sluicegate.rules.rule import METHODS

MOST: Final = 2_000  # different routes; the others are one
OTHER: Final = "(other)"
_PATHS: Final = 20_000  # paths whose route is remembered
_DEEPEST: Final = 6  # parts; the rest of a path is one `*`
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_VARIABLE: Final = re.compile(
    r"(?=[.+:-]*[0-9])[0-9.+:-]+"  # a number, a date, an address
    r"|[0-9]+\.[A-Za-z][A-Za-z0-9]{0,4}"  # a numbered file
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


def name_of(path: str | None) -> str:
    """Return a name for a rule about this path; None for all.

    >>> name_of("/users/*/orders"), name_of("/"), name_of(None)
    ('users-orders', 'home', 'everything')
    """
    words = _WORD.findall(path or "") or (["home"] if path else ["everything"])
    return "-".join(words)[:50]


class Routes:
    """The routes of a log with their methods, numbered as they come. Number 0 is all the others."""

    def __init__(self) -> None:
        self.names = [OTHER]
        self._numbers: dict[str, int] = {}
        self._known: dict[tuple[str | None, str], int] = {}  # of the latest methods and paths

    def number(self, values: Row, at: Places) -> int:
        """Return the number of the route of a request, from its columns `method` and `path`, as far as it has them. A
        HEAD counts as GET, as in rules.
        """
        method = values[at["method"]] if "method" in at else None
        path = (values[at["path"]] if "path" in at else None) or "/"
        found = self._known.get((method, path))
        if found is None:
            if len(self._known) >= _PATHS:
                self._known.clear()
            found = self._known[method, path] = self._number(" ".join([*_method(method), route_of(path)]))
        return found

    def _number(self, route: str) -> int:
        found = self._numbers.get(route)
        if found is None:
            if len(self.names) > MOST:
                return 0
            found = self._numbers[route] = len(self.names)
            self.names.append(route)
        return found


def _method(method: str | None) -> Iterator[str]:
    """Yield the method that a rule for a request would have, if the log has one. Clients may send any word as one."""
    if method is not None:
        yield "GET" if method == "HEAD" else method if method in METHODS else "*"
