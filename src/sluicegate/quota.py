"""Quota: a number of units per period. This module has the value, its parser and its printer, and Calendar: a period
that ends when the calendar says so.
"""

from __future__ import annotations

import re
from datetime import UTC
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NoReturn

from sluicegate.errors import QuotaError, nearest, shows_half_made

if TYPE_CHECKING:  # imported only where needed: these imports are a third of the time to import sluicegate
    from datetime import date, timedelta, tzinfo
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
_FORM: Final = 'write it like "10/minute", "10 per 5 minutes", "1/second burst 20" or "100/calendar day"'
LONGEST: Final = 1_000  # a longer text is not read
_UTC: Final = "UTC"
_DIGITS: Final = 30  # digits; a longer number is not read: Python converts at most 4,300
_NUMBER: Final = r"[+-]?[0-9][0-9_.]*"
_PART: Final = (  # not compiled here: that would be a tenth of the time to import sluicegate
    rf"\s*(?P<limit>{_NUMBER})\s*(?:/|\bper\b)\s*(?:(?P<times>{_NUMBER})\s*)?(?P<unit>[^\W\d_]+)"
    rf"(?:\s+burst\s+(?P<burst>{_NUMBER}))?\s*"
)
# The seconds of the shortest window of each unit, unless the clocks are changed in it.
CALENDAR_UNITS: Final = {"hour": 3_600, "day": 86_400, "week": 604_800, "month": 2_419_200, "year": 31_536_000}
_DAYS: Final = {"hour": 1, "day": 1, "week": 7}  # the hours of a day are counted from its midnight
_MONTHS: Final = {"month": 1, "year": 12}
_DATED: Final = (
    rf"\s*(?P<limit>{_NUMBER})\s*(?:/|\bper\b)\s*calendar\s+(?P<unit>\w+)"
    r"(?:\s+in\s+(?P<tz>\S+))?(?:\s+from\s+(?P<anchor>\S+))?\s*"
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
class Calendar(Frozen):
    """A window of the calendar, as the period of a Quota: each hour, day, week, month or year of a time zone.

    - `unit`: "hour", "day", "week", "month" or "year". The hours of a day are counted from midnight.
    - `tz`: a ZoneInfo, or the name of a time zone, as "Europe/Berlin"; None is UTC. It says when a day begins.
    - `anchor`: a date or a datetime, or the text of a date, on which a window begins. Of a month its day counts, of a
      year its month and day, of a week its weekday: equal calendars have equal windows. A month without that day begins
      a window on its last day. Without an anchor a month begins on the 1st, a year on January 1 and a week on Monday.
      Any date begins a day.

    Raises QuotaError for wrong arguments, and for a zone that this system does not have.

    >>> from datetime import date
    >>> monthly = Calendar("month", tz="Europe/Berlin", anchor=date(2024, 5, 31))
    >>> str(Quota(10_000, monthly)), monthly == Calendar("month", tz="Europe/Berlin", anchor="2025-07-31")
    ('10000/calendar month in Europe/Berlin from 2000-01-31', True)
    """

    __slots__ = ("anchor", "tz", "unit")

    unit: str
    tz: str
    anchor: date

    def __init__(self, unit: str, *, tz: str | tzinfo | None = None, anchor: date | str | None = None) -> None:
        if not isinstance(unit, str) or unit not in CALENDAR_UNITS:
            expected = nearest(unit, CALENDAR_UNITS, f"use one of {', '.join(CALENDAR_UNITS)}")
            raise QuotaError("calendar", unit, problem="no such window", expected=expected)
        _zone(zone := _UTC if tz is None else str(tz))  # the text of a ZoneInfo is its key
        for name, value in (("unit", unit), ("tz", zone), ("anchor", _anchor(unit, anchor))):
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calendar) and (self.unit, self.tz, self.anchor) == (other.unit, other.tz, other.anchor)

    def __hash__(self) -> int:
        return hash((self.unit, self.tz, self.anchor))

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.unit, tz=self.tz, anchor=str(self.anchor)), ()

    def __str__(self) -> str:
        zone = "" if self.tz == _UTC else f" in {self.tz}"
        return f"calendar {self.unit}{zone}{'' if self.anchor == _anchor(self.unit) else f' from {self.anchor}'}"

    def __repr__(self) -> str:
        return f"Calendar({self.unit!r}, tz={self.tz!r}, anchor={str(self.anchor)!r})"

    def window(self, now_us: int) -> tuple[int, int, int]:
        """Return when the window of this time begins and ends, and when the next one ends: microseconds since 1970.

        >>> [end - start for start, end in [Calendar("day", tz="Europe/Berlin").window(1_774_750_000 * 10**6)[:2]]]
        [82800000000]
        """
        from datetime import datetime

        now, step = now_us // _SECOND, 3_600
        number = self._number(datetime.fromtimestamp(now, _zone(self.tz)).date()) - 1
        while (end := self._begins(number + 1)) <= now:  # a zone may reach one day twice
            number += 1
        start, following, number = self._begins(number), end, number + 2
        while following == end:  # a zone may leave out a day
            following, number = self._begins(number), number + 1
        if self.unit == "hour":
            start += (now - start) // step * step
            midnight, end = end, min(start + step, end)
            following = min(end + step, midnight) if end < midnight else end + step
        return start * _SECOND, end * _SECOND, following * _SECOND

    def _number(self, day: date) -> int:
        """Return the number of the window in which a day lies, unless that begins later in the same month."""
        if self.unit in _DAYS:
            return (day.toordinal() - self.anchor.toordinal()) // _DAYS[self.unit]
        return (12 * day.year + day.month - self.anchor.month) // _MONTHS[self.unit]

    def _begins(self, number: int) -> int:
        """Return when a window of this number begins, in seconds: midnight, or the first moment after it."""
        from calendar import monthrange
        from datetime import date, datetime

        if self.unit in _DAYS:
            day = date.fromordinal(self.anchor.toordinal() + _DAYS[self.unit] * number)
        else:
            year, month = divmod(_MONTHS[self.unit] * number + self.anchor.month - 1, 12)
            day = date(year, month + 1, min(self.anchor.day, monthrange(year, month + 1)[1]))
        return int(datetime(day.year, day.month, day.day, tzinfo=_zone(self.tz)).timestamp())


def _anchor(unit: str, given: date | str | None = None) -> date:
    """Return the first day from 2000 on that begins the same windows, so that a service has few different calendars."""
    from datetime import date, datetime, timedelta

    monday = date(2000, 1, 3)
    if given is None:
        return monday if unit == "week" else date(2000, 1, 1)
    try:
        found = date.fromisoformat(str(given.date() if isinstance(given, datetime) else given))
    except ValueError:
        expected = 'give a date, or text like "2024-01-31"'
        raise QuotaError("anchor", given, problem="not a date", expected=expected) from None
    if unit == "week":
        return monday + timedelta(days=found.weekday())
    return date(2000, found.month if unit == "year" else 1, found.day if unit in _MONTHS else 1)


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    """Return a time zone. Raises QuotaError for one that this system does not have."""
    from zoneinfo import ZoneInfo, available_timezones

    if name == _UTC:
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        known = available_timezones()
        problem = "no such time zone" if known else "this system has no time zones"
        expected = nearest(name, known, "give a name like Europe/Berlin") if known else "install the package tzdata"
        raise QuotaError("tz", name, problem=problem, expected=expected) from error


@shows_half_made
class Quota(Frozen):
    """A rate: `limit` units in any `period`, with an optional `burst`.

    `period` is given in seconds (or as a timedelta) and kept as whole microseconds in `period_us`. It may be a Calendar
    instead: then the limit holds in each of its windows, and `period_us` is the shortest of them. `burst` is for the
    bucket algorithms only: the number of units that may pass at the same moment after an idle time. Note that 60 per
    minute and 1 per second with a burst of 60 are the same bucket. Raises QuotaError for wrong arguments.

    >>> Quota(10, 60) == Quota.parse("10/minute")
    True
    >>> str(Quota(10, 300)), str(Quota(1, 1, burst=20))
    ('10 per 5 minutes', '1/second burst 20')
    """

    __slots__ = ("burst", "calendar", "limit", "period_us")
    __match_args__ = ("limit", "period_us", "burst")

    limit: int
    period_us: int
    burst: int | None
    calendar: Calendar | None

    def __init__(
        self, limit: int, period: float | Fraction | timedelta | Calendar, *, burst: int | None = None
    ) -> None:
        calendar = period if isinstance(period, Calendar) else None
        object.__setattr__(self, "limit", _whole(limit, "limit"))
        object.__setattr__(self, "calendar", calendar)
        object.__setattr__(self, "period_us", _microseconds(CALENDAR_UNITS[calendar.unit] if calendar else period))
        object.__setattr__(self, "burst", None if burst is None else _whole(burst, "burst"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quota) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __reduce__(self) -> tuple[object, ...]:
        return (Quota.parse, (str(self),))

    def _facts(self) -> tuple[int, int, int | None, Calendar | None]:
        return self.limit, self.period_us, self.burst, self.calendar

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
        """The period in words: "minute", "5 minutes", "calendar month"."""
        if self.calendar is not None:
            return f"calendar {self.calendar.unit}"
        (unit, us), *_ = [(name, us) for name, us in _SPANS.items() if self.period_us % us == 0]
        times = self.period_us // us
        return unit if times == 1 else f"{times} {unit}s"

    def __str__(self) -> str:
        """Return the text that parses back to this quota."""
        span = self.span if self.calendar is None else str(self.calendar)
        rate = f"{self.limit} per {span}" if span[0].isdecimal() else f"{self.limit}/{span}"
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
            raise error(f'"{given}" is not a whole number', "give a whole number, without fraction")
        if len(given) > _DIGITS:
            raise error(f"{field} has {len(given)} digits", f"give at most {MAX_LIMIT}")
        if int(given) == 0:
            raise error(f"{field} is zero", "give 1 or more; to refuse every request, refuse it in the view")
        return int(given)

    if not part.strip():
        if not text.strip():
            raise error("the text is empty")
        raise error("an empty part", "leave out the separator that has nothing on one side")
    dated = re.fullmatch(_DATED, part, re.IGNORECASE)
    if dated is not None:
        limit = number("limit", dated["limit"])
        try:
            return Quota(limit, Calendar(dated["unit"].lower(), tz=dated["tz"] or _UTC, anchor=dated["anchor"]))
        except QuotaError as wrong:
            raise error(f"its {wrong.what}: {wrong.problem}", wrong.expected) from None
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
