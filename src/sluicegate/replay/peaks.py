"""Peaks: for each identity the most requests in any window of a period.

A sliding window refuses an identity if and only if the identity's peak is above the limit. So peaks alone say whom each
limit would refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sluicegate.errors import needs

with needs("replay"):
    import polars as pl

PEAK: Final = "peak:"
_END: Final = 2**63  # a sum that leaves it is a wrong number, and no error


def peaks(frame: pl.DataFrame, by: Sequence[str], periods: Collection[int]) -> pl.DataFrame:
    """Return a row for each value of the columns `by`, with a column `peak:PERIOD` for each period in microseconds: the
    most requests in any window of that period.

    A window ends with a request and begins a period before it: a request exactly a period earlier is outside, as in a
    sliding window. The frame may be in any order.

    >>> frame = pl.DataFrame({"who": ["a", "b", "a", "a"], "time": [0, 5, 9, 10]})
    >>> sorted(peaks(frame, ["who"], [10, 11]).rows())
    [('a', 2, 3), ('b', 1, 1)]
    """
    rows = frame.select(*by, "time").sort(*by, "time")
    first = rows.select(pl.struct(by).rle_id().diff().fill_null(1) != 0).to_series()
    gap = rows["time"].diff().fill_null(0)
    count, span = first.sum(), _span(rows["time"])
    if count > 1 and len(rows) * min(span, max(periods)) >= _END:  # the line below would be too long
        half = first.cum_sum() <= count // 2
        return pl.concat([peaks(each, by, periods) for each in (rows.filter(half), rows.filter(~half))])
    number, found = pl.int_range(1, len(rows) + 1, eager=True), {}
    for period in periods:
        # All identities on one line, a period apart. A gap of a period is as good as any longer one, and the period of
        # the whole frame as good as any longer one.
        step = min(period, span)
        at = pl.select(pl.when(first).then(step).otherwise(gap.clip(upper_bound=step))).to_series().cum_sum()
        found[f"{PEAK}{period}"] = number - at.search_sorted(at - step, side="right")
    sums = rows.select(*by).with_columns(**found)
    return sums.group_by(by, maintain_order=True).agg(pl.col(*found).max())


def _span(times: pl.Series) -> int:
    """Return the period of a window that has all these times."""
    spread: int | None = times.to_frame("time").select(pl.col("time").max() - pl.col("time").min()).item()
    return 1 if spread is None else spread + 1
