"""Order: rows sorted by time, within a window and in bounded memory; files merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sluicegate.extras import needs

with needs("replay"):
    import polars as pl

_MOST: Final = 1_000_000
"""Rows that wait to be sorted, however many the window has; as many may have been read after them."""
_PIECE: Final = 100_000
"""Rows of a frame at most, so that those who read it need little memory."""
_LAST: Final = 101
"""Rows whose median is the present time of a log: a single line with a wrong time does not move it."""


def sorted_within(frames: Iterable[pl.DataFrame], window: int) -> Iterator[pl.DataFrame]:
    """Sort rows that are out of order by at most the window. Rows with equal times keep their order. A row that is
    later than that is where it was found, behind rows with a later time.
    """
    kept: list[pl.DataFrame] = []  # the rows that wait, and frames after them
    for frame in frames:
        if not len(frame):
            continue
        kept.append(frame)
        if sum(map(len, kept[1:])) < len(kept[0]):  # so that each row is sorted a few times only
            continue
        present = int(frame["time"].tail(_LAST).median())  # type: ignore[arg-type]
        rows = _by_time(pl.concat(kept))
        at = max(int(rows["time"].search_sorted(present - window)), len(rows) - _MOST)
        if at:
            yield from rows[:at].iter_slices(_PIECE)
        kept = [rows[at:]]
    if kept and len(rest := _by_time(pl.concat(kept))):
        yield from rest.iter_slices(_PIECE)


class Stream(NamedTuple):
    """The rows of one file, sorted but for late ones. No row is before `start`."""

    start: float
    frames: Callable[[], Iterator[pl.DataFrame]]


class Merged:
    """Rows of several files in one order of time. Files that do not overlap are open one after the other.

    A row with a time before that of a row that was returned gets the time of the newest such row. `late` counts these.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._waiting = sorted(streams, key=lambda stream: stream.start)
        self.late = 0

    def __iter__(self) -> Iterator[pl.DataFrame]:
        returned: int | None = None
        for frame in self._rows():
            late = 0 if returned is None else int((frame["time"] < returned).sum())
            self.late += late
            rows = frame.with_columns(pl.col("time").clip(lower_bound=returned)) if late else frame
            returned = int(rows["time"][-1])
            yield rows

    def _rows(self) -> Iterator[pl.DataFrame]:
        opened: list[tuple[pl.DataFrame, Iterator[pl.DataFrame]]] = []  # for each open file, its next rows
        while self._waiting or opened:
            until = min((int(frame["time"][-1]) for frame, _ in opened), default=None)
            if self._waiting and (until is None or self._waiting[0].start <= until):
                opened += _filled(_NOTHING, self._waiting.pop(0).frames())
            elif until is not None:
                cut = [(frame, int(frame["time"].search_sorted(until, side="right"))) for frame, _ in opened]
                yield _by_time(pl.concat([frame[:at] for frame, at in cut]))
                left = [(frame[at:], frames) for (frame, at), (_, frames) in zip(cut, opened, strict=True)]
                opened = [each for frame, frames in left for each in _filled(frame, frames)]


_NOTHING: Final = pl.DataFrame()


def _filled(frame: pl.DataFrame, frames: Iterator[pl.DataFrame]) -> list[tuple[pl.DataFrame, Iterator[pl.DataFrame]]]:
    """Return the rows, or the next ones if there are none, and the others. Return nothing at the end of the file."""
    if not len(frame):
        following = next(frames, None)
        return [] if following is None else [(following, frames)]
    return [(frame, frames)]


def _by_time(frame: pl.DataFrame) -> pl.DataFrame:
    return frame if frame["time"].is_sorted() else frame.sort("time", maintain_order=True)
