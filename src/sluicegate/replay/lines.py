"""Lines into traffic: texts of a format into the columns of traffic."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple
from urllib.parse import unquote, unquote_to_bytes
from zoneinfo import ZoneInfo

from sluicegate.errors import needs
from sluicegate.replay.formats import Format
from sluicegate.replay.traffic import COLUMNS, HEADER

with needs("replay"):
    import orjson
    import polars as pl

SECOND: Final = 1_000_000

_LAST: Final = 253_402_300_800 * SECOND
"""The first moment of the year 10000. A time after it, or before 1970, is no time."""

_YEAR: Final = 366 * 86_400 * SECOND
"""A request that took longer has no duration, and neither has one that ended before it began."""

_GRAINS: Final = (SECOND, 1000)
"""The usual distances between two times that a log can tell apart, before a microsecond."""

_SAME: Final = {f"{HEADER}user-agent": "agent", f"{HEADER}x-forwarded-for": "forwarded", f"{HEADER}host": "host"}
"""Headers that have a column of their own."""

MADE_OF: Final = {
    "time": ("end", "duration"),
    "method": ("request",),
    "host": ("request", "target"),
    "path": ("target", "request"),
    "query": ("target", "request"),
}
"""For a column that a format does not have, those that it is made of."""

_ABSOLUTE: Final = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?([^/?#]*)(.*)$"
_METHOD: Final = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
_REQUEST: Final = r"^([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ ]+)(?: HTTP/[0-9.]+)?$"


def needed(format: Format, wanted: Collection[str]) -> list[str]:  # noqa: A002
    """Return the columns that are wanted of a format, or that these are made of."""
    found: dict[str, None] = {}
    for column in ("time", *wanted):
        of = (_SAME.get(column, column), *MADE_OF.get(_SAME.get(column, column), ()))
        found.update(dict.fromkeys(each for each in of if format.kind(each) is not None))
    return list(found)


def has(format: Format, column: str) -> bool:  # noqa: A002
    """Return True if lines of the format have this column, or what it is made of."""
    return column in {"time", *needed(format, ())} or len(needed(format, [column])) > len(needed(format, ()))


def time_of(format: Format) -> str:  # noqa: A002
    """Return the column that the time of a line comes from."""
    return "time" if format.kind("time") else "end"


class Read(NamedTuple):
    """Traffic, and the rows of the lines that could not be read."""

    frame: pl.DataFrame
    unread: pl.DataFrame
    grain: int = SECOND
    """Microseconds between two times that the log can tell apart, as far as these show."""


def read(format: Format, rows: pl.DataFrame, wanted: Collection[str], *, zone: ZoneInfo) -> Read:  # noqa: A002
    """Read the rows (`row`, `line`) into the columns that are wanted, and `row`."""
    texts = format.texts(rows["line"], needed(format, wanted)).with_columns(row=rows["row"])
    name = time_of(format)
    texts = texts.with_columns(_within(_times(texts[name], format.kind(name) or "", zone), _LAST))
    is_read = texts[name].is_not_null()
    unread = rows.filter(~is_read)
    if len(unread):
        texts = texts.filter(is_read)
    grain = next((each for each in _GRAINS if not (texts[name] % each != 0).any()), 1)
    if "duration" in texts.columns:
        spent = texts.select(_micro(pl.col("duration"), format.kind("duration") or ""))["duration"]
        texts = texts.with_columns(_within(spent, _YEAR))
    if name == "end":
        # In whole units of the log: the order of lines says more about equal times than durations do.
        taken = pl.col("duration").fill_null(0) // grain * grain if "duration" in texts.columns else 0
        texts = texts.with_columns(time=(pl.col("end") - taken).clip(0))
    if "method" in texts.columns:
        texts = _without_broken(texts)
    texts = _with_request(texts)
    columns = [_finished(texts, column, format) for column in dict.fromkeys(["time", *wanted])]
    return Read(texts.select("row", *columns), unread, grain)


def _times(texts: pl.Series, kind: str, zone: ZoneInfo) -> pl.Series:
    """Return microseconds since 1970."""
    frame, text = texts.to_frame(), pl.col(texts.name)
    if kind != "any":
        return frame.select(_time(text, kind, zone))[texts.name]
    found = frame.select(_number(text))[texts.name]
    if found.null_count():
        found = frame.select(pl.coalesce(found, _iso(text, zone), _time(text, "clf", zone)).alias("_"))["_"]
    return found.alias(texts.name)


def _within(numbers: pl.Series, end: int) -> pl.Series:
    """Return the numbers from 0 to below the end; null instead of all others."""
    return numbers.set((numbers < 0) | (numbers >= end), None)


def _number(text: pl.Expr) -> pl.Expr:
    """Return the time of a number of seconds, milliseconds, microseconds or nanoseconds, by how large it is."""
    number = text.cast(pl.Float64(), strict=False)
    scale = pl.when(number < 1e11).then(1e6).when(number < 1e14).then(1e3).when(number < 1e17).then(1.0)
    return (number * scale.otherwise(1e-3)).round().cast(pl.Int64(), strict=False)


def _time(text: pl.Expr, kind: str, zone: ZoneInfo) -> pl.Expr:
    """Return the time of a text of this kind. polars parses equal texts once."""
    match kind.partition(":"):
        case "clf", _, _:
            return _strptime(text, "%d/%b/%Y:%H:%M:%S %z")
        case "haproxy", _, _:
            return _local(text, "%d/%b/%Y:%H:%M:%S%.f", zone)
        case "iso", _, _:
            return _iso(text, zone)
        case "w3c", _, _:
            return _local(text.str.replace("\t", " ", literal=True), "%Y-%m-%d %H:%M:%S", UTC)
        case "strftime", _, form:
            return _strptime(text, form) if "%z" in form else _local(text, form, zone)
    return _micro(text, kind)


UTC: Final = ZoneInfo("UTC")


def _iso(text: pl.Expr, zone: ZoneInfo) -> pl.Expr:
    """Return the time of a text like 2026-03-01T12:00:00.5Z. Without a zone, it is in the one that is given."""
    text = text.str.replace(",", ".", literal=True).str.replace(r"^(\d{4}-\d\d-\d\d) ", "${1}T")
    text = text.str.replace(r" ?(?:Z|UTC)$", "+00:00").str.replace(" ", "", literal=True)
    return pl.coalesce(
        _strptime(text, "%Y-%m-%dT%H:%M:%S%.f%:z"),
        _strptime(text, "%Y-%m-%dT%H:%M:%S%.f%#z"),
        _local(text, "%Y-%m-%dT%H:%M:%S%.f", zone),
    )


def _strptime(text: pl.Expr, form: str) -> pl.Expr:
    return text.str.to_datetime(form, time_unit="us", time_zone="UTC", strict=False).dt.epoch("us")


def _local(text: pl.Expr, form: str, zone: ZoneInfo) -> pl.Expr:
    """Return the time of a text without a zone. An hour that there is twice a year is the first one."""
    found = text.str.to_datetime(form, time_unit="us", strict=False)
    return found.dt.replace_time_zone(zone.key, ambiguous="earliest", non_existent="null").dt.epoch("us")


_SCALES: Final = {"seconds": 1e6, "milliseconds": 1e3, "microseconds": 1.0, "nanoseconds": 1e-3}


def _micro(text: pl.Expr, kind: str) -> pl.Expr:
    """Return microseconds. Google writes seconds as 0.5s."""
    number = text.str.strip_suffix("s").cast(pl.Float64(), strict=False)
    number = pl.when(number.is_finite()).then(number)
    return (number * _SCALES[kind]).round().cast(pl.Int64(), strict=False)


def _without_broken(texts: pl.DataFrame) -> pl.DataFrame:
    """Remove what a broken request seems to ask for: its method is no word."""
    is_broken = ~texts["method"].str.contains(_METHOD)
    if not is_broken.any():
        return texts
    parts = [name for name in ("method", "target", "path", "query") if name in texts.columns]
    return texts.with_columns(pl.when(~is_broken).then(pl.col(name)).alias(name) for name in parts)


def _with_request(texts: pl.DataFrame) -> pl.DataFrame:
    """Add the method, the target, the path and the query that the request contains."""
    if "request" in texts.columns:
        texts = _split(texts, pl.col("request").str.extract_groups(_REQUEST), ("method", "target"))
    if "target" in texts.columns:
        if (~texts["target"].str.starts_with("/")).any():  # the absolute form: http://host/path
            texts = _split(texts, pl.col("target").str.extract_groups(_ABSOLUTE), ("host", "_path"))
            path = pl.when(pl.col("_path") == "").then(pl.lit("/")).otherwise(pl.col("_path"))
            texts = texts.with_columns(target=pl.coalesce(path, "target")).drop("_path")
        texts = _split(texts, pl.col("target").str.splitn("?", 2), ("path", "query"))
    return texts


def _split(texts: pl.DataFrame, parts: pl.Expr, names: tuple[str, str]) -> pl.DataFrame:
    """Add columns for two parts of a text. A value that such a column has already stays."""
    texts = texts.with_columns(parts.struct.rename_fields(["_0", "_1"]).alias("_")).unnest("_")
    both = [
        (pl.coalesce(_present(name), f"_{at}") if name in texts.columns else pl.col(f"_{at}")).alias(name)
        for at, name in enumerate(names)
    ]
    return texts.with_columns(both).drop("_0", "_1")


def _present(column: str) -> pl.Expr:
    """Return the texts of a column. A dash, or nothing, is no text."""
    return pl.when(~pl.col(column).is_in(["-", ""])).then(pl.col(column))


def _finished(texts: pl.DataFrame, wanted: str, format: Format) -> pl.Series:  # noqa: A002
    """Return a column of traffic."""
    column, dtype = _SAME.get(wanted, wanted), COLUMNS.get(wanted, pl.String())
    if column not in texts.columns:
        return pl.Series(wanted, [None], dtype=dtype).new_from_index(0, len(texts))
    kind = format.kind(column)
    if column in {"bytes", "status"}:
        return texts[column].str.strip_prefix("+").cast(dtype, strict=False)
    if dtype != pl.String():
        return texts[column]
    # A server writes a dash for nothing. Behind the question mark of a target, a dash is what the client sent.
    text = pl.col(column) if column == "query" and kind is None else _present(column)
    text = text.str.strip_prefix("?") if kind == "?" else text
    found = texts.select(pl.when(text != "").then(text).alias(wanted))[wanted]
    if column == "method":
        return found.str.to_uppercase()
    if column == "address":
        return _address(found, kind or "")
    if format.escape and not (column == "path" and format.escape == "percent"):
        found = _rewritten(found, *ESCAPES[format.escape])
    if column == "path" and kind == "wsgi":
        return _rewritten(found, r"[^\x00-\x7F]", from_wsgi)
    if column == "path" and kind != "decoded":
        found = _rewritten(found, "%", decoded)
    return found


def _address(texts: pl.Series, kind: str) -> pl.Series:
    """Return addresses without ports. A unix socket has no address."""
    if kind == "address:port":
        texts = texts.str.replace(r":[0-9]+$", "")
    elif kind == "text":
        texts = texts.str.replace(r"^([0-9.]+|\[.*\]):[0-9]+$", "${1}")
    if kind != "address" or texts.str.starts_with("[").any():
        texts = texts.str.strip_chars("[]")
    return texts.set(texts.is_in(["unix:", "unix"]), None) if texts.str.starts_with("unix").any() else texts


def _rewritten(texts: pl.Series, pattern: str, function: Callable[[str], str]) -> pl.Series:
    """Apply a function to the texts in which the pattern is, once to each different text."""
    is_meant = texts.str.contains(pattern)
    if not is_meant.any():
        return texts
    different = texts.filter(is_meant).unique()
    return texts.replace(different, pl.Series([function(text) for text in different], dtype=pl.String()))


def unescaped(text: str) -> str:
    r"""Return the text without the escapes of nginx (`\xC3`) and Apache (`\"`, `\\`, `\n`, `\xC3`)."""
    first, *parts = text.encode("utf-8", "replace").split(b"\\")
    found = [first]
    rest = iter(parts)
    for part in rest:
        if not part:  # two backslashes: the text after them is as it is
            found.append(b"\\" + next(rest, b""))
        elif part[:1] == b"x":
            found.append(_byte(part[1:3], b"\\x" + part[1:3]) + part[3:])
        else:
            found.append(_SIGNS.get(part[:1], b"\\" + part[:1]) + part[1:])
    return b"".join(found).decode("utf-8", "replace")


_SIGNS: Final = {b'"': b'"', b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"b": b"\b", b"f": b"\f"}


def without_hashes(text: str) -> str:
    """Return the text without the escapes of HAProxy (`#22`)."""
    first, *parts = text.encode("utf-8", "replace").split(b"#")
    found = [_byte(part[:2], b"#" + part[:2]) + part[2:] for part in parts]
    return b"".join([first, *found]).decode("utf-8", "replace")


def _byte(digits: bytes, otherwise: bytes) -> bytes:
    """Return the byte of two hexadecimal digits."""
    try:
        return bytes.fromhex(digits.decode("ascii")) or otherwise
    except ValueError:
        return otherwise


def from_json(text: str) -> str:
    """Return the text of a string of JSON without its quotes."""
    try:
        return str(orjson.loads(f'"{text}"'))
    except orjson.JSONDecodeError:
        return text


ESCAPES: Final[dict[str, tuple[str, Callable[[str], str]]]] = {
    "backslash": (r"\\", unescaped),
    "json": (r"\\", from_json),
    "hash": ("#", without_hashes),
    "percent": ("%", unquote),
    "plus": (r"\+", lambda text: text.replace("+", " ")),
}
"""For an escape, the pattern of its sign, and the function that undoes it."""


def decoded(path: str) -> str:
    """Return a path as servers give it to applications: without %XX, as UTF-8."""
    return unquote_to_bytes(path).decode("utf-8", "replace")


def from_wsgi(path: str) -> str:
    """Return a path of WSGI as adapters see it: PEP 3333 carries UTF-8 as latin-1."""
    return path.encode("latin-1", "replace").decode("utf-8", "replace")
