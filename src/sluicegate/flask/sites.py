"""The routes of one application, and the rules that hold at each.

All are bound before the first request is served, so a wrong rule is an error whatever that request asks for. Marks are
looked for where a view can carry them, nearest first: the method of a class, the view function and its class, its
blueprint, the blueprints around that. An `@exempt` frees from everything farther out; a nearer `@limit` still holds.
This module knows Flask's routing, marks and the gate; no request.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from flask import Flask

from sluicegate.errors import RuleError
from sluicegate.gate import Bound, Gate
from sluicegate.marks import EXEMPT, Mark, marks_of
from sluicegate.passage import Place, label_of, scope_of, short_name

if TYPE_CHECKING:
    from werkzeug.routing import Rule as UrlRule

Marks = tuple[Mark, ...]


class Site(NamedTuple):
    """One route for one method: the rules that hold there, and the marks that these stand for."""

    bounds: tuple[Bound, ...]
    marks: Marks = ()


class Sites:
    """All routes of one application, as one gate sees them. The first limiter of an application owns its marks."""

    def __init__(self, gate: Gate, *, owns_marks: bool) -> None:
        self.nowhere = Site(gate.bind(Place()))
        self._gate = gate
        self._owns_marks = owns_marks
        self._sites: dict[tuple[str, str, str], Site] = {}
        self._own: dict[tuple[Mark, str], tuple[Bound, ...]] = {}  # by mark and label, for views reached on their own
        self._labels: dict[str, Any] = {}
        self._homes: dict[Hashable, str] = {}
        self._lock = threading.Lock()
        self._ready = False

    def _prepare(self, app: Flask) -> None:
        """Bind every route, once."""
        with self._lock:
            if self._ready:
                return
            rules = list(app.url_map.iter_rules())
            self._gate.check_routes({name for rule in rules for name in (rule.endpoint, rule.rule)})
            for rule in rules:
                for method in rule.methods or [""]:
                    self._bind(app, rule, method)
            self._ready = True

    def find(self, app: Flask, rule: UrlRule | None, method: str) -> Site:
        """Where a request has arrived; `nowhere` if it matched no route."""
        if not self._ready:
            self._prepare(app)
        if rule is None:
            return self.nowhere
        found = self._sites.get(_key(rule, method))
        return self._bind(app, rule, method) if found is None else found

    def own(self, app: Flask, mark: Mark, *, label: str) -> tuple[Bound, ...]:
        """The rule of one mark, for a view that is reached without its route: out of the same budget, if it has one."""
        if not self._ready:
            self._prepare(app)
        found = self._own.get((mark, label)) or self._own.get((mark, ""))
        if found is None:
            found = self._own[mark, label] = self._gate.bind_own(Place(marks=(mark,), label=label), [mark])
        return found

    def _bind(self, app: Flask, rule: UrlRule, method: str) -> Site:
        view = app.view_functions.get(rule.endpoint)
        cls = getattr(view, "view_class", None)
        handler, shown = _handler(cls, method), view if cls is None else cls
        inside = () if cls is None else (*marks_of(cls.dispatch_request), *marks_of(cls))
        around = [marks_of(app.blueprints.get(name)) for name in _blueprints(rule.endpoint)]
        levels = [marks_of(handler), (*inside, *marks_of(view)), *around]
        outer = tuple([mark for level in levels[1:] for mark in level])
        kept, exempt = _up_to_exempt(levels, rule.endpoint)
        settled = (
            *self._settled(kept, Place(handler, levels[0], label=label_of(handler), route=rule.rule)),
            *self._settled(kept, Place(shown, outer, label=label_of(shown), route=rule.rule)),
        )
        key = _key(rule, method)
        place = Place(key, settled, names=(rule.endpoint, rule.rule))
        done = frozenset[Mark]() if self._owns_marks else frozenset(settled)
        own = [mark for mark in settled if mark not in done]
        bounds = self._gate.bind_own(place, own) if exempt else self._gate.bind(place, done)
        if _is_static(app, rule):  # only what names a path or a route can mean these
            bounds = tuple([bound for bound in bounds if bound.routes is not None or bound.path is not None])
        found = self._sites[key] = Site(bounds, (*levels[0], *outer))
        return found

    def _settled(self, kept: Sequence[Mark], place: Place) -> list[Mark]:
        """The kept ones of a place's marks, each under the name and scope that it has there."""
        return [self._settle(mark, place) for mark in place.marks if mark in kept]

    def _settle(self, mark: Mark, place: Place) -> Mark:
        view = inspect.unwrap(place.view) if callable(place.view) else place.view
        known = view if isinstance(view, Hashable) else id(view)
        home = self._homes.setdefault(known, place.route)  # one function has one budget: that of its first route
        distinct = place._replace(route=home)
        if self._labels.setdefault(place.label, view) != view:  # two functions of one name in one module
            distinct = distinct._replace(label=f"{place.label}<{home}>")
        settled = replace(mark, rule=mark.rule_for(short_name(place), scope_of(distinct, mark)), named=True)
        bounds = self._gate.bind_own(place, [settled])
        for label in (place.label, ""):
            self._own.setdefault((mark, label), bounds)
        return settled


def _key(rule: UrlRule, method: str) -> tuple[str, str, str]:
    """A route that takes any method has one site for all of them."""
    return rule.endpoint, rule.rule, method if rule.methods else ""


def _handler(cls: Any, method: str) -> Any:
    """The method of a class that answers this one; HEAD is answered by GET's."""
    handler = getattr(cls, method.lower(), None)
    return getattr(cls, "get", None) if handler is None and method == "HEAD" else handler


def _blueprints(endpoint: str) -> list[str]:
    """The names of the blueprints around an endpoint, the nearest first: "a.b.view" is in "a.b", which is in "a"."""
    parts = endpoint.split(".")[:-1]
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _up_to_exempt(levels: Iterable[Marks], endpoint: str) -> tuple[list[Mark], bool]:
    """The marks that count, nearest first, and whether an `@exempt` keeps out all others."""
    kept: list[Mark] = []
    for level in levels:
        if EXEMPT not in level:
            kept += level
        elif set(level) == {EXEMPT}:
            return kept, True
        else:
            raise RuleError("@exempt", endpoint, problem="this view has @limit as well", expected="keep one of them")
    return kept, False


def _is_static(app: Flask, rule: UrlRule) -> bool:
    """Whether this is the route of the static files that Flask itself adds to an application or a blueprint."""
    owner, _, name = rule.endpoint.rpartition(".")
    home = app.blueprints.get(owner) if owner else app
    return name == "static" and home is not None and home.has_static_folder and "filename" in rule.arguments
