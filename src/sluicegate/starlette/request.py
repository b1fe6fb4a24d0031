"""A Starlette request as key functions see it."""

from __future__ import annotations

from contextlib import suppress

import anyio.from_thread
from starlette.requests import HTTPConnection, Request

from sluicegate.asgi import AsgiCaller, Params, Scope, header_lines
from sluicegate.starlette.routes import RouteFinder


class StarletteCaller(AsgiCaller):
    """The client of a scope. The routes are matched only when something needs the endpoint or a path value."""

    __slots__ = ("_finder", "_params")

    def __init__(self, scope: Scope, params: Params | None = None, finder: RouteFinder | None = None) -> None:
        self.scope = scope
        self._params = params  # the path parameters; None: not known yet
        self._finder = finder  # None: the scope has passed the router

    @property
    def native(self) -> HTTPConnection:
        """A `Request`, or an `HTTPConnection` for a WebSocket handshake, with the path parameters."""
        scope, params = self.scope, self._params
        # A copy: the parameters are not the application's yet, and a key function may write into its scope.
        own = {**scope, "headers": header_lines(scope), "path_params": self.params() if params is None else params}
        return Request(own) if scope["type"] == "http" else HTTPConnection(own)

    def params(self) -> Params:
        """Return the path parameters, as the application will get them."""
        if self._params is None:
            found = None if self._finder is None else self._finder.find(self.scope)[1]
            self._params = super().params() if found is None else found
        return self._params


def is_in_a_thread() -> bool:
    """True in a thread of anyio's, in which plain functions run. False on the event loop."""
    with suppress(RuntimeError):
        anyio.from_thread.check_cancelled()
        return True
    return False
