"""Tiers: a table of quotas, and what says which of them holds for a request.

It is a quota function like any other, but one that can be examined when the application starts. This module knows
quotas and the error tree; nothing of rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from sluicegate.awaiting import Later, waits
from sluicegate.errors import RuleError
from sluicegate.terms import Quotas, QuotaSpec, read

Tier = Quotas | None
TierFunction = Callable[[Any], Hashable | Awaitable[Hashable]]

_EXPECTED: Final = 'give a table like {"free": "10/minute", "pro": "100/minute; 5000/day"}'


class Tiers:
    """A quota for each tier, as the `quota` of a rule or of `@limit`.

    - `table`: the quota (or Concurrency) of each tier by its name; None for a tier that has no limit.
    - `by`: a function of the request that returns the name of its tier; in an asynchronous application it may be
      asynchronous.
    - `default`: the tier of whoever has none, or one that is not in the table. Without it such a request is an error:
      the view does not run, and nobody is unlimited for a slip.

    Raises RuleError and QuotaError when made wrong, and RuleError for a request of an unknown tier.

    >>> tiers = Tiers({"free": "10/minute", "pro": "100/minute; 5000/day"}, by=lambda request: request, default="free")
    >>> tiers("pro"), tiers("gold")
    ((Quota('100/minute'), Quota('5000/day')), (Quota('10/minute'),))
    """

    __slots__ = ("by", "default", "table")

    by: TierFunction
    default: Hashable | None
    table: Mapping[Hashable, Tier]

    def __init__(
        self, table: Mapping[Any, QuotaSpec | None], *, by: TierFunction, default: Hashable | None = None
    ) -> None:
        if not isinstance(table, Mapping) or not table:
            raise RuleError("tiers", table, problem="not a table of quotas", expected=_EXPECTED)
        if None in table:
            raise RuleError("tiers", None, problem="not the name of a tier", expected="name who has none with default=")
        if not callable(by):
            raise RuleError("tiers: by", by, problem="not a function", expected="give a function of the request")
        found = {tier: None if quota is None else read(quota) for tier, quota in table.items()}
        if not any(found.values()):
            expected = "give a quota to one of them, or leave out the rule"
            raise RuleError("tiers", list(found), problem="no tier has a quota", expected=expected)
        if default is not None and not _among(found, default):
            known = ", ".join(map(str, found))
            raise RuleError("tiers: default", default, problem="no such tier", expected=f"use one of {known}")
        object.__setattr__(self, "table", MappingProxyType(found))
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "default", default)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"tiers cannot be changed; {name!r} is what they were made with")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tiers) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((Tiers, frozenset(self.table), self.default))

    def __reduce__(self) -> tuple[Any, ...]:
        table, by, default = self._facts()
        return (_remade, (type(self), dict(table), by, default))

    def _facts(self) -> tuple[Mapping[Hashable, Tier], TierFunction, Hashable | None]:
        return self.table, self.by, self.default

    def __repr__(self) -> str:
        return f"Tiers({', '.join(map(repr, self.table))})"

    def __call__(self, request: Any) -> Tier | Awaitable[Tier]:
        """The quotas of a request's tier; None for a tier without a limit."""
        tier = self.by(request)
        return Later((tier,), self._quotas, function=self.by) if waits(tier) else self._quotas(tier)

    def _quotas(self, tier: object) -> Tier:
        if _among(self.table, tier):
            return self.table[tier]
        if self.default is None:
            expected = f"return one of {', '.join(map(str, self.table))}, or name who has none with default="
            raise RuleError("tiers: by", tier, problem="returned a tier that is not in the table", expected=expected)
        return self.table[self.default]


def _remade(kind: type[Tiers], table: Mapping[Any, Tier], by: TierFunction, default: Hashable | None) -> Tiers:
    return kind(table, by=by, default=default)


def _among(table: Mapping[Hashable, Tier], tier: object) -> bool:
    return isinstance(tier, Hashable) and tier in table
