"""Ban: after so many refusals within a time, an identity is refused for a while, longer each time.

The value, its words of time, and the checks that a plan has for it. This module knows values, how terms are named and
what the counting takes (`sluicegate.algorithms.ban`); no store, no rule and no HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sluicegate.algorithms.ban import lasting
from sluicegate.errors import QuotaError, RuleError
from sluicegate.plan import BAN, Check, Terms, new
from sluicegate.quota import MAX_LIMIT, Quota
from sluicegate.terms import scope_text

if TYPE_CHECKING:
    from datetime import timedelta

_LONGEST_NAME: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """What becomes of whoever is refused too often. RuleError when made wrong.

    - `after` refusals `within` a time, counted from the first of them, begin a ban.
    - `duration`: how long the first one lasts. Each next one lasts `factor` times as long, a whole number, up to
      `longest`. So long after the last one's end all is forgotten.
    - `name`: rules that name bans of one name share them: a banned identity is refused by all of these rules.

    Times are seconds, a timedelta, or words as in a quota. Without a factor above 1 there is no `longest`.

    >>> ban = Ban(after=10, within="10 minutes", duration="1 hour", factor=2, longest="1 day")
    >>> ban.within, ban.duration, ban.longest
    (600, 3600, 86400)
    """

    after: int
    within: float | str | timedelta
    duration: float | str | timedelta
    factor: int = 1
    longest: float | str | timedelta | None = None
    name: str = BAN

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= _LONGEST_NAME or not self.name.isprintable():
            raise RuleError("ban", self.name, problem="not a name", expected="give 1 to 128 letters, digits or signs")
        if self.name != self.name.strip():
            raise RuleError("ban", self.name, problem="has blanks around it", expected="leave them out")
        for option in ("after", "factor"):
            number = getattr(self, option)
            if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= MAX_LIMIT:
                raise _error(self, option, number, "not a whole number above 0", "give 1 or more")
        if (self.factor > 1) is (self.longest is None):
            problem = "not given beside a factor" if self.longest is None else "without a factor no ban is longer"
            raise _error(self, "longest", self.longest, problem, "give both factor and longest, or none of them")
        for option in ("within", "duration", "longest"):
            given = getattr(self, option)
            if option != "longest" or given is not None:
                object.__setattr__(self, option, _quota(self, option, given).period)
        if self.longest is not None and _us(self, "longest") < _us(self, "duration"):
            raise _error(self, "longest", self.longest, "shorter than the first ban", "give at least the duration")

    @property
    def terms(self) -> Terms:
        """What the checks of this ban have in common; the same object for equal bans."""
        return _terms(self)

    def lasting(self, duration: float | str | timedelta) -> Terms:
        """The terms of one ban that lasts so long instead."""
        return lasting(self.terms, _quota(self, "duration", duration).period_us)


@lru_cache(maxsize=4096)
def _terms(ban: Ban) -> Terms:
    within = _quota(ban, "within", ban.within, limit=ban.after)
    lengths = [_us(ban, "duration")]
    longest = lengths[0] if ban.longest is None else _us(ban, "longest")
    while lengths[-1] < longest:
        lengths.append(min(longest, lengths[-1] * ban.factor))
    return Terms(
        name=ban.name,
        rule_id=f"{scope_text(ban.name)}:{BAN}",
        algorithm=BAN,
        params=(ban.after, within.period_us, longest, *lengths),
        window_us=within.period_us,
        quota=within,
    )


def _us(ban: Ban, option: str) -> int:
    return _quota(ban, option, getattr(ban, option)).period_us


def _quota(ban: Ban, option: str, given: Any, *, limit: int = 1) -> Quota:
    """A quota over this time: one parser for all words of time."""
    expected = 'give seconds, or words like "10 minutes"'
    try:
        quota = Quota.parse(f"{limit}/{given}") if isinstance(given, str) else Quota(limit, given)
    except QuotaError as wrong:
        raise _error(ban, option, given, wrong.problem, expected) from None
    if quota.burst is not None:
        raise _error(ban, option, given, "not a length of time", expected)
    return quota


def agree(bans: dict[str, Ban], rule: str, ban: Ban | None) -> None:
    """Add a rule's ban to those of its application. Bans of one name are one, so they must say the same: RuleError."""
    if ban is not None and bans.setdefault(ban.name, ban) != ban:
        problem = "another rule says otherwise of a ban of this name"
        raise RuleError(f"rule {rule!r}: ban", ban.name, problem=problem, expected="give one of them another name")


def with_bans(checks: list[Check]) -> tuple[Check, ...]:
    """The checks of a plan, and after them one for each ban and identity that they name."""
    named = [(terms.ban, identity) for terms, identity, _ in checks if terms.ban is not None and not terms.shadow]
    return (*checks, *[new(Check, (ban, identity, 0)) for ban, identity in dict.fromkeys(named)])


def _error(ban: Ban, option: str, given: object, problem: str, expected: str) -> RuleError:
    return RuleError(f"ban {ban.name!r}: {option}", given, problem=problem, expected=expected)
