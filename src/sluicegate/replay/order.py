"""Order: rows sorted by time, within a window and in bounded memory; files merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluicegate.errors import needs

with needs("replay"):
    import polars as pl

_MOST: Final = 1_000_000
"""Rows that wait to be sorted, however many the window has; as many may have been read after them."""
_PIECE: Final = 100_000
"""Rows of a frame at most, so that those who read it need little memory."""
_DAY: Final = 86_400_000_000


@dataclass
class Late:
    """The lines of a log that came later than the window."""

    lines: int = 0
    first: int | None = None
    """The newest time known when time first went back."""
    by: int = 0
    """How far it went back at most."""


def sorted_within(frames: Iterable[pl.DataFrame], window: int, late: Late) -> Iterator[pl.DataFrame]:
    """Sort rows that are out of order by at most the window. Rows with equal times keep their order. A row that is
    later than that gets the newest time of the rows before it, and is counted.
    """
    kept: list[pl.DataFrame] = []  # the rows that wait, and frames after them
    newest = last = released = 0
    time, known = pl.col("time"), pl.col("known")
    for frame in _frames_of(frames, _PIECE):
        # A single row far ahead of the next one has a wrong time, which is not the newest time known.
        before = time.shift(1, fill_value=last)
        rows = frame.with_columns(known=pl.when(before - time <= _DAY).then(before).otherwise(0).cum_max().clip(newest))
        is_late = time < pl.max_horizontal(known - window, pl.lit(released))
        newest, last = int(rows["known"][-1]), int(rows["time"][-1])
        if len(behind := rows.filter(is_late)):
            late.lines += len(behind)
            late.first = min(behind["known"][0], late.first or behind["known"][0])
            late.by = max(late.by, int((behind["known"] - behind["time"]).max()))  # type: ignore[arg-type]
            rows = rows.with_columns(time=pl.when(is_late).then(known).otherwise(time))
        kept.append(rows.drop("known"))
        if sum(map(len, kept[1:])) < len(kept[0]):  # so that each row is sorted a few times only
            continue
        rows = _by_time(pl.concat(kept))
        at = max(int(rows["time"].search_sorted(newest - window)), len(rows) - _MOST)
        if at:
            released = int(rows["time"][at - 1])
            yield from rows[:at].iter_slices(_PIECE)
        kept = [rows[at:]]
    if kept:
        yield from _by_time(pl.concat(kept)).iter_slices(_PIECE)


def _frames_of(frames: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
    """Yield the rows in frames of this size, so that nothing depends on where a piece of a file ends."""
    kept: list[pl.DataFrame] = []
    for frame in frames:
        kept.append(frame)
        if sum(map(len, kept)) >= size:
            rows = pl.concat(kept)
            at = len(rows) // size * size
            yield from rows[:at].iter_slices(size)
            kept = [rows[at:]]
    if kept:
        yield from pl.concat(kept).iter_slices(size)


class Stream(NamedTuple):
    """The rows of one file, sorted. No row is before `start`."""

    start: float
    frames: Callable[[], Iterator[pl.DataFrame]]


def merged(streams: Iterable[Stream]) -> Iterator[pl.DataFrame]:
    """Yield the rows of several files in one order of time. Files that do not overlap are open one after the other."""
    waiting = sorted(streams, key=lambda stream: stream.start)
    opened: list[tuple[pl.DataFrame, Iterator[pl.DataFrame]]] = []  # for each open file, its next rows
    while waiting or opened:
        until = min((int(frame["time"][-1]) for frame, _ in opened), default=None)
        if waiting and (until is None or waiting[0].start <= until):
            opened += _filled(_NOTHING, waiting.pop(0).frames())
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
