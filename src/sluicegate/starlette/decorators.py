"""`@limit` and `@exempt` for Starlette's endpoints: functions, sync and async, classes, and single methods of them.

The decorator marks an endpoint; the middleware enforces the mark. Where it has not (it could not see the endpoint
ahead), the guard around the endpoint does, through the same gate; without a gate it raises NotEnforcedError.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache, partial, wraps
from inspect import isfunction, ismethod
from typing import Any, NamedTuple, TypeVar, Unpack, cast

import anyio.from_thread
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from sluicegate.asgi import SERVED, Scope
from sluicegate.errors import NotEnforcedError
from sluicegate.gate import AsyncGate, Bound, Gate
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
from sluicegate.passage import Arrival, Passage, Place, label_of
from sluicegate.rule import QuotaFunction
from sluicegate.starlette.answers import refusal, response_of, shut
from sluicegate.starlette.middleware import StarletteCaller, charge, passage_at
from sluicegate.starlette.places import serves, targets_of, template_of
from sluicegate.terms import QuotaSpec

View = TypeVar("View", bound=Callable[..., Any])


@takes_quota
def limit(quota: QuotaSpec | QuotaFunction, **options: Unpack[MarkOptions]) -> Callable[[View], View]:
    """Give an endpoint a budget of its own, beside the application's defaults.

    For functions, sync and async, with or without a `request` argument, for HTTPEndpoint and WebSocketEndpoint classes,
    and for single methods of them. `scope` shares the budget between endpoints, `name` names it in header fields,
    `override_defaults` drops the default limits for this endpoint; the other options are those of `sluicegate.Rule`.
    Write it below a route decorator; above one it holds as well, as long as the middleware sees the route.

        @limit("5/minute")
        async def reply(request): ...
    """
    mark = make_mark(quota, **options)

    def decorate(view: View) -> View:
        own = replace(mark)  # one for each use: marks are told apart by identity
        if isinstance(view, type) and issubclass(view, (HTTPEndpoint, WebSocketEndpoint)):
            return cast("View", _guarded_class(declare(view, own), own))
        if not isfunction(view) and not ismethod(view) and not isinstance(view, partial):
            expected = "decorate a function, a method, a partial, or a class of Starlette's endpoints"
            raise not_a_view("@limit on", view, problem="not something that can be guarded", expected=expected)
        return cast("View", guarded(declare_within(view, own), own, _GUARD))

    return decorate


@takes_view
def exempt(view: View) -> View:
    """Free an endpoint, or a whole class of them, from every limit."""
    return declare_within(view, EXEMPT)


class _Reached(NamedTuple):
    """A view that was reached with marks that nobody has enforced."""

    view: Any
    target: Arrival
    passage: Passage
    scope: Scope
    connection: HTTPConnection | None
    method: bool  # the view is a method of the endpoint


class _Guard:
    """Enforces what the middleware has not seen; at most once for each request."""

    def sync(self, mark: Mark, view: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """None to go on, or what to return instead of calling the view. Its thread has an event loop behind it."""
        reached = _reach(mark, view, (*args, *kwargs.values()))
        if reached is None:
            return None
        try:
            anyio.from_thread.check_cancelled()
        except RuntimeError:  # not a thread of anyio's: somebody has called the view himself
            problem, expected = "called on the event loop, where a plain function cannot wait", "make it an async def"
            raise NotEnforcedError("@limit on", label_of(view), problem=problem, expected=expected) from None
        return anyio.from_thread.run(_enforce, reached)

    async def later(self, mark: Mark, view: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same, awaited."""
        reached = _reach(mark, view, (*args, *kwargs.values()))
        return None if reached is None else await _enforce(reached)


_GUARD = _Guard()
_targets = lru_cache(maxsize=1024)(targets_of)


def _guarded_class(cls: Any, mark: Mark) -> Any:
    """The class with a guard before its dispatch."""
    dispatch = cls.dispatch

    @wraps(dispatch)
    async def guarding(self: Any) -> None:
        kind = WebSocket if isinstance(self, WebSocketEndpoint) else Request
        arguments = (self, kind(self.scope, self.receive, self.send))
        answer = await _GUARD.later(mark, dispatch, args=arguments, kwargs={})
        if answer is None:
            await dispatch(self)
        elif kind is Request:
            await answer(self.scope, self.receive, self.send)

    cls.dispatch = guarding
    return cls


def _reach(mark: Mark, view: Any, arguments: tuple[Any, ...]) -> _Reached | None:
    """What is left to enforce; None where nothing is."""
    connection = next((each for each in arguments if isinstance(each, HTTPConnection)), None)
    scope = (SERVED.get() or {}) if connection is None else connection.scope
    passage = passage_at(scope, "@limit on", view)
    if mark in passage.enforced or not passage.gate.settings.enabled:
        return None
    template = template_of(scope)
    target = _targets(view, template).whole
    method = bool(arguments) and isinstance(arguments[0], (HTTPEndpoint, WebSocketEndpoint))
    if method:
        of_class = _targets(cast("Hashable", type(arguments[0])), template).of(scope)
        target = of_class if mark in of_class.marks else target  # not in it: one method has called another
    return _Reached(view, target, passage, scope=scope, connection=connection, method=method)


async def _enforce(reached: _Reached) -> Any:
    """Charge the marks that are left; None to go on, or the answer."""
    target, passage, scope = reached.target, reached.passage, reached.scope
    pairs = zip(target.place.marks, target.marks, strict=True)
    left = tuple(placed for placed, mark in pairs if mark not in passage.enforced)
    passage.enforced.update(target.marks)
    decision = None if EXEMPT in left else await charge(passage, scope, bounds_of(passage.gate, target.place, left))
    if decision is None or decision.allowed:
        return None
    response = await response_of(passage.gate.settings, StarletteCaller(scope), decision)
    if isinstance(reached.connection, WebSocket):
        await shut(reached.connection, response)
        return response
    if scope["type"] == "http" and (reached.method or serves(scope.get("endpoint"), reached.view)):
        return response
    raise refusal(scope, decision)


@lru_cache(maxsize=1024)
def bounds_of(gate: Gate | AsyncGate, place: Place, marks: tuple[Mark, ...]) -> tuple[Bound, ...]:
    """The rules of these marks alone."""
    return gate.bind_own(place, marks)
