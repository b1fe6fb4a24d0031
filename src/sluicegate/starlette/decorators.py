"""`@limit` and `@exempt` for Starlette's endpoints: functions, sync and async, classes, and single methods of them.

The decorator marks an endpoint; the middleware enforces the mark. If the middleware could not find the endpoint before
the call, the guard around the endpoint enforces the mark, by the same gate. Without the middleware it raises
NotEnforcedError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from inspect import isfunction, ismethod
from typing import Any, TypeVar, Unpack, cast

import anyio.from_thread
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from sluicegate.asgi import SERVED, Scope, state_of
from sluicegate.errors import NotEnforcedError
from sluicegate.rules.rule import QuotaFunction
from sluicegate.rules.terms import QuotaSpec
from sluicegate.starlette.middleware import state_at
from sluicegate.starlette.request import StarletteCaller
from sluicegate.starlette.routes import known_arrivals, template_of
from sluicegate.web.charge import MarkCharge, run_async
from sluicegate.web.endpoint import label_of
from sluicegate.web.marks import (
    EXEMPT,
    Arguments,
    Guard,
    Mark,
    MarkOptions,
    Options,
    declare,
    declare_within,
    freed,
    guarded,
    make_mark,
    marks_of,
    not_a_view,
    takes_quota,
    takes_view,
)

View = TypeVar("View", bound=Callable[..., Any])


@takes_quota
def limit(quota: QuotaSpec | QuotaFunction, **options: Unpack[MarkOptions]) -> Callable[[View], View]:
    """Give an endpoint a budget of its own, beside the application's defaults.

    For functions, sync and async, with or without a `request` argument, for HTTPEndpoint and WebSocketEndpoint classes,
    and for single methods of them. `scope` shares the budget between endpoints, `name` names it in header fields,
    `override_defaults` drops the default limits for this endpoint; the other options are those of `sluicegate.Rule`.
    Write it above or below a route decorator. The endpoint itself is marked: it is limited at all its routes.

        @limit("5/minute")
        async def reply(request): ...
    """
    mark = make_mark(quota, **options)

    def decorate(view: View) -> View:
        own = replace(mark)  # one for each use: marks are compared by identity
        if isinstance(view, type) and issubclass(view, (HTTPEndpoint, WebSocketEndpoint)):
            return cast("View", _guarded_class(declare(view, own), own))
        if not isfunction(view) and not ismethod(view) and not isinstance(view, partial):
            expected = "decorate a function, a method, a partial, or a class of Starlette's endpoints"
            raise not_a_view("@limit on", view, problem="not something that can be guarded", expected=expected)
        return cast("View", guarded(declare_within(view, own), own, _GUARD))

    return decorate


@takes_view
def exempt(view: Any, mark: Mark) -> Any:
    """Free an endpoint, a whole class of them, or an ASGI application from every limit.

    Write it below the route decorator. A function is wrapped, not changed: a route that has the undecorated function
    keeps its limits. A class or an application is changed in place.

    `@exempt(defaults_only=True)` frees it from the default limits alone. Rules of the settings and `@limit` apply.
    """
    return freed(view, _EXEMPT_GUARD if mark is EXEMPT else Guard(), mark)


class _ExemptGuard(Guard):
    """The guard of an exempt view: for this request the limits inside the view count as enforced."""

    def sync(self, mark: Mark, view: Callable[..., object], args: Arguments, kwargs: Options) -> None:
        """Note the marks."""
        state = state_of(_scope_of(_connection(args, kwargs)))
        if state is not None:
            state.note_marks(marks_of(view))


class _Guard(Guard):
    """The guard around each view with `@limit`: it enforces a mark that the middleware has not, once per request."""

    def sync(self, mark: Mark, view: Callable[..., object], args: Arguments, kwargs: Options) -> None:
        """Raise RateLimitExceeded if the mark refuses. Runs in a thread of anyio's."""
        pending = _pending_of(mark, view, args=args, kwargs=kwargs)
        if pending is None:
            return
        try:
            anyio.from_thread.check_cancelled()
        except RuntimeError:  # not a thread of anyio's: a coroutine has called the view
            problem, expected = "called on the event loop, where a plain function cannot wait", "make it an async def"
            raise NotEnforcedError("@limit on", label_of(view), problem=problem, expected=expected) from None
        anyio.from_thread.run(run_async, *pending)

    async def later(self, mark: Mark, view: Callable[..., object], args: Arguments, kwargs: Options) -> None:
        """Do the same as `sync`, with awaits."""
        pending = _pending_of(mark, view, args=args, kwargs=kwargs)
        if pending is not None:
            await run_async(*pending)


_GUARD = _Guard()
_EXEMPT_GUARD = _ExemptGuard()


def _guarded_class(cls: Any, mark: Mark) -> Any:
    """Return the class, with a guard around its `dispatch`."""
    dispatch = cls.dispatch

    @wraps(dispatch)
    async def guarding(self: Any) -> None:
        kind = WebSocket if isinstance(self, WebSocketEndpoint) else Request
        arguments = (self, kind(self.scope, self.receive, self.send))
        await _GUARD.later(mark, dispatch, args=arguments, kwargs={})
        await dispatch(self)

    cls.dispatch = guarding
    return cls


def _connection(args: Arguments, kwargs: Options) -> HTTPConnection | None:
    """Return the request or WebSocket among the arguments of a view."""
    return next((each for each in (*args, *kwargs.values()) if isinstance(each, HTTPConnection)), None)


def _scope_of(connection: HTTPConnection | None) -> Scope:
    """Return the scope of a view's request; without an argument, that of the request that is being served."""
    return (SERVED.get() or {}) if connection is None else connection.scope


def _pending_of(
    mark: Mark, view: Any, *, args: Arguments, kwargs: Options
) -> tuple[MarkCharge, StarletteCaller] | None:
    """Return the charge of the marks that are still to be enforced for this call of a view; None without any."""
    scope = _scope_of(_connection(args, kwargs))
    state = state_at(scope, "@limit on", view)
    if mark in state.enforced or not state.gate.settings.enabled:
        return None
    template = template_of(scope)
    arrival = known_arrivals(view, template).whole
    if args and isinstance(args[0], (HTTPEndpoint, WebSocketEndpoint)):  # a method of an endpoint
        cls: Any = type(args[0])
        of_class = known_arrivals(cls, template).of(scope)
        arrival = of_class if mark in of_class.marks else arrival  # if it is not, one method has called another
    charge = MarkCharge.of(state, arrival)
    return None if charge is None else (charge, StarletteCaller(scope))
