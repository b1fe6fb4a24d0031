"""Tiers: a table of quotas, and the function that chooses a row of the table for a request.

A Tiers object is a quota function. Its quotas are validated when the application starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from sluicegate.errors import RuleError, shows_half_made, takes_names
from sluicegate.quota import Frozen
from sluicegate.rules.key import Native
from sluicegate.rules.terms import Quotas, QuotaSpec, read
from sluicegate.runtime.awaiting import check_call, waits

Tier = Quotas | None
TierFunction = Callable[[Native], Hashable | Awaitable[Hashable]]

_EXPECTED: Final = 'give a table like {"free": "10/minute", "pro": "100/minute; 5000/day"}'


@shows_half_made
@takes_names("table", "by", first=1)
class Tiers(Frozen):
    """A quota for each tier, as the `quota` of a rule or of `@limit`.

    - `table`: a mapping from the name of each tier to its quota or Concurrency; None for a tier that has no limit.
    - `by`: a function of the request that returns the name of the request's tier. In an asynchronous application the
      function may be asynchronous.
    - `default`: the tier of a request if `by` returns None or a tier that is not in the table. Without a default such a
      request is an error: the view does not run, so that a mistake makes no client unlimited.

    Raises RuleError or QuotaError for wrong arguments. A call raises RuleError if the tier of the request is unknown.

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
            raise RuleError("tiers", None, problem="not the name of a tier", expected="give that tier as default=")
        if not callable(by):
            expected = "give a function that takes the request and returns the name of its tier"
            raise RuleError("tiers: by", by, problem="not a function", expected=expected)
        check_call("tiers: by", by, takes=("request",), error=RuleError)
        found = {tier: None if quota is None else read(quota) for tier, quota in table.items()}
        if len(found) < len(table):
            expected = "give each tier a name of its own, as text"
            raise RuleError("tiers", list(table), problem="two names that are equal for Python", expected=expected)
        if not any(found.values()):
            expected = "give a quota to one of them, or leave out the rule"
            raise RuleError("tiers", list(found), problem="no tier has a quota", expected=expected)
        if default is not None and not _among(found, default):
            known = ", ".join(map(str, found))
            raise RuleError("tiers: default", default, problem="no such tier", expected=f"use one of {known}")
        object.__setattr__(self, "table", MappingProxyType(found))
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "default", default)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tiers):
            return False
        return (self.table, self.by, self.default) == (other.table, other.by, other.default)

    def __hash__(self) -> int:
        return hash((Tiers, frozenset(self.table), self.default))

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), dict(self.table), by=self.by, default=self.default), ()

    def __repr__(self) -> str:
        return f"Tiers({', '.join(map(repr, self.table))})"

    def __call__(self, request: Native) -> Tier | Awaitable[Tier]:
        """Return the quotas of a request's tier; None for a tier without a limit."""
        tier = self.by(request)
        return self._awaited(tier) if waits(tier) else self.quotas(tier)

    async def _awaited(self, tier: Awaitable[object]) -> Tier:
        return self.quotas(await tier)

    def quotas(self, tier: object) -> Tier:
        """Return the quotas of the tier with this name. Raises RuleError if the tier is unknown."""
        return self.table[self.row(tier)]

    def row(self, tier: object) -> Hashable:
        """Return the row of a tier: its own, or that of the default. Raises RuleError if it is unknown."""
        if _among(self.table, tier):
            return tier
        if self.default is None:
            expected = f"return one of {', '.join(map(str, self.table))}, or give a default="
            raise RuleError("tiers: by", tier, problem="returned a tier that is not in the table", expected=expected)
        return self.default


def _among(table: Mapping[Hashable, Tier], tier: object) -> bool:
    """True if the table has this tier. True and 1 are two tiers, although they are equal."""
    try:
        hash(tier)
    except TypeError:  # a list, or a tuple with a list in it
        return False
    if tier not in table:
        return False
    is_flag = isinstance(tier, bool)
    return tier not in (0, 1) or any(isinstance(name, bool) is is_flag for name in table if name == tier)
