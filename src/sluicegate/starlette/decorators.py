"""`@limit` and `@exempt` for Starlette's endpoints: functions, sync and async, classes, and single methods of them.

The decorator marks an endpoint; the middleware enforces the mark. If the middleware could not find the endpoint before
the call, the guard around the endpoint enforces the mark, by the same gate. Without the middleware it raises
NotEnforcedError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial, wraps
from inspect import isfunction, ismethod
from typing import Any, Final, TypeVar, Unpack, cast

import anyio.from_thread
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from sluicegate.asgi import SERVED, Scope, state_of
from sluicegate.errors import NotEnforcedError
from sluicegate.plan import RateLimitExceeded
from sluicegate.starlette.middleware import state_at
from sluicegate.starlette.request import StarletteCaller, is_in_a_thread
from sluicegate.starlette.responses import late_error
from sluicegate.starlette.routes import known_arrivals, template_of
from sluicegate.web.charge import AnyQuota, MarkCharge, run_async
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

AnyView = Callable[..., object]
View = TypeVar("View", bound=AnyView)


@takes_quota
def limit(quota: AnyQuota, **options: Unpack[MarkOptions]) -> Callable[[View], View]:
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
        if _is_endpoint_class(view):
            _guard_dispatch(view, own)
            return declare(view, own)
        if not isfunction(view) and not ismethod(view) and not isinstance(view, partial):
            expected = "decorate a function, a method, a partial, or a class of Starlette's endpoints"
            raise not_a_view("@limit on", view, problem="not something that can be guarded", expected=expected)
        return cast("View", guarded(declare_within(view, own), own, _GUARD))

    return decorate


@takes_view
def exempt(view: View, mark: Mark) -> View:
    """Free an endpoint, a whole class of them, or an ASGI application from every limit.

    Write it below the route decorator. A function is wrapped, not changed: a route that has the undecorated function
    keeps its limits. A class or an application is changed in place.

    `@exempt(defaults_only=True)` frees it from the default limits alone. Rules of the settings and `@limit` apply.
    """
    free: View = freed(view, _EXEMPT_GUARD if mark is EXEMPT else Guard(), mark)
    return free


class _ExemptGuard(Guard):
    """The guard of an exempt view: for this request the limits inside the view count as enforced."""

    def sync(self, mark: Mark, view: AnyView, args: Arguments, kwargs: Options) -> None:
        """Note the marks."""
        state = state_of(_scope_of(args, kwargs))
        if state is not None:
            state.note_marks(marks_of(view))


class _Guard(Guard):
    """The guard around each view with `@limit`: it enforces a mark that the middleware has not, once per request."""

    def sync(self, mark: Mark, view: AnyView, args: Arguments, kwargs: Options) -> None:
        """Raise RateLimitExceeded if the mark refuses. Runs in a thread of anyio's."""
        scope = _scope_of(args, kwargs)
        state = state_at(scope, "@limit on", view)
        if mark in state.enforced or not state.gate.settings.enabled:
            return
        if not is_in_a_thread():
            problem, expected = "called on the event loop, where a plain function cannot wait", "make it an async def"
            raise NotEnforcedError("@limit on", label_of(view), problem=problem, expected=expected)
        anyio.from_thread.run(partial(_enforce, mark, view, scope=scope, args=args))

    def later(self, mark: Mark, view: AnyView, args: Arguments, kwargs: Options) -> Awaitable[None] | None:
        """Do the same as `sync`, with awaits."""
        scope = _scope_of(args, kwargs)
        state = state_of(scope)
        if state is not None and (mark in state.enforced or not state.gate.settings.enabled):
            return None
        return _enforce(mark, view, scope=scope, args=args)


_GUARD: Final = _Guard()
_EXEMPT_GUARD: Final = _ExemptGuard()


def _is_endpoint_class(view: object) -> bool:
    return isinstance(view, type) and issubclass(view, (HTTPEndpoint, WebSocketEndpoint))


def _guard_dispatch(cls: Any, mark: Mark) -> None:
    """Put a guard around the `dispatch` of a class."""
    dispatch = cls.dispatch

    @wraps(dispatch)
    async def guarding(self: HTTPEndpoint | WebSocketEndpoint) -> None:
        kind = WebSocket if isinstance(self, WebSocketEndpoint) else Request
        given = (self, kind(self.scope, self.receive, self.send))
        waiting = _GUARD.later(mark, dispatch, args=given, kwargs={})
        if waiting is not None:
            await waiting
        await dispatch(self)

    cls.dispatch = guarding


def _scope_of(args: Arguments, kwargs: Options) -> Scope:
    """Return the scope of the request or WebSocket among the arguments of a view. Without such an argument, return that
    of the request that is being served.
    """
    for each in (*args, *kwargs.values()) if kwargs else args:
        if type(each) is Request or isinstance(each, HTTPConnection):  # the second is slow: the class is abstract
            return each.scope
    return SERVED.get() or {}


async def _enforce(mark: Mark, view: AnyView, *, scope: Scope, args: Arguments) -> None:
    """Charge the marks that are still to be enforced. Raise RateLimitExceeded if one refuses."""
    template, owner = template_of(scope), args[0] if args else None
    arrival = known_arrivals(view, template).whole
    if isinstance(owner, (HTTPEndpoint, WebSocketEndpoint)):  # a method of an endpoint
        found = known_arrivals(type(owner), template).of(scope)
        arrival = found if mark in found.marks else arrival  # if it is not, one method has called another
    state = state_at(scope, "@limit on", view)
    charge = MarkCharge.of(state, arrival)
    if charge is None:
        return
    try:
        await run_async(charge, StarletteCaller(scope))
    except RateLimitExceeded as error:  # an HTTPException, which code around the view lets pass
        raise late_error(scope, state.refuse(error.decision)) from None
