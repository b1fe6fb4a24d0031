"""A log: its files, read into traffic in the order of time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from sluicegate.errors import LineError, LogError
from sluicegate.extras import needs
from sluicegate.replay import files
from sluicegate.replay.formats import Format, given
from sluicegate.replay.lines import SECOND, has, read
from sluicegate.replay.order import Sorter
from sluicegate.replay.recognise import recognised
from sluicegate.replay.result import Unreadable

with needs("replay"):
    import polars as pl

EXAMPLES: Final = 5
_SHOWN: Final = 200


class Counts(NamedTuple):
    """What was read so far."""

    lines: int
    unreadable: Unreadable
    late: int
    bytes: int  # as they are in the files, perhaps compressed
    total: int | None  # of all files; None if standard input is one
    formats: tuple[tuple[str, str], ...]  # file, name of its format
    resolution: float  # seconds between two times that the log can tell apart
    missing: tuple[str, ...]  # columns that are wanted and that no line of this log has


class Log:
    """Access logs as traffic. Each iteration over `frames` reads the files again."""

    def __init__(
        self,
        paths: Iterable[str | Path],
        *,
        format: str = "auto",  # noqa: A002
        fields: Mapping[str, str] | None = None,
        zone: str = "UTC",
        window: float = 60.0,
        strict: bool = False,
    ) -> None:
        self._paths = [str(path) for path in paths]
        self._fields = dict(fields or {})
        self._format = None if format == "auto" else given(format, self._fields)
        self._zone = ZoneInfo(zone)
        self._window = round(window * SECOND)
        self._strict = strict
        self._start()

    def _start(self) -> None:
        self._lines = self._bytes = self._unread = 0
        self._examples: list[tuple[str, int, str]] = []
        self._formats: dict[str, list[Format]] = {}
        self._grain = SECOND
        self._wanted: tuple[str, ...] = ()
        self._sorter = Sorter(self._window)

    @property
    def read(self) -> Counts:
        """What was read so far, by the iteration that began last."""
        formats = [each for found in self._formats.values() for each in found]
        return Counts(
            lines=self._lines,
            unreadable=Unreadable(self._unread, tuple(self._examples)),
            late=self._sorter.late,
            bytes=self._bytes,
            total=sum(Path(path).stat().st_size for path in self._paths),
            formats=tuple((path, "+".join(each.name for each in found)) for path, found in self._formats.items()),
            resolution=self._grain / SECOND,
            missing=tuple(column for column in self._wanted if not any(has(each, column) for each in formats)),
        )

    def frames(self, wanted: Collection[str]) -> Iterator[pl.DataFrame]:
        """Return frames with `time` and the wanted columns, sorted by time over all frames."""
        self._start()
        self._wanted = tuple(dict.fromkeys(["time", *wanted]))
        return self._sorter.sorted(frame for path in self._paths for frame in self._file(path))

    def _file(self, path: str) -> Iterator[pl.DataFrame]:
        formats = self._formats.setdefault(path, [self._format] if self._format else [])
        lines = 0
        for chunk in files.chunks(path):
            self._bytes += len(chunk)
            rows = _rows(chunk)
            found = self._chunk(rows, formats)
            for row, line in rows.filter(~pl.col("row").is_in(found["row"].implode())).rows():
                self._note(path, lines + row + 1, line)
            lines += chunk.count(b"\n")
            self._lines += len(rows)
            if len(found):
                grain = found["time"]
                for finer in (SECOND, 1000, 1):
                    if self._grain > finer and (grain % self._grain != 0).any():
                        self._grain = finer
                yield found.drop("row")

    def _chunk(self, rows: pl.DataFrame, formats: list[Format]) -> pl.DataFrame:
        """Read the rows of a chunk. Rows that no format fits may bring another format."""
        read_rows = []
        rest = rows
        tried = 0
        while len(rest):
            if tried == len(formats):
                new = None if self._format else recognised(rest, self._fields, zone=self._zone)
                if new is None or new in formats:
                    break
                formats.append(new)
            found, rest = read(formats[tried], rest, self._wanted, zone=self._zone)
            read_rows.append(found)
            tried += 1
        if not formats:
            problem, expected = "no known format fits its lines", "give the format of the server: --format"
            raise LogError("log", rows["line"][0][:_SHOWN], problem=problem, expected=expected)
        return pl.concat(read_rows).sort("row") if len(read_rows) > 1 else read_rows[0]

    def _note(self, path: str, number: int, line: str) -> None:
        self._unread += 1
        shown = line[:_SHOWN]
        shown = shown if shown.isprintable() else ascii(shown)[1:-1]
        if self._strict:
            raise LineError(path, number, shown)
        if len(self._examples) < EXAMPLES:
            self._examples.append((path, number, shown))


def _rows(chunk: bytes) -> pl.DataFrame:
    """Return the lines of a chunk with their numbers, without empty ones."""
    lines = pl.Series([chunk.decode("utf-8", "replace")]).str.split("\n").explode()
    rows = lines.to_frame("line").with_row_index("row", 0)
    return rows.filter(pl.col("line").str.strip_chars_end("\r") != "").with_columns(
        pl.col("line").str.strip_chars_end("\r")
    )
