"""Order: rows sorted by time, within a window and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluicegate.extras import needs

with needs("replay"):
    import polars as pl


class Sorter:
    """Sorts rows that are out of order by less than the window. A later row gets the time of the newest row that was
    returned, and is counted.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self.late = 0

    def sorted(self, frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Return the rows, sorted by `time`. Rows with equal times keep their order."""
        kept: pl.DataFrame | None = None
        returned: int | None = None
        for frame in frames:
            if returned is not None:
                late = int((frame["time"] < returned).sum())
                if late:
                    self.late += late
                    frame = frame.with_columns(pl.col("time").clip(lower_bound=returned))  # noqa: PLW2901
            kept = frame if kept is None else pl.concat([kept, frame])
            newest = int(kept["time"].max())  # type: ignore[arg-type]
            kept = kept.sort("time", maintain_order=True)
            at = int(kept["time"].search_sorted(newest - self._window))
            if at:
                yield kept[:at]
                returned = int(kept["time"][at - 1])
                kept = kept[at:]
        if kept is not None and len(kept):
            yield kept
