"""`@limit` and `@exempt` for Flask: view functions, sync and async, methods, classes and blueprints.

The decorator marks a view. The extension finds the mark on the view of a route, and enforces it with the other rules of
that route. If a view is called in another way, the guard around the view enforces the mark. Without a RateLimiter on
the application the guard raises NotEnforcedError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar, Unpack, cast

from flask import Blueprint, Flask
from flask.views import MethodView, View

from sluicegate.flask.extension import ViewGuard
from sluicegate.flask.routes import limited_and_exempt
from sluicegate.rules.rule import QuotaFunction
from sluicegate.rules.terms import QuotaSpec
from sluicegate.web.endpoint import label_of
from sluicegate.web.marks import (
    EXEMPT,
    Guard,
    Mark,
    MarkOptions,
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

Decorated = TypeVar("Decorated", bound=Callable[..., object] | Blueprint)


@takes_quota
def limit(quota: QuotaSpec | QuotaFunction, **options: Unpack[MarkOptions]) -> Callable[[Decorated], Decorated]:
    """Give a view a budget of its own, beside the application's defaults. Wrong arguments raise here.

    Write it above or below the route decorator, on a method of a class, in `decorators = [...]`, or on a View class
    (one budget for all its methods). `limit("10/minute")(blueprint)` gives a budget to each view of the blueprint, and
    of the blueprints inside it. The view itself is marked: it is limited at all its routes.

    - `scope` shares the budget between all views that name it; `name` names it in header fields.
    - `override_defaults` drops the application's default limits for this view.
    - `key`, `algorithm`, `cost`, `methods`, `when`, `count_denied` are those of `sluicegate.Rule`.
    """
    mark = make_mark(quota, **options)

    def decorate(view: Decorated) -> Decorated:
        own = replace(mark)  # one for each use: marks are compared by identity
        _check("@limit", view)
        if EXEMPT in _all_marks(view):
            raise limited_and_exempt(label_of(view))
        given: Any = view
        if not isinstance(given, (type, Blueprint)):
            return cast("Decorated", guarded(declare_within(given, own), own, _GUARD))
        if isinstance(given, type):
            _guard_class(given, own)
        declare(given, own)
        return view

    return decorate


@takes_view
def exempt(view: object, mark: Mark) -> object:
    """Free a view, a View class or a blueprint from every limit. A nearer `@limit` inside an exempt blueprint holds.

    Write it below the route decorator. A function is wrapped, not changed: a route that has the undecorated function
    keeps its limits. A class is changed in place.

    `@exempt(defaults_only=True)` frees it from the default limits alone. Rules of the settings and `@limit` apply.
    """
    _check("@exempt", view)
    if mark is EXEMPT and any(not each.frees for each in _all_marks(view)):
        raise limited_and_exempt(label_of(view))
    return declare(view, mark) if isinstance(view, Blueprint) else freed(view, _NO_GUARD, mark)


def _guard_class(cls: Any, mark: Mark) -> None:
    """Guard a class. It has the mark itself, so that subclasses with their own `dispatch_request` are limited too."""
    cls.dispatch_request = guarded(cls.dispatch_request, mark, _GUARD)


def _all_marks(given: object) -> tuple[Mark, ...]:
    """Return the marks of a view or a blueprint; of a class, those of its `dispatch_request` as well."""
    inside = marks_of(getattr(given, "dispatch_request", None)) if isinstance(given, type) else ()
    return (*marks_of(given), *inside)


def _check(decorator: str, given: object) -> None:
    """Raise an error for what is no view or blueprint, or is one of Flask's own classes, the parents of all views."""
    if isinstance(given, type):
        fits = issubclass(given, View) and given not in (View, MethodView)
    else:
        fits = isinstance(given, Blueprint) or (callable(given) and not isinstance(given, Flask))
    if not fits:
        expected = f"write {decorator} above a view, or give it a blueprint"
        raise not_a_view(f"{decorator} on", given, problem="neither a view nor a blueprint", expected=expected)


_GUARD: Final = ViewGuard()
_NO_GUARD: Final = Guard()
