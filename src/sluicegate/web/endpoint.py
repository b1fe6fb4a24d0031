"""The endpoint: the view and route that a framework matched. Every request to one view has the same endpoint."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sluicegate.identity import digest
from sluicegate.runtime.awaiting import label_of as label_of  # noqa: PLC0414  # the adapters import it from here
from sluicegate.web.marks import Mark

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")  # what a Structured Field String cannot carry (RFC 9651 §3.3.3)
LONGEST_NAME: Final = 128  # as for the names that users give: see `check_name`


def printable(name: str) -> str:
    """Return a name in a form that header fields can show: printable ASCII, at most LONGEST_NAME characters."""
    return _UNPRINTABLE.sub("?", name)[:LONGEST_NAME]


class Endpoint(NamedTuple):
    """The view and route that the framework matched for a request. All fields are empty if no route matched."""

    view: Hashable | None = None  # unique: no other endpoint has the same value
    marks: tuple[Mark, ...] = ()
    names: tuple[str, ...] = ()  # the names that a rule's `route` may use
    label: str = ""  # "module.qualname" of the view
    route: str = ""  # the template of the route
    methods: tuple[str, ...] = ()  # that the route takes, for people; empty: any, or unknown
    charges: tuple[Any, ...] = ()  # each ChargedRule that is known to be charged inside, for people


class Arrival(NamedTuple):
    """An endpoint, and its marks as the decorators left them. The endpoint has a method's marks under other names."""

    endpoint: Endpoint
    marks: tuple[Mark, ...] = ()


NOWHERE: Final = Arrival(Endpoint())


def short_name(endpoint: Endpoint) -> str:
    """Return a view's own name without its module, for header fields."""
    return printable(endpoint.label.rpartition(".")[2]) or "limit"


def scope_of(endpoint: Endpoint, mark: Mark | None = None) -> str:
    """Return the scope of a view's own budget. A second mark without a scope gets a second budget.

    The scope of a lambda, or of a function that is defined inside another function, contains the route, because such
    functions can have the same name.
    """
    label = (mark and mark.label) or endpoint.label
    scope = f"{label}[{endpoint.route}]" if "<" in label else label
    own = [each for each in endpoint.marks if each.rule.scope is None and (each.label or endpoint.label) == label]
    if mark in own[1:]:
        scope = f"{scope}#{own.index(mark) + 1}"
    plain = len(scope) <= LONGEST_NAME and not _UNPRINTABLE.search(scope)
    return scope if plain else f"~{digest(scope)}"


@lru_cache(maxsize=4096)  # it must return the same marks each time: they are compared by identity
def method_marks(marks: tuple[Mark, ...], label: str) -> tuple[Mark, ...]:
    """Return the marks of one method of a class, with budgets separate from those of the class."""
    cls, _, method = label.rpartition(".")
    name = f"{short_name(Endpoint(label=cls))}.{printable(method)}"[-LONGEST_NAME:]
    named = [(mark, mark.rule if mark.named else replace(mark.rule, name=name)) for mark in marks]
    return tuple([mark if mark.frees else replace(mark, rule=rule, named=True, label=label) for mark, rule in named])
