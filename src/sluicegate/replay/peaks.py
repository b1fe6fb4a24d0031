"""Peaks: for each identity the most requests, or the largest cost, in any window of a period.

A sliding window refuses an identity if and only if the identity's peak is above the limit. So peaks alone say whom each
limit would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluicegate.extras import needs

with needs("replay"):
    import polars as pl

PEAK: Final = "peak:"


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
    found = {}
    for period in periods:
        # All identities on one line, a period apart. A gap of a period is as good as any longer one, so the sum of the
        # gaps stays below 2^63 for a hundred million requests and a day.
        at = pl.select(pl.when(first).then(period).otherwise(gap.clip(upper_bound=period))).to_series().cum_sum()
        since = at.search_sorted(at - period, side="right")
        found[f"{PEAK}{period}"] = before.slice(1) - before.gather(since)
    sums = rows.select(*by).with_columns(**found)
    return sums.group_by(by, maintain_order=True).agg(pl.col(*found).max())
