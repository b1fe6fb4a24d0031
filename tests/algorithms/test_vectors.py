"""Each algorithm by example: (second, cost) → allowed, remaining, retry_after, reset_after, next_after in seconds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from sluicegate.algorithms import find
from sluicegate.clock import MICROSECOND
from sluicegate.plan import NEVER
from sluicegate.quota import Quota

START = 1_760_000_000  # seconds; 16 digits in microseconds
YES, NO = True, False

VECTORS: dict[str, list[tuple[Any, ...]]] = {
    "fixed-window, 4/minute": [  # the window begins with the first hit, at 10
        (0, 0, YES, 4, 0, 0, 0),
        (10, 1, YES, 3, 0, 60, 60),
        (30, 2, YES, 1, 0, 40, 40),
        (69, 2, NO, 1, 1, 1, 1),
        (69, 1, YES, 0, 0, 1, 1),
        (69, 0, YES, 0, 0, 1, 1),
        (70, 4, YES, 0, 0, 60, 60),  # 4 + 4 within two seconds: what a fixed window cannot see
        (70, 5, NO, 0, NEVER, 60, 60),
    ],
    "sliding-log, 4/minute": [
        (0, 0, YES, 4, 0, 0, 0),
        (0, 1, YES, 3, 0, 60, 60),
        (10, 2, YES, 1, 0, 60, 50),
        (30, 1, YES, 0, 0, 60, 30),
        (30, 1, NO, 0, 30, 60, 30),
        (30, 2, NO, 0, 40, 60, 30),
        (30, 4, NO, 0, 60, 60, 30),
        (59, 1, NO, 0, 1, 31, 1),
        (60, 1, YES, 0, 0, 60, 10),  # a hit that is exactly a minute old does not count
        (60, 5, NO, 0, NEVER, 60, 10),
    ],
    "sliding-window, 4/minute": [
        (0, 0, YES, 4, 0, 0, 0),
        (0, 1, YES, 3, 0, 60, 60),
        (10, 2, YES, 1, 0, 60, 50),
        (30, 1, YES, 0, 0, 60, 30),
        (30, 1, NO, 0, 30, 60, 30),
        (30, 2, NO, 0, 40, 60, 30),
        (59, 1, NO, 0, 1, 31, 1),
        (60, 1, YES, 0, 0, 60, 10),
        (60, 5, NO, 0, NEVER, 60, 10),
    ],
    "sliding-window, 200/minute": [  # above 100 a stamp is rounded up to a grain, here of 0.6 s
        (0, 100, YES, 100, 0, "60.4", "60.4"),  # 1,760,000,000 s lies 0.4 s before a grain's end
        ("0.2", 50, YES, 50, 0, "60.2", "60.2"),
        ("0.5", 50, YES, 0, 0, "60.5", "59.9"),
        ("60.3", 1, NO, 0, "0.1", "0.7", "0.1"),
        ("60.4", 150, YES, 0, 0, 60, "0.6"),
    ],
    "sliding-counter, 4/minute": [
        (0, 0, YES, 4, 0, 0, 0),
        (0, 4, YES, 0, 0, 120, 75),  # one unit is free when a quarter of the next window has passed
        (30, 1, NO, 0, 45, 90, 45),
        (75, 1, YES, 0, 0, 105, 15),
        (75, 2, NO, 0, 30, 105, 15),
        (105, 0, YES, 2, 0, 75, 15),
        (119, 4, NO, 2, 61, 61, 1),
        (239, 5, NO, 4, NEVER, 0, 0),
    ],
    "gcra, 4/minute": [  # a unit leaks every 15 s
        (0, 0, YES, 4, 0, 0, 0),
        (0, 4, YES, 0, 0, 60, 15),
        (5, 1, NO, 0, 10, 55, 10),
        (5, 3, NO, 0, 40, 55, 10),
        (15, 1, YES, 0, 0, 60, 15),
        (45, 1, YES, 1, 0, 45, 15),
        (45, 5, NO, 1, NEVER, 45, 15),
    ],
    "gcra, 1/second burst 3": [
        (0, 3, YES, 0, 0, 3, 1),
        ("0.5", 1, NO, 0, "0.5", "2.5", "0.5"),
        (1, 1, YES, 0, 0, 3, 1),
        (1, 4, NO, 0, NEVER, 3, 1),
        (4, 0, YES, 3, 0, 0, 0),
    ],
    "gcra, 7/hour": [  # 3600 / 7 is no whole number of microseconds: 514.285714 2857…
        (0, 7, YES, 0, 0, 3600, "514.285715"),
        ("514.285714", 1, NO, 0, "0.000001", "3085.714286", "0.000001"),
        ("514.285715", 1, YES, 0, 0, 3600, "514.285714"),  # what was over is not lost
    ],
}


def us(seconds: int | str | None) -> Any:
    return NEVER if seconds is NEVER else int(Fraction(seconds) * MICROSECOND)


@pytest.mark.parametrize("example", VECTORS)
def test_vectors(example: str) -> None:
    name, _, text = example.partition(", ")
    algorithm = find(name)
    params = algorithm.params(Quota.parse(text))
    state = None
    for second, cost, *expected in VECTORS[example]:
        now = START * MICROSECOND + us(second)
        outcome, state = algorithm.decide(state, now, cost, params)
        allowed, remaining, *waits = expected
        row = f"at {second} s, cost {cost}"
        assert (row, *outcome) == (row, allowed, params[0], remaining, *map(us, waits), now, "store")


REFUNDS = [  # charges as (second, cost); the first is given back at a second; then second → remaining
    ("fixed-window, 4/minute", [(0, 3), (30, 1)], 59, {59: 3, 60: 4}),
    ("fixed-window, 4/minute", [(0, 3), (60, 4)], 61, {61: 0}),  # its window has passed
    ("fixed-window, 4/minute", [(0, 3)], 30, {30: 4}),
    ("sliding-log, 4/minute", [(0, 3), (30, 1)], 59, {59: 3, 60: 3, 90: 4}),
    ("sliding-log, 4/minute", [(0, 3), (60, 4)], 61, {61: 0}),
    ("sliding-window, 4/minute", [(0, 3), (30, 1)], 59, {59: 3, 60: 3, 90: 4}),
    ("sliding-window, 4/minute", [(0, 3), (60, 4)], 61, {61: 0}),
    ("sliding-window, 200/minute", [(0, 100), ("0.2", 50), ("0.5", 50)], 30, {30: 100, "60.4": 150}),
    ("sliding-counter, 4/minute", [(0, 3), (30, 1)], 59, {59: 3, 60: 3, 119: 3, 120: 4}),
    ("sliding-counter, 4/minute", [(0, 2), (60, 1)], 75, {75: 3}),  # the window before this one
    ("sliding-counter, 4/minute", [(0, 2), (60, 1), (120, 1)], 121, {121: 2, 180: 3}),
    ("gcra, 4/minute", [(0, 3)], 0, {0: 4}),
    ("gcra, 4/minute", [(0, 3), (0, 1)], 15, {15: 3}),  # one unit has leaked; the state does not say which request's
    ("gcra, 4/minute", [(0, 1), (15, 4)], 15, {15: 0}),
]


@pytest.mark.parametrize(("example", "charges", "second", "left"), REFUNDS)
def test_refunds(example: str, charges: list[tuple[Any, int]], second: int, left: dict[Any, int]) -> None:
    name, _, text = example.partition(", ")
    algorithm = find(name)
    params = algorithm.params(Quota.parse(text))
    state, moments = None, [START * MICROSECOND + us(moment) for moment, _ in charges]
    for now, (_, cost) in zip(moments, charges, strict=True):
        outcome, state = algorithm.decide(state, now, cost, params)
        assert outcome.allowed
    state = algorithm.refund(state, START * MICROSECOND + us(second), charges[0][1], params, moments[0])
    for moment, remaining in left.items():
        seen, _ = algorithm.decide(state, START * MICROSECOND + us(moment), 0, params)
        assert (moment, seen.remaining) == (moment, remaining)


PARAMS = [  # algorithm, quota → params; the first is always the limit or burst
    ("fixed-window", "10/minute", (10, 60_000_000)),
    ("sliding-log", "10000/minute", (10_000, 60_000_000)),
    ("sliding-window", "100/minute", (100, 60_000_000, 1)),  # up to 100 units it is exact
    ("sliding-window", "101/minute", (101, 60_000_000, 600_000)),  # above, a hundredth of the period
    ("sliding-window", "1000000/50 microseconds", (1_000_000, 50, 1)),
    ("sliding-counter", "10/minute", (10, 60_000_000, 1)),
    ("sliding-counter", "1000000/day", (1_000_000, 864_000_000, 100)),  # ticks of 100 µs
    ("gcra", "10/minute", (10, 6_000_000, 1)),
    ("gcra", "10/minute burst 3", (3, 6_000_000, 1)),
    ("gcra", "7/hour", (7, 3_600_000_000, 7)),
    ("gcra", "300000/second", (300_000, 10, 3)),  # 3.33 µs each, kept exact
    ("token-bucket", "1000000/day", (1_000_000, 86_400, 1)),
    ("leaky-bucket", "1 per 2 seconds burst 15", (15, 2_000_000, 1)),
]


@pytest.mark.parametrize(("algorithm", "quota", "params"), PARAMS)
def test_params(algorithm: str, quota: str, params: tuple[int, ...]) -> None:
    assert find(algorithm).params(Quota.parse(quota.replace("/50", " per 50"))) == params


def test_the_three_buckets_are_one() -> None:
    assert find("gcra") is find("token-bucket") is find("leaky-bucket")


@pytest.mark.parametrize(("limit", "period_us"), [(1, 1), (7, 3_600_000_000), (300_000, 1_000_000), (999_983, 86_399)])
def test_a_rate_is_never_rounded(limit: int, period_us: int) -> None:
    _, unit, leak = find("gcra").params(Quota(limit, Fraction(period_us, MICROSECOND)))
    assert Fraction(leak, unit) == Fraction(limit, period_us)


@pytest.mark.parametrize("limit", [101, 150, 2000, 10**6])
@pytest.mark.parametrize("period_us", [1, 99, 101, 999_999, 60_000_000])
def test_a_grain_is_at_most_one_per_cent(limit: int, period_us: int) -> None:
    _, window, grain = find("sliding-window").params(Quota(limit, Fraction(period_us, MICROSECOND)))
    assert grain == 1 or 100 * grain <= window
