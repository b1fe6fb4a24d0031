"""`@limit` and `@exempt` for Django's views: functions, methods, whole classes, sync and async.

The decorator marks a view, and the middleware enforces the mark. If it has not (it is not installed, or a wrapper hides
the mark), the guard around the view enforces the mark, with the same settings and the same budgets. Without the
middleware an allowed response has no RateLimit fields.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from inspect import isbuiltin
from typing import Any, TypeGuard, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction
from django.conf import settings as django_settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.django import conf
from sluicegate.django.charge import run, run_async
from sluicegate.django.lifecycle import settle_response, settle_response_async
from sluicegate.django.request import STATE, DjangoRequestState, begin, native_of, state_of
from sluicegate.django.responses import add_fields, refuse, refuse_async
from sluicegate.django.routes import AnyView, arrival_by_call, arrival_of
from sluicegate.errors import NotEnforcedError, warn
from sluicegate.plan import Decision, RateLimitExceeded
from sluicegate.rules.rule import QuotaFunction
from sluicegate.rules.terms import QuotaSpec
from sluicegate.web.charge import MarkCharge
from sluicegate.web.endpoint import label_of
from sluicegate.web.marks import (
    Guard,
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
    # The guard is marked, for this class only: the inherited `dispatch` belongs to all views.
    cls.dispatch = declare(_guarded(cls.dispatch, mark), mark)
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
    return declare(view if isinstance(view, type) else guarded(view, mark, Guard()), mark)


def _guarded(view: AnyView, mark: Mark) -> AnyView:
    """Wrap a view in a guard that charges the marks that the middleware has not enforced.

    A refusal is the response that the call returns: without the middleware nothing would answer an exception.
    """

    @functools.wraps(view)
    async def later(*args: object, **kwargs: object) -> object:
        state = getattr(args[0], STATE, None) if args else None
        if type(state) is DjangoRequestState and mark in state.enforced and not state.alone:  # nearly always
            return await view(*args, **kwargs)
        call = _unenforced(mark, view, args)
        return await (view(*args, **kwargs) if call is None else _run(*call, functools.partial(view, *args, **kwargs)))

    @functools.wraps(view)
    def sync(*args: object, **kwargs: object) -> object:
        state = getattr(args[0], STATE, None) if args else None
        if type(state) is DjangoRequestState and mark in state.enforced and not state.alone:
            return view(*args, **kwargs)
        call = _unenforced(mark, view, args)
        if call is None:
            return view(*args, **kwargs)
        if getattr(_owner(view, args), "view_is_async", False):  # of `dispatch`, which is no `async def`
            return _run(*call, functools.partial(view, *args, **kwargs))
        request, charge, state = call
        decision = _refused(charge, request, state)
        if decision is not None:
            return _answered(refuse(request, state, decision), state)
        response = view(*args, **kwargs)
        return settle_response(response, state) if _settles(response, state) else response

    return later if iscoroutinefunction(view) else sync  # pyright: ignore[reportDeprecated]


async def _run(
    request: HttpRequest, charge: MarkCharge, state: DjangoRequestState, view: Callable[[], Awaitable[object]]
) -> object:
    """Charge the marks, and call an async view."""
    refused: Decision | None = None
    try:
        await run_async(charge, request, state)
    except RateLimitExceeded as error:
        refused = state.refuse(error.decision)
    if refused is not None:
        return _answered(await refuse_async(request, state, refused), state)
    response = await view()
    return await settle_response_async(response, state) if _settles(response, state) else response


def _refused(charge: MarkCharge, request: HttpRequest, state: DjangoRequestState) -> Decision | None:
    """Charge the marks. Return the decision if it refuses."""
    try:
        run(charge, request, state)
    except RateLimitExceeded as error:
        return state.refuse(error.decision)
    return None


def _settles(response: object, state: DjangoRequestState) -> TypeGuard[HttpResponseBase]:
    """True if the guard settles by the response, because there is no middleware. A view of Ninja returns data."""
    return state.alone and isinstance(response, HttpResponseBase)


def _answered(refusal: HttpResponseBase, state: DjangoRequestState) -> HttpResponseBase:
    """Return the refusal. Without the middleware nothing else adds its RateLimit fields."""
    return add_fields(refusal, state) if state.alone else refusal


def _unenforced(
    mark: Mark, view: AnyView, args: tuple[object, ...]
) -> tuple[HttpRequest, MarkCharge, DjangoRequestState] | None:
    """Return the charge of the marks that are still to enforce; None if there are none."""
    for arg in args:
        request = native_of(arg)
        if request is not None:
            break
    else:
        expected = "decorate a view, whose first argument is the request"
        raise NotEnforcedError("limit on", view, problem="it was called without a request", expected=expected)
    state = state_of(request)
    if state is not None and mark in state.enforced:
        if state.alone:  # the same request object may come again (in tests it does), and is then charged again
            state.enforced -= {mark}
        return None
    if state is None or state.alone or not state.open:
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
    charge = MarkCharge.of(state, arrival)
    if state.alone:
        state.enforced -= {mark}
    return None if charge is None else (request, charge, state)


def _owner(view: AnyView, args: tuple[object, ...]) -> object:
    """Return the instance whose method the view is. `method_decorator` passes a partial of the bound method."""
    if isinstance(view, functools.partial):
        return getattr(view.func, "__self__", None)
    return args[0] if native_of(args[0]) is None else None
