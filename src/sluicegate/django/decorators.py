"""`@limit` and `@exempt` for Django's views: functions, methods, whole classes, sync and async.

The decorator marks a view, and the middleware enforces the mark. If it has not (it is not installed, or a wrapper hides
the mark), the guard around the view enforces the mark, with the same settings and the same budgets. Without the
middleware an allowed response has no RateLimit fields.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from inspect import isbuiltin
from typing import Any, NamedTuple, TypeGuard, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction
from django.conf import settings as django_settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.django import conf
from sluicegate.django.lifecycle import settle_response, settle_response_async
from sluicegate.django.request import STATE, DjangoRequestState, begin, native_of
from sluicegate.django.responses import enforce, enforce_async
from sluicegate.django.routes import AnyView, arrival_by_call, arrival_of
from sluicegate.errors import NotEnforcedError, warn
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
    make_mark,
    marks_of,
    not_a_view,
    takes_quota,
    takes_view,
)

View = TypeVar("View", bound=AnyView)


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
        if not callable(view):
            raise not_a_view("@limit on", view, expected="decorate a view")
        return cast("View", _limited(view, mark))

    return decorate


def _limited(view: AnyView, mark: Mark) -> AnyView:
    if not isinstance(view, type):
        return _guarded(declare(view, mark), mark)
    cls: Any = view
    # A copy for this class only: the inherited `dispatch` belongs to all views, and must not be marked.
    cls.dispatch = _guarded(declare(_copy_of(cls.dispatch), mark), mark)
    return view


@takes_view
def exempt(view: object, mark: Mark) -> object:
    """Free a view, or a whole view class, from every limit.

    A function is wrapped, not changed: where a URLconf also names the bare function, its limits hold. A class is
    changed in place.

    `@exempt(defaults_only=True)` frees it from the default limits alone. Rules of the settings and `@limit` apply.
    """
    if not callable(view) or isbuiltin(view):
        raise TypeError("not a view")
    return declare(view if isinstance(view, type) else _copy_of(view), mark)


def _copy_of(view: AnyView) -> AnyView:
    """Return a new function that calls the view. A mark on it does not mark the view."""

    @functools.wraps(view)
    async def async_view(*args: object, **kwargs: object) -> object:
        return await view(*args, **kwargs)

    @functools.wraps(view)
    def sync_view(*args: object, **kwargs: object) -> object:
        return view(*args, **kwargs)

    return async_view if iscoroutinefunction(view) else sync_view  # pyright: ignore[reportDeprecated]


class _ViewCall(NamedTuple):
    """A call of a view with marks that are not enforced yet."""

    request: HttpRequest
    state: DjangoRequestState
    marks: tuple[Mark, ...]
    bounds: Bounds

    def refused(self) -> None:
        """Let the next call in the same request ask again: a caller may drop the refusal."""
        self.state.enforced -= {*self.marks}

    def settles(self, response: object) -> TypeGuard[HttpResponseBase]:
        """True if this call settles by the response, because there is no middleware. A view of Ninja returns data."""
        return self.state.alone and isinstance(response, HttpResponseBase)


def _guarded(view: AnyView, mark: Mark) -> AnyView:
    """Wrap a view in a guard that enforces the marks that the middleware has not enforced."""

    @functools.wraps(view)
    async def later(*args: object, **kwargs: object) -> object:
        call = _unenforced_call(mark, view, args)
        return await (view(*args, **kwargs) if call is None else _run(call, functools.partial(view, *args, **kwargs)))

    @functools.wraps(view)
    def sync(*args: object, **kwargs: object) -> object:
        call = _unenforced_call(mark, view, args)
        if call is None:
            return view(*args, **kwargs)
        if getattr(_owner(view, args), "view_is_async", False):  # of `dispatch`, which is no `async def`
            return _run(call, functools.partial(view, *args, **kwargs))
        refusal = enforce(call.request, call.state, call.bounds)
        if refusal is not None:
            call.refused()
            return refusal
        response = view(*args, **kwargs)
        return settle_response(response, call.state) if call.settles(response) else response

    return later if iscoroutinefunction(view) else sync  # pyright: ignore[reportDeprecated]


async def _run(call: _ViewCall, view: Callable[[], Awaitable[object]]) -> object:
    """Enforce the marks, and call an async view."""
    refusal = await enforce_async(call.request, call.state, call.bounds)
    if refusal is not None:
        call.refused()
        return refusal
    response = await view()
    return await settle_response_async(response, call.state) if call.settles(response) else response


def _unenforced_call(mark: Mark, view: AnyView, args: tuple[object, ...]) -> _ViewCall | None:
    """Return the call with the marks that are still to enforce; None if there are none."""
    for arg in args:
        request = arg if isinstance(arg, HttpRequest) else native_of(arg)  # most views need no call
        if request is not None:
            break
    else:
        expected = "decorate a view, whose first argument is the request"
        raise NotEnforcedError("limit on", view, problem="it was called without a request", expected=expected)
    found = vars(request).get(STATE)
    state = found if isinstance(found, DjangoRequestState) else None
    if state is not None and mark in state.enforced:
        if state.alone:  # the same request object may come again (in tests it does), and is then charged again
            state.enforced -= {mark}
        return None
    if state is None or not state.can_refuse:
        gate = conf.gate_for(request)
        if not gate.settings.enabled:
            return None
        if state is None and not conf.has_middleware(tuple(django_settings.MIDDLEWARE)):
            warn("SG104", label_of(view), strict=gate.settings.strict)
        state = begin(request, gate)
        state.alone = True
    arrival = arrival_of(request)
    if mark not in arrival.marks:  # a wrapper hides the mark from the route, or the view was called directly
        marks = tuple(dict.fromkeys((*marks_of(view), mark)))
        owner = _owner(view, args)
        cls: type | None = None if owner is None else type(owner)
        name = label_of(view) if cls is None else view.__name__
        arrival = arrival_by_call(cls, name, marks, route=arrival.endpoint.route)
    state.enforced = state.enforced.union(arrival.marks)
    if state.alone:
        state.enforced -= {mark}
    return _ViewCall(request, state, arrival.marks, bounds=_bounds(state.gate, arrival.endpoint))


def _owner(view: AnyView, args: tuple[object, ...]) -> object:
    """Return the instance whose method the view is. `method_decorator` passes a partial of the bound method."""
    if isinstance(view, functools.partial):
        return getattr(view.func, "__self__", None)
    return args[0] if native_of(args[0]) is None else None


@functools.lru_cache(maxsize=1024)
def _bounds(gate: Gate | AsyncGate, endpoint: Endpoint) -> Bounds:
    """Return the rules of the marks only, with the names and scopes that the middleware gives them."""
    return NO_BOUNDS if EXEMPT in endpoint.marks else gate.bind_own(endpoint, endpoint.marks)
