"""Formats of access logs: what a line has, and where. A format cuts lines into texts, each in a column with a kind.

The columns are those of traffic, and these, which others are made of: `end` (the time of the end of a request),
`request` (the first line of a request), `target` (its path and query). Each format has these:

- `name`, in reports and on the command line.
- `ignored`: what lines begin with that are no requests, such as the names of columns; empty if all are requests.
- `escape`: how texts are escaped, a key of `lines.ESCAPES`; empty if they are not.
- `kind(column)`: the kind of the text in this column; None if the format has no such column.
- `texts(lines, columns)`: these columns as text, a row for each line. A line that does not fit has nulls only.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final, NamedTuple

from sluicegate.errors import needs
from sluicegate.replay.traffic import COLUMNS, FIELD, HEADER

with needs("replay"):
    import orjson
    import polars as pl


_NAMED: Final = 20  # fields of a line of JSON


class Part(NamedTuple):
    """A part of a line that varies."""

    column: str = ""  # empty: skipped
    kind: str = "text"
    written: str = ""  # what the server calls it


PATTERNS: Final = {
    "clf": r"[0-9]{1,2}/[A-Za-z]{3}/[0-9]{4}:[0-9:]{8} [+-][0-9]{4}",
    "haproxy": r"[0-9]{1,2}/[A-Za-z]{3}/[0-9]{4}:[0-9:.]{8,15}",
    "iso": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]{5,}(?:Z| ?[+-][0-9:]{4,6})?",
    "w3c": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[\t ][0-9:]{8}",
    # The signs of an address, a name of a host, and the path of a unix socket.
    "address": r"[\w.:%/-]*|\[[0-9A-Fa-f:.]*\]",
    "address:port": r"[\w.:%/\[\]-]*",
    "seconds": r"-|[+-]?[0-9]+(?:\.[0-9]+)?",
    "milliseconds": r"-|[+-]?[0-9]+(?:\.[0-9]+)?",
    "microseconds": r"-|[+-]?[0-9]+",
    "nanoseconds": r"-|[+-]?[0-9]+",
    "status": r"-1?|[0-9]{1,3}",
    "number": r"-|\+?[0-9]+",
    # The prefix that syslog, journald or a logger of Python writes: up to a process number, or to a colon or dash.
    "prefix": r"(?:[^\"]*?[\])a-z]: )?",
    "words": r"[^\"]*?",
    "opening": r"\[?",
    "captured": r"(?:\{[^}]*\} ?)?",
    "rest": r".*",
    "more": r"(?: .*)?",
}
"""The patterns of kinds whose texts are bounded. They may contain no group that captures."""

CAPTURED: Final = (f"{FIELD}hr", f"{FIELD}hs")
"""The headers of the request and of the response that HAProxy captures."""


class Misfit(NamedTuple):
    """Where a line and a format part."""

    fitting: int  # fields
    format: str
    field: str  # the first that does not fit
    text: str  # the line from this field on


@dataclass(frozen=True)
class Layout:
    """Lines of fixed text and parts between, as a `log_format` says."""

    name: str
    parts: tuple[str | Part, ...]
    escape: str = "backslash"
    ignored: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    """For a column that the user named, the one that has its text."""

    def kind(self, column: str) -> str | None:
        source, _ = self._source(column)
        return next((part.kind for part in self.parts if isinstance(part, Part) and part.column == source), None)

    def named(self, fields: Mapping[str, str]) -> Layout:
        """Return the format with columns as the user names them, of those fields that it has."""
        names = {name if name in COLUMNS else FIELD + name: FIELD + field for name, field in fields.items()}
        known = [(name, field) for name, field in names.items() if self.kind(field) is not None]
        return replace(self, aliases=tuple(known)) if known else self

    def _source(self, column: str) -> tuple[str, int | None]:
        """Return the column that has the text of a column, and which of the captured headers it is."""
        source = dict(self.aliases).get(column, column)
        name, _, number = source.rpartition(".")
        return (name, int(number)) if name in CAPTURED and number.isdecimal() else (source, None)

    def texts(self, lines: pl.Series, columns: Collection[str]) -> pl.DataFrame:
        sources = {column: self._source(column) for column in columns}
        if all([source == (column, None) for column, source in sources.items()]):
            return self._texts(lines, columns)
        found = self._texts(lines, {name for name, _ in sources.values()})
        return found.select([_header(*source).alias(column) for column, source in sources.items()])

    def _texts(self, lines: pl.Series, columns: Collection[str]) -> pl.DataFrame:
        found = self._matched(lines, columns, is_lax=False)
        missed = found[:, 0].is_null() if len(found.columns) else None
        if missed is None or not missed.any():
            return found
        # A text that has no quotes around it may contain the sign that ends it: a user of two words.
        again = self._matched(lines.filter(missed), columns, is_lax=True)
        if again[:, 0].is_null().all():
            return found
        rows = pl.Series("row", range(len(lines)), dtype=pl.UInt32())
        both = [found.with_columns(rows).filter(~missed), again.with_columns(rows.filter(missed))]
        return pl.concat(both).sort("row").drop("row")

    def misfit(self, line: str) -> Misfit:
        """Return where a line that cannot be read does not fit. A field fits if the sign that ends it follows."""
        pattern, end, fitting, time = "^", 0, 0, ("", "")
        for at, part in enumerate(self.parts):
            pattern += f"(?:{_text(self.parts, at, is_lax=False)})"
            if isinstance(part, Part):
                here = part.written or part.column.removeprefix(FIELD), line[end:]
                following = self.parts[at + 1] if at + 1 < len(self.parts) else None
                sign = re.escape(following[0]) if isinstance(following, str) else "" if following else "$"
                found = pl.Series([line]).str.extract(f"({pattern}{sign})")[0]
                if found is None:
                    return Misfit(fitting, self.name, *here)
                end, fitting, time = len(found), fitting + 1, here if part.column in ("time", "end") else time
        more = ("what follows the last field", line[end:])
        return Misfit(fitting, self.name, *(more if end < len(line) else time))

    def _matched(self, lines: pl.Series, columns: Collection[str], *, is_lax: bool) -> pl.DataFrame:
        pattern, captured = _pattern(self.parts, frozenset(columns), is_lax)
        found = lines.to_frame("line").select(pl.col("line").str.extract_groups(pattern)).unnest("line")
        found.columns = list(captured)
        return found


def _header(column: str, number: int | None) -> pl.Expr:
    """Return a column, or one of the headers that HAProxy wrote as `{first|second} `."""
    if number is None:
        return pl.col(column)
    return pl.col(column).str.strip_chars("{} ").str.split("|").list.get(number, null_on_oob=True)


@cache
def _pattern(parts: tuple[str | Part, ...], columns: frozenset[str], is_lax: bool) -> tuple[str, tuple[str, ...]]:
    """Return the pattern of a line, and the columns that its groups are. Rust matches it in linear time."""
    pattern, captured = "^", list[str]()
    for at, part in enumerate(parts):
        if isinstance(part, str):
            pattern += re.escape(part)
            continue
        text = _text(parts, at, is_lax=is_lax)
        is_wanted = part.column in columns and part.column not in captured
        if is_wanted:
            captured.append(part.column)
        pattern += f"({text})" if is_wanted else f"(?:{text})"
    return f"{pattern}$", tuple(captured)


def _text(parts: tuple[str | Part, ...], at: int, *, is_lax: bool) -> str:
    """Return the pattern of one part, which depends on the sign that follows it."""
    part, following = parts[at], parts[at + 1] if at + 1 < len(parts) else ""
    if isinstance(part, str):
        return re.escape(part)
    return _fixed(part.kind) or _until(following[:1] if isinstance(following, str) else "", is_lax=is_lax)


def _fixed(kind: str) -> str:
    """Return the pattern of a kind whose texts are bounded; empty if those of the kind are not."""
    kind, _, form = kind.partition(":") if kind.startswith("strftime") else (kind, "", "")
    return " ".join(r'[^\s"\]|]+' for _ in form.split(" ")) if form else PATTERNS.get(kind, "")


def _until(sign: str, *, is_lax: bool) -> str:
    """Return the pattern of a text that ends before this sign."""
    if sign == '"':  # gunicorn escapes a quote and no backslash: a text may end with one
        return r'(?:[^"\\]|\\.)*' + (r"\\?" if is_lax else "")
    if is_lax:
        return ".*?"
    return f"[^{re.escape(sign)}]*" if sign else ".*"


Path = tuple[str, ...]

KINDS: Final = {"time": "any", "end": "any", "duration": "seconds", "status": "status", "bytes": "number"}
"""The usual kinds of columns in JSON and CSV; others are text."""


@dataclass(frozen=True)
class Json:
    """Lines of JSON, with the places of columns."""

    name: str
    places: Mapping[str, Sequence[Path]] = field(hash=False)
    """For a column, the paths where its value may be: the first that is there counts."""
    kinds: Mapping[str, str] = field(hash=False, default_factory=lambda: KINDS)
    header: Callable[[str], Sequence[Path]] | None = None
    """Where the value of a header is."""
    marker: Path = ()
    """A value that every line has, by which the format is told from others."""
    escape: str = ""
    ignored: str = ""

    def kind(self, column: str) -> str | None:
        if column in self.places:
            return self.kinds.get(column, "text")
        return "text" if self._paths(column) else None

    def texts(self, lines: pl.Series, columns: Collection[str]) -> pl.DataFrame:
        paths = {column: self._paths(column) for column in columns}
        values: dict[str, list[str | None]] = {column: [] for column in paths}
        for line in lines:
            loaded = self.load(line)
            if self.marker and _first(loaded, (self.marker,)) is None:
                loaded = None
            for column, found in values.items():
                found.append(_first(loaded, paths[column]))
        return pl.DataFrame(values, schema=dict.fromkeys(paths, pl.String()))

    def load(self, line: str) -> object:
        """Return the value that a line is; None if it is none."""
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            return None

    def _paths(self, column: str) -> Sequence[Path]:
        if column in self.places:
            return self.places[column]
        if column.startswith(HEADER):
            return self.header(column.removeprefix(HEADER)) if self.header else ()
        return paths_of(column.removeprefix(FIELD)) if column.startswith(FIELD) else ()


def json_names(line: str) -> list[str]:
    """Return the names of the first fields of a line of JSON, with dots between levels; nothing if it is none."""
    try:
        loaded = orjson.loads(line)
    except orjson.JSONDecodeError:
        return []
    found: list[str] = []
    for name, value in loaded.items() if isinstance(loaded, dict) else ():
        found += [f"{name}.{inner}" for inner in value] if isinstance(value, dict) and value else [name]
    return found[:_NAMED]


EACH: Final = "*"
"""In a path: all elements of a list, joined."""


def paths_of(name: str) -> Sequence[Path]:
    """Return the places that a name with dots may mean: one name, or a name in an object."""
    return ((name,), tuple(name.split("."))) if "." in name else ((name,),)


def _first(loaded: object, paths: Iterable[Path]) -> str | None:
    """Return the first value that is there, as text."""
    for path in paths:
        value = loaded
        try:
            for name in path:
                value = value[name] if type(value) is dict else _element(value, name)
        except (KeyError, IndexError):
            continue
        if type(value) is str:
            return value
        if isinstance(value, (int, float)):
            return orjson.dumps(value).decode()
    return None


def _element(value: object, name: str) -> object:
    """Return an element of a list, or all of them. Raises IndexError if there is none."""
    if isinstance(value, list):
        if name == EACH:
            return ", ".join(map(str, value))
        if name.isdecimal():
            return value[int(name)]
    raise IndexError


@dataclass(frozen=True)
class Csv(Json):
    """Lines of comma-separated values, under a first line with the names of the columns: each is like a flat object."""

    delimiter: str = ","
    names: tuple[str, ...] = ()

    def load(self, line: str) -> object:
        cells = cells_of(line, self.delimiter)
        if len(cells) != len(self.names):
            return None
        return dict(zip(reversed(self.names), reversed(cells), strict=True))  # of equal names the first holds

    def _paths(self, column: str) -> Sequence[Path]:
        name = column.removeprefix(FIELD)
        return ((name,),) if column != name and name in self.names else self.places.get(column, ())


def cells_of(line: str, delimiter: str) -> list[str]:
    """Return the values of one line; none if its quotes are wrong."""
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


Format = Layout | Json
