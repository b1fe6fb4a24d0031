"""Lines into traffic: texts of a format into the columns of traffic."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes
from zoneinfo import ZoneInfo

from sluicegate.extras import needs
from sluicegate.replay.formats import Format
from sluicegate.replay.traffic import COLUMNS

with needs("replay"):
    import polars as pl

SECOND: Final = 1_000_000

MADE_OF: Final = {
    "time": ("end", "duration"),
    "method": ("request",),
    "host": ("request", "target"),
    "path": ("target", "request"),
    "query": ("target", "request"),
}
"""For a column that a format does not have, those that it is made of."""

_REQUEST: Final = r"^([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ ]+)(?: HTTP/[0-9.]+)?$"


def needed(format: Format, wanted: Collection[str]) -> list[str]:  # noqa: A002
    """Return the columns that are wanted of a format, or that these are made of."""
    found: dict[str, None] = {}
    for column in ("time", *wanted):
        if format.kind(column) is not None:
            found[column] = None
        found.update(dict.fromkeys(part for part in MADE_OF.get(column, ()) if format.kind(part) is not None))
    return list(found)


def has(format: Format, column: str) -> bool:  # noqa: A002
    """Return True if lines of the format have this column, or what it is made of."""
    return any(format.kind(each) is not None for each in (column, *MADE_OF.get(column, ())))


class Read(NamedTuple):
    """Traffic, and the rows of the lines that could not be read."""

    frame: pl.DataFrame
    unread: pl.DataFrame


def read(format: Format, rows: pl.DataFrame, wanted: Collection[str], *, zone: ZoneInfo) -> Read:  # noqa: A002
    """Read the rows (`row`, `line`) into the columns that are wanted, and `row`."""
    texts = format.texts(rows["line"], needed(format, wanted)).with_columns(row=rows["row"])
    time = next(name for name in ("time", "end") if name in texts.columns)
    texts = texts.with_columns(_time(pl.col(time), format.kind(time) or "", zone).alias(time))
    is_read = texts[time].is_not_null()
    unread = rows.filter(~is_read)
    if len(unread):
        texts = texts.filter(is_read)
    if "duration" in texts.columns:
        texts = texts.with_columns(_micro(pl.col("duration"), format.kind("duration") or ""))
    if time == "end":
        spent = pl.col("duration").fill_null(0) if "duration" in texts.columns else 0
        texts = texts.with_columns(time=pl.col("end") - spent)
    texts = _with_request(texts)
    columns = [_finished(texts, column, format) for column in dict.fromkeys(["time", *wanted])]
    return Read(texts.select("row", *columns), unread)


def _time(text: pl.Expr, kind: str, zone: ZoneInfo) -> pl.Expr:
    """Return microseconds since 1970. polars parses equal texts once."""
    match kind:
        case "clf":
            return _strptime(text, "%d/%b/%Y:%H:%M:%S %z")
        case "iso":
            return _iso(text, zone)
        case "epoch" | "any":
            number = text.cast(pl.Float64(), strict=False)
            scale = pl.when(number.abs() < 1e11).then(1e6).when(number.abs() < 1e14).then(1e3).otherwise(1.0)
            found = (number * scale).round().cast(pl.Int64(), strict=False)
            if kind == "epoch":
                return found
            return pl.coalesce(found, _iso(text, zone), _time(text, "clf", zone))
    return _micro(text, kind)


def _iso(text: pl.Expr, zone: ZoneInfo) -> pl.Expr:
    text = text.str.replace(",", ".", literal=True).str.replace(" ", "T", literal=True)
    with_zone = _strptime(text.str.replace("Z", "+00:00", literal=True), "%Y-%m-%dT%H:%M:%S%.f%#z")
    local = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False)
    local = local.dt.replace_time_zone(zone.key, ambiguous="earliest", non_existent="null")
    return pl.coalesce(with_zone, local.dt.epoch("us"))


def _strptime(text: pl.Expr, format: str) -> pl.Expr:  # noqa: A002
    return text.str.to_datetime(format, time_unit="us", strict=False).dt.epoch("us")


def _micro(text: pl.Expr, kind: str) -> pl.Expr:
    scale = {"seconds": 1e6, "milliseconds": 1e3, "microseconds": 1.0}[kind]
    return (text.cast(pl.Float64(), strict=False) * scale).round().cast(pl.Int64(), strict=False)


def _with_request(texts: pl.DataFrame) -> pl.DataFrame:
    """Add the method, the target, the path and the query that the request contains."""
    if "request" in texts.columns:
        texts = _split(texts, pl.col("request").str.extract_groups(_REQUEST), ("method", "target"))
    if "target" in texts.columns:
        texts = _split(texts, pl.col("target").str.splitn("?", 2), ("path", "query"))
    return texts


def _split(texts: pl.DataFrame, parts: pl.Expr, names: tuple[str, str]) -> pl.DataFrame:
    """Add columns for two parts of a text. A value that such a column has already stays."""
    texts = texts.with_columns(parts.struct.rename_fields(["_0", "_1"]).alias("_")).unnest("_")
    both = [
        (pl.coalesce(name, f"_{at}") if name in texts.columns else pl.col(f"_{at}")).alias(name)
        for at, name in enumerate(names)
    ]
    return texts.with_columns(both).drop("_0", "_1")


def _finished(texts: pl.DataFrame, column: str, format: Format) -> pl.Series:  # noqa: A002
    """Return a column of traffic."""
    dtype = COLUMNS.get(column, pl.String())
    if column not in texts.columns:
        return pl.Series(column, [None], dtype=dtype).new_from_index(0, len(texts))
    found = texts[column]
    if dtype != pl.String():
        return found.cast(dtype, strict=False)
    found = texts.select(pl.when(~pl.col(column).is_in(["-", ""])).then(pl.col(column)))[column]
    if column == "method":
        return found.str.to_uppercase()
    if format.escape == "backslash":
        found = _rewritten(found, "\\", unescaped)
    if column == "path":
        found = _rewritten(found, "%", decoded)
    return found


def _rewritten(texts: pl.Series, sign: str, function: Callable[[str], str]) -> pl.Series:
    """Apply a function to the texts that contain the sign, once to each different text."""
    has = texts.str.contains(sign, literal=True)
    if not has.any():
        return texts
    different = texts.filter(has).unique()
    return texts.replace(different, pl.Series([function(text) for text in different], dtype=pl.String()))


def unescaped(text: str) -> str:
    r"""Return the text without the escapes of nginx (`\xC3`) and Apache (`\"`, `\\`, `\n`, `\xC3`)."""
    parts = text.encode("utf-8", "surrogateescape").split(b"\\")
    found, at = bytearray(parts[0]), 1
    while at < len(parts):
        part = parts[at]
        if not part:  # two backslashes: the text after them is as it is
            found += b"\\" + (parts[at + 1] if at + 1 < len(parts) else b"")
            at += 2
            continue
        at += 1
        try:
            found += bytes([int(part[1:3], 16)]) + part[3:] if part[:1] == b"x" else _SIGNS[part[:1]] + part[1:]
        except (KeyError, ValueError):
            found += b"\\" + part
    return found.decode("utf-8", "replace")


_SIGNS: Final = {b'"': b'"', b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"b": b"\b", b"f": b"\f"}


def decoded(path: str) -> str:
    """Return a path as servers give it to applications: without %XX, as UTF-8."""
    return unquote_to_bytes(path).decode("utf-8", "replace")
