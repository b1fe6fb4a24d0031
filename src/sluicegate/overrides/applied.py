"""Overrides applied: an index that finds what holds for one identity under one rule, in one look-up.

A `deny` or an `allow` holds before every quota and mode, also before a narrower one. Among lists, and among the others,
the narrowest holds. The order is: identities, the longer pattern, the shorter pattern, a tier, everybody. If two have
the same width, an override of the rule itself comes before one of every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from re import Pattern
from typing import Final, TypeVar

from sluicegate.concurrency import Concurrency
from sluicegate.errors import ConfigurationError, OverrideError, warn
from sluicegate.identity import Digested, raw_digests, unpacked
from sluicegate.overrides.override import EVERY_RULE, Override, pattern_of
from sluicegate.plan import Terms
from sluicegate.rules.rollout import EVERYBODY
from sluicegate.rules.rule import Rule
from sluicegate.rules.terms import read

_CACHED: Final = 4096  # identities whose digest is known, which takes 1 µs; and pairs of a rule and an identity whose
# pattern is known: there may be 100 to compare with
_RULES: Final = 256  # of an application, that an override is made ready for
Key = TypeVar("Key")
Value = TypeVar("Value")

Make = Callable[[Rule, str], tuple[Terms, ...]]
"""Makes the terms of a rule with another quota, or raises ConfigurationError."""


def terms_with(rule: Rule, quota: str, *, algorithm: str) -> tuple[Terms, ...]:
    """Return the terms of a rule with another quota. Raises ConfigurationError if the rule cannot have it.

    Slots stay slots: only for a rule that may hold them a request gives them back at its end.
    """
    at_once = isinstance(read(quota), Concurrency)
    if any([isinstance(each, Concurrency) is not at_once for each in rule.known]):
        problem = "slots instead of units per time" if at_once else "units per time instead of slots"
        raise OverrideError(f"rule {rule.name!r}", quota, problem=problem, expected="keep the kind of the rule")
    return replace(rule, quota=quota).terms(algorithm)  # a Rule checks its cost against the quota too


def rules_for(name: str, rules: Iterable[Rule], quota: str | None, *, algorithm: str) -> list[Rule]:
    """Return those of the rules that an override of this rule is for. Raises ConfigurationError if one of them cannot
    have the quota.
    """
    found = [each for each in rules if name in (EVERY_RULE, each.name)]
    for each in found if quota is not None else ():
        terms_with(each, str(quota), algorithm=algorithm)  # raises if the rule cannot have it
    return found


class Held:
    """One override, as a decision uses it."""

    __slots__ = ("_made", "action", "fixed", "override")

    def __init__(self, override: Override) -> None:
        self.override, self.action = override, override.action
        # The terms and the cost, for a rule that has the same ones for every request: the gate keeps them here.
        self.fixed: dict[object, tuple[tuple[Terms, ...], int]] = {}
        self._made: dict[Rule, tuple[Terms, ...] | None] = {}

    def apply(
        self, rule: Rule, terms: tuple[Terms, ...] | None, *, share: int, make: Make
    ) -> tuple[tuple[Terms, ...] | None, int]:
        """Return the terms that hold instead of these, and the share of identities that they are enforced for."""
        if self.action != "quota":
            return terms, 0 if self.action == "shadow" else EVERYBODY
        if rule not in self._made:
            try:
                keep(self._made, rule, make(rule, self.override.quota or ""))
            except ConfigurationError as error:  # the rule cannot have this quota
                warn("SG114", self.override.id, strict=False, why=str(error))
                keep(self._made, rule, None)
        found = self._made[rule]
        return (terms if found is None else found), share


def keep(table: dict[Key, Value], key: Key, value: Value) -> None:
    """Keep a value in a table that is emptied when it is full: an application has few rules, but a throttle of REST
    framework makes one ready for each request.
    """
    if len(table) >= _RULES:
        table.clear()
    table[key] = value


class Applied:
    """The overrides that hold now. `seal` is what a secret makes of the text of an identity."""

    def __init__(self, overrides: Iterable[Override], *, seal: Callable[[str], str] | None = None) -> None:
        self.overrides = tuple(overrides)
        lists = [each for each in self.overrides if each.is_list]
        self.lists = any([each.rule == EVERY_RULE for each in lists])  # whether one concerns requests without a rule
        raw = raw_digests()

        @lru_cache(_CACHED)
        def known(text: str) -> bytes:
            return raw(text if seal is None else seal(text))

        others = [each for each in self.overrides if not each.is_list]
        self._levels = [_Narrowest(level, known) for level in (lists, others) if level]

    def of(self, rule: str, identity: str, tier: str | None) -> Held | None:
        """Return what holds for an identity under a rule; None: the rule itself. The gate and the commands ask here."""
        for level in self._levels:
            held = level.of(rule, identity, tier)
            if held is not None:
                return held
        return None


class _Narrowest:
    """An index of overrides. `known` returns the digest of an identity."""

    def __init__(self, overrides: Iterable[Override], known: Callable[[str], bytes]) -> None:
        self._digests: dict[str, dict[bytes, Held]] = {}  # by rule and digest
        self._patterns: list[tuple[str, Pattern[str], Held]] = []  # with their rules, the narrowest first
        self._others: dict[tuple[str, object], Held] = {}  # by rule and tier; None: everybody
        for each in sorted(overrides, key=lambda each: (-len(each.pattern or ""), each.rule == EVERY_RULE)):
            held = Held(each)
            if each.digests:
                names = map(unpacked, each.digests)
                self._digests.setdefault(each.rule, {}).update(dict.fromkeys(names, held))
            elif each.pattern is not None:
                self._patterns.append((each.rule, pattern_of(each.pattern), held))
            else:
                self._others[each.rule, each.tier] = held
        self._every, self._known = self._digests.get(EVERY_RULE), known
        self._matching = lru_cache(_CACHED)(self._match)

    def of(self, rule: str, identity: str, tier: str | None) -> Held | None:
        """Return the narrowest override for an identity under a rule."""
        own, every = self._digests.get(rule), self._every
        if own or every:
            who = self._known(identity)
            if own and who in own:
                return own[who]
            if every and who in every:
                return every[who]
        if self._patterns and (held := self._matching(rule, identity)) is not None:
            return held
        for place in ((rule, tier), (rule, None), (EVERY_RULE, None)) if self._others else ():
            if place in self._others:
                return self._others[place]
        return None

    def _match(self, rule: str, identity: str) -> Held | None:
        known = type(identity) is not Digested  # no pattern is known to match a digest
        for each, pattern, held in self._patterns if known else ():
            if each in (rule, EVERY_RULE) and pattern.fullmatch(identity):
                return held
        return None
