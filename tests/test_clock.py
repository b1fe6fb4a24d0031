"""Clocks: integers that never go back."""

from __future__ import annotations

import threading

import pytest

from headgate import ManualClock
from headgate.clock import MICROSECOND, SystemClock, epoch_seconds


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
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
