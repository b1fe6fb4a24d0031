"""Partitions: frames of traffic in a temporary file, so that all requests of one identity are in one partition.

A short log stays in memory. A longer one is written in pieces, each split by the number of the identity. Within a
partition the order of the log is kept. An identity is in one partition, however many requests it has: each needs about
300 bytes of memory, so that ten million of one client need 3 GB.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from sluicegate.errors import ReplayError, needs

with needs("replay"):
    import polars as pl

PIECE: Final = 200_000  # rows in memory; then they are written, and several processes share the parts
PARTS: Final = 4  # of a log that is written
ROWS: Final = 200_000
"""Rows of a partition on average, above which there are twice as many partitions. So the memory that a partition needs
does not depend on the length of the log.
"""
_SEED: Final = 1


@contextmanager
def spool() -> Generator[Path]:
    """Make the folder of a replay's temporary files, and remove it at the end."""
    with ExitStack() as stack:
        with temporary():
            folder = stack.enter_context(TemporaryDirectory(prefix="sluicegate-"))
        yield Path(folder)


@contextmanager
def temporary() -> Generator[None]:
    """Raise a ReplayError if temporary files cannot be written or read."""
    try:
        yield
    except OSError as error:
        expected = "set TMPDIR to a folder that can be written and has room for half of the log"
        folder, problem = tempfile.tempdir or "TMPDIR", error.strerror or str(error)
        raise ReplayError("temporary files in", folder, problem=problem, expected=expected) from error


class Partition(NamedTuple):
    """All requests of some identities. Their numbers are in the column `identity`; `texts` has their texts."""

    frame: pl.DataFrame
    texts: pl.DataFrame

    def load(self) -> Partition:
        """Return the partition with its rows in the order of identities; those of one are in the order of the log."""
        return self._replace(frame=self.frame.sort("identity", maintain_order=True, nulls_last=True))


class Block(NamedTuple):
    """Rows and texts in the file."""

    start: int
    middle: int
    end: int
    of: int  # partitions when it was written

    def read(self, path: Path) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        with temporary(), path.open("rb") as file:
            file.seek(self.start)
            rows, texts = file.read(self.middle - self.start), file.read(self.end - self.middle)
        return pl.read_ipc_stream(BytesIO(rows)), pl.read_ipc_stream(BytesIO(texts)) if texts else None


class Written(NamedTuple):
    """A partition in the file. Its blocks may contain rows of other partitions, from when there were fewer."""

    path: Path
    number: int
    of: int
    blocks: tuple[Block, ...]

    def load(self) -> Partition:
        """Return the partition, sorted."""
        is_mine, frames, texts = _number(self.of) == self.number, [], []
        for block in self.blocks:
            rows, named = block.read(self.path)
            frames.append(rows.filter(is_mine))
            texts += [] if named is None else [named.filter(is_mine)]
        return _partition(frames, texts).load()


Part = Partition | Written


class Partitions:
    """The partitions of one key. `folder` is where they are written; its owner removes it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._frames: list[pl.DataFrame] = []
        self._texts: list[pl.DataFrame] = []
        self._rows = 0
        self._written = 0
        self._parts = PARTS
        self._pieces: list[list[Block]] = []

    def add(self, frame: pl.DataFrame, identities: pl.Series) -> None:
        """Add a frame, and the identity of each of its rows as text."""
        ids = identified(identities)
        self._frames.append(frame.with_columns(ids["identity"]))
        self._texts.append(ids.unique("identity").drop_nulls())
        self._rows += frame.height
        if self._rows >= PIECE:
            self._write()

    def all(self) -> list[Part]:
        """Return all partitions, in the file or the one in memory."""
        if not self._pieces:
            return [_partition(self._frames, self._texts)] if self._frames else []
        if self._frames:
            self._write()
        found = [Written(self._path, each, of=self._parts, blocks=self._blocks(each)) for each in range(self._parts)]
        return [each for each in found if each.blocks]

    def _blocks(self, number: int) -> tuple[Block, ...]:
        blocks = [piece[number % len(piece)] for piece in self._pieces]
        return tuple([block for block in blocks if block.end > block.start])

    def _write(self) -> None:
        self._written += self._rows
        while self._written > ROWS * self._parts:
            self._parts *= 2
        rows = self._split(pl.concat(self._frames))
        texts = self._split(pl.concat(self._texts).unique("identity"))
        self._frames, self._texts, self._rows = [], [], 0
        blocks = []
        with temporary(), self._path.open("ab") as file:
            for number in range(self._parts):
                start = middle = end = file.tell()
                if number in rows:
                    middle = start + file.write(_bytes(rows[number]))
                    end = middle + file.write(_bytes(texts[number])) if number in texts else middle
                blocks.append(Block(start, middle, end, of=self._parts))
        self._pieces.append(blocks)

    def _split(self, frame: pl.DataFrame) -> dict[int, pl.DataFrame]:
        numbered = frame.with_columns(_number(self._parts).alias("part"))
        parts = numbered.partition_by("part", as_dict=True, include_key=False, maintain_order=True)
        return {number: part for (number,), part in parts.items()}


def identified(texts: pl.Series) -> pl.DataFrame:
    """Return the texts with their numbers, in the columns `identity` and `text`. No text has no number.

    A number is a hash of 64 bits: that two of ten million identities have the same is as likely as one in 400,000.
    """
    number = pl.when(pl.col("text").is_not_null()).then(pl.col("text").hash(seed=_SEED)).alias("identity")
    return texts.alias("text").to_frame().select(number, "text")


def _number(parts: int) -> pl.Expr:
    return pl.col("identity").fill_null(0) % parts


def _bytes(frame: pl.DataFrame) -> bytes:
    return frame.write_ipc_stream(None, compression="lz4").getvalue()


def _partition(frames: list[pl.DataFrame], texts: list[pl.DataFrame]) -> Partition:
    rows = pl.concat(frames).with_columns(pl.int_range(pl.len(), dtype=pl.Int64()).alias("row"))
    return Partition(rows, pl.concat(texts or [identified(pl.Series([], dtype=pl.String()))]).unique("identity"))
