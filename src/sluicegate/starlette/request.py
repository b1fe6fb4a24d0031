"""A Starlette request as key functions see it."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection, Request

from sluicegate.asgi import AsgiCaller, Scope, header_lines
from sluicegate.starlette.routes import RouteFinder
from sluicegate.web.endpoint import NOWHERE, Arrival


class StarletteCaller(AsgiCaller):
    """The client of a scope. The routes are matched only when a key needs the endpoint or a path value."""

    __slots__ = ("_finder", "_found")

    def __init__(self, scope: Scope, finder: RouteFinder | None = None) -> None:
        self.scope = scope
        self._finder = finder  # None: the scope has passed the router
        self._found: tuple[Arrival, Scope] | None = None

    @property
    def arrival(self) -> Arrival:
        """The endpoint that the request will reach."""
        return self._find()[0]

    @property
    def native(self) -> HTTPConnection:
        """A `Request`, or an `HTTPConnection` for a WebSocket handshake, with the path parameters."""
        scope = {**self.scope, "headers": header_lines(self.scope), "path_params": self._params()}
        return Request(scope) if scope["type"] == "http" else HTTPConnection(scope)

    def path_value(self, name: str) -> str | None:
        """Return a parameter of the matched path; None if the path has no such parameter."""
        value = self._params().get(name)
        return None if value is None else str(value)

    def _params(self) -> Any:
        params = self._find()[1].get("path_params")
        return (self.scope.get("path_params") or {}) if params is None else params

    def _find(self) -> tuple[Arrival, Scope]:
        if self._found is None:
            self._found = (NOWHERE, {}) if self._finder is None else self._finder.find(self.scope)
        return self._found
