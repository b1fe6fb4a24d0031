"""`@limit` and `@exempt` for Django's views: functions, methods, whole classes, sync and async.

The decorator marks a view; the middleware enforces the mark. Where it has not (it is not installed, or a wrapper hides
the mark), the guard around the view enforces it, out of the same settings and the same budgets.
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
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.cautions import caution
from sluicegate.django import gates
from sluicegate.django.answers import enforce, enforce_later, raised, refuse, refuse_later, told
from sluicegate.django.endings import answered, answered_later, left, left_later
from sluicegate.django.places import arrival_by_call, arrival_of
from sluicegate.django.visit import Visit, begin, visit_of
from sluicegate.errors import NotEnforcedError, RateLimitExceeded
from sluicegate.gate import AsyncGate, Bound, Gate
from sluicegate.marks import (
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
from sluicegate.passage import Place, label_of
from sluicegate.rule import QuotaFunction
from sluicegate.terms import QuotaSpec

View = TypeVar("View", bound=Callable[..., Any])


@takes_quota
def limit(quota: QuotaSpec | QuotaFunction, **options: Unpack[MarkOptions]) -> Callable[[View], View]:
    """Give a view a budget of its own, beside the application's defaults.

    For functions, methods and classes of views, also through `method_decorator`. Without the middleware the view
    enforces it itself. `scope` shares the budget between views, `name` names it in header fields, `override_defaults`
    drops the default limits for this view; the other options are those of `sluicegate.Rule`.

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
def exempt(view: View) -> View:
    """Free a view, or a whole class of views, from every limit.

    A function is not changed: where a URLconf names the bare function too, its limits hold.
    """
    if not callable(view) or isbuiltin(view):
        raise TypeError("not a view")
    marked: Any = view if isinstance(view, type) else _again(view)
    return cast("View", declare(marked, EXEMPT))


def _dispatch_of(cls: Any) -> Any:
    """A `dispatch` of this class alone. The inherited one is that of all views, and must not be marked."""
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


def _again(view: View) -> View:
    """The same view as another function, to be marked alone."""
    call: Any = view

    @functools.wraps(call)
    async def later(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    @functools.wraps(call)
    def sync(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return cast("View", later if iscoroutinefunction(call) else sync)  # pyright: ignore[reportDeprecated]


def _awaitable(view: Callable[..., Any]) -> Callable[..., Any]:
    """The view as an `async def` where it is one only by asgiref's mark, which `inspect` knows from Python 3.12 on."""
    if is_async_def(view) or not iscoroutinefunction(view):  # pyright: ignore[reportDeprecated]
        return view

    @functools.wraps(view)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await view(*args, **kwargs)

    return awaited


class _Reached(NamedTuple):
    """A view that was reached with marks that nobody has enforced."""

    request: HttpRequest
    visit: Visit
    bounds: tuple[Bound, ...]
    marks: tuple[Mark, ...]
    leads: bool  # nobody outside will add the fields
    owner: Any  # the instance whose method it is


class _Guard:
    """Enforces what the middleware has not."""

    def sync(self, mark: Mark, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """None to go on, or what to return instead of calling the view."""
        reached = _reach(mark, view, args)
        if reached is None:
            return None
        if getattr(reached.owner, "view_is_async", False):  # `dispatch` is no `async def`, but returns what one returns
            return _answer(reached, functools.partial(view, *args, **kwargs), always=True)
        refusal = enforce(reached.request, reached.visit, reached.bounds)
        if not reached.leads:
            return refusal
        if refusal is not None:
            return _leave(reached, refusal)
        done: HttpResponseBase | None = None
        try:
            try:
                response = _checked(view(*args, **kwargs), view)
            except RateLimitExceeded as error:
                _roll_back()
                response = refuse(reached.request, reached.visit, raised(reached.visit, error))
            if reached.visit.ending is not None:
                answered(response, reached.visit)
            done = _leave(reached, response)
            return done
        finally:  # what else the view raises is its own
            if done is None and reached.visit.ending is not None:
                left(reached.visit, sys.exception())

    async def later(self, mark: Mark, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same, awaited."""
        reached = _reach(mark, view, args)
        if reached is None:
            return None
        return await _answer(reached, functools.partial(view, *args, **kwargs), always=False)


_GUARD = _Guard()


async def _answer(reached: _Reached, call: functools.partial[Any], *, always: bool) -> Any:
    """Enforce, and call the view here if the fields are to be added or somebody has to (`always`)."""
    refusal = await enforce_later(reached.request, reached.visit, reached.bounds)
    if not reached.leads:
        return await call() if always and refusal is None else refusal
    if refusal is not None:
        return _leave(reached, refusal)
    done: HttpResponseBase | None = None
    try:
        try:
            response = _checked(await call(), call.func)
        except RateLimitExceeded as error:
            response = await refuse_later(reached.request, reached.visit, raised(reached.visit, error))
        if reached.visit.ending is not None:
            await answered_later(response, reached.visit)
        done = _leave(reached, response)
        return done
    finally:
        if done is None and reached.visit.ending is not None:
            await left_later(reached.visit, sys.exception())


def _roll_back() -> None:
    """Undo what the view has written under ATOMIC_REQUESTS, which does not see the exception."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(rollback=True)


def _reach(mark: Mark, view: Any, args: tuple[Any, ...]) -> _Reached | None:
    """What is left to enforce; None where nothing is."""
    request = next((found for arg in args if (found := _request(arg)) is not None), None)
    if request is None:
        expected = "decorate a view, whose first argument is the request"
        raise NotEnforcedError("limit on", view, problem="it was called without a request", expected=expected)
    visit = visit_of(request)
    leads = visit is None or not visit.open
    if visit is None or not visit.open:
        gate = gates.async_gate() if isinstance(request, ASGIRequest) else gates.sync_gate()
        if not gate.settings.enabled:
            return None
        if visit is None and not gates.has_middleware(tuple(django_settings.MIDDLEWARE)):
            caution("SG104", label_of(view), strict=gate.settings.strict)
        visit = begin(request, gate)
    elif mark in visit.enforced:
        return None
    owner = _owner(view, args)
    arrival = arrival_of(request)
    if mark not in arrival.marks:  # hidden from the route, or called by hand
        marks = tuple(dict.fromkeys((*marks_of(view), mark)))
        cls: Any = None if owner is None else type(owner)
        name = label_of(view) if cls is None else view.__name__
        arrival = arrival_by_call(cls, name, marks, route=arrival.place.route)
    visit.enforced.update(arrival.marks)
    return _Reached(request, visit, _bounds(visit.gate, arrival.place), marks=arrival.marks, leads=leads, owner=owner)


def _request(arg: Any) -> HttpRequest | None:
    """The request in an argument: Django's own, or the one inside REST framework's."""
    found = getattr(arg, "_request", arg)
    return found if isinstance(found, HttpRequest) else None


def _owner(view: Any, args: tuple[Any, ...]) -> Any:
    """The instance that the view is a method of; `method_decorator` hands over a partial of the bound method."""
    if isinstance(view, functools.partial):
        return getattr(view.func, "__self__", None)
    return args[0] if _request(args[0]) is None else None


@functools.lru_cache(maxsize=1024)
def _bounds(gate: Gate | AsyncGate, place: Place) -> tuple[Bound, ...]:
    """The rules of the marks alone, under the names and scopes that the middleware gives them."""
    return () if EXEMPT in place.marks else gate.bind_own(place, place.marks)


def _leave(reached: _Reached, response: HttpResponseBase) -> HttpResponseBase:
    """The response with its fields. The same request may come again (in tests it does) and is then charged again."""
    reached.visit.enforced.difference_update(reached.marks)
    return told(response, reached.visit)


def _checked(response: Any, view: Any) -> HttpResponseBase:
    """What a view has returned. Django would say the same; but None would mean here that it is still to be called."""
    if response is None:
        raise ValueError(f"The view {label_of(view)} didn't return an HttpResponse object. It returned None instead.")
    return cast("HttpResponseBase", response)
