"""The middleware for Starlette: the one for ASGI, which also knows routes, and Starlette's requests and responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Unpack

from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from sluicegate.asgi import ASGIApp, AsgiCaller, Receive, Scope, Send, chain, state_of
from sluicegate.asgi import RateLimitMiddleware as AsgiMiddleware
from sluicegate.errors import ConfigurationError, NotEnforcedError, warn
from sluicegate.plan import Decision
from sluicegate.starlette.request import StarletteCaller
from sluicegate.starlette.responses import handler_of, own_answer
from sluicegate.starlette.routes import Found, RouteFinder, answers_preflight, is_built_late
from sluicegate.web.endpoint import Arrival, Endpoint, label_of
from sluicegate.web.request_state import RequestState
from sluicegate.web.settings import Settings, SettingsOptions, hide


class RateLimitMiddleware(AsgiMiddleware):
    """Limits every HTTP request and WebSocket handshake of a Starlette or FastAPI application.

        app.add_middleware(RateLimitMiddleware, store="redis://…", default_limits=["1000/day"])

    Options are those of `sluicegate.Settings`. `on_denied(request, decision)` returns a Response, or an awaitable of
    one. Without it, the application's exception handler for 429, RateLimitExceeded or HTTPException makes the
    response. The middleware may also be in the `middleware` of a Route, Mount or Router.
    """

    def __init__(
        self, app: ASGIApp, /, *, settings: Settings | None = None, **options: Unpack[SettingsOptions]
    ) -> None:
        options = hide(options)
        self._error: ConfigurationError | None = None
        self._finder = RouteFinder(app)
        try:
            super().__init__(app, settings=settings, **options)
        except ConfigurationError as error:
            if not is_built_late(app):
                raise
            self._error = error
        else:
            routes = self._finder.routes
            self._find: Callable[[Scope], Found] = self._finder.find
            if routes is not None and not self.gate.knows_routes:  # then only a mark makes a difference
                self._find = partial(routes.find, if_marked=True)

    def arrive(self, scope: Scope) -> tuple[AsgiCaller, Arrival]:
        """Return the client, and the endpoint that the router will choose if that makes a difference."""
        arrival, params = self._find(scope)
        return StarletteCaller(scope, params, self._finder), arrival

    def endpoints(self, scope: Scope) -> list[Endpoint]:
        """Return every endpoint that the middleware can find. If `add_middleware` was given wrong options, raise.

        Starlette builds its middleware at the first call. If it raises there, a server concludes that the application
        has no lifespan, and responds to each request with 500.
        """
        if self._error is not None:
            raise self._error
        return self._finder.endpoints(scope)

    def caller(self, scope: Scope) -> AsgiCaller:
        """Return the client of a scope that has passed the router."""
        return StarletteCaller(scope)

    def template(self, scope: Scope, root_path: str) -> str:
        """Return the template of the route that the request has matched, or would have; "" for a 404."""
        given, routes = {**scope, "root_path": root_path}, self._finder.routes
        found = self._finder.find(given)[0].endpoint.route
        return routes.template(given) if not found and routes is not None else found

    def answers_preflight(self, scope: Scope) -> bool:
        """True if a CORS layer or the router responds to this CORS preflight, and no view."""
        return answers_preflight(self.app, scope)

    def own_answer(
        self, decision: Decision, caller: AsgiCaller, application: object, *, call: tuple[Receive, Send]
    ) -> Awaitable[ASGIApp | None] | None:
        """Return the response of `on_denied`, or of the application's exception handler."""
        # After a mounted application has raised, the scope has that one. `application` has called the limiter.
        handler = handler_of(caller.scope.get("app"), decision) or handler_of(application, decision)
        if handler is None and self.settings.answer_to(decision) is None:
            return None
        socket = WebSocket(caller.native.scope, *call) if caller.scope["type"] == "websocket" else None
        return own_answer(self.settings, caller, decision, handler=handler, socket=socket)

    def _check(self, scope: Scope) -> None:
        """Bind the rules of all endpoints that can be found. Warn (SG110) if an AuthenticationMiddleware is inside."""
        super()._check(scope)
        is_late = any([isinstance(each, AuthenticationMiddleware) for each in chain(self.app)])
        if is_late and self.gate.asks_for_users(self.endpoints(scope)):
            warn("SG110", "user", strict=self.settings.strict)


def decision(connection: HTTPConnection) -> Decision | None:
    """Return the decision about this request, for views and middleware; None if no rule applied."""
    state = state_of(connection.scope)
    return None if state is None else state.decision


def state_at(scope: Scope, what: str, limited: object) -> RequestState:
    """Return the state of this request. Raises NotEnforcedError without the middleware."""
    state = state_of(scope)
    if state is None:
        problem, expected = "reached without RateLimitMiddleware", "app.add_middleware(RateLimitMiddleware, …)"
        raise NotEnforcedError(what, label_of(limited), problem=problem, expected=f"add it with {expected}")
    return state
