"""The endpoint that a request will reach: the routes are matched before the router does it.

Routers and routes are recognised by their attributes (`routes`, `matches`, `endpoint`, `app`), which Starlette and
FastAPI share. For routes that cannot be found here, the guard around the view enforces its marks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from inspect import unwrap
from typing import Final, NamedTuple, Protocol, TypeGuard

from starlette._utils import get_route_path
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute, Match, Route, Router

from sluicegate.asgi import Params, RateLimitMiddleware, Scope, chain, responds_to_preflight
from sluicegate.web.charge import ChargedRule
from sluicegate.web.endpoint import NOWHERE, Arrival, Endpoint, label_of, method_marks
from sluicegate.web.marks import Mark, marks_of

# The methods of a class-based endpoint. Other names are not looked up: a client may send any method.
HANDLERS: Final = ("get", "head", "post", "put", "patch", "delete", "options", "query", "on_connect")

_NAMED_GROUP: Final = re.compile(r"\(\?P<\w+>")  # one pattern cannot have the same name twice, but two routes may
# In one pattern of many routes, a reference by number or name would be to a group of another route.
_REFERENCE: Final = re.compile(r"\\[1-9]|\(\?P=|\(\?\(")

View = Callable[..., object]
Matches = Callable[[Scope], tuple[Match, Scope]]

Found = tuple[Arrival, Params | None]
"""An arrival, and the path parameters. None: nothing has looked for them yet."""


class Owner(Protocol):
    """An application, router or mount: what has a list of routes."""

    @property
    def routes(self) -> list[BaseRoute]: ...


class EndpointArrivals(NamedTuple):
    """The arrivals of one endpoint: one for the whole, and one for each method that has marks of its own."""

    whole: Arrival
    methods: Mapping[str, Arrival]

    def of(self, scope: Scope) -> Arrival:
        """Return the arrival of this request. For HEAD, Starlette calls the `get` of a class without `head`."""
        if not self.methods:
            return self.whole
        handler = "on_connect" if scope["type"] == "websocket" else str(scope.get("method", "GET")).lower()
        handler = "get" if handler == "head" and handler not in self.methods else handler
        return self.methods.get(handler, self.whole)

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints of all arrivals."""
        return [self.whole.endpoint, *[each.endpoint for each in self.methods.values()]]


class _KnownRoute(NamedTuple):
    """What is remembered of a route."""

    matches: Matches
    arrivals: EndpointArrivals
    below: Routes | None
    plain: Collection[str] | None  # the methods of a route, if its path has no parameters and they say the rest

    def take(self, scope: Scope) -> Found | None:
        """Return the arrival by this route, and the path parameters. None: the route does not match, so the next one is
        tried. NOWHERE: the route raises, or no route below it matches, so no view runs.
        """
        matched = _match(self.matches, scope)
        if matched is None:
            return NOWHERE, _params_of(scope)
        match, child = matched
        if match is not Match.FULL:
            return None
        inside = {**scope, **child}
        if self.below is not None:
            below, params = self.below.find(inside)
            if below is not NOWHERE or any(self.below.endpoints()):  # else a mounted application without routes
                return below, params
        return self.arrivals.of(scope), _params_of(inside)


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

    def __init__(self, owner: Owner, *, prefix: str = "", name: str = "") -> None:
        self._owner = owner
        self._prefix = prefix
        self._name = name
        self._read: list[BaseRoute] | None = None  # the routes as they were when they were read
        self._table = _table_of(())

    def find(self, scope: Scope, *, if_marked: bool = False) -> Found:
        """Return the arrival of a scope, and the path parameters. NOWHERE for a 404, a 405 or a redirect, and if a
        route raises. With `if_marked` also if no endpoint of these routes has a mark: then no route is looked for.

        A route whose path has no parameters is not asked: the pattern and its methods have said all. To ask takes 3 µs,
        a fifth of the 15 µs that the limiter may add to a request with a decorator and a key function.
        """
        if self._owner.routes != self._read:
            self._read_again()
        table = self._table
        if if_marked and not table.has_marks:
            return NOWHERE, None
        routes, pattern, starts, _ = table
        first = pattern.match(get_route_path(scope))
        if first is not None:
            start = starts[first.lastindex]
            _, arrivals, _, plain = routes[start]
            if plain is not None and scope.get("method") in plain:  # a handshake has no method
                return arrivals.whole, scope.get("path_params") or {}
            copy = dict(scope)  # a router of FastAPI writes into the scope that it is asked about
            for route in routes[start:]:  # the first may decline, for its methods
                taken = route.take(copy)
                if taken is not None:
                    return taken
        return NOWHERE, _params_of(scope)

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints of these routes and of those below."""
        for route in self._routes():
            if route.below is not None:
                yield from route.below.endpoints()
            yield from route.arrivals.endpoints()

    def template(self, scope: Scope) -> str:
        """Return the template of the first route that matches the path, whatever its methods: for a 405, and for a 404
        below a mount. "" if none does.
        """
        for route in self._routes():
            matched = _match(route.matches, dict(scope))
            if matched is not None and matched[0] is not Match.NONE:
                below = "" if route.below is None else route.below.template({**scope, **matched[1]})
                return below or route.arrivals.whole.endpoint.route
        return ""

    def _routes(self) -> list[_KnownRoute]:
        """Return the routes, read again if the list has changed."""
        if self._owner.routes != self._read:
            self._read_again()
        return self._table.routes

    def _read_again(self) -> None:
        routes = self._owner.routes
        read = list(routes)
        self._table = _table_of([(each, self._learn(each)) for each in _flat(routes) if hasattr(each, "matches")])
        self._read = read

    def _learn(self, route: BaseRoute) -> _KnownRoute:
        """Return what to remember of a route."""
        endpoint: View | None = getattr(route, "endpoint", None)
        app: View = getattr(route, "app", route)
        own = getattr(route, "path", None) or getattr(route, "host", None) or ""
        template = self._prefix + (getattr(route, "path_format", None) or own if endpoint is not None else own)
        name = ":".join(part for part in (self._name, getattr(route, "name", None)) if part)
        view = endpoint if endpoint is not None else app
        arrivals = arrivals_of(
            view, template, names=(name,), methods=_methods(route, endpoint), charges=_charges(route)
        )
        matches, mount = route.matches, route
        plain: Collection[str] | None = getattr(route, "methods", None)
        plain = plain if not arrivals.methods and _is_plain(route) else None
        known = _KnownRoute(matches, arrivals, below=None, plain=plain)
        if endpoint is None and not _has_limiter(app) and _has_routes(mount):
            return known._replace(below=Routes(mount, prefix=template, name=name))
        return known


def _params_of(scope: Scope) -> Params:
    return scope.get("path_params") or {}


def _is_plain(route: BaseRoute) -> bool:
    """True if Starlette's or FastAPI's `matches` looks only at the route's pattern and methods. A convertor of a
    parameter may raise, and a route without methods may be for WebSockets.
    """
    return (
        isinstance(getattr(route, "original_route", route), Route)
        and _pattern_of(route)[0] != ""
        and not getattr(route, "param_convertors", True)
        and bool(getattr(route, "methods", None))
    )


def _table_of(read: Iterable[tuple[BaseRoute, _KnownRoute]]) -> _Table:
    """Return the table of these routes."""
    routes: list[_KnownRoute] = []
    parts: list[str] = []
    starts: dict[int | None, int] = {}
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
    return _Table(routes=routes, pattern=re.compile("|".join(parts) or "(?!)"), starts=starts, has_marks=has_marks)


def _pattern_of(route: BaseRoute) -> tuple[str, int]:
    """Return a pattern without names that matches each path which the route may match, and the number of its groups.

    It is the route's own pattern if `matches` is a function of Starlette or FastAPI, because that function tries this
    pattern first. For a host, and for a class with a `matches` of its own, it is the empty pattern: any path may match.
    """
    pattern: re.Pattern[str] | None = getattr(route, "path_regex", None)
    module = getattr(route.matches, "__globals__", {}).get("__name__")  # a decorator copies `__module__`, not this
    if pattern is not None and pattern.flags == re.UNICODE and module in {"starlette.routing", "fastapi.routing"}:
        text, renamed = _NAMED_GROUP.subn("(?:", pattern.pattern)  # two routes may have a group of the same name
        # More than the named groups are renamed if a set of characters contains "(?P<name>".
        if renamed == len(pattern.groupindex) and not _REFERENCE.search(text):
            return text, pattern.groups - renamed
    return "", 0


class RouteFinder:
    """Finds the endpoint of a request for one middleware: by the routes inside it, or as matched outside it."""

    def __init__(self, app: object) -> None:
        # None: the middleware belongs to one route, or wraps an application that hides its routes.
        self.routes = next((Routes(each) for each in chain(app) if _has_routes(each)), None)
        self._others: dict[int, tuple[object, Routes]] = {}  # by owner

    def find(self, scope: Scope) -> Found:
        """Return the arrival of a request, and the path parameters. If the routes are outside the middleware, the scope
        has both already.
        """
        routes = self._routes_for(scope)
        if routes is not None:
            return routes.find(scope)
        endpoint = scope.get("endpoint")
        arrival = NOWHERE if endpoint is None else known_arrivals(endpoint, template_of(scope)).of(scope)
        return arrival, _params_of(scope)

    def endpoints(self, scope: Scope) -> list[Endpoint]:
        """Return every endpoint that can be found, and the one of requests that match no route."""
        routes = self._routes_for(scope)
        return [NOWHERE.endpoint, *(() if routes is None else routes.endpoints())]

    def _routes_for(self, scope: Scope) -> Routes | None:
        """Return the routes inside the middleware, else those of the mount or application that the request has
        reached; None if it has none.
        """
        if self.routes is not None:
            return self.routes
        owner = scope.get("endpoint", scope.get("app"))
        if not _has_routes(owner):
            return None
        known = self._others.get(id(owner))
        if known is None:
            known = self._others[id(owner)] = owner, Routes(owner)
        return known[1]


def arrivals_of(
    endpoint: View,
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


def _charges(route: BaseRoute) -> tuple[ChargedRule, ...]:
    """Return the rules of the RateLimit dependencies of a route of FastAPI. Equal ones are charged once."""
    found: dict[object, ChargedRule] = {}
    left = [getattr(route, "dependant", None)]
    while left:
        each = left.pop(0)
        call = getattr(each, "call", None)
        rule = getattr(call, "rule", None)
        if isinstance(rule, ChargedRule):
            found.setdefault(call, rule)
        left += getattr(each, "dependencies", ())
    return tuple(found.values())


def _methods(route: BaseRoute, endpoint: object) -> tuple[str, ...]:
    """Return the methods of a route, for people: HEAD goes with GET."""
    if isinstance(endpoint, type):
        return tuple([_shown_method(handler) for handler in HANDLERS if hasattr(endpoint, handler)])
    found: list[str] = sorted(getattr(route, "methods", None) or ())
    return tuple([method for method in found if method != "HEAD" or "GET" not in found])


def _shown_method(handler: str) -> str:
    """Return the method of a handler; a WebSocket handshake is a GET."""
    return "GET" if handler == "on_connect" else handler.upper()


def known_arrivals(endpoint: View, template: str) -> EndpointArrivals:
    """Return the arrivals of an endpoint, which are remembered by its id: a router cannot be hashed."""
    known = _known.get((id(endpoint), template))
    if known is None:
        if len(_known) >= _MOST:  # an application may make endpoints at run time
            _known.clear()  # those still in use are read again
        known = _known[id(endpoint), template] = endpoint, arrivals_of(endpoint, template)
    return known[1]


_MOST: Final = 1024
# It keeps the endpoint, so no other has its id.
_known: Final[dict[tuple[int, str], tuple[object, EndpointArrivals]]] = {}


def endpoint_at(scope: Scope) -> Endpoint:
    """Return the endpoint that the router has chosen; that of NOWHERE if it has chosen none yet."""
    found = scope.get("endpoint")
    return NOWHERE.endpoint if found is None else known_arrivals(found, template_of(scope)).whole.endpoint


def is_built_late(app: object) -> bool:
    """True if Starlette builds the middleware around this application when the server first calls it."""
    return any(isinstance(each, ExceptionMiddleware) for each in chain(app))


def _has_routes(owner: object) -> TypeGuard[Owner]:
    return isinstance(getattr(owner, "routes", None), list)


def template_of(scope: Scope) -> str:
    """Return the template of the route that the router has chosen; "" if the scope has none, as in older Starlette."""
    context = scope.get("fastapi", {}).get("effective_route_context")  # it has the prefix; the route has not
    templates = (getattr(each, "path_format", "") for each in (context, scope.get("route")))
    return next((template for template in templates if template), "")


def _has_limiter(app: object) -> bool:
    """True if a mounted application has a limiter of its own, with its own store and rules."""
    for each in chain(app):
        if isinstance(each, RateLimitMiddleware):
            return True
        for middleware in getattr(each, "user_middleware", ()):
            if isinstance(middleware.cls, type) and issubclass(middleware.cls, RateLimitMiddleware):
                return True
    return False


def _match(matches: Matches, scope: Scope) -> tuple[Match, Scope] | None:
    """Return the match of a route with a scope; None if the route raises."""
    try:
        return matches(scope)
    except Exception:  # noqa: BLE001  # the router will raise the same, inside the application's handlers
        return None


def answers_preflight(app: object, scope: Scope) -> bool:
    """True if an application responds to this preflight without running a view: by a CORS layer, or with 404 or 405.

    False if that is not known, as for a middleware of the user's. Nothing is remembered: preflights are rare.
    """
    owner: Owner | None = None
    for each in chain(app):
        if isinstance(each, type):
            return _forbids_options(each)
        kinds = [type(each)]
        if _has_routes(each):
            owner = owner or each
            # Not its stack: Starlette may not have built it yet.
            kinds = [one.cls for one in getattr(each, "user_middleware", ())]
        responds = responds_to_preflight(kinds)
        if responds is not None:
            return responds
    return owner is not None and _serves_no_view(owner, scope)


def _serves_no_view(owner: Owner, scope: Scope) -> bool:
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


def _flat(routes: list[BaseRoute]) -> Iterable[BaseRoute]:
    """Return the effective routes. From FastAPI 0.137 on, a router keeps an included router as one route."""
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    return routes if contexts is None else contexts(routes)


def _unwrapped(view: View) -> object:
    """Return a view without the decorators and partials around it."""
    bare = unwrap(view)
    while isinstance(bare, partial):
        bare = unwrap(bare.func)
    return getattr(bare, "__func__", bare)


def _label(view: View) -> str:
    return label_of(view if isinstance(view, type) else _unwrapped(view))


def _all_marks(view: View) -> tuple[Mark, ...]:
    """Return the marks of a view and of the function that it is a partial of."""
    marks = marks_of(view)
    while isinstance(view, partial):
        view = view.func
        marks = (*marks_of(view), *marks)
    return tuple(dict.fromkeys(marks))
