"""Concurrency: a limit on requests in flight. This module has the value, its parser and its printer.

A concurrency limit is stored as a quota whose period is the lease. A slot that is never released expires after the
lease, in the same way as any charge expires.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sluicegate.errors import QuotaError, shows_half_made
from sluicegate.quota import LONGEST, Frozen, Quota

if TYPE_CHECKING:
    from datetime import timedelta
    from fractions import Fraction

LEASE: Final = 60  # seconds
_FORM: Final = 'write it like "10 at once" or "10 at once for 5 minutes"'
_WORDS: Final = r"\bat\s+once\b"
_TEXT: Final = r"\s*+(\S++)\s++at\s++once(?:\s++for\s++(\S.*+))?\s*+"


@shows_half_made
class Concurrency(Frozen):
    """At most `limit` requests of one identity in flight at the same time, in all processes together.

    A request takes a slot when it begins and releases it when it ends. `lease` is in seconds (or a timedelta): if the
    process dies, the slot becomes free when the lease has passed since the slot was taken or last renewed. Raises
    QuotaError for wrong arguments.

    >>> Concurrency(10) == Concurrency.parse("10 at once")
    True
    >>> str(Concurrency(10, lease=300))
    '10 at once for 5 minutes'
    """

    __slots__ = ("quota",)
    __match_args__ = ("limit", "lease")

    quota: Quota  # the limit is the number of slots, the period is the lease

    def __init__(self, limit: int, lease: float | Fraction | timedelta = LEASE) -> None:
        try:
            quota = Quota(limit, lease)
        except QuotaError as wrong:
            what = "lease" if wrong.what == "period" else wrong.what
            raise QuotaError(what, wrong.given, problem=wrong.problem, expected=wrong.expected) from None
        if quota.calendar is not None:
            raise QuotaError("lease", lease, problem="not a length of time", expected="give seconds or a timedelta")
        object.__setattr__(self, "quota", quota)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Concurrency) and self.quota == other.quota

    def __hash__(self) -> int:
        return hash((Concurrency, self.quota))

    def __reduce__(self) -> tuple[object, ...]:
        return (Concurrency.parse, (str(self),))

    @property
    def limit(self) -> int:
        """The number of requests that may be in flight."""
        return self.quota.limit

    @property
    def lease(self) -> float:
        """The lease in seconds."""
        return self.quota.period

    @staticmethod
    def is_meant(text: str) -> bool:
        """True if a text has the words "at once", so that `parse` reads it."""
        return re.search(_WORDS, text, re.IGNORECASE) is not None

    @classmethod
    def parse(cls, text: str) -> Concurrency:
        """Parse a Concurrency from its text. Raises QuotaError for any other text.

        >>> Concurrency.parse("3 at once for 10 minutes").lease
        600
        """
        if isinstance(text, str) and len(text) > LONGEST:
            problem = f"{len(text)} characters"
            raise QuotaError("concurrency", text, problem=problem, expected=f"give at most {LONGEST}")
        match = re.fullmatch(_TEXT, text, re.IGNORECASE) if isinstance(text, str) else None
        if match is None:
            raise QuotaError("concurrency", text, problem="cannot be read", expected=_FORM)
        try:
            quota = Quota.parse(f"{match[1]} per {'minute' if match[2] is None else match[2]}")
        except QuotaError as wrong:
            raise QuotaError("concurrency", text, problem=wrong.problem, expected=_FORM) from None
        if quota.burst is not None or quota.calendar is not None:
            raise QuotaError("concurrency", text, problem="has a burst or a calendar", expected=_FORM)
        made = cls.__new__(cls)
        object.__setattr__(made, "quota", quota)
        return made

    def __str__(self) -> str:
        """Return the text that parses back to this value."""
        if self.lease == LEASE:
            return f"{self.limit} at once"
        span = self.quota.span
        return f"{self.limit} at once for {span if ' ' in span else f'1 {span}'}"

    def __repr__(self) -> str:
        return f"Concurrency({str(self)!r})"
