"""The middleware for Starlette: the one for ASGI, with eyes for routes and Starlette's own requests and responses.

This module knows how a scope is asked about and passed on; what lies ahead it is told by `places`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from starlette.requests import HTTPConnection, Request

from sluicegate.asgi import ASGIApp, AsgiCaller, Scope, header_lines, passage_of
from sluicegate.asgi import RateLimitMiddleware as AsgiMiddleware
from sluicegate.errors import ConfigurationError, NotEnforcedError
from sluicegate.gate import AsyncGate, Bound
from sluicegate.passage import NOWHERE, Arrival, Passage, Place, label_of
from sluicegate.plan import Decision
from sluicegate.settings import Settings, hide
from sluicegate.starlette.answers import own_answer
from sluicegate.starlette.places import Ahead, is_built_late


class StarletteCaller(AsgiCaller):
    """What a scope and the matched path tell about who is asking. The routes are matched only when that is asked."""

    __slots__ = ("_ahead", "_found")

    def __init__(self, scope: Scope, ahead: Ahead | None = None) -> None:
        self.scope = scope
        self.method = scope.get("method", "GET").upper()
        self._ahead = ahead  # None: the router has been passed
        self._found: tuple[Arrival, Scope] | None = None

    @property
    def arrival(self) -> Arrival:
        """Where the request will arrive."""
        return self._find()[0]

    @property
    def native(self) -> HTTPConnection:
        """A `Request`, or an `HTTPConnection` for a WebSocket handshake; it knows the path parameters already."""
        scope = {**self.scope, "headers": header_lines(self.scope), "path_params": self._params()}
        return Request(scope) if scope["type"] == "http" else HTTPConnection(scope)

    def path_value(self, name: str) -> str | None:
        """A parameter of the matched path."""
        value = self._params().get(name)
        return None if value is None else str(value)

    def _params(self) -> Any:
        params = self._find()[1].get("path_params")
        return (self.scope.get("path_params") or {}) if params is None else params

    def _find(self) -> tuple[Arrival, Scope]:
        if self._found is None:
            self._found = (NOWHERE, {}) if self._ahead is None else self._ahead.find(self.scope)
        return self._found


class RateLimitMiddleware(AsgiMiddleware):
    """Limits every HTTP request and WebSocket handshake of a Starlette or FastAPI application.

        app.add_middleware(RateLimitMiddleware, store="redis://…", default_limits=["1000/day"])

    Options are those of `sluicegate.settings.Settings`. `on_denied(request, decision)` returns a Response, or an
    awaitable of one; without it, the application's exception handler for RateLimitExceeded or for 429 answers. The
    middleware may also stand in the `middleware` of a Route, Mount or Router.
    """

    def __init__(self, app: ASGIApp, /, *, settings: Settings | None = None, **options: Any) -> None:
        options = hide(options)
        self._error: ConfigurationError | None = None
        try:
            super().__init__(app, settings=settings, **options)
        except ConfigurationError as error:
            if not is_built_late(app):
                raise
            self._error = error
        self._ahead = Ahead(app)
        self._application: Any = None

    def arrive(self, scope: Scope) -> tuple[AsgiCaller, Arrival]:
        """Who asks, and where the router will take the request, if that makes any difference."""
        caller, routes = StarletteCaller(scope, self._ahead), self._ahead.routes
        if routes is None or self.gate.knows_routes:
            return caller, caller.arrival
        return caller, routes.find_marked(scope)

    def places(self, scope: Scope) -> list[Place]:
        """Every place that can be seen ahead."""
        return self._ahead.places(scope)

    def caller(self, scope: Scope) -> AsgiCaller:
        """Who asks, of a scope that the router has seen already."""
        return StarletteCaller(scope)

    def answers_preflight(self, scope: Scope) -> bool:
        """Whether something other than a view answers a CORS preflight: a CORS layer, or the router."""
        return self._ahead.answers_preflight(scope)

    def own_answer(self, decision: Decision, caller: AsgiCaller) -> Awaitable[ASGIApp | None]:
        """The answer of `on_denied`, or of the application's exception handler."""
        return own_answer(self.settings, caller, decision, outer=self._application)

    def _check(self, scope: Scope) -> None:
        """Bind all places that can be seen; or refuse to serve, where `add_middleware` was given what cannot work.

        Starlette makes its middleware only when it is first called, and servers take an application that raises then
        for one that knows no lifespan: they would serve a 500 for ever.
        """
        if self._error is not None:
            raise self._error
        self._application = scope.get("app")
        super()._check(scope)


def decision(connection: HTTPConnection) -> Decision | None:
    """How this request stands with its limits, for views and middleware; None where no rule applied."""
    passage = passage_of(connection.scope)
    return None if passage is None else passage.decision


def passage_at(scope: Scope, what: str, limited: Any) -> Passage:
    """What sluicegate has done about this request; NotEnforcedError if there is no gate that could do anything."""
    passage = passage_of(scope)
    if passage is None:
        problem, expected = "reached without RateLimitMiddleware", "app.add_middleware(RateLimitMiddleware, …)"
        raise NotEnforcedError(what, label_of(limited), problem=problem, expected=f"add it with {expected}")
    return passage


async def charge(passage: Passage, scope: Scope, bounds: tuple[Bound, ...]) -> Decision | None:
    """Charge rules that could not be seen ahead; None if none applies."""
    decided = await cast("AsyncGate", passage.gate).decide(StarletteCaller(scope), bounds)
    passage.note(decided)
    return decided
