"""Bound rules: rules made ready for one application, with unique names for header fields and decisions."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple

from sluicegate.errors import shows_half_made, warn
from sluicegate.plan import Terms
from sluicegate.rules.key import Caller, ReadyKey
from sluicegate.rules.rollout import EVERYBODY
from sluicegate.rules.rule import METHODS, Rule
from sluicegate.rules.terms import is_dated
from sluicegate.rules.tiers import Tiers
from sluicegate.web.endpoint import Endpoint

Chosen = tuple[tuple[Terms, ...], int]
"""The terms and the cost of a rule for one request."""


@shows_half_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # compared by identity, which is faster
class Bound:
    """A rule made ready for one application."""

    rule: Rule
    key: ReadyKey
    methods: frozenset[str] | None
    routes: frozenset[str] | None
    path: re.Pattern[str] | None
    terms: tuple[Terms, ...] | None  # None: the quota is a function of the request
    share: int  # enforced for this share of identities, in parts of EVERYBODY; in shadow for the rest
    # Two questions instead of one for each option, in each request.
    is_conditional: bool = field(init=False)  # the rule has methods, a path or a `when`
    fixed: Chosen | None = field(init=False)  # what the rule has for every request; None if that depends on the request

    def __post_init__(self) -> None:
        rule, terms = self.rule, self.terms
        object.__setattr__(
            self, "is_conditional", any([each is not None for each in (self.methods, self.path, rule.when)])
        )
        varies = terms is None or self.share != EVERYBODY or rule.per_method or not isinstance(rule.cost, int)
        varies = varies or is_dated(terms or ())
        object.__setattr__(self, "fixed", None if varies else (terms, rule.cost))

    def holds(self, caller: Caller) -> bool:
        """True if the rule applies to the request's method and path."""
        if self.methods is not None and caller.method not in self.methods:
            return False
        return self.path is None or self.path.fullmatch(_as_routed(caller.path)) is not None

    def written(self, algorithm: str) -> list[tuple[str | None, tuple[Terms, ...] | None]]:
        """Return the terms that are known before a request, each with the tier that has them, if any. None for a tier
        without a limit, and for a quota that is a function of the request.
        """
        quota, of = self.rule.quota, self.rule.terms
        if not isinstance(quota, Tiers):
            return [(None, self.terms)]
        rows = [(str(tier), each) for tier, each in quota.table.items()]
        return [(tier, None if each is None else of(algorithm, each, tier=tier)) for tier, each in rows]


Bounds = tuple[Bound, ...]
"""The rules that hold together for a request."""

NO_BOUNDS: Final[Bounds] = ()


class EndpointRules(NamedTuple):
    """The rules that hold for one endpoint, in order, for people who read them."""

    endpoint: Endpoint
    bounds: tuple[Bound, ...]
    chosen: tuple[Bound, ...] | None = None  # the view's own code may choose these, for each request


def anywhere(bound: Bound) -> Bound:
    """Return the same rule for every request, at a cost of 1: to read what it counts."""
    rule = replace(bound.rule, methods=None, path=None, when=None, cost=1)
    return replace(bound, rule=rule, methods=None, path=None)


def _as_routed(path: str) -> str:
    """Return a path as routers match it: Werkzeug drops slashes at the front, Starlette a line feed at the end."""
    return "/" + path.lstrip("/").removesuffix("\n")


def of_method(terms: tuple[Terms, ...], method: str) -> tuple[Terms, ...]:
    """Return the same terms with a separate budget for this method. HEAD shares GET's, and all methods that are not
    registered share one, because a client may invent methods.
    """
    return _of_method(terms, "GET" if method == "HEAD" else method if method in METHODS else "other")


@lru_cache(maxsize=4096)  # always the same objects: a Run and the deny cache know terms by identity
def _of_method(terms: tuple[Terms, ...], method: str) -> tuple[Terms, ...]:
    return tuple([each._replace(rule_id=f"{each.rule_id}:{method}") for each in terms])


def warn_of_names(bounds: list[Bound], given: AbstractSet[str], *, strict: bool) -> None:
    """Warn (SG108) if two rules have the same name, and a person gave this name to at least one of the two."""
    names = [name for bound in bounds for name in names_of(bound)]
    for name in sorted([name for name in given if names.count(name) > 1]):
        warn("SG108", name, strict=strict)


def unique(bounds: list[Bound]) -> Bounds:
    """Return the same rules, each with a unique name in header fields."""
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
    """Return the names of the rule's checks. A rule of several quotas has several names."""
    return {bound.rule.name} if bound.terms is None else {each.name for each in bound.terms}


def _renamed(bound: Bound, name: str) -> Bound:
    """Return the same rule, with the same budget, under another name."""
    rule = bound.rule
    scope = rule.name if rule.scope is None else rule.scope
    terms = bound.terms and tuple(each._replace(name=each.name.replace(rule.name, name, 1)) for each in bound.terms)
    return replace(bound, rule=replace(rule, name=name, scope=scope), terms=terms)
