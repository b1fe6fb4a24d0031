"""Clocks: the only module, stores apart, that reads the time.

Inside headgate a time is an integer count of microseconds. This module knows of nothing else in headgate.
"""

from __future__ import annotations

import threading
import time
from time import monotonic_ns
from typing import Final, Protocol

MICROSECOND = 1_000_000  # microseconds in a second


class Clock(Protocol):
    """Anything that tells the time in integer microseconds and never goes back."""

    def now_us(self) -> int:
        """Microseconds since a fixed but unstated moment."""
        ...


class SystemClock:
    """The machine's monotonic clock: unmoved by NTP, daylight saving or an operator's hand."""

    def now_us(self) -> int:
        """Microseconds since an unstated moment, the same for all threads of the process."""
        return monotonic_ns() // 1000


class ManualClock:
    """A clock moved by hand, for tests: hand it to a limiter and no test needs to sleep.

    Any store follows it, Redis included. `start` and `advance` are in seconds.

    >>> from headgate import Limiter, ManualClock
    >>> clock = ManualClock()
    >>> limiter = Limiter(clock=clock)
    >>> [limiter.is_action_allowed("laoqian", "reply", period=60, max_count=1) for _ in "ab"]
    [True, False]
    >>> clock.advance(60)
    >>> limiter.is_action_allowed("laoqian", "reply", period=60, max_count=1)
    True
    """

    def __init__(self, start: float = 1_000_000_000) -> None:
        self._now_us = round(start * MICROSECOND)
        self._lock = threading.Lock()

    def now_us(self) -> int:
        """The time that the clock was last moved to, in microseconds."""
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Move forward by so many seconds, rounded to the nearest microsecond. A clock never goes back: ValueError."""
        self.advance_us(round(seconds * MICROSECOND))

    def advance_us(self, microseconds: int) -> None:
        """Move forward by so many microseconds."""
        if microseconds < 0:
            raise ValueError(f"a ManualClock cannot go back; given {microseconds} µs, expected 0 or more")
        with self._lock:
            self._now_us += microseconds


epoch_seconds: Final = time.time
"""Wall-clock seconds since 1970: for header fields that carry a moment, never for an interval."""

monotonic: Final = time.monotonic
"""Seconds since an unstated moment, for deadlines: what a socket and an event loop understand."""
