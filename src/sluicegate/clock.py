"""Clocks. Only this module and the stores read the time.

Inside sluicegate a time is an integer count of microseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import isfinite
from time import monotonic_ns
from typing import Final, Protocol

from sluicegate.errors import ConfigurationError
from sluicegate.runtime import fork

MICROSECOND = 1_000_000  # microseconds in a second

LATEST_US: Final = 5_680_281_600 * MICROSECOND
"""The latest moment that a store takes, the start of 2150. With the longest period added it is exact in Lua."""


class Clock(Protocol):
    """An object that returns the time in whole microseconds. The time never goes back.

    A store accepts times from 0 to LATEST_US.
    """

    def now_us(self) -> int:
        """Return the microseconds since a fixed but unspecified moment."""
        ...


class SystemClock:
    """The machine's monotonic clock. NTP, daylight saving and an operator who sets the time do not move it."""

    def now_us(self) -> int:
        """Return the microseconds since an unspecified moment, which is the same for all threads of the process."""
        return monotonic_ns() // 1000


class ManualClock:
    """A clock that a test moves. Give it to a limiter, and no test needs to sleep.

    All stores use it, also Redis stores. `start` and `advance` are in seconds. The clock begins at 0 or later, never
    goes back and never passes the year 2150; raises ConfigurationError otherwise.

    >>> from sluicegate import Limiter, ManualClock
    >>> clock = ManualClock()
    >>> limiter = Limiter(clock=clock)
    >>> [limiter.is_action_allowed("alice", "reply", period=60, max_count=1) for _ in "ab"]
    [True, False]
    >>> clock.advance(60)
    >>> limiter.is_action_allowed("alice", "reply", period=60, max_count=1)
    True
    """

    def __init__(self, start: float = 1_000_000_000) -> None:
        self._now_us = _checked("ManualClock: start", start, _microseconds(start))
        self._lock = threading.Lock()
        fork.renew(self)

    def after_fork(self) -> None:
        """Go on from the time of the parent's clock."""
        self._lock = threading.Lock()

    def now_us(self) -> int:
        """Return the time of this clock in microseconds."""
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Move forward by a number of seconds, rounded to the nearest microsecond."""
        self._advance(seconds, _microseconds(seconds))

    def advance_us(self, microseconds: int) -> None:
        """Move forward by a whole number of microseconds."""
        if type(microseconds) is not int:
            problem, expected = "not a whole number of microseconds", "give an int, or call advance() with seconds"
            raise ConfigurationError("ManualClock: advance_us", microseconds, problem=problem, expected=expected)
        self._advance(microseconds, microseconds)

    def _advance(self, given: object, microseconds: int | None) -> None:
        if microseconds is not None and microseconds < 0:
            problem = "a ManualClock cannot go back"
            expected = "give 0 or more (seconds to advance, microseconds to advance_us)"
            raise ConfigurationError("ManualClock: advance", given, problem=problem, expected=expected)
        with self._lock:
            moved = None if microseconds is None else self._now_us + microseconds
            self._now_us = _checked("ManualClock: advance", given, moved)


def read_us(clock: Clock) -> int:
    """Return the time of a clock. Raises ConfigurationError for a time with which a store might allow everything."""
    now = clock.now_us()
    if type(now) is int and 0 <= now <= LATEST_US:
        return now
    problem = "its now_us() is not a whole number of microseconds from 0 to the year 2150"
    raise ConfigurationError("clock", now, problem=problem, expected=f"return an int from 0 to {LATEST_US}")


def reading(clock: Clock | None) -> tuple[Callable[[], int], int]:
    """Return what reads a clock, and how many of its units are a microsecond. Most readings need no division."""
    return (monotonic_ns, 1000) if clock is None else (clock.now_us, 1)


def _microseconds(seconds: float) -> int | None:
    """Convert seconds to microseconds; None if the value is not a finite number."""
    try:
        return round(seconds * MICROSECOND) if isfinite(seconds) else None
    except (TypeError, OverflowError):  # not a number, or an int that is too large for a float
        return None


def _checked(what: str, given: object, moment_us: int | None) -> int:
    if moment_us is not None and 0 <= moment_us <= LATEST_US:
        return moment_us
    problem = "not a number of seconds that ends between 1970 and 2150"
    expected = f"give seconds, from 0 to {LATEST_US // MICROSECOND} in all"
    raise ConfigurationError(what, given, problem=problem, expected=expected)


_ahead_us: Final = [0]  # the last difference of the two clocks


def calendar_us(clock: Clock | None) -> tuple[int, int]:
    """Return the microseconds since 1970, and by how much they are ahead of what this clock, or without one the
    machine's monotonic clock, returns. The difference changes only when somebody sets the machine's time.
    """
    if clock is not None:
        return read_us(clock), 0
    now = monotonic_ns() // 1000
    ahead, found = _ahead_us[0], time.time_ns() // 1000 - now
    if abs(found - ahead) > MICROSECOND // 10:  # less is the time between the two readings
        ahead = _ahead_us[0] = found
    return now + ahead, ahead


epoch_seconds: Final = time.time
"""Wall-clock seconds since 1970: for header fields that carry a moment, never for an interval."""

stopwatch: Final = time.perf_counter
"""Seconds since an unstated moment, for the time that something took."""

monotonic: Final = time.monotonic
"""Seconds since an unstated moment, for deadlines: what a socket and an event loop understand."""
