"""Bans: an identity that is refused often is blocked for a while, longer each time.

This module has the value, its terms, and the checks that a plan has for a ban. `sluicegate.algorithms.ban` counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from sluicegate.algorithms.ban import lasting
from sluicegate.errors import QuotaError, RuleError, shows_half_made, takes_names
from sluicegate.plan import BAN, Check, Terms, new
from sluicegate.quota import MAX_LIMIT, Quota
from sluicegate.rules.terms import scope_text

if TYPE_CHECKING:
    from datetime import timedelta

_LONGEST_NAME: Final = 128  # characters, as for the name of a rule


@shows_half_made
@takes_names("after", "within", "duration")
@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """Blocks identities that are refused too often. Raises RuleError for wrong arguments.

    - `after` refusals `within` a time begin a ban. The time is counted from the first refusal.
    - `duration` is the length of the first ban. Each next ban is `factor` times as long, up to `longest`. `factor` is a
      whole number. When that length (`longest`, or else `duration`) has passed since the last ban's end, the bans are
      forgotten.
    - `name`: bans with the same name are one ban. All rules that have this ban refuse a banned identity.

    A time is a number of seconds, a timedelta, or words like in a quota. Give `longest` only with a factor above 1.

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
            missing = self.longest is None
            problem = "missing, but factor is above 1" if missing else "without a factor above 1 no ban is longer"
            expected = "give longest together with a factor above 1, or neither of the two"
            raise _error(self, "longest", self.longest, problem, expected)
        for option in ("within", "duration", "longest"):
            given = getattr(self, option)
            if option != "longest" or given is not None:
                object.__setattr__(self, option, _quota(self, option, given).period)
        if self.longest is not None and _us(self, "longest") < _us(self, "duration"):
            raise _error(self, "longest", self.longest, "shorter than the first ban", "give at least the duration")

    @property
    def terms(self) -> Terms:
        """The constant part of the checks of this ban; the same object for equal bans."""
        return _terms(self)

    def lasting(self, duration: float | str | timedelta) -> Terms:
        """Return the terms of this ban, with this length for its next ban."""
        return lasting(self.terms, _quota(self, "duration", duration).period_us)


@lru_cache(maxsize=4096)  # always the same object: `strikers` compares the terms of bans by identity
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


def _quota(ban: Ban, option: str, given: float | str | timedelta, *, limit: int = 1) -> Quota:
    """Make a quota over this time, so that quotas and bans share one parser for times."""
    expected = 'give seconds, or words like "10 minutes"'
    if isinstance(given, str) and given.isascii() and given.isdecimal():  # of a command, or of a file
        given = int(given[:20])
    try:
        quota = Quota.parse(f"{limit}/{given}") if isinstance(given, str) else Quota(limit, given)
    except QuotaError as wrong:
        problem = wrong.problem.replace(f'"{limit}/{given}"', "it")
        raise _error(ban, option, given, problem, expected) from None
    if quota.burst is not None or quota.calendar is not None:
        raise _error(ban, option, given, "not a length of time", expected)
    return quota


def agree(bans: dict[str, Ban], rule: str, ban: Ban | None) -> None:
    """Add a rule's ban to its application's bans. Raises RuleError if a different ban has the same name."""
    if ban is not None and bans.setdefault(ban.name, ban) != ban:
        problem, expected = "another rule has a different ban of this name", "give one of the two bans another name"
        raise RuleError(f"rule {rule!r}: ban", ban.name, problem=problem, expected=expected)


def with_bans(checks: list[Check]) -> tuple[Check, ...]:
    """Return the checks of a plan, followed by one check for each ban and identity that these checks have."""
    named = [(terms.ban, identity) for terms, identity, _ in checks if terms.ban is not None and not terms.shadow]
    return (*checks, *[new(Check, (ban, identity, 0)) for ban, identity in dict.fromkeys(named)])


def _error(ban: Ban, option: str, given: object, problem: str, expected: str) -> RuleError:
    return RuleError(f"ban {ban.name!r}: {option}", given, problem=problem, expected=expected)
