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

from sluicegate.errors import NotEnforcedError
from sluicegate.flask.extension import NOT_LIMITED, first_limiter
from sluicegate.flask.routes import limited_and_exempt
from sluicegate.rules.rule import QuotaFunction
from sluicegate.rules.terms import QuotaSpec
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

Decorated = TypeVar("Decorated", bound=Callable[..., Any] | Blueprint)


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
        given: Any = view
        _check("@limit", given)
        if EXEMPT in _all_marks(given):
            raise limited_and_exempt(label_of(given))
        if isinstance(given, Blueprint):
            return cast("Decorated", declare(given, own))
        if not isinstance(given, type):
            return cast("Decorated", guarded(declare_within(given, own), own, _GUARD))
        # The class has the mark, not its dispatch_request: subclasses with one of their own are limited too.
        cls: Any = given
        cls.dispatch_request = guarded(cls.dispatch_request, own, _GUARD)
        return cast("Decorated", declare(cls, own))

    return decorate


@takes_view
def exempt(view: Any, mark: Mark) -> Any:
    """Free a view, a View class or a blueprint from every limit. A nearer `@limit` inside an exempt blueprint holds.

    Write it below the route decorator. A function is wrapped, not changed: a route that has the undecorated function
    keeps its limits. A class is changed in place.

    `@exempt(defaults_only=True)` frees it from the default limits alone. Rules of the settings and `@limit` apply.
    """
    given: Any = view
    _check("@exempt", given)
    if mark is EXEMPT and any(not each.frees for each in _all_marks(given)):
        raise limited_and_exempt(label_of(given))
    return declare(given, mark) if isinstance(given, Blueprint) else freed(given, _NO_GUARD, mark)


def _all_marks(given: Any) -> tuple[Mark, ...]:
    """Return the marks of a view or a blueprint; of a class, those of its `dispatch_request` as well."""
    return (*marks_of(given), *(marks_of(cast("Any", given).dispatch_request) if isinstance(given, type) else ()))


def _check(decorator: str, given: Any) -> None:
    """Raise an error for what is no view or blueprint, or is one of Flask's own classes, the parents of all views."""
    if isinstance(given, type):
        fits = issubclass(given, View) and given not in (View, MethodView)
    else:
        fits = isinstance(given, Blueprint) or (callable(given) and not isinstance(given, Flask))
    if not fits:
        expected = f"write {decorator} above a view, or give it a blueprint"
        raise not_a_view(f"{decorator} on", given, problem="neither a view nor a blueprint", expected=expected)


class _Guard(Guard):
    """The guard around each view with `@limit`.

    Async views use a sync store too: each of their event loops lives for one request.
    """

    def sync(self, mark: Mark, view: Callable[..., object], args: Arguments, kwargs: Options) -> None:
        """Enforce the mark unless it was enforced. Raises RateLimitExceeded if it refuses."""
        limiter = first_limiter()
        if limiter is None:
            raise NotEnforcedError(
                "@limit",
                _label(view, args),
                problem="called outside a request, or in an application that no RateLimiter limits",
                expected=NOT_LIMITED,
            )
        limiter.enforce_mark(mark, _label(view, args))


def _label(view: Callable[..., object], args: Arguments) -> str:
    """Return the view's label. For `dispatch_request`, which a class may have inherited, the label of the class."""
    of_class = args and isinstance(args[0], View) and getattr(view, "__name__", "") == "dispatch_request"
    return label_of(type(args[0]) if of_class else view)


_GUARD: Final = _Guard()
_NO_GUARD: Final = Guard()
