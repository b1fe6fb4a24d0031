"""Where a request has arrived, and what the gate has done about it.

A Place is what the framework matched: a value, the same for every request to one view. A Passage belongs to one
request: the adapter leaves it there, where views and guards find it. This module knows marks and decisions; no
framework.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sluicegate.after import Charges, owed, regained
from sluicegate.cautions import caution
from sluicegate.identity import digest
from sluicegate.marks import Mark
from sluicegate.plan import Check, Decision

if TYPE_CHECKING:
    from sluicegate.ending import AsyncEnding, Ending
    from sluicegate.gate import AsyncGate, Gate
    from sluicegate.settings import Settings

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_LONGEST: Final = 128


class Place(NamedTuple):
    """Where a request has arrived: what the framework matched. Nothing at all for a request that matched no route."""

    view: Hashable | None = None  # what tells this place from others
    marks: tuple[Mark, ...] = ()
    names: tuple[str, ...] = ()  # what a rule's `route` may call it
    label: str = ""  # "module.qualname" of the view
    route: str = ""  # its template


class Arrival(NamedTuple):
    """Where a request has arrived. `marks` are as the decorators left them; a method's are renamed in the place."""

    place: Place
    marks: tuple[Mark, ...] = ()


NOWHERE: Final = Arrival(Place())


class Passage:
    """What the gate has done about one request. Made for that request, and found on it by views and guards."""

    __slots__ = ("decision", "ending", "enforced", "gate")

    def __init__(self, gate: Gate | AsyncGate) -> None:
        self.gate = gate
        self.decision: Decision | None = None
        self.ending: Ending | AsyncEnding | None = None  # only of a request that owes something when it is answered
        self.enforced: set[Mark] = set()

    def note(self, decision: Decision | None) -> None:
        """Add a decision to what was decided before: one answer about all the rules that the request has met."""
        if decision is None:
            return
        if self.gate.may_owe and (charges := owed(decision)):
            if self.ending is None:
                self.ending = self.gate.ending()
            self.ending.add(charges)
        first = self.decision
        self.decision = (
            decision
            if first is None
            else Decision(
                allowed=first.allowed and decision.allowed,
                checks=_unique(first.checks, decision.checks),
                results=first.results + decision.results,
            )
        )

    def refuse(self, decision: Decision) -> Decision:
        """Note a decision that the application has raised as a refusal, unless it was noted here; what to answer by.

        A decision that allowed refuses too: the application has said so. Its names may be any text of a Limiter's.
        """
        refused = decision._replace(allowed=False, checks=tuple(map(_printable, decision.checks)))
        known = () if self.decision is None else self.decision.results
        if not all(any(outcome is each for each in known) for outcome in decision.results):
            self.note(refused)
        elif self.decision is not None and decision.results:
            self.decision = self.decision._replace(allowed=False)
        return refused

    def regain(self, charges: Charges) -> None:
        """Note that charges were given back: what was decided about this request tells of them no more."""
        if charges and self.decision is not None:
            self.decision = regained(self.decision, charges)


def count_together(one: Settings, other: Settings) -> bool:
    """Whether two limiters of these settings count in one place, so that equal rules are one budget."""
    own_memory = isinstance(one.store, str) and one.store.lower().startswith("memory:")
    return not own_memory and (one.store, one.prefix) == (other.store, other.prefix)


def warn_of_twice(outer: Passage | None, gate: Gate | AsyncGate, decision: Decision | None) -> None:
    """Warn (SG105) where a limiter further outside has charged one of these budgets for the same request."""
    if outer is None or outer.decision is None or decision is None:
        return
    if not count_together(outer.gate.settings, gate.settings):
        return
    charged = {(check.terms.rule_id, check.identity) for check in outer.decision.checks}
    for terms, identity, _ in decision.checks:
        if (terms.rule_id, identity) in charged:
            caution("SG105", terms.name, strict=gate.settings.strict)


def _unique(first: tuple[Check, ...], more: tuple[Check, ...]) -> tuple[Check, ...]:
    """The checks of two decisions, with names that tell them apart in header fields."""
    checks = list(first)
    for check in more:
        taken, number = {each.terms.name for each in checks}, 2
        name = check.terms.name
        while name in taken:
            name, number = f"{check.terms.name}-{number}", number + 1
        checks.append(check if name == check.terms.name else check._replace(terms=check.terms._replace(name=name)))
    return tuple(checks)


def _printable(check: Check) -> Check:
    """The check under a name that header fields can show."""
    name = check.terms.name
    shown = _UNPRINTABLE.sub("?", name)[:_LONGEST]
    return check if shown == name else check._replace(terms=check.terms._replace(name=shown))


def short_name(place: Place) -> str:
    """A view's own name, without its module: what header fields show."""
    return _UNPRINTABLE.sub("?", place.label.rpartition(".")[2])[:_LONGEST] or "limit"


def scope_of(place: Place, mark: Mark | None = None) -> str:
    """What a view's own budget is kept under; its second mark without a scope has a second budget.

    A function without a name of its own (a lambda, or one made inside another) is told apart by its route.
    """
    scope = f"{place.label}[{place.route}]" if "<" in place.label else place.label
    own = [each for each in place.marks if each.rule.scope is None]
    if mark in own[1:]:
        scope = f"{scope}#{own.index(mark) + 1}"
    plain = len(scope) <= _LONGEST and not _UNPRINTABLE.search(scope)
    return scope if plain else f"~{digest(scope)}"


def label_of(view: Any) -> str:
    """The module and qualified name of a view, through partials and instances.

    >>> from functools import partial
    >>> label_of(partial(label_of))
    'sluicegate.passage.label_of'
    """
    while hasattr(view, "func"):
        view = view.func
    named = view if hasattr(view, "__qualname__") else type(view)
    return f"{named.__module__}.{named.__qualname__}"
