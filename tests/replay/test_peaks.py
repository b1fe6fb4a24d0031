"""Peaks equal those that a plain loop finds, and say whom the engine refuses."""

from __future__ import annotations

from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Limiter, ManualClock, Quota
from sluicegate.replay.peaks import peaks

EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=60)
PERIODS = st.lists(st.integers(1, 70), min_size=1, max_size=3, unique=True)


def framed(events: list[tuple[str, int]]) -> pl.DataFrame:
    return pl.DataFrame(events, schema={"who": pl.String(), "time": pl.Int64()}, orient="row")


@pytest.mark.slow
@given(EVENTS, PERIODS, st.sampled_from([1, 300, 2**63]))
def test_peaks_equal_those_of_a_loop(events: list[tuple[str, int]], periods: list[int], end: int) -> None:
    """Also if the line of all identities would be too long, so that they are halved."""
    each: dict[str, list[int]] = {}
    for who, at in events:
        each.setdefault(who, []).append(at)
    expected = [
        (who, *(max(sum(last - period < then <= last for then in mine) for last in mine) for period in periods))
        for who, mine in sorted(each.items())
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluicegate.replay.peaks._END", end)
        assert peaks(framed(events), ["who"], periods).rows() == expected


def test_there_may_be_several_columns_and_none_rows() -> None:
    frame = framed([("a", 1), ("b", 1), ("a", 90)]).with_columns(day=pl.col("time") // 50)
    assert peaks(frame, ["who", "day"], [1000]).rows() == [("a", 0, 1), ("a", 1, 1), ("b", 0, 1)]
    assert peaks(frame.clear(), ["who"], [1000]).rows() == []
    assert peaks(frame.clear(), ["who"], [1000]).columns == ["who", "peak:1000"]


@pytest.mark.parametrize("period", [1, 1_000_000, 86_400_000_000])
def test_gaps_of_years_do_not_overflow(period: int) -> None:
    year = 31_536_000_000_000
    frame = framed([("a", number * year) for number in range(1000)])
    assert peaks(frame, ["who"], [period]).rows() == [("a", 1)]


def test_many_identities_and_long_periods_do_not_overflow() -> None:
    year = 31_536_000_000_000
    events = [(str(who), number * year) for who in range(9000) for number in range(40 if who == 7 else 2)]
    found = peaks(framed(events), ["who"], [3 * year, 100 * year])
    assert set(found.filter(pl.col("who") != "7").select(pl.exclude("who")).rows()) == {(2, 2)}
    assert found.filter(pl.col("who") == "7").rows() == [("7", 3, 40)]


@pytest.mark.slow
@given(EVENTS.filter(bool), st.integers(1, 70))
def test_the_engine_refuses_those_whose_peak_is_above_the_limit(events: list[tuple[str, int]], period: int) -> None:
    """This is why suggest may take a limit from peaks."""
    found = dict(peaks(framed(events), ["who"], [period]).rows())
    for limit in set(found.values()) | {max(found.values()) + 1}:
        clock = ManualClock(0)
        limiter = Limiter(clock=clock)
        refused = set()
        for who, at in sorted(events, key=lambda event: event[1]):
            clock.advance_us(at - clock.now_us())
            if not limiter.hit(Quota(limit, Fraction(period, 1_000_000)), who).allowed:
                refused.add(who)
        assert refused == {who for who, peak in found.items() if peak > limit}
