"""The inputs of the exams: quotas, waits and costs, drawn by hypothesis around the moments where limiters fail.

Waits and costs are drawn relative to the last outcome ("until retry_after, less 1 µs"; "all that is left") and become
numbers when that outcome is known, so a failing example is readable. SLUICEGATE_EXAMPLES sets the number of examples,
drawn at random. Without it the number is small and the examples are always the same; 30% draws 30 % of that number.
"""

from __future__ import annotations

import os
from fractions import Fraction
from math import ceil
from typing import Final, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from sluicegate.algorithms import Algorithm, calendar
from sluicegate.clock import MICROSECOND
from sluicegate.errors import AlgorithmError
from sluicegate.plan import Outcome
from sluicegate.quota import CALENDAR_UNITS, Calendar, Quota

START_US: Final = (10**15, 1_760_000_000_123_457)  # 16 digits: more than tostring() keeps in Lua
LONGEST: Final = 24  # steps of one story
# Subclasses inherit the exams on purpose, and no example is replayed from a database.
_HARMLESS: Final = (HealthCheck.differing_executors, HealthCheck.too_slow, HealthCheck.data_too_large)


def examples(count: int) -> settings:
    """Hypothesis settings: `count` examples or a part of them, always the same; or SLUICEGATE_EXAMPLES at random."""
    number, percent, _ = os.environ.get("SLUICEGATE_EXAMPLES", "100%").partition("%")
    return settings(
        max_examples=ceil(count * int(number) / 100) if percent else int(number),
        derandomize=bool(percent),
        database=None,
        deadline=None,
        suppress_health_check=[*_HARMLESS],
    )


class Wait(NamedTuple):
    """How far to move the clock: to a moment of the last outcome, or by a part of the window, plus or minus `us`."""

    until: str  # "now", "retry", "reset", "next", "window"
    windows: Fraction = Fraction(0)
    us: int = 0

    def us_after(self, window_us: int, last: Outcome | None) -> int:
        """Return the wait in microseconds."""
        named = {"now": 0, "window": window_us, "retry": 0, "reset": 0, "next": 0}
        if last is not None:
            named |= {"retry": last.retry_after or 0, "reset": last.reset_after, "next": last.next_after}
        return max(0, named[self.until] + int(self.windows * window_us) + self.us)


class Cost(NamedTuple):
    """The cost to request: a number, or one that depends on the last outcome, plus or minus `units`."""

    of: str  # "none", "limit", "half", "left"
    units: int = 0

    def number(self, limit: int, last: Outcome | None) -> int:
        """Return the cost in units, given the limit and the last outcome."""
        left = limit if last is None else last.remaining
        return max(0, {"none": 0, "limit": limit, "half": limit // 2, "left": left}[self.of] + self.units)


WAITS: Final = st.one_of(
    st.sampled_from([Wait("now"), Wait("now", us=1), Wait("now", us=2)]),
    st.integers(0, 200).map(lambda part: Wait("now", Fraction(part, 100))),
    st.builds(Wait, st.sampled_from(["retry", "reset", "next", "window"]), st.just(Fraction(0)), st.integers(-1, 1)),
)
COSTS: Final = st.one_of(
    st.integers(0, 5).map(lambda units: Cost("none", units)),
    st.builds(Cost, st.sampled_from(["limit", "half", "left"]), st.integers(-1, 1)),
)
LATEST: Final = 2**52  # the year 2112 in microseconds: a later moment still fits a double exactly
LIMITS: Final = st.one_of(
    st.integers(1, 5), st.integers(1, 120), st.integers(1, 2000), st.sampled_from([100, 101, 2000])
)
PERIODS_US: Final = st.one_of(
    st.sampled_from([MICROSECOND, 5 * MICROSECOND, 60 * MICROSECOND, 3600 * MICROSECOND, 86_400 * MICROSECOND]),
    st.sampled_from([1, 3, 100, 7_777_777, 365 * 86_400 * MICROSECOND]),
    st.integers(1, 10**11),
)
MOMENTS: Final = st.builds(int.__add__, st.sampled_from(START_US), st.integers(0, 10**8))


def takes(algorithm: Algorithm, quota: Quota) -> bool:
    """True if the algorithm accepts the quota."""
    try:
        algorithm.params(quota)
    except AlgorithmError:
        return False
    return True


def quotas(algorithm: Algorithm, limits: st.SearchStrategy[int] = LIMITS) -> st.SearchStrategy[Quota]:
    """Quotas that the algorithm accepts; some with a burst, if it has bursts."""
    bursts: st.SearchStrategy[int | None] = st.none()
    if takes(algorithm, Quota(1, 1, burst=1)):
        bursts = st.one_of(st.none(), limits)
    periods: st.SearchStrategy[Fraction | Calendar] = PERIODS_US.map(lambda us: Fraction(us, MICROSECOND))
    if algorithm.NAMES == calendar.NAMES:
        periods = st.sampled_from([Calendar(unit) for unit in CALENDAR_UNITS])
    return st.builds(Quota, limits, periods, burst=bursts).filter(lambda quota: takes(algorithm, quota))
