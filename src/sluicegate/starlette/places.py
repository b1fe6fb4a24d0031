"""Where a request will arrive: from a scope, by the routes ahead, to a Place with the marks that the view carries.

Routers and routes are known by their shape (`routes`, `matches`, `endpoint`, `app`), which Starlette and FastAPI share.
What this module cannot see it says nothing about: the views there guard themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import lru_cache, partial
from inspect import unwrap
from typing import Any, Final, NamedTuple

from starlette.endpoints import HTTPEndpoint
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Match, Router

from sluicegate.asgi import RateLimitMiddleware, chain, is_cors, passes_preflight
from sluicegate.marks import Mark, marks_of
from sluicegate.passage import NOWHERE, Arrival, Place, label_of, scope_of, short_name

Scope = MutableMapping[str, Any]

# What a class-based endpoint may answer with; other methods are strangers' inventions and are not looked up.
HANDLERS: Final = ("get", "head", "post", "put", "patch", "delete", "options", "query", "on_connect")


class Targets(NamedTuple):
    """Where one endpoint can be reached: as a whole, or by a method that carries marks of its own."""

    whole: Arrival
    methods: Mapping[str, Arrival]

    def of(self, scope: Scope) -> Arrival:
        """Where this request arrives."""
        if not self.methods:
            return self.whole
        return self.methods.get(self.handler(scope), self.whole)

    def places(self) -> list[Place]:
        """The places of them all."""
        return [self.whole.place, *[each.place for each in self.methods.values()]]

    def handler(self, scope: Scope) -> str:
        """The name of the method that answers; a class without `head` answers HEAD by `get`."""
        handler = "on_connect" if scope["type"] == "websocket" else str(scope.get("method", "GET")).lower()
        return "get" if handler == "head" and handler not in self.methods else handler


class _Known(NamedTuple):
    """A route as it was learned."""

    matches: Any
    targets: Targets
    below: Routes | None

    def take(self, scope: Scope) -> tuple[Arrival, Scope] | None:
        """Where this route takes a scope, and what it adds to it; None if it leaves the scope to another."""
        matched = _match(self.matches, scope)
        if matched is None:
            return NOWHERE, {}
        match, child = matched
        if match is not Match.FULL:
            return None
        if self.below is None:
            return self.targets.of(scope), child
        below, added = self.below.find({**scope, **child})
        if below is NOWHERE and not self.below.known:
            return self.targets.of(scope), child  # something mounted that has no routes
        return below, {**child, **added}


class Routes:
    """The routes of one application, router or mount. Learned at the first look, and when their number changes."""

    def __init__(self, owner: Any, *, prefix: str = "", name: str = "") -> None:
        self._owner = owner
        self._prefix = prefix
        self._name = name
        self._count = -1
        self._known: list[_Known] = []
        self._marked: list[tuple[_Known, list[_Known]]] = []  # what may lead to a mark, and what stands before it

    def find(self, scope: Scope) -> tuple[Arrival, Scope]:
        """Where a scope will be taken, and what the routes add to it; NOWHERE for a 404, a 405 or a redirect."""
        for route in self._learned():
            taken = route.take(scope)
            if taken is not None:
                return taken
        return NOWHERE, {}

    def find_marked(self, scope: Scope) -> Arrival:
        """The same where a view carries a mark. All places without one are alike: NOWHERE, and soon found."""
        if len(self._owner.routes) != self._count:
            self._learned()
        if self._marked:
            seen = dict(scope)
            for route, before in self._marked:
                taken = route.take(seen)
                if taken is not None:
                    return NOWHERE if any(other.take(seen) for other in before) else taken[0]
        return NOWHERE

    @property
    def known(self) -> bool:
        """Whether there is any route here."""
        return bool(self._learned())

    def places(self) -> Iterator[Place]:
        """Every place that can be seen from here."""
        for route in self._learned():
            if route.below is not None:
                yield from route.below.places()
            yield from route.targets.places()

    def _learned(self) -> list[_Known]:
        routes = self._owner.routes
        if len(routes) != self._count:
            self._known = [self._learn(route) for route in _flat(routes) if hasattr(route, "matches")]
            self._marked = []
            before: list[_Known] = []
            for route in self._known:
                if route.below is not None or any([place.marks for place in route.targets.places()]):
                    self._marked.append((route, before[:]))
                else:
                    before.append(route)
            self._count = len(routes)
        return self._known

    def _learn(self, route: Any) -> _Known:
        endpoint, app = getattr(route, "endpoint", None), getattr(route, "app", None)
        own = getattr(route, "path", None) or getattr(route, "host", None) or ""
        template = self._prefix + (getattr(route, "path_format", None) or own if endpoint is not None else own)
        name = ":".join(part for part in (self._name, getattr(route, "name", None)) if part)
        targets = targets_of(endpoint if endpoint is not None else app, template, names=(name,))
        if endpoint is not None or _has_limiter(app) or not hasattr(route, "routes"):
            return _Known(route.matches, targets, None)
        return _Known(route.matches, targets, Routes(route, prefix=template, name=name))


class Ahead:
    """What lies ahead of one middleware: the routes that it leads to, or the endpoint that was matched outside it."""

    def __init__(self, app: Any) -> None:
        owner = _owner_of(app)
        self._app = app
        self.routes = None if owner is None else Routes(owner)
        self._others: dict[int, tuple[Any, Routes]] = {}  # by owner
        self._targets: dict[int, tuple[Any, Targets]] = {}  # by endpoint

    def find(self, scope: Scope) -> tuple[Arrival, Scope]:
        """Where a request will be taken, and what the routes will add to its scope."""
        routes = self._routes_for(scope)
        if routes is not None:
            return routes.find(dict(scope))
        endpoint = scope.get("endpoint")
        if endpoint is None:
            return NOWHERE, scope
        known = self._targets.get(id(endpoint))
        if known is None:
            known = self._targets[id(endpoint)] = endpoint, targets_of(endpoint, template_of(scope))
        return known[1].of(scope), scope

    def answers_preflight(self, scope: Scope) -> bool:
        """Whether something other than a view answers this preflight."""
        return answers_preflight(self._app, scope)

    def places(self, scope: Scope) -> list[Place]:
        """Every place that can be seen, and the one of requests that match nothing."""
        routes = self._routes_for(scope)
        return [NOWHERE.place, *(() if routes is None else routes.places())]

    def _routes_for(self, scope: Scope) -> Routes | None:
        """The routes of what the middleware leads to; None where there are none, or none that can be seen."""
        if self.routes is not None:
            return self.routes
        # The middleware of one route, or around something that hides what it wraps.
        owner = _around(scope)
        if owner is None:
            return None
        known = self._others.get(id(owner))
        if known is None:
            known = self._others[id(owner)] = owner, Routes(owner)
        return known[1]


def targets_of(endpoint: Any, template: str, *, names: tuple[str, ...] = ()) -> Targets:
    """Where an endpoint can be reached: a function, a partial, a class or an application."""
    label, marks = _label(endpoint), _marks(endpoint)
    called = tuple(dict.fromkeys(each for each in (*names, template, label) if each))

    def arrival(renamed: tuple[Mark, ...], own: tuple[Mark, ...]) -> Arrival:
        view = (label, template, called, renamed)
        return Arrival(Place(view, renamed, names=called, label=label, route=template), own)

    methods = {}
    for handler in HANDLERS if isinstance(endpoint, type) else ():
        own = marks_of(getattr(endpoint, handler, None))
        if own:
            renamed = _method_marks(own, f"{label}.{handler}", template)
            methods[handler] = arrival((*marks, *renamed), (*marks, *own))
    return Targets(arrival(marks, marks), methods)


def is_built_late(app: Any) -> bool:
    """Whether a middleware around this is made by Starlette's own stack, when the server first calls it."""
    return any(isinstance(each, ExceptionMiddleware) for each in chain(app))


def _owner_of(app: Any) -> Any:
    """The application or router that a chain of middleware leads to; None where the chain cannot be followed."""
    for each in chain(app):
        if isinstance(getattr(each, "routes", None), list):
            return each
    return None


def _around(scope: Scope) -> Any:
    """The routes that a request has reached already: of a mount, else of the application; None where there are none."""
    owner = scope.get("endpoint", scope.get("app"))
    return owner if isinstance(getattr(owner, "routes", None), list) else None


def template_of(scope: Scope) -> str:
    """The template of the route that a router has taken; "" where it does not say, as in older Starlette."""
    context = scope.get("fastapi", {}).get("effective_route_context")  # knows the prefix, which the route does not
    templates = (getattr(each, "path_format", "") for each in (context, scope.get("route")))
    return next((template for template in templates if template), "")


def serves(endpoint: Any, view: Any) -> bool:
    """Whether an endpoint is this view, or leads to it through decorators and partials."""
    return _bare(endpoint) is _bare(view)


def _has_limiter(app: Any) -> bool:
    """Whether a mounted application has a limiter of its own: it knows its own store and rules."""
    for each in chain(app):
        if isinstance(each, RateLimitMiddleware):
            return True
        for middleware in getattr(each, "user_middleware", ()):
            if isinstance(middleware.cls, type) and issubclass(middleware.cls, RateLimitMiddleware):
                return True
    return False


def _match(matches: Any, scope: Scope) -> tuple[Match, Scope] | None:
    """What a route says of a scope; None where it raises."""
    try:
        found: tuple[Match, Scope] = matches(scope)
    except Exception:  # noqa: BLE001  # the router will raise the same, where the application's handlers see it
        return None
    return found


def answers_preflight(app: Any, scope: Scope) -> bool:
    """Whether an application answers this preflight without running a view: by a CORS layer, or by 404 or 405.

    False where that cannot be seen, as at a layer of one's own. Asked for preflights alone, so nothing of it is
    remembered.
    """
    owner = None
    for each in chain(app):
        if isinstance(each, type):
            return _forbids_options(each)
        kinds = [type(each)]
        if isinstance(getattr(each, "routes", None), list):
            owner = owner or each
            kinds = [one.cls for one in getattr(each, "user_middleware", ())]  # its stack may not be built yet
        for kind in kinds:
            if is_cors(kind):
                return True
            if not passes_preflight(kind):
                return False
    return owner is not None and _serves_no_view(owner, scope)


def _serves_no_view(owner: Any, scope: Scope) -> bool:
    """Whether no route of an application or router takes this preflight to a view."""
    refused = False
    for route in _flat(owner.routes):
        matched = _match(route.matches, dict(scope)) if hasattr(route, "matches") else (Match.NONE, {})
        if matched is None:
            return True
        match, child = matched
        if match is Match.FULL:
            return answers_preflight(getattr(route, "app", None), {**scope, **child})
        refused = refused or match is Match.PARTIAL
    default = getattr(getattr(owner, "router", owner), "default", None)
    return refused or getattr(default, "__func__", None) is Router.not_found


def _forbids_options(endpoint: type) -> bool:
    """Whether this is a class of Starlette's that answers OPTIONS by its own 405, before anything of the user's."""
    if not issubclass(endpoint, HTTPEndpoint) or hasattr(endpoint, "options"):
        return False
    own = endpoint.method_not_allowed is not HTTPEndpoint.method_not_allowed
    return not own and unwrap(endpoint.dispatch) is HTTPEndpoint.dispatch


def _flat(routes: Any) -> Any:
    """The effective routes: from FastAPI 0.137 on, a router keeps those that it includes in a route of their own."""
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    return routes if contexts is None else contexts(routes)


def _bare(view: Any) -> Any:
    """A view without the decorators and partials around it."""
    bare = unwrap(view)
    while isinstance(bare, partial):
        bare = unwrap(bare.func)
    return getattr(bare, "__func__", bare)


def _label(view: Any) -> str:
    return label_of(view if isinstance(view, type) else _bare(view))


def _marks(view: Any) -> tuple[Mark, ...]:
    """The marks of a view and of what it is a partial of."""
    marks = marks_of(view)
    while isinstance(view, partial):
        view = view.func
        marks = (*marks_of(view), *marks)
    return tuple(dict.fromkeys(marks))


@lru_cache(maxsize=4096)  # the same marks each time: they are compared by identity
def _method_marks(marks: tuple[Mark, ...], label: str, route: str) -> tuple[Mark, ...]:
    """The marks of one method, with budgets apart from those of its class."""
    place = Place(marks=marks, label=label, route=route)
    cls, _, method = label.rpartition(".")
    shown = f"{short_name(Place(label=cls))}.{method}"[-128:]
    named = [(mark, mark.rule_for(shown, scope_of(place, mark))) for mark in marks]
    return tuple(replace(mark, rule=rule, named=True) for mark, rule in named)
