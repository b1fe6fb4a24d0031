"""`@limit` and `@exempt` for what Flask serves: view functions, sync and async, methods, classes and blueprints.

The decorator marks; the extension finds the mark on whatever the route leads to and enforces it with the route. A view
that is reached another way enforces its own mark, and where no RateLimiter stands on the application that is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar, Unpack, cast

from flask import Blueprint, Flask
from flask.views import MethodView, View

from sluicegate.errors import NotEnforcedError
from sluicegate.flask.extension import first_on_app
from sluicegate.marks import (
    EXEMPT,
    Mark,
    MarkOptions,
    declare,
    declare_within,
    guarded,
    make_mark,
    not_a_view,
    takes_quota,
    takes_view,
)
from sluicegate.passage import label_of
from sluicegate.rule import QuotaFunction
from sluicegate.terms import QuotaSpec

Decorated = TypeVar("Decorated", bound=Callable[..., Any] | Blueprint)


@takes_quota
def limit(quota: QuotaSpec | QuotaFunction, **options: Unpack[MarkOptions]) -> Callable[[Decorated], Decorated]:
    """Give a view a budget of its own, beside the application's defaults. Wrong arguments raise here.

    Stands above or below the route, on a method of a class, in `decorators = [...]`, on a View class (all its methods
    together), or as `limit("10/minute")(blueprint)`: then each view of the blueprint, and of those inside, has it.

    - `scope` shares the budget between all that name it, `name` names it in header fields.
    - `override_defaults` drops the application's default limits for this view.
    - `key`, `algorithm`, `cost`, `methods`, `when`, `count_denied` are those of `sluicegate.Rule`.
    """
    mark = make_mark(quota, **options)

    def decorate(view: Decorated) -> Decorated:
        own = replace(mark)  # one for each use: marks are told apart by identity
        given: Any = view
        _check("@limit", given)
        if isinstance(given, type):
            # The mark is the class's: subclasses with a dispatch_request of their own are limited too.
            cast("Any", given).dispatch_request = guarded(cast("Any", given).dispatch_request, own, _GUARD)
        elif not isinstance(given, Blueprint):
            return cast("Decorated", guarded(declare_within(given, own), own, _GUARD))
        return declare(view, own)

    return decorate


@takes_view
def exempt(view: Decorated) -> Decorated:
    """Free a view, a View class or a blueprint from every limit. A nearer `@limit` inside an exempt blueprint holds."""
    _check("@exempt", view)
    return declare_within(view, EXEMPT)


def _check(decorator: str, given: Any) -> None:
    """Refuse what is neither. Flask's own classes are the parents of all views."""
    if isinstance(given, type):
        fits = issubclass(given, View) and given not in (View, MethodView)
    else:
        fits = isinstance(given, Blueprint) or (callable(given) and not isinstance(given, Flask))
    if not fits:
        expected = f"write {decorator} above a view, or give it a blueprint"
        raise not_a_view(f"{decorator} on", given, problem="neither a view nor a blueprint", expected=expected)


class _Guard:
    """Stands before each decorated view."""

    def sync(self, mark: Mark, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """None to go on, or the response to give instead of calling the view."""
        limiter = first_on_app()
        if limiter is None:
            raise NotEnforcedError(
                "@limit",
                _label(view, args),
                problem="called outside a request, or in an application that no RateLimiter limits",
                expected="call RateLimiter(app), or init_app(app)",
            )
        return limiter.reach(mark, _label(view, args))

    async def later(self, mark: Mark, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same: the store is synchronous for async views too, whose loops live for one request."""
        return self.sync(mark, view, args=args, kwargs=kwargs)


def _label(view: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """The view's label; of `dispatch_request`, which a class may have inherited, that of the class."""
    of_class = args and isinstance(args[0], View) and getattr(view, "__name__", "") == "dispatch_request"
    return label_of(type(args[0]) if of_class else view)


_GUARD: Final = _Guard()
