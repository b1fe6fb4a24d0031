"""Peaks: for each identity the most requests, or the largest cost, in any window of a period.

A sliding window refuses an identity if and only if the identity's peak is above the limit. So peaks alone say whom each
limit would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sluicegate.errors import needs

with needs("replay"):
    import polars as pl

PEAK: Final = "peak:"
_END: Final = 2**63  # a sum that leaves it is a wrong number, and no error


def peaks(frame: pl.DataFrame, by: Sequence[str], periods: Sequence[int], *, cost: str | None = None) -> pl.DataFrame:
    """Return a row for each value of the columns `by`, with a column `peak:PERIOD` for each period in microseconds: the
    most requests, or the largest sum of the column `cost`, in any window of that period.

    A window ends with a request and begins a period before it: a request exactly a period earlier is outside, as in a
    sliding window. The frame may be in any order.

    >>> frame = pl.DataFrame({"who": ["a", "b", "a", "a"], "time": [0, 5, 9, 10]})
    >>> sorted(peaks(frame, ["who"], [10, 11]).rows())
    [('a', 2, 3), ('b', 1, 1)]
    """
    spent = pl.lit(1, pl.Int64) if cost is None else pl.col(cost).fill_null(0).cast(pl.Int64)
    rows = frame.select(*by, "time", spent.alias("cost")).sort(*by, "time")
    # The sum of the costs before each row, and after the last one.
    before = pl.concat([pl.Series("before", [0], pl.Int64), rows["cost"].cum_sum()])
    first = rows.select(pl.struct(by).rle_id().diff().fill_null(1) != 0).to_series()
    gap = rows["time"].diff().fill_null(0)
    count, span = first.sum(), _span(rows["time"])
    if count > 1 and len(rows) * min(span, max(periods)) >= _END:  # the line below would be too long
        half = first.cum_sum() <= count // 2
        return pl.concat([peaks(each, by, periods, cost="cost") for each in (rows.filter(half), rows.filter(~half))])
    found = {}
    for period in periods:
        # All identities on one line, a period apart. A gap of a period is as good as any longer one, and the period of
        # the whole frame as good as any longer one.
        step = min(period, span)
        at = pl.select(pl.when(first).then(step).otherwise(gap.clip(upper_bound=step))).to_series().cum_sum()
        since = at.search_sorted(at - step, side="right")
        found[f"{PEAK}{period}"] = before.slice(1) - before.gather(since)
    sums = rows.select(*by).with_columns(**found)
    return sums.group_by(by, maintain_order=True).agg(pl.col(*found).max())


def _span(times: pl.Series) -> int:
    """Return the period of a window that has all these times."""
    spread: int | None = times.to_frame("time").select(pl.col("time").max() - pl.col("time").min()).item()
    return 1 if spread is None else spread + 1


class Peaks:
    """The peaks of rows that come in pieces, in order of time. What it keeps grows with the different times in the
    longest period.
    """

    def __init__(self, by: Sequence[str], periods: Iterable[int]) -> None:
        self._by = by
        self._periods = sorted(periods)
        self._last = pl.DataFrame()
        self.found = pl.DataFrame()

    def add(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add rows. Return the peaks of all windows that end with one of them."""
        rows, time = frame.select(*self._by, "time", cost=pl.lit(1, pl.Int64)), pl.col("time")
        if len(self._last):
            before = self._last.filter(time > time.max() - max(self._periods))
            rows = pl.concat([before.group_by(*self._by, "time").agg(pl.col("cost").sum()), rows])
        latest = peaks(rows, self._by, self._periods, cost="cost")
        both = pl.concat([self.found, latest]).group_by(self._by, maintain_order=True) if len(self.found) else None
        self.found = latest if both is None else both.agg(pl.exclude(self._by).max())
        self._last = rows
        return latest

    def counted(self) -> Iterator[tuple[int, int, int]]:
        """Yield each period, each peak in it, and how many have it."""
        for period in self._periods if len(self.found) else ():
            for peak, number in self.found[f"{PEAK}{period}"].value_counts().iter_rows():
                yield period, peak, number
