"""Quota: a number of units per period. This module has the value, its parser and its printer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn

from sluicegate.errors import QuotaError, nearest, shows_half_made

if TYPE_CHECKING:  # imported only where needed: these imports are a third of the time to import sluicegate
    from datetime import timedelta
    from fractions import Fraction

MAX_LIMIT: Final = 10**15 - 1  # the largest Integer of a Structured Field (RFC 9651 §3.3.1)
MAX_PERIOD_US: Final = 100 * 365 * 86_400 * 10**6  # a time plus two periods stays below 2^53, where doubles are exact

_SECOND = 1_000_000
_SPANS: Final = {  # the units of the printer, largest first; the parser reads each unit
    "week": 604_800 * _SECOND,
    "day": 86_400 * _SECOND,
    "hour": 3_600 * _SECOND,
    "minute": 60 * _SECOND,
    "second": _SECOND,
    "millisecond": 1_000,
    "microsecond": 1,
}
# Short forms. There is no "ms": "5/ms" would be a typo for "5/m", and allow sixty thousand times as much.
_SHORT: Final = {"s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour", "d": "day", "w": "week"}
_UNITS: Final = {
    **_SPANS,
    **{f"{name}s": us for name, us in _SPANS.items()},
    **{short: _SPANS[name] for short, name in _SHORT.items()},
    **{f"{short}s": _SPANS[_SHORT[short]] for short in ("sec", "min")},
    **{name: days * _SPANS["day"] for name, days in (("month", 30), ("months", 30), ("year", 365), ("years", 365))},
}
_KNOWN: Final = "use second, minute, hour, day, week, month (30 days) or year (365 days)"
_FORM: Final = 'write it like "10/minute", "10 per 5 minutes" or "1/second burst 20"'
LONGEST: Final = 1_000  # a longer text is not read
_DIGITS: Final = 30  # digits; a longer number is not read: Python converts at most 4,300
_NUMBER: Final = r"[+-]?[0-9][0-9_.]*"
_PART: Final = (  # not compiled here: that would be a tenth of the time to import sluicegate
    rf"\s*(?P<limit>{_NUMBER})\s*(?:/|\bper\b)\s*(?:(?P<times>{_NUMBER})\s*)?(?P<unit>[^\W\d_]+)"
    rf"(?:\s+burst\s+(?P<burst>{_NUMBER}))?\s*"
)


class Frozen:
    """A value that cannot be changed. Its `__init__` sets the fields by `object.__setattr__`.

    Not a dataclass: `dataclasses` would be a quarter of the time to import sluicegate.
    """

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} cannot be changed; make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)


@shows_half_made
class Quota(Frozen):
    """A rate: `limit` units in any `period`, with an optional `burst`.

    `period` is given in seconds (or as a timedelta) and kept as whole microseconds in `period_us`. `burst` is for the
    bucket algorithms only: the number of units that may pass at the same moment after an idle time. Note that 60 per
    minute and 1 per second with a burst of 60 are the same bucket. Raises QuotaError for wrong arguments.

    >>> Quota(10, 60) == Quota.parse("10/minute")
    True
    >>> str(Quota(10, 300)), str(Quota(1, 1, burst=20))
    ('10 per 5 minutes', '1/second burst 20')
    """

    __slots__ = ("burst", "limit", "period_us")
    __match_args__ = ("limit", "period_us", "burst")

    limit: int
    period_us: int
    burst: int | None

    def __init__(self, limit: int, period: float | Fraction | timedelta, *, burst: int | None = None) -> None:
        object.__setattr__(self, "limit", _whole(limit, "limit"))
        object.__setattr__(self, "period_us", _microseconds(period))
        object.__setattr__(self, "burst", None if burst is None else _whole(burst, "burst"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quota) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __reduce__(self) -> tuple[object, ...]:
        return (Quota.parse, (str(self),))

    def _facts(self) -> tuple[int, int, int | None]:
        return self.limit, self.period_us, self.burst

    @property
    def period(self) -> float:
        """The period in seconds."""
        whole, rest = divmod(self.period_us, _SECOND)
        return self.period_us / _SECOND if rest else whole

    @classmethod
    def parse(cls, text: str) -> Quota:
        """Read one quota from its text. Raises QuotaError if the text is not exactly one quota.

        >>> Quota.parse("10/5m")
        Quota('10 per 5 minutes')
        """
        quotas = cls.parse_all(text)
        if len(quotas) != 1:
            problem = f"{len(quotas)} quotas, but only one is allowed here"
            raise QuotaError("quota", text, problem=problem, expected="give a single quota")
        return quotas[0]

    @classmethod
    def parse_all(cls, text: str) -> tuple[Quota, ...]:
        """Read one or several quotas, separated by `;`, `,` or `|`. All quotas hold at the same time.

        >>> Quota.parse_all("10/minute; 1000/day")
        (Quota('10/minute'), Quota('1000/day'))
        """
        if not isinstance(text, str):
            raise QuotaError("quota", text, problem=f"a {type(text).__name__} is not text", expected=_FORM)
        if len(text) > LONGEST:
            raise QuotaError("quota", text, problem=f"{len(text)} characters", expected=f"give at most {LONGEST}")
        return tuple(_parse_part(part, text) for part in re.split("[;,|]", text))

    @classmethod
    def funnel(cls, capacity: int, leaking_rate: float | Fraction) -> Quota:
        """Make a quota from the parameters of a leaky bucket: the bucket holds `capacity` units, and `leaking_rate`
        units drain each second.

        >>> Quota.funnel(capacity=15, leaking_rate=0.5)
        Quota('1 per 2 seconds burst 15')
        """
        from fractions import Fraction

        try:
            rate = Fraction(str(leaking_rate)) if isinstance(leaking_rate, float) else Fraction(leaking_rate)
        except (ValueError, TypeError, ArithmeticError):
            rate = Fraction(0)
        if rate <= 0:
            expected = "give units per second, for example 0.5"
            raise QuotaError("leaking_rate", leaking_rate, problem="not a positive number", expected=expected)
        if rate.numerator > MAX_LIMIT:
            expected = "round it, or give a Fraction(1, 3)"
            raise QuotaError("leaking_rate", leaking_rate, problem="too many digits", expected=expected)
        return cls(rate.numerator, rate.denominator, burst=capacity)

    @property
    def span(self) -> str:
        """The period in words: "minute", "5 minutes"."""
        (unit, us), *_ = [(name, us) for name, us in _SPANS.items() if self.period_us % us == 0]
        times = self.period_us // us
        return unit if times == 1 else f"{times} {unit}s"

    def __str__(self) -> str:
        """Return the text that parses back to this quota."""
        span = self.span
        rate = f"{self.limit} per {span}" if " " in span else f"{self.limit}/{span}"
        return rate if self.burst is None else f"{rate} burst {self.burst}"

    def __repr__(self) -> str:
        return f"Quota({str(self)!r})"


def _parse_part(part: str, text: str) -> Quota:
    """Parse one part of `text`. Errors show the whole text and the wrong part."""

    def error(problem: str, expected: str = _FORM) -> QuotaError:
        return QuotaError("quota", text, problem=problem, expected=expected)

    def number(field: str, given: str) -> int:
        if given.startswith("-"):
            raise error(f'"{given}" is negative', "give a whole number, 1 or more")
        if re.fullmatch("[0-9]{1,3}(_[0-9]{3})+", given):
            given = given.replace("_", "")
        if not given.isdecimal():
            raise error(f'"{given}" is not a whole number', "give a whole number, without fraction or separator")
        if len(given) > _DIGITS:
            raise error(f"{field} has {len(given)} digits", f"give at most {MAX_LIMIT}")
        if int(given) == 0:
            raise error(f"{field} is zero", "give 1 or more; to refuse every request, refuse it in the view")
        return int(given)

    if not part.strip():
        if not text.strip():
            raise error("the text is empty")
        raise error("an empty part", "leave out the separator that has nothing on one side")
    match = re.fullmatch(_PART, part, re.IGNORECASE)
    if match is None:
        if re.search(r"[0-9],[0-9]", text):
            raise error("a comma separates two quotas", "write a number without it, like 1000/day")
        at_once = re.search(r"\bat\b|concurren|parallel", part, re.IGNORECASE)
        expected = 'write "10 at once" for requests at the same time' if at_once else _FORM
        raise error(f'"{part.strip()}" cannot be read', expected)
    unit = match["unit"].lower()
    if unit not in _UNITS:
        known = [each for each in _UNITS if len(each) > len("min")]
        raise error(f'unknown unit "{match["unit"]}"', nearest(unit, known, _KNOWN))
    limit = number("limit", match["limit"])
    period_us = _UNITS[unit] * (1 if match["times"] is None else number("times", match["times"]))
    burst = None if match["burst"] is None else number("burst", match["burst"])
    try:
        return Quota(limit, _seconds(period_us), burst=burst)
    except QuotaError as wrong:
        raise error(f"its {wrong.what} is {wrong.problem}", wrong.expected) from None


def _seconds(us: int) -> int | Fraction:
    """Convert microseconds to exact seconds."""
    if us % _SECOND == 0:
        return us // _SECOND
    from fractions import Fraction

    return Fraction(us, _SECOND)


def _whole(number: object, field: str) -> int:
    """Return a count as an int between 1 and MAX_LIMIT. Raises QuotaError for any other value."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise QuotaError(field, number, problem="not a whole number", expected="give an int, 1 or more")
    if number < 1:
        raise QuotaError(field, number, problem="less than 1", expected="give 1 or more")
    if number > MAX_LIMIT:
        raise QuotaError(field, number, problem="too large to be exact", expected=f"give at most {MAX_LIMIT}")
    return number


def _microseconds(period: object) -> int:
    """Convert a period to whole microseconds, between 1 µs and 100 years. Raises QuotaError for any other period."""
    seconds = period if isinstance(period, (int, float)) and not isinstance(period, bool) else _exact_seconds(period)
    try:
        us = round(seconds * _SECOND)
    except (OverflowError, ValueError):
        raise QuotaError("period", period, problem="not a finite number", expected="give seconds") from None
    if us < 1:
        raise QuotaError("period", period, problem="shorter than a microsecond", expected="give a longer period")
    if us > MAX_PERIOD_US:
        raise QuotaError("period", period, problem="too long to be exact", expected="give at most 100 years")
    return us


def _exact_seconds(period: object) -> Fraction:
    from datetime import timedelta
    from fractions import Fraction

    if isinstance(period, timedelta):
        return Fraction(period // timedelta(microseconds=1), _SECOND)
    if isinstance(period, Fraction):
        return period
    raise QuotaError("period", period, problem="not a duration", expected="give seconds or a timedelta")
