"""Partitions: frames of traffic in a temporary folder, so that all requests of one identity are in one partition.

A short log stays in memory. A longer one is written in pieces, each split by a hash of the identity. Within a partition
the order of the log is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluicegate.extras import needs

with needs("replay"):
    import polars as pl

PIECE: Final = 500_000  # rows in memory; then they are written
PARTS: Final = 96


class Partitions:
    """The partitions of one key. `folder` is where they are written; its owner removes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._piece = PIECE
        self._parts = PARTS
        self._frames: list[pl.DataFrame] = []
        self._rows = 0
        self._files: list[list[Path]] = []

    def add(self, frame: pl.DataFrame) -> None:
        """Add a frame that has the column `identity`."""
        self._frames.append(frame)
        self._rows += frame.height
        if self._rows >= self._piece:
            self._write()

    def all(self) -> Iterator[list[Path] | pl.DataFrame]:
        """Yield each partition: the files that it is in, or the only one as it is in memory."""
        if not self._files:
            if self._frames:
                yield pl.concat(self._frames)
            return
        if self._frames:
            self._write()
        for number in range(self._parts):
            files = [piece[number] for piece in self._files if piece[number].exists()]
            if files:
                yield files

    def _write(self) -> None:
        whole = pl.concat(self._frames)
        self._frames, self._rows = [], 0
        part = (pl.col("identity").hash(seed=1) % self._parts).cast(pl.UInt16()).alias("part")
        piece = [self._folder / f"{len(self._files)}-{number}.arrow" for number in range(self._parts)]
        self._folder.mkdir(exist_ok=True)
        for (number,), frame in whole.with_columns(part).partition_by("part", as_dict=True, include_key=False).items():
            frame.write_ipc(piece[number], compression="lz4")
        self._files.append(piece)


def load(part: list[Path] | pl.DataFrame) -> pl.DataFrame:
    """Return a partition in the order of the log. Its files are removed."""
    if isinstance(part, pl.DataFrame):
        return part
    whole = pl.concat([pl.read_ipc(path) for path in part])
    for path in part:
        path.unlink()
    return whole
