"""The middleware for Starlette: the one for ASGI, with eyes for routes and Starlette's own requests and responses.

This module knows how a scope is asked about and passed on; what lies ahead it is told by `places`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, cast

from starlette.requests import HTTPConnection, Request

from headgate.asgi import Arrival, ASGIApp, AsgiCaller, Receive, Scope, Send, passage_of, refuse_to_start
from headgate.asgi import RateLimitMiddleware as AsgiMiddleware
from headgate.errors import ConfigurationError, NotEnforcedError
from headgate.gate import AsyncGate, Bound
from headgate.http import is_preflight
from headgate.passage import Passage, Place, label_of
from headgate.plan import Decision
from headgate.settings import Settings
from headgate.starlette.answers import own_answer
from headgate.starlette.places import Ahead, is_built_late

SCOPE: Final[ContextVar[Scope | None]] = ContextVar("headgate_scope", default=None)
"""The request that is being served, for views that do not take one."""


class StarletteCaller(AsgiCaller):
    """What a scope and the matched path tell about who is asking."""

    __slots__ = ("_params",)

    def __init__(self, scope: Scope, params: Any = None) -> None:
        super().__init__(scope)
        self._params = scope.get("path_params", {}) if params is None else params

    @property
    def native(self) -> HTTPConnection:
        """A `Request`, or an `HTTPConnection` for a WebSocket handshake; it knows the path parameters already."""
        scope = {**self.scope, "path_params": self._params}
        return Request(scope) if scope["type"] == "http" else HTTPConnection(scope)

    def path_value(self, name: str) -> str | None:
        """A parameter of the matched path."""
        value = self._params.get(name)
        return None if value is None else str(value)


class RateLimitMiddleware(AsgiMiddleware):
    """Limits every HTTP request and WebSocket handshake of a Starlette or FastAPI application.

        app.add_middleware(RateLimitMiddleware, store="redis://…", default_limits=["1000/day"])

    Options are those of `headgate.settings.Settings`. `on_denied(request, decision)` returns a Response, or an
    awaitable of one; without it, the application's exception handler for RateLimitExceeded or for 429 answers. The
    middleware may also stand in the `middleware` of a Route, Mount or Router.
    """

    def __init__(self, app: ASGIApp, /, *, settings: Settings | None = None, **options: Any) -> None:
        self._error: ConfigurationError | None = None
        try:
            super().__init__(app, settings=settings, **options)
        except ConfigurationError as error:
            if not is_built_late(app):
                raise
            self._error = error
        self._ahead = Ahead(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; or refuse to start, where `add_middleware` was given what cannot work.

        Starlette makes its middleware only when it is first called, and servers take an application that raises then
        for one that knows no lifespan: they would serve a 500 for ever.
        """
        if self._error is None:
            return await super().__call__(scope, receive, send)
        if scope["type"] == "lifespan":
            await refuse_to_start(self._error, receive, send)
        raise self._error

    def arrive(self, scope: Scope) -> Arrival:
        """Who asks, and where the router will take the request."""
        target, child = self._ahead.find(scope)
        return Arrival(StarletteCaller(scope, child.get("path_params")), target.place, target.marks)

    def places(self, scope: Scope) -> list[Place]:
        """Every place that can be seen ahead."""
        return self._ahead.places(scope)

    async def pass_on(self, call: tuple[Scope, Receive, Send]) -> None:
        """Call the application, with the scope where guards find it."""
        before = SCOPE.get()
        SCOPE.set(call[0])
        await self.app(*call)
        SCOPE.set(before)  # not in a `finally`: no try around the application, and after an error nobody asks

    async def own_answer(self, decision: Decision, caller: AsgiCaller) -> ASGIApp | None:
        """The answer of `on_denied`, or of the application's exception handler."""
        return await own_answer(self.settings, caller, decision)


def decision(connection: HTTPConnection) -> Decision | None:
    """How this request stands with its limits, for views and middleware; None where no rule applied."""
    passage = passage_of(connection.scope)
    return None if passage is None else passage.decision


def passage_at(scope: Scope, what: str, limited: Any) -> Passage:
    """What headgate has done about this request; NotEnforcedError if there is no gate that could do anything."""
    passage = passage_of(scope)
    if passage is None:
        problem, expected = "reached without RateLimitMiddleware", "app.add_middleware(RateLimitMiddleware, …)"
        raise NotEnforcedError(what, label_of(limited), problem=problem, expected=f"add it with {expected}")
    return passage


async def charge(passage: Passage, scope: Scope, bounds: tuple[Bound, ...]) -> Decision | None:
    """Charge rules that could not be seen ahead; None if none applies."""
    caller = StarletteCaller(scope)
    if is_preflight(caller.method, caller.header):
        return None
    decided = await cast("AsyncGate", passage.gate).decide(caller, bounds)
    passage.note(decided)
    return decided
