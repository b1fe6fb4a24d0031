"""`@limit` and `@exempt` for Django's views: functions, methods, whole classes, sync and async.

The decorator marks a view, and the middleware enforces the mark. If it has not (it is not installed, or a wrapper hides
the mark), the guard around the view enforces the mark, with the same settings and the same budgets.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from inspect import isbuiltin
from inspect import iscoroutinefunction as is_async_def
from typing import Any, NamedTuple, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction
from django.conf import settings as django_settings
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.django import conf
from sluicegate.django.lifecycle import (
    settle_response,
    settle_response_async,
    settle_without_response,
    settle_without_response_async,
)
from sluicegate.django.request import DjangoRequestState, begin, native_of, state_of
from sluicegate.django.responses import add_fields, enforce, enforce_async, refuse, refuse_async
from sluicegate.django.routes import arrival_by_call, arrival_of
from sluicegate.errors import NotEnforcedError, warn
from sluicegate.plan import RateLimitExceeded
from sluicegate.rules.rule import QuotaFunction
from sluicegate.rules.terms import QuotaSpec
from sluicegate.web.bound import NO_BOUNDS, Bounds
from sluicegate.web.endpoint import Endpoint, label_of
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import (
    EXEMPT,
    Mark,
    MarkOptions,
    declare,
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
    """Give a view its own budget, in addition to the default limits.

    For functions, methods and view classes, also through `method_decorator`. Without the middleware the decorator
    enforces the limit itself. `scope` shares the budget between views, `name` names it in header fields, and
    `override_defaults` drops the default limits for this view. The other options are the same as for `sluicegate.Rule`.

        @limit("5/minute")
        def reply(request): ...
    """
    mark = make_mark(quota, **options)

    def decorate(view: View) -> View:
        if isinstance(view, type):
            cls: Any = view
            cls.dispatch = guarded(declare(_dispatch_of(cls), mark), mark, _GUARD)
            return cast("View", view)
        if not callable(view):
            raise not_a_view("@limit on", view, expected="decorate a view")
        return cast("View", guarded(_awaitable(declare(view, mark)), mark, _GUARD))

    return decorate


@takes_view
def exempt(view: Any, mark: Mark) -> Any:
    """Free a view, or a whole view class, from every limit.

    A function is wrapped, not changed: where a URLconf also names the bare function, its limits hold. A class is
    changed in place.

    `@exempt(defaults_only=True)` frees it from the default limits alone. Rules of the settings and `@limit` apply.
    """
    if not callable(view) or isbuiltin(view):
        raise TypeError("not a view")
    marked: Any = view if isinstance(view, type) else _copy_of(view)
    return declare(marked, mark)


def _dispatch_of(cls: Any) -> Any:
    """Return a `dispatch` for this class only. The inherited one belongs to all views, and must not be marked."""
    inherited = cls.dispatch

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return inherited(*args, **kwargs)

    functools.update_wrapper(dispatch, inherited, updated=())
    vars(dispatch).update(
        {name: value for name, value in vars(inherited).items() if not name.startswith("__sluicegate")}
    )
    for mark in marks_of(inherited):
        declare(dispatch, mark)
    return dispatch


def _copy_of(view: View) -> View:
    """Return a new function that calls the view. A mark on it does not mark the view."""
    call: Any = view

    @functools.wraps(call)
    async def async_view(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    @functools.wraps(call)
    def sync_view(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return cast("View", async_view if iscoroutinefunction(call) else sync_view)  # pyright: ignore[reportDeprecated]


def _awaitable(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return the view as an `async def`, if only asgiref's mark makes it async.

    `inspect` reads the mark since Python 3.12.
    """
    if is_async_def(view) or not iscoroutinefunction(view):  # pyright: ignore[reportDeprecated]
        return view

    @functools.wraps(view)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await view(*args, **kwargs)

    return awaited


class _ViewCall(NamedTuple):
    """A call of a view with marks that are not enforced yet."""

    request: HttpRequest
    state: DjangoRequestState
    bounds: Bounds
    marks: tuple[Mark, ...]
    adds_fields: bool  # this call adds the fields: no middleware or outer decorator will
    owner: Any  # the instance, if the view is a method


class _Guard:
    """Enforces the marks that the middleware has not enforced."""

    def sync(self, mark: Mark, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return None to call the view, or what to return instead of calling it."""
        call = _unenforced_call(mark, view, args)
        if call is None:
            return None
        if getattr(call.owner, "view_is_async", False):  # `dispatch` is not an `async def`, but returns an awaitable
            return _call_async(call, functools.partial(view, *args, **kwargs), always=True)
        refusal = enforce(call.request, call.state, call.bounds)
        if not call.adds_fields:
            return refusal
        if refusal is not None:
            return _finish(call, refusal)
        done: HttpResponseBase | None = None
        try:
            try:
                response = _checked(view(*args, **kwargs), view)
            except RateLimitExceeded as error:
                _roll_back()
                response = refuse(call.request, call.state, call.state.refuse(error.decision))
            response = settle_response(response, call.state)
            done = _finish(call, response)
            return done
        finally:  # every other exception of the view propagates
            if done is None:
                settle_without_response(call.state, sys.exception())

    async def later(self, mark: Mark, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the same as `sync` for an async view."""
        call = _unenforced_call(mark, view, args)
        if call is None:
            return None
        return await _call_async(call, functools.partial(view, *args, **kwargs), always=False)


_GUARD = _Guard()


async def _call_async(call: _ViewCall, view: functools.partial[Any], *, always: bool) -> Any:
    """Enforce the marks. Call the view here if this call adds the fields, or if the caller cannot (`always`)."""
    refusal = await enforce_async(call.request, call.state, call.bounds)
    if not call.adds_fields:
        return await view() if always and refusal is None else refusal
    if refusal is not None:
        return _finish(call, refusal)
    done: HttpResponseBase | None = None
    try:
        try:
            response = _checked(await view(), view.func)
        except RateLimitExceeded as error:
            response = await refuse_async(call.request, call.state, call.state.refuse(error.decision))
        response = await settle_response_async(response, call.state)
        done = _finish(call, response)
        return done
    finally:
        if done is None:
            await settle_without_response_async(call.state, sys.exception())


def _roll_back() -> None:
    """Roll back what the view wrote under ATOMIC_REQUESTS: Django does not see the exception."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(rollback=True)


def _unenforced_call(mark: Mark, view: Any, args: tuple[Any, ...]) -> _ViewCall | None:
    """Return the call with the marks that are still to enforce; None if there are none."""
    request = next((found for arg in args if (found := native_of(arg)) is not None), None)
    if request is None:
        expected = "decorate a view, whose first argument is the request"
        raise NotEnforcedError("limit on", view, problem="it was called without a request", expected=expected)
    state = state_of(request)
    adds_fields = state is None or not state.open
    if state is None or not state.open:
        gate = conf.gate_for(request)
        if not gate.settings.enabled:
            return None
        if state is None and not conf.has_middleware(tuple(django_settings.MIDDLEWARE)):
            warn("SG104", label_of(view), strict=gate.settings.strict)
        state = begin(request, gate)
    elif mark in state.enforced:
        return None
    owner = _owner(view, args)
    arrival = arrival_of(request)
    if mark not in arrival.marks:  # a wrapper hides the mark from the route, or the view was called directly
        marks = tuple(dict.fromkeys((*marks_of(view), mark)))
        cls: Any = None if owner is None else type(owner)
        name = label_of(view) if cls is None else view.__name__
        arrival = arrival_by_call(cls, name, marks, route=arrival.endpoint.route)
    state.note_marks(arrival.marks)
    return _ViewCall(
        request, state, _bounds(state.gate, arrival.endpoint), marks=arrival.marks, adds_fields=adds_fields, owner=owner
    )


def _owner(view: Any, args: tuple[Any, ...]) -> Any:
    """Return the instance whose method the view is. `method_decorator` passes a partial of the bound method."""
    if isinstance(view, functools.partial):
        return getattr(view.func, "__self__", None)
    return args[0] if native_of(args[0]) is None else None


@functools.lru_cache(maxsize=1024)
def _bounds(gate: Gate | AsyncGate, endpoint: Endpoint) -> Bounds:
    """Return the rules of the marks only, with the names and scopes that the middleware gives them."""
    return NO_BOUNDS if EXEMPT in endpoint.marks else gate.bind_own(endpoint, endpoint.marks)


def _finish(call: _ViewCall, response: HttpResponseBase) -> HttpResponseBase:
    """Add the fields. The same request object may come again (in tests it does), and is then charged again."""
    call.state.enforced -= frozenset(call.marks)
    return add_fields(response, call.state)


def _checked(response: Any, view: Any) -> HttpResponseBase:
    """Return the response of a view; raises ValueError for None, as Django raises. The guard reads None as "call the
    view". An operation of Ninja returns data: Ninja makes the response later, outside of the guard.
    """
    if response is None:
        raise ValueError(f"The view {label_of(view)} didn't return an HttpResponse object. It returned None instead.")
    if not isinstance(response, HttpResponseBase):
        problem = f"it returned {type(response).__name__}, no HttpResponse that can get the header fields"
        expected = f'add "{conf.ADVISED}" to MIDDLEWARE, or give a Ninja operation a throttle of sluicegate.ninja'
        raise NotEnforcedError("@limit on", label_of(view), problem=problem, expected=expected)
    return response
