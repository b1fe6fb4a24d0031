"""Clocks: integers that never go back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sluicegate import ConfigurationError, Limiter, ManualClock
from sluicegate.clock import LATEST_US, MICROSECOND, SystemClock, epoch_seconds
from sluicegate.stores import open_async_store, open_store


def test_a_manual_clock_does_not_move_by_itself() -> None:
    clock = ManualClock()
    assert clock.now_us() == clock.now_us() == 10**15


@pytest.mark.parametrize(
    ("seconds", "us"), [(0, 0), (1, MICROSECOND), (0.1, 100_000), (1e-6, 1), (0.3 - 0.1, 200_000), (2.5e-7, 0)]
)
def test_advance_rounds_to_the_nearest_microsecond(seconds: float, us: int) -> None:
    clock = ManualClock(1_760_000_000)
    clock.advance(seconds)
    assert clock.now_us() == 1_760_000_000 * MICROSECOND + us


@pytest.mark.parametrize("back", [-1, -1e-6, -3600])
def test_it_never_goes_back(back: float) -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(back)
    assert clock.now_us() == 10**15


WRONG = [-1, -1e-6, float("nan"), float("inf"), -float("inf"), 1e18, 10**400, LATEST_US / MICROSECOND + 1, "0", None]


@pytest.mark.parametrize("start", WRONG)
def test_it_begins_at_a_moment_that_every_store_can_count_with(start: Any) -> None:
    """Before 1970 a Redis store let everything pass."""
    with pytest.raises(ConfigurationError, match="SG010"):
        ManualClock(start)


@pytest.mark.parametrize("seconds", WRONG)
def test_it_stays_at_such_a_moment(seconds: Any) -> None:
    clock = ManualClock(5)
    with pytest.raises(ConfigurationError, match="SG010"):
        clock.advance(seconds)
    assert clock.now_us() == 5 * MICROSECOND
    with pytest.raises(ConfigurationError, match="SG010"):
        clock.advance_us(LATEST_US)


@pytest.mark.parametrize("microseconds", [1.5, 1.0, True, "1", None, float("nan")])
def test_advance_us_takes_whole_microseconds(microseconds: Any) -> None:
    clock = ManualClock(5)
    with pytest.raises(ConfigurationError, match=r"advance_us .*not a whole number.*SG010"):
        clock.advance_us(microseconds)
    assert type(clock.now_us()) is int
    assert clock.now_us() == 5 * MICROSECOND


@pytest.mark.parametrize("moment", [0, LATEST_US])
def test_the_first_and_the_last_moment(moment: int) -> None:
    clock = ManualClock(0)
    clock.advance_us(moment)
    limiter = Limiter(clock=clock)
    assert [limiter.hit("1/minute", "alice").retry_after for _ in "ab"] == [0, 60]


class Said:
    """A user's own clock, which returns the given moments in turn."""

    def __init__(self, *moments: Any) -> None:
        self.moments = list(moments)

    def now_us(self) -> Any:
        return self.moments.pop(0) if len(self.moments) > 1 else self.moments[0]


MISTAKES = [-1, -(10**9), 1.5, 1e15, float("nan"), "1", None, True, LATEST_US + 1, 2**70]
URLS = ["memory://", "redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/main"]


@pytest.mark.parametrize("moment", MISTAKES)
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("opens", [open_store, open_async_store])
def test_no_store_is_made_with_a_clock_that_it_cannot_count_with(opens: Any, url: str, moment: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"clock .*SG010"):
        opens(url, prefix="p", clock=Said(moment))


@pytest.mark.parametrize("moment", MISTAKES)
def test_a_clock_that_goes_wrong_later_lets_no_request_pass(moment: Any) -> None:
    """The store, which is down, is not called, and no failure policy decides."""
    # Two stores read it when they are made: the one of the URL, and that of the local fallback.
    limiter = Limiter("redis://127.0.0.1:1", clock=Said(1, 1, moment), deny_cache=0, on_store_failure="allow")
    with pytest.raises(ConfigurationError, match=r"clock .*SG010"):
        limiter.hit("1/minute", "alice")


def test_threads_may_move_it() -> None:
    clock = ManualClock(0)

    def move() -> None:
        for _ in range(1000):
            clock.advance_us(1)

    threads = [threading.Thread(target=move) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now_us() == 8000


def test_the_system_clock_never_goes_back() -> None:
    clock = SystemClock()
    seen = [clock.now_us() for _ in range(1000)]
    assert seen == sorted(seen)
    assert all(type(moment) is int for moment in seen)


def test_epoch_seconds_are_those_of_this_century() -> None:
    assert epoch_seconds() > 1_700_000_000
