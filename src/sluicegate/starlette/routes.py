"""The endpoint that a request will reach: the routes are matched before the router does it.

Routers and routes are recognised by their attributes (`routes`, `matches`, `endpoint`, `app`), which Starlette and
FastAPI share. For routes that cannot be found here, the guard around the view enforces its marks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from inspect import unwrap
from typing import Any, Final, NamedTuple

from starlette._utils import get_route_path
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Match, Router

from sluicegate.asgi import RateLimitMiddleware, chain, is_cors, passes_preflight
from sluicegate.web.charge import ChargedRule
from sluicegate.web.endpoint import NOWHERE, Arrival, Endpoint, label_of, method_marks
from sluicegate.web.marks import Mark, marks_of

Scope = MutableMapping[str, Any]

# The methods of a class-based endpoint. Other names are not looked up: a client may send any method.
HANDLERS: Final = ("get", "head", "post", "put", "patch", "delete", "options", "query", "on_connect")

_NAMED_GROUP: Final = re.compile(r"\(\?P<\w+>")
# In one pattern of many routes, a reference by number or name would be to a group of another route.
_REFERENCE: Final = re.compile(r"\\[1-9]|\(\?P=|\(\?\(")

Templates = dict[int, tuple[Any, str | None]]
"""By the id of a route: the route, and its template, or None if the route is at several places."""


class EndpointArrivals(NamedTuple):
    """The arrivals of one endpoint: one for the whole, and one for each method that has marks of its own."""

    whole: Arrival
    methods: Mapping[str, Arrival]

    def of(self, scope: Scope) -> Arrival:
        """Return the arrival of this request."""
        if not self.methods:
            return self.whole
        return self.methods.get(self.handler(scope), self.whole)

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints of all arrivals."""
        return [self.whole.endpoint, *[each.endpoint for each in self.methods.values()]]

    def handler(self, scope: Scope) -> str:
        """Return the name of the method that Starlette calls; for HEAD, a class without `head` has `get`."""
        handler = "on_connect" if scope["type"] == "websocket" else str(scope.get("method", "GET")).lower()
        return "get" if handler == "head" and handler not in self.methods else handler


class _KnownRoute(NamedTuple):
    """What is remembered of a route."""

    matches: Any
    arrivals: EndpointArrivals
    below: Routes | None

    def take(self, scope: Scope) -> tuple[Arrival, Scope] | None:
        """Return the arrival by this route, and what the route adds to the scope. None: the route does not match, so
        the next one is tried. NOWHERE: the route raises, or no route below it matches, so no view runs.
        """
        matched = _match(self.matches, scope)
        if matched is None:
            return NOWHERE, {}
        match, child = matched
        if match is not Match.FULL:
            return None
        if self.below is None:
            return self.arrivals.of(scope), child
        below, added = self.below.find({**scope, **child})
        if below is NOWHERE and not any(self.below.endpoints()):
            return self.arrivals.of(scope), child  # a mounted application without routes
        return below, {**child, **added}


class _Table(NamedTuple):
    """The routes of one list, in their order, and one pattern that finds the first one that may match a path."""

    routes: list[_KnownRoute]
    pattern: re.Pattern[str]
    starts: Mapping[int | None, int]  # the index of each route, by the group that ends its part of the pattern
    has_marks: bool  # whether an endpoint has a mark; also True with a mount: its routes may change


class Routes:
    """The routes of one application, router or mount. Read at first use, and again when the list of them changes.

    An application may sort or replace its routes, for example in its lifespan. So each request compares the list with
    the one that was read. Routes that are the same objects are compared by identity, which costs almost nothing. So
    the `path_regex` of a route must not be replaced after the first request.
    """

    def __init__(self, owner: Any, *, prefix: str = "", name: str = "", templates: Templates | None = None) -> None:
        self.templates: Templates = {} if templates is None else templates
        self._owner = owner
        self._prefix = prefix
        self._name = name
        self._read: list[Any] | None = None  # the routes as they were when they were read
        self._known = _table_of(())

    def find(self, scope: Scope) -> tuple[Arrival, Scope]:
        """Return the arrival of a scope, and what the routes add to it. NOWHERE for a 404, a 405 or a redirect, and if
        a route raises.
        """
        table = self.table()
        first = table.pattern.match(get_route_path(scope))
        if first is not None:
            for route in table.routes[table.starts[first.lastindex] :]:  # the first may decline, for its methods
                taken = route.take(scope)
                if taken is not None:
                    return taken
        return NOWHERE, {}

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints of these routes and of those below."""
        for route in self.table().routes:
            if route.below is not None:
                yield from route.below.endpoints()
            yield from route.arrivals.endpoints()

    def table(self) -> _Table:
        """Return the routes, read again if the list has changed."""
        routes = self._owner.routes
        if routes != self._read:
            read = list(routes)
            self._known = _table_of([(each, self._learn(each)) for each in _flat(routes) if hasattr(each, "matches")])
            self._read = read
        return self._known

    def _learn(self, route: Any) -> _KnownRoute:
        """Return what to remember of a route."""
        endpoint, app = getattr(route, "endpoint", None), getattr(route, "app", None)
        own = getattr(route, "path", None) or getattr(route, "host", None) or ""
        template = self._prefix + (getattr(route, "path_format", None) or own if endpoint is not None else own)
        name = ":".join(part for part in (self._name, getattr(route, "name", None)) if part)
        view = endpoint if endpoint is not None else app
        noted = getattr(route, "original_route", route)  # the one that FastAPI puts into the scope
        known = self.templates.get(id(noted), (noted, template))
        self.templates[id(noted)] = noted, template if known == (noted, template) else None
        arrivals = arrivals_of(
            view, template, names=(name,), methods=_methods(route, endpoint), charges=_charges(route)
        )
        if endpoint is not None or _has_limiter(app) or not hasattr(route, "routes"):
            return _KnownRoute(route.matches, arrivals, None)
        return _KnownRoute(route.matches, arrivals, Routes(route, prefix=template, name=name, templates=self.templates))


def _table_of(read: Iterable[tuple[Any, _KnownRoute]]) -> _Table:
    """Return the table of these routes."""
    routes: list[_KnownRoute] = []
    parts: list[str] = []
    starts: dict[int | None, int] = {None: 0}  # None: there are no routes
    group = 0
    for route, known in read:
        text, groups = _pattern_of(route)
        group += groups + 1
        starts[group] = len(routes)
        routes.append(known)
        parts.append(f"(?:{text})()")  # the empty group closes last, so `lastindex` is its number
    has_marks = any(
        known.below is not None or any(endpoint.marks for endpoint in known.arrivals.endpoints()) for known in routes
    )
    return _Table(routes=routes, pattern=re.compile("|".join(parts)), starts=starts, has_marks=has_marks)


def _pattern_of(route: Any) -> tuple[str, int]:
    """Return a pattern without names that matches each path which the route may match, and the number of its groups.

    It is the route's own pattern if `matches` is a function of Starlette or FastAPI, because that function tries this
    pattern first. For a host, and for a class with a `matches` of its own, it is the empty pattern: any path may match.
    """
    pattern: Any = getattr(route, "path_regex", None)
    module = getattr(route.matches, "__globals__", {}).get("__name__")  # a decorator copies `__module__`, not this
    if module in {"starlette.routing", "fastapi.routing"} and getattr(pattern, "flags", 0) == re.UNICODE:
        text, renamed = _NAMED_GROUP.subn("(?:", pattern.pattern)  # two routes may have a group of the same name
        # More than the named groups are renamed if a set of characters contains "(?P<name>".
        if renamed == len(pattern.groupindex) and not _REFERENCE.search(text):
            return text, pattern.groups - renamed
    return "", 0


class RouteFinder:
    """Finds the endpoint of a request for one middleware: by the routes inside it, or as matched outside it."""

    def __init__(self, app: Any) -> None:
        owner = _owner_of(app)
        self.templates: Templates = {}
        self.routes = None if owner is None else Routes(owner, templates=self.templates)
        self._others: dict[int, tuple[Any, Routes]] = {}  # by owner

    def find(self, scope: Scope) -> tuple[Arrival, Scope]:
        """Return the arrival of a request, and what the routes will add to its scope. If the routes are outside the
        middleware, the second is the scope itself, to which they have added all.
        """
        routes = self._routes_for(scope)
        if routes is not None:
            return routes.find(dict(scope))
        endpoint = scope.get("endpoint")
        if endpoint is None:
            return NOWHERE, scope
        return known_arrivals(endpoint, template_of(scope)).of(scope), scope

    def endpoints(self, scope: Scope) -> list[Endpoint]:
        """Return every endpoint that can be found, and the one of requests that match no route."""
        routes = self._routes_for(scope)
        return [NOWHERE.endpoint, *(() if routes is None else routes.endpoints())]

    def _routes_for(self, scope: Scope) -> Routes | None:
        """Return the routes inside the middleware; None if there are none, or none can be found."""
        if self.routes is not None:
            return self.routes
        # The middleware belongs to one route, or wraps an application that hides its routes.
        owner = _around(scope)
        if owner is None:
            return None
        known = self._others.get(id(owner))
        if known is None:
            known = self._others[id(owner)] = owner, Routes(owner)
        return known[1]


def arrivals_of(
    endpoint: Any,
    template: str,
    *,
    names: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    charges: tuple[ChargedRule, ...] = (),
) -> EndpointArrivals:
    """Return the arrivals of an endpoint: a function, a partial, a class or an application."""
    label, marks = _label(endpoint), _all_marks(endpoint)
    called = tuple(dict.fromkeys(each for each in (*names, template, label) if each))

    def arrival(renamed: tuple[Mark, ...], own: tuple[Mark, ...], shown: tuple[str, ...]) -> Arrival:
        view = (label, template, called, renamed)
        endpoint = Endpoint(view, renamed, names=called, label=label, route=template, methods=shown, charges=charges)
        return Arrival(endpoint, own)

    handlers: dict[str, Arrival] = {}
    for handler in HANDLERS if isinstance(endpoint, type) else ():
        own = marks_of(getattr(endpoint, handler, None))
        if own:
            renamed = method_marks(own, f"{label}.{handler}")
            handlers[handler] = arrival((*marks, *renamed), (*marks, *own), (_shown_method(handler),))
    marked = [_shown_method(handler) for handler in handlers]
    others = [method for method in methods if method not in marked]
    return EndpointArrivals(arrival(marks, marks, tuple(others)), handlers)


def _charges(route: Any) -> tuple[ChargedRule, ...]:
    """Return the rules of the RateLimit dependencies of a route of FastAPI. Equal ones are charged once."""
    found: dict[Any, ChargedRule] = {}
    left = [getattr(route, "dependant", None)]
    while left:
        each = left.pop(0)
        call = getattr(each, "call", None)
        rule = getattr(call, "rule", None)
        if isinstance(rule, ChargedRule):
            found.setdefault(call, rule)
        left += getattr(each, "dependencies", ())
    return tuple(found.values())


def _methods(route: Any, endpoint: Any) -> tuple[str, ...]:
    """Return the methods of a route, for people: HEAD goes with GET."""
    if isinstance(endpoint, type):
        return tuple([_shown_method(handler) for handler in HANDLERS if hasattr(endpoint, handler)])
    found: list[str] = sorted(getattr(route, "methods", None) or ())
    return tuple([method for method in found if method != "HEAD" or "GET" not in found])


def _shown_method(handler: str) -> str:
    """Return the method of a handler; a WebSocket handshake is a GET."""
    return "GET" if handler == "on_connect" else handler.upper()


def known_arrivals(endpoint: Any, template: str) -> EndpointArrivals:
    """Return the arrivals of an endpoint, which are remembered by its id: a router cannot be hashed."""
    known = _known.get((id(endpoint), template))
    if known is None:
        if len(_known) >= _MOST:  # an application may make endpoints at run time
            _known.clear()  # those still in use are read again
        known = _known[id(endpoint), template] = endpoint, arrivals_of(endpoint, template)
    return known[1]


_MOST: Final = 1024
_known: Final[dict[tuple[int, str], tuple[Any, EndpointArrivals]]] = {}  # it keeps an endpoint, so no other has its id


def endpoint_at(scope: Scope) -> Endpoint:
    """Return the endpoint that the router has chosen; that of NOWHERE if it has chosen none yet."""
    found = scope.get("endpoint")
    return NOWHERE.endpoint if found is None else known_arrivals(found, template_of(scope)).whole.endpoint


def is_built_late(app: Any) -> bool:
    """True if Starlette builds the middleware around this application when the server first calls it."""
    return any(isinstance(each, ExceptionMiddleware) for each in chain(app))


def _owner_of(app: Any) -> Any:
    """Return the application or router inside a chain of middleware; None if the chain cannot be followed."""
    for each in chain(app):
        if isinstance(getattr(each, "routes", None), list):
            return each
    return None


def _around(scope: Scope) -> Any:
    """Return the mount, else the application, that the request has reached; None if it has no routes."""
    owner = scope.get("endpoint", scope.get("app"))
    return owner if isinstance(getattr(owner, "routes", None), list) else None


def template_of(scope: Scope) -> str:
    """Return the template of the route that the router has chosen; "" if the scope has none, as in older Starlette."""
    context = scope.get("fastapi", {}).get("effective_route_context")  # it has the prefix; the route has not
    templates = (getattr(each, "path_format", "") for each in (context, scope.get("route")))
    return next((template for template in templates if template), "")


def _has_limiter(app: Any) -> bool:
    """True if a mounted application has a limiter of its own, with its own store and rules."""
    for each in chain(app):
        if isinstance(each, RateLimitMiddleware):
            return True
        for middleware in getattr(each, "user_middleware", ()):
            if isinstance(middleware.cls, type) and issubclass(middleware.cls, RateLimitMiddleware):
                return True
    return False


def _match(matches: Any, scope: Scope) -> tuple[Match, Scope] | None:
    """Return the match of a route with a scope; None if the route raises."""
    try:
        found: tuple[Match, Scope] = matches(scope)
    except Exception:  # noqa: BLE001  # the router will raise the same, inside the application's handlers
        return None
    return found


def answers_preflight(app: Any, scope: Scope) -> bool:
    """True if an application responds to this preflight without running a view: by a CORS layer, or with 404 or 405.

    False if that is not known, as for a middleware of the user's. Nothing is remembered: preflights are rare.
    """
    owner = None
    for each in chain(app):
        if isinstance(each, type):
            return _forbids_options(each)
        kinds = [type(each)]
        if isinstance(getattr(each, "routes", None), list):
            owner = owner or each
            # Not its stack: Starlette may not have built it yet.
            kinds = [one.cls for one in getattr(each, "user_middleware", ())]
        for kind in kinds:
            if is_cors(kind):
                return True
            if not passes_preflight(kind):
                return False
    return owner is not None and _serves_no_view(owner, scope)


def _serves_no_view(owner: Any, scope: Scope) -> bool:
    """True if no route of an application or router passes this preflight to a view."""
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
    """True if this is an HTTPEndpoint that sends Starlette's own 405 for OPTIONS, and runs no code of the user's."""
    if not issubclass(endpoint, HTTPEndpoint) or hasattr(endpoint, "options"):
        return False
    own = endpoint.method_not_allowed is not HTTPEndpoint.method_not_allowed
    return not own and unwrap(endpoint.dispatch) is HTTPEndpoint.dispatch


def _flat(routes: Any) -> Any:
    """Return the effective routes. From FastAPI 0.137 on, a router keeps an included router as one route."""
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    return routes if contexts is None else contexts(routes)


def _unwrapped(view: Any) -> Any:
    """Return a view without the decorators and partials around it."""
    bare = unwrap(view)
    while isinstance(bare, partial):
        bare = unwrap(bare.func)
    return getattr(bare, "__func__", bare)


def _label(view: Any) -> str:
    return label_of(view if isinstance(view, type) else _unwrapped(view))


def _all_marks(view: Any) -> tuple[Mark, ...]:
    """Return the marks of a view and of the function that it is a partial of."""
    marks = marks_of(view)
    while isinstance(view, partial):
        view = view.func
        marks = (*marks_of(view), *marks)
    return tuple(dict.fromkeys(marks))
