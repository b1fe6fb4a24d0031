"""A log: its files, read into traffic in the order of time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from math import inf
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from sluicegate.errors import LineError, LogError, needs
from sluicegate.replay.files import LONGEST, STANDARD_INPUT, LogFile
from sluicegate.replay.formats import Csv, Format, Layout, Part, json_names
from sluicegate.replay.known import KNOWN, given, recognised
from sluicegate.replay.lines import SECOND, UTC, has, read
from sluicegate.replay.order import Late, Stream, merged, sorted_within
from sluicegate.replay.result import Example, File, Unreadable
from sluicegate.replay.traffic import COLUMNS, FIELD
from sluicegate.replay.words import shape

with needs("replay"):
    import polars as pl

EXAMPLES: Final = 5
_SHOWN: Final = 200
_QUOTED: Final = 60  # characters of the field that does not fit
_BEGINNING: Final = 256 << 10  # bytes that are read to know when a file begins
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")


class Counts(NamedTuple):
    """What was read so far."""

    lines: int
    unreadable: Unreadable = Unreadable(0, ())
    late: int = 0
    bytes: int = 0  # as they are in the files, perhaps compressed
    total: int | None = None  # of all files; None if standard input is one
    formats: tuple[File, ...] = ()
    resolution: float = 1  # seconds between two times that the log can tell apart
    missing: tuple[str, ...] = ()  # columns that are wanted and that no line of this log has
    late_at: float | None = None  # the newest time known when time first went back by more than the window
    late_by: float = 0  # seconds: how far it went back at most


class Log:
    """Access logs as traffic. Each iteration over `frames` reads the files again."""

    def __init__(
        self,
        paths: Iterable[str | Path],
        *,
        format: str = "auto",  # noqa: A002
        fields: Mapping[str, str] | None = None,
        zone: ZoneInfo = UTC,
        window: float = 60.0,
        strict: bool = False,
        show_identities: bool = False,
    ) -> None:
        """A line that cannot be read is shown by its shape, because it may have an identity or a secret anywhere;
        with `show_identities` it is shown as it is.
        """
        self._paths = [str(path) for path in paths]
        if self._paths.count(STANDARD_INPUT) > 1:
            expected = "give it once: it can be read once only"
            raise LogError("log", STANDARD_INPUT, problem="standard input is given twice", expected=expected)
        headers = {name: name.lower() for name in fields or () if name.lower().startswith("header:")}
        self._fields = {headers.get(name, name): field for name, field in (fields or {}).items()}
        self._given = tuple(given(format, self._fields))
        self._zone = zone
        self._window = round(window * SECOND)
        self._strict = strict
        self._show = show_identities
        self._start()

    def _start(self) -> None:
        self._files = [LogFile(path) for path in self._paths]
        sure = self._given if len(self._given) == 1 else ()
        self._formats: list[list[Format]] = [[*sure] for _ in self._files]
        self._lines = self._unread = 0
        self._examples: list[Example] = []
        self._grain = SECOND
        self._first = Example("", 0, "")
        self._wanted: tuple[str, ...] = ()
        self._late = Late()

    @property
    def read(self) -> Counts:
        """What was read so far, by the iteration that began last."""
        sizes = [file.size for file in self._files]
        formats = [each for found in self._formats for each in found]
        names = ["+".join(each.name for each in found) for found in self._formats]
        return Counts(
            lines=self._lines,
            unreadable=Unreadable(self._unread, tuple(self._examples)),
            late=self._late.lines,
            late_at=None if self._late.first is None else self._late.first / SECOND,
            late_by=self._late.by / SECOND,
            bytes=sum(file.taken for file in self._files),
            total=None if None in sizes else sum(size for size in sizes if size is not None),
            formats=tuple(File(file.path, name) for file, name in zip(self._files, names, strict=True) if name),
            resolution=self._grain / SECOND,
            missing=tuple(column for column in self._wanted if not any(has(each, column) for each in formats)),
        )

    def frames(self, wanted: Collection[str]) -> Iterator[pl.DataFrame]:
        """Return frames with `time` and the wanted columns, as far as the log has them, sorted by time over all. FIELD
        stands for each field of the first lines.
        """
        self._start()
        self._wanted = tuple(dict.fromkeys(["time", *wanted]))
        return self._all_rows()

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of what the lines have, as far as they are known: those that `fields` of a Log and keys may use."""
        found = [name for each in self._formats for form in each for name in _names(form, self._first.text)]
        return tuple(dict.fromkeys(found))

    def _all_rows(self) -> Iterator[pl.DataFrame]:
        yield from merged([self._stream(at) for at in range(len(self._files))])
        damaged = [file for file in self._files if file.damage]
        if damaged and self._lines == len(damaged):
            expected = "give the whole file, or the lines before the damage without compression"
            raise LogError("log", damaged[0].path, problem=damaged[0].damage, expected=expected)
        if self._unread and self._unread == self._lines:
            name = self._formats[0][0].name if self._formats[0] else "any format"
            raise self._unreadable(f"none of {self._lines:,} lines can be read as {name}")

    def _stream(self, at: int) -> Stream:
        """Return the rows of one file. If there are several, read the beginning of each, for its time."""
        file = self._files[at]
        start = -inf
        if len(self._files) > 1 and file.size is not None:
            for chunk in file.chunks(_BEGINNING):
                found, _ = self._chunk(at, _rows(chunk), ("time",))
                start = min(found["time"].to_list(), default=start) - self._window
                break
        return Stream(start, lambda: sorted_within(self._rows_of(at), self._window, self._late))

    def _rows_of(self, at: int) -> Iterator[pl.DataFrame]:
        file, lines = self._files[at], 0
        for chunk in file.chunks():
            found, unread = self._chunk(at, _rows(chunk, lines + 1), self._wanted)
            for row, line in unread.rows():
                self._note(file.path, row, self._shown(line))
            lines += chunk.count(b"\n")
            self._lines += len(found) + len(unread)
            yield found.drop("row")
        if file.damage:
            self._lines += 1
            self._note(file.path, lines + 1, file.damage)

    def _chunk(self, at: int, rows: pl.DataFrame, wanted: tuple[str, ...]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Read these columns of a chunk. Return the traffic, and the rows that no format fits: another format may."""
        path, formats = self._files[at].path, self._formats[at]
        too_long = rows["line"].str.len_bytes() > LONGEST
        rest, unread = rows.filter(~too_long), rows.filter(too_long)
        if len(rows) and not (self._first.line and formats):
            self._first = Example(path, rows["row"][0], rows["line"][0][:LONGEST])
        parts = []
        tried = 0
        while len(rest):
            if tried == len(formats):
                if len(self._given) == 1:
                    break
                new = recognised(rest, self._fields, among=self._given, path=path, zone=self._zone)
                if new is None or new in formats:
                    break
                formats.append(new)
            wanted = self._named(wanted)
            if ignored := formats[tried].ignored:
                rest = rest.filter(~pl.col("line").str.starts_with(ignored))
            part = read(formats[tried], rest, wanted, zone=self._zone)
            rest = part.unread
            parts.append(part.frame)
            self._grain = min(self._grain, part.grain)
            tried += 1
        if not formats and len(rows):
            raise self._unreadable(
                "no format of it fits the lines" if self._given else "no known format fits its lines"
            )
        wanted = self._named(wanted)
        empty = pl.DataFrame(schema={"row": pl.UInt32(), **{name: COLUMNS.get(name, pl.String()) for name in wanted}})
        found = pl.concat(parts).sort("row") if len(parts) > 1 else parts[0] if parts else empty
        return found, pl.concat([rest, unread]).sort("row") if len(unread) else rest

    def _named(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns, with those that FIELD stands for: from now on the same ones, as all frames have them."""
        if FIELD in wanted:
            known = [f"{FIELD}{name}" for name in self.fields]
            named = [name for name in known if any([has(each, name) for each in chain(*self._formats)])]
            self._wanted = tuple(dict.fromkeys([*[name for name in wanted if name != FIELD], *named]))
            return self._wanted
        return wanted

    def _note(self, path: str, number: int, text: str) -> None:
        self._unread += 1
        if self._strict:
            raise LineError(path, number, text)
        if len(self._examples) < EXAMPLES:
            self._examples.append(Example(path, number, text))

    def _unreadable(self, problem: str) -> LogError:
        """Return the error for a log of which no line can be read: with the first field that does not fit, of the
        format that fits best.
        """
        path, number, line = self._first
        layouts = [each for each in self._given or reversed(KNOWN) if isinstance(each, Layout)]  # simple ones first
        if layouts and not json_names(line):
            near = max([each.misfit(line) for each in layouts], key=lambda each: each.fitting)
            text = self._shown(near.text.lstrip(' "[|'))[:_QUOTED]
            what = f"does not fit: {text!r}" if text else "is missing"
            problem += f"; in line {number}, as {near.format}, {near.field} {what}"
        return LogError("log", path, problem=problem, expected=_expected(line))

    def _shown(self, line: str) -> str:
        """Return the beginning of a line, or its shape, without control characters."""
        beginning = line[:_SHOWN] if self._show else shape(line[:_SHOWN])
        return beginning if beginning.isprintable() else ascii(beginning)[1:-1]


def _names(format: Format, line: str) -> list[str]:  # noqa: A002
    """Return the names of what the lines of a format have. JSON has those of an example."""
    if isinstance(format, Layout):
        columns = [part.column for part in format.parts if isinstance(part, Part) and part.column]
        return [column.removeprefix(FIELD) for column in columns]
    return [*format.names] if isinstance(format, Csv) else json_names(line)


def _expected(line: str) -> str:
    """Return what to give so that a line like this can be read."""
    names = json_names(line)
    if not names:
        return "give --format nginx.conf, or --format with the server's format string, or csv and --field time=NAME"
    return f"give --format json --field time=NAME with the field of the time. The line has {', '.join(names)}"


def _rows(chunk: bytes, first: int = 1) -> pl.DataFrame:
    """Return the lines of a chunk, of which the `first` has this number, with their numbers, without empty ones."""
    text = chunk.decode("utf-8", "replace").removeprefix("\ufeff")
    if "\x1b[" in text:  # the colours of a terminal
        text = _COLOUR.sub("", text)
    if "\n\ufeff" in text:  # files of Windows, one behind the other
        text = text.replace("\n\ufeff", "\n")
    lines = pl.Series([text]).str.split("\n").explode().str.strip_chars_start("\0")  # holes
    if "\r\n" in text:
        lines = lines.str.strip_suffix("\r")
    return lines.to_frame("line").with_row_index("row", first).filter(pl.col("line") != "")
