"""Frames as a log, and what a replay decides about each of their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import polars as pl

from sluicegate.replay.candidates import Candidate
from sluicegate.replay.decide import ALLOWED, Decider, Ready, decided
from sluicegate.replay.log import Counts, Log


class Given(Log):
    """A log of frames that are in memory."""

    def __init__(self, given: Sequence[pl.DataFrame]) -> None:
        super().__init__(())
        self.given = given
        self._columns: frozenset[str] = frozenset()

    def frames(self, wanted: Collection[str]) -> Iterator[pl.DataFrame]:
        known = {name for frame in self.given for name in frame.columns}
        self._columns = frozenset(wanted) - known
        return iter(self.given)

    @property
    def read(self) -> Counts:
        lines = sum([frame.height for frame in self.given])
        return Counts(lines, missing=tuple(sorted(self._columns)))


def decisions(frame: pl.DataFrame, candidate: Candidate) -> pl.DataFrame:
    """Decide about a frame of traffic in order of time: for each row whether it was allowed, the microseconds after
    which the same request would pass (null: never, or not refused), and the rule that refused.
    """
    ready = Ready(candidate)
    whole = frame.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64()))
    if ready.plain:
        whole = whole.with_columns(ready.identify(frame).alias("identity"))
        refusals = decided(ready, whole.sort("identity", maintain_order=True)).refusals
    else:
        refusals = Decider(ready).feed(whole).filter(pl.col("rule") != ALLOWED)
    names = pl.Series("rule", ready.names, dtype=pl.String())
    joined = whole.select("row", "time").join(
        refusals.with_columns(pl.lit(value=True).alias("refused")), on="row", how="left", maintain_order="left"
    )
    return joined.select(
        pl.col("refused").is_null().alias("allowed"),
        (pl.col("until") - pl.col("time")).alias("retry_after"),
        pl.col("rule").map_elements(lambda number: names[number], return_dtype=pl.String()).alias("rule"),
    )
