"""The routes of one Flask application, and the rules that apply to each.

The first request binds the rules of all routes. So a wrong rule is an error at that request, whatever its path is.
Marks are collected from four levels, the nearest first: the method of a class; the view function and its class; its
blueprint; the blueprints around that one. An `@exempt` cancels the levels after its own; a nearer `@limit` applies.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from flask import Flask
from flask.views import View

from sluicegate.errors import RuleError
from sluicegate.runtime import fork
from sluicegate.web.bound import Bounds, EndpointRules
from sluicegate.web.endpoint import Endpoint, label_of, scope_of, short_name
from sluicegate.web.gate import Gate
from sluicegate.web.marks import EXEMPT, Mark, marks_of

if TYPE_CHECKING:
    from werkzeug.routing import Rule as UrlRule

Marks = tuple[Mark, ...]


class RouteRules(NamedTuple):
    """The rules of one route for one method, and the marks that these rules come from."""

    bounds: Bounds
    marks: frozenset[Mark] = frozenset()


class _Route(NamedTuple):
    """A route with one method, as the gate binds it. Its rules are not kept: a file may change them."""

    endpoint: Endpoint
    marks: frozenset[Mark] = frozenset()
    done: frozenset[Mark] = frozenset()
    exempt: Bounds | None = None  # the only rules of a route that an `@exempt` frees from the others
    is_static: bool = False


_UNMATCHED: Final = _Route(Endpoint())


class AppRoutes:
    """The rules of all routes of one application, for one gate.

    `app` returns the application. `owns_marks` is True for the first limiter of an application: only that limiter
    enforces `@limit`.
    """

    def __init__(self, app: Callable[[], Flask], gate: Gate, *, owns_marks: bool) -> None:
        self._app = app
        self._gate = gate
        self._rules(_UNMATCHED)  # raises for wrong rules now
        self._owns_marks = owns_marks
        self._routes: dict[tuple[str, str, str], _Route] = {}
        # By mark and label, for views that are called without their route.
        self._own: dict[tuple[Mark, str], Bounds] = {}
        self._labels: dict[str, object] = {}  # the first view of each label
        self._first_routes: dict[Hashable, str] = {}  # by view
        self._lock = threading.Lock()
        self._ready = False
        fork.renew(self)

    def after_fork(self) -> None:
        """Renew the lock. What the parent has bound is complete, and the child binds the rest."""
        self._lock = threading.Lock()

    def _prepare(self) -> None:
        """Bind the rules of all routes, once."""
        app = self._app()
        with self._lock:
            if self._ready:
                return
            rules = list(app.url_map.iter_rules())
            self._gate.check_routes({name for rule in rules for name in (rule.endpoint, rule.rule)})
            for rule in rules:
                for method in rule.methods or [""]:
                    self._bind(rule, method)
            self._ready = True

    def find(self, rule: UrlRule | None, method: str) -> RouteRules:
        """Return the rules for a request; `rule` is None if it matched no route."""
        if not self._ready:
            self._prepare()
        if rule is None:
            return self._rules(_UNMATCHED)
        found = self._routes.get((rule.endpoint, rule.rule, method if rule.methods else ""))  # as `_key` makes it
        return self._bind(rule, method) if found is None else self._rules(found)

    def _rules(self, route: _Route) -> RouteRules:
        """Return the rules that a route has now."""
        bounds = self._gate.bind(route.endpoint, route.done) if route.exempt is None else route.exempt
        if route.is_static:  # a rule applies to static files only if it names a path or a route
            bounds = tuple([bound for bound in bounds if bound.routes is not None or bound.path is not None])
        return RouteRules(bounds, route.marks)

    def endpoint_rules(self) -> list[EndpointRules]:
        """Return the rules of all routes. Methods with the same rules are together; HEAD goes with GET, and the OPTIONS
        that Flask answers is left out.
        """
        app = self._app()
        found = [EndpointRules(Endpoint(), self._rules(_UNMATCHED).bounds)]
        for rule in app.url_map.iter_rules():
            automatic = {"HEAD"} if "GET" in (rule.methods or ()) else set[str]()
            automatic |= {"OPTIONS"} if getattr(rule, "provide_automatic_options", False) else set()
            methods_of: dict[Bounds, list[str]] = {}
            for method in sorted((rule.methods or {""}) - automatic):
                methods_of.setdefault(self.find(rule, method).bounds, []).append(method)
            view = app.view_functions.get(rule.endpoint)
            shown = Endpoint(label=label_of(_shown(view)), route=rule.rule)
            for bounds, methods in methods_of.items():
                found.append(EndpointRules(shown._replace(methods=tuple(filter(None, methods))), bounds))
        return found

    def own(self, mark: Mark, *, label: str) -> Bounds:
        """Return the rule of a mark, for a view called without its route: with the route's budget, if there is one."""
        if not self._ready:
            self._prepare()
        found = self._own.get((mark, label)) or self._own.get((mark, ""))
        if found is None:
            found = self._own[mark, label] = self._gate.bind_own(Endpoint(marks=(mark,), label=label), [mark])
        return found

    def _bind(self, rule: UrlRule, method: str) -> RouteRules:
        """Bind the rules of one route for one method."""
        app = self._app()
        view = app.view_functions.get(rule.endpoint)
        cls = _class_of(view)
        handler, shown = _handler(cls, method), _shown(view)
        inside = () if cls is None else (*marks_of(cls.dispatch_request), *marks_of(cls))
        around = [marks_of(app.blueprints.get(name)) for name in _blueprints(rule.endpoint)]
        levels = [marks_of(handler), (*inside, *marks_of(view)), *around]
        outer = tuple([mark for level in levels[1:] for mark in level])
        kept, exempt = _until_exempt(levels, rule.endpoint)
        placed = (
            *self._place_all(kept, Endpoint(handler, levels[0], label=label_of(handler), route=rule.rule)),
            *self._place_all(kept, Endpoint(shown, outer, label=label_of(shown), route=rule.rule)),
        )
        key = _key(rule, method)
        endpoint = Endpoint(key, placed, names=(rule.endpoint, rule.rule), label=label_of(shown))
        done = frozenset[Mark]() if self._owns_marks else frozenset(placed)
        own = [mark for mark in placed if mark not in done]
        free = self._gate.bind_own(endpoint, own) if exempt else None
        marks = frozenset((*levels[0], *outer))
        found = self._routes[key] = _Route(endpoint, marks, done, exempt=free, is_static=_is_static(app, rule))
        return self._rules(found)

    def _place_all(self, kept: Sequence[Mark], endpoint: Endpoint) -> list[Mark]:
        """Return those of an endpoint's marks that are in `kept`, each with its name and scope at that endpoint."""
        return [self._place(mark, endpoint) for mark in endpoint.marks if mark in kept]

    def _place(self, mark: Mark, endpoint: Endpoint) -> Mark:
        """Return the mark with the name and scope that it has at an endpoint."""
        scope = scope_of(self._distinct(endpoint), mark)
        placed = replace(mark, rule=mark.rule_for(short_name(endpoint), scope), named=True)
        bounds = self._gate.bind_own(endpoint, [placed])
        for label in (endpoint.label, ""):
            self._own.setdefault((mark, label), bounds)
        return placed

    def _distinct(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint with a label and a route that no other view has."""
        view = inspect.unwrap(endpoint.view) if callable(endpoint.view) else endpoint.view
        known = view if isinstance(view, Hashable) else id(view)
        # A function has one budget, named by its first route.
        first = self._first_routes.setdefault(known, endpoint.route)
        distinct = endpoint._replace(route=first)
        if self._labels.setdefault(endpoint.label, view) != view:  # two functions with one name in one module
            distinct = distinct._replace(label=f"{endpoint.label}<{first}>")
        return distinct

    def endpoint(self, rule: UrlRule | None) -> Endpoint:
        """Return the endpoint of a route for a charge inside its view: the function, or the class of its methods."""
        if rule is None:
            return Endpoint()
        view = self._app().view_functions.get(rule.endpoint)
        shown = _shown(view)
        return self._distinct(Endpoint(shown, label=label_of(shown), route=rule.rule))


def _key(rule: UrlRule, method: str) -> tuple[str, str, str]:
    """Return the cache key of a route and a method. A route that takes any method has one key for all methods."""
    return rule.endpoint, rule.rule, method if rule.methods else ""


def _class_of(view: object) -> type[View] | None:
    """Return the class that `as_view` has made this view function from; None for a plain function."""
    cls: type[View] | None = getattr(view, "view_class", None)
    return cls


def _shown(view: Hashable | None) -> Hashable | None:
    """Return the view as people know it: the class of its methods, or the function."""
    return getattr(view, "view_class", view)


def _handler(cls: type[View] | None, method: str) -> Callable[..., object] | None:
    """Return the method of a class that handles this HTTP method; `get` handles HEAD."""
    handler: Callable[..., object] | None = getattr(cls, method.lower(), None)
    return getattr(cls, "get", None) if handler is None and method == "HEAD" else handler


def _blueprints(endpoint: str) -> list[str]:
    """Return the names of an endpoint's blueprints, the nearest first: "a.b.view" is in "a.b", which is in "a"."""
    parts = endpoint.split(".")[:-1]
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _until_exempt(levels: Iterable[Marks], endpoint: str) -> tuple[list[Mark], bool]:
    """Return the marks that apply, nearest first, and whether an `@exempt` cancels all others."""
    kept: list[Mark] = []
    for level in levels:
        if EXEMPT not in level:
            kept += level
        elif set(level) == {EXEMPT}:
            return kept, True
        else:
            raise limited_and_exempt(endpoint)
    return kept, False


def limited_and_exempt(view: str) -> RuleError:
    """Return the error of a view that has both decorators."""
    return RuleError("@exempt", view, problem="this view has @limit as well", expected="keep one of the two")


def _is_static(app: Flask, rule: UrlRule) -> bool:
    """True if this is the route of the static files that Flask itself adds to an application or a blueprint."""
    owner, _, name = rule.endpoint.rpartition(".")
    scaffold = app.blueprints.get(owner) if owner else app
    return name == "static" and scaffold is not None and scaffold.has_static_folder and "filename" in rule.arguments
