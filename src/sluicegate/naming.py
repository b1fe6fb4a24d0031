"""The names of the rules that one request meets: each its own, for header fields and decisions.

This module knows bound rules; no request, no store.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING

from sluicegate.cautions import caution

if TYPE_CHECKING:
    from sluicegate.gate import Bound


def warn_of_names(bounds: list[Bound], given: AbstractSet[str], *, strict: bool) -> None:
    """Warn (SG108) of two rules with a name that somebody has given to one of them."""
    names = [name for bound in bounds for name in names_of(bound)]
    for name in sorted([name for name in given if names.count(name) > 1]):
        caution("SG108", name, strict=strict)


def unique(bounds: list[Bound]) -> tuple[Bound, ...]:
    """The same rules with names that tell them apart in header fields."""
    taken = {bound.rule.ban.name for bound in bounds if bound.rule.ban is not None}
    apart = []
    for bound in bounds:
        other, number = bound, 2
        while not taken.isdisjoint(names_of(other)):
            other, number = _renamed(bound, f"{bound.rule.name}-{number}"), number + 1
        taken |= names_of(other)
        apart.append(other)
    return tuple(apart)


def names_of(bound: Bound) -> set[str]:
    """What its checks will be called; a rule of several quotas has several names."""
    return {bound.rule.name} if bound.terms is None else {each.name for each in bound.terms}


def _renamed(bound: Bound, name: str) -> Bound:
    """The same rule, with the same budget, under another name."""
    rule = bound.rule
    scope = rule.name if rule.scope is None else rule.scope
    terms = bound.terms and tuple(each._replace(name=each.name.replace(rule.name, name, 1)) for each in bound.terms)
    return replace(bound, rule=replace(rule, name=name, scope=scope), terms=terms)
