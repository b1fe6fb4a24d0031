"""The endpoint of a Django request: from a resolver match to an `Endpoint`, with the marks of the view.

It reads views as Django and REST framework wrap them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from inspect import unwrap
from types import FunctionType, MethodType
from typing import Any, Final, TypeAlias

from django.http import HttpRequest
from django.urls import URLResolver, get_resolver, get_urlconf

from sluicegate.web.endpoint import NOWHERE, Arrival, Endpoint, label_of, method_marks
from sluicegate.web.marks import Mark, marks_of

AnyView: TypeAlias = Callable[..., Any]


def arrival_of(request: HttpRequest) -> Arrival:
    """Return the arrival of a request; NOWHERE if it matched no route, or got its response before the match."""
    match = request.resolver_match
    if match is None:
        return NOWHERE
    view = match.func if type(match.func) is FunctionType else keyed(match.func)
    cls = class_of(view)
    verb = "" if cls is None else _verb(cls, request.method)
    return _arrival(view, match.view_name or "", match.route or "", verb=verb)


@lru_cache(maxsize=1024)
def arrival_by_call(cls: type | None, name: str, marks: tuple[Mark, ...], *, route: str) -> Arrival:
    """Return the arrival of a call whose route carries no marks: a function by its label, or a class and its method."""
    if cls is None:
        endpoint = Endpoint(marks=marks, label=name, route=route)
    elif name == "dispatch":
        endpoint = Endpoint(marks=marks, label=_class_label(cls), route=route)
    else:
        label = _class_label(cls)
        endpoint = Endpoint(marks=method_marks(marks, f"{label}.{name}"), label=label, route=route)
    return Arrival(endpoint, marks)


def names_of_routes() -> set[str]:
    """Return all names of the project's routes that a rule's `route` may use."""
    names: set[str] = set()
    for view, template, name in _routes(get_resolver()):
        names.update(_arrival(view, name, template, verb="").endpoint.names)
    return names


def endpoints() -> list[Endpoint]:
    """Return every endpoint of the project: one for each route, or for each method of a class that has marks of its
    own, and the one of requests that match no route.
    """
    found = [NOWHERE.endpoint]
    for view, template, name in _routes(get_resolver()):
        by_marks: dict[tuple[Mark, ...], tuple[Endpoint, list[str]]] = {}
        for verb in _verbs(view):
            endpoint = _arrival(view, name, template, verb=verb).endpoint
            by_marks.setdefault(endpoint.marks, (endpoint, []))[1].append(verb.upper())
        found += [
            each._replace(methods=tuple(filter(None, verbs)), route=template) for each, verbs in by_marks.values()
        ]
    return found


def view_of(endpoint: Endpoint) -> object:
    """Return the view of an endpoint that `endpoints` has returned; None for requests that match no route."""
    return _of_key(endpoint.view[0]) if isinstance(endpoint.view, tuple) else None


def _verbs(view: Hashable) -> list[str]:
    """Return the methods that a class-based view takes, without OPTIONS, which Django answers; [""] for a function."""
    cls: Any = class_of(view)
    if cls is None:
        return [""]
    actions = getattr(_of_key(view), "actions", None) or {}
    kept = getattr(_of_key(view), "view_initkwargs", {})  # what `as_view` was given
    names = kept.get("http_method_names", cls.http_method_names)
    names = [verb for verb in names if verb in actions or hasattr(cls, verb)]
    return [verb for verb in names if verb not in ("options", "head")] or [""]


def _routes(resolver: URLResolver, route: str = "", space: str = "") -> Iterator[tuple[Hashable, str, str]]:
    """Yield the view, the template and the name of each route, in the order of the URLconf."""
    for pattern in resolver.url_patterns:
        template = route + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern, template, f"{space}{pattern.namespace}:" if pattern.namespace else space)
        else:
            yield keyed(pattern.callback), template, f"{space}{pattern.name}" if pattern.name else ""


@lru_cache(maxsize=16)
def _first_routes(resolver: URLResolver) -> dict[Hashable, str]:
    """Return the first route of each view in the URLconf: the same in every worker, whichever URL it serves first."""
    first: dict[Hashable, str] = {}
    for view, template, _ in _routes(resolver):
        first.setdefault(_inmost(view), template)
    return first


def _inmost(view: Hashable) -> Hashable:
    """Return the innermost part of a wrapped view: its class, or the function."""
    return class_of(view) or keyed(unwrap(_of_key(view)))


class _ByIdentity:
    """The key of a view that has a hash or an equality of its own, or none: a dataclass with `__call__` has none."""

    __slots__ = ("view",)

    def __init__(self, view: AnyView) -> None:
        self.view = view

    def __hash__(self) -> int:
        return id(self.view)

    def __eq__(self, other: object) -> bool:
        return type(other) is _ByIdentity and other.view is self.view


_IDENTITIES: Final[tuple[object, ...]] = (object.__hash__, MethodType.__hash__)
"""The hashes of objects that are equal only to themselves."""


def keyed(view: AnyView) -> Hashable:
    """Return the view, or a key of it where the view itself can be no key."""
    return view if type(view).__hash__ in _IDENTITIES else _ByIdentity(view)


def _of_key(key: Hashable) -> Any:
    """Return the view of a key."""
    return key.view if type(key) is _ByIdentity else key


@lru_cache(maxsize=4096)
def class_of(view: Hashable) -> type | None:
    """Return the class behind `as_view()`: Django calls it `view_class`, REST framework `cls`."""
    view = _of_key(view)
    found = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return found if isinstance(found, type) else None


def _verb(cls: type, method: str | None) -> str:
    """Return the name of the method of the class that Django will call; "" if there is none.

    Only known names: clients choose the method, and the result is part of a cache key.
    """
    verb = (method or "").lower()
    if verb not in getattr(cls, "http_method_names", ()):
        return ""
    return "get" if verb == "head" and not hasattr(cls, "head") else verb


@lru_cache(maxsize=4096)  # more than the routes of a project; only override_settings makes more
def _arrival(key: Hashable, name: str, route: str, *, verb: str) -> Arrival:
    cls, view = class_of(key), _of_key(key)
    label = label_of(view) if cls is None else _class_label(cls)
    placed = marks = marks_of(view)
    home = _first_routes(get_resolver(get_urlconf())).get(_inmost(view), route) if "<" in label else route
    if cls is not None:
        actions = getattr(view, "actions", None) or {}  # a viewset maps each verb to a method
        handler = actions.get(verb, verb)
        own = marks_of(getattr(cls, handler, None))
        around = (*marks_of(cls), *marks)
        placed, marks = (*around, *method_marks(own, f"{label}.{handler}")), (*around, *own)
    names = tuple(dict.fromkeys(each for each in (name, route, f"/{route}", label) if each))
    return Arrival(Endpoint((key, name, route, verb), placed, names=names, label=label, route=home), marks)


def _class_label(cls: type) -> str:
    """Return the label under which the budgets of a class-based view are kept."""
    # REST framework gives the class behind @api_view the name of the function, but not its qualified name.
    name = cls.__name__ if cls.__qualname__ == "WrappedAPIView" else cls.__qualname__
    return f"{cls.__module__}.{name}"
