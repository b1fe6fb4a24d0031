"""Where a request arrives: from a resolver match to a Place, with the marks that the view carries.

This module knows how Django, and REST framework like it, wrap views. It makes no decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from inspect import unwrap
from typing import Any

from django.http import HttpRequest
from django.urls import URLResolver, get_resolver, get_urlconf

from sluicegate.marks import Mark, marks_of
from sluicegate.passage import NOWHERE, Arrival, Place, label_of, scope_of, short_name


def arrival_of(request: HttpRequest) -> Arrival:
    """Where a request has arrived; NOWHERE if it matched no route, or was answered before it was matched."""
    match = request.resolver_match
    if match is None:
        return NOWHERE
    verb = _verb(class_of(match.func), request.method)
    return _arrival(match.func, match.view_name or "", match.route or "", verb=verb)


@lru_cache(maxsize=1024)
def arrival_by_call(cls: type | None, name: str, marks: tuple[Mark, ...], *, route: str) -> Arrival:
    """Where a call has arrived that the route does not tell of: a function by its label, or a class and its method."""
    if cls is None:
        place = Place(marks=marks, label=name, route=route)
    elif name == "dispatch":
        place = Place(marks=marks, label=_class_label(cls), route=route)
    else:
        place = Place(marks=_method_marks(marks, cls, name, route=route), label=_class_label(cls), route=route)
    return Arrival(place, marks)


def names_of_routes() -> set[str]:
    """Everything that a rule's `route` may call a route of the project's URLconf."""
    names: set[str] = set()
    for view, template, name in _routes(get_resolver()):
        names.update(_arrival(view, name, template, verb="").place.names)
    return names


def _routes(resolver: URLResolver, route: str = "", space: str = "") -> Iterator[tuple[Callable[..., Any], str, str]]:
    """The view, the template and the name of each route, in the order of the URLconf."""
    for pattern in resolver.url_patterns:
        template = route + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern, template, f"{space}{pattern.namespace}:" if pattern.namespace else space)
        else:
            yield pattern.callback, template, f"{space}{pattern.name}" if pattern.name else ""


@lru_cache(maxsize=16)
def _first_routes(resolver: URLResolver) -> dict[Any, str]:
    """The first route of each view. Workers that serve different URLs first still agree on it."""
    first: dict[Any, str] = {}
    for view, template, _ in _routes(resolver):
        first.setdefault(_inmost(view), template)
    return first


def _inmost(view: Any) -> Any:
    """What is the same for a view however it is wrapped: its class, or the function."""
    return class_of(view) or unwrap(view)


def class_of(view: Any) -> type | None:
    """The class behind `as_view()`: Django calls it `view_class`, REST framework `cls`."""
    found = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return found if isinstance(found, type) else None


def _verb(cls: type | None, method: str | None) -> str:
    """The method of the class that will answer; "" where there is none. Only known names, for strangers choose them."""
    verb = (method or "").lower()
    if cls is None or verb not in getattr(cls, "http_method_names", ()):
        return ""
    return "get" if verb == "head" and not hasattr(cls, "head") else verb


@lru_cache(maxsize=4096)  # as many as a project has routes; more only under override_settings
def _arrival(view: Callable[..., Any], name: str, route: str, *, verb: str) -> Arrival:
    cls = class_of(view)
    label = label_of(view) if cls is None else _class_label(cls)
    marks = marks_of(view)
    of_place = marks
    home = _first_routes(get_resolver(get_urlconf())).get(_inmost(view), route) if "<" in label else route
    if cls is not None:
        actions = getattr(view, "actions", None) or {}  # a viewset says which method answers which verb
        handler = actions.get(verb, verb)
        own = marks_of(getattr(cls, handler, None))
        of_place = (*marks_of(cls), *marks, *_method_marks(own, cls, handler, route=home))
        marks = (*marks, *own)
    names = tuple(dict.fromkeys(each for each in (name, route, f"/{route}", label) if each))
    return Arrival(Place((view, name, route, verb), of_place, names=names, label=label, route=home), marks)


def _class_label(cls: type) -> str:
    """What the budgets of a class-based view are kept under."""
    # REST framework gives the class behind @api_view the function's name, but not its qualified name.
    name = cls.__name__ if cls.__qualname__ == "WrappedAPIView" else cls.__qualname__
    return f"{cls.__module__}.{name}"


def _method_marks(marks: tuple[Mark, ...], cls: type, name: str, *, route: str) -> tuple[Mark, ...]:
    """The marks of one method, with budgets apart from those of its class."""
    shown = f"{short_name(Place(label=cls.__name__))}.{short_name(Place(label=name))}"[:128]
    place = Place(marks=marks, label=f"{_class_label(cls)}.{name}", route=route)
    rules = [mark.rule_for(shown, scope_of(place, mark)) for mark in marks]
    return tuple(
        Mark(rule, named=True, override_defaults=mark.override_defaults)
        for rule, mark in zip(rules, marks, strict=True)
    )
