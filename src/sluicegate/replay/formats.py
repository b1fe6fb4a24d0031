"""Formats of access logs: what a line has, and where."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple, Protocol

from sluicegate.errors import LogError
from sluicegate.extras import needs
from sluicegate.replay.traffic import FIELD, HEADER

with needs("replay"):
    import orjson
    import polars as pl


class Format(Protocol):
    """A format: it cuts lines into texts, each in a column with the kind of its text.

    The columns are those of traffic, and these, which others are made of: `end` (the time of the end of a request),
    `request` (the first line of a request), `target` (its path and query).
    """

    @property
    def name(self) -> str: ...

    @property
    def ignored(self) -> str:
        """What lines begin with that are no requests, such as the names of columns; empty if all are requests."""
        ...

    @property
    def escape(self) -> str:
        """How texts are escaped: "backslash", "json", "percent" or "" (not at all)."""
        ...

    def kind(self, column: str) -> str | None:
        """Return the kind of the text in this column; None if the format has no such column."""
        ...

    def texts(self, lines: pl.Series, columns: Collection[str]) -> pl.DataFrame:
        """Return these columns as text, a row for each line. A line that the format does not fit has nulls only."""
        ...


class Part(NamedTuple):
    """A part of a line that varies."""

    column: str = ""  # empty: skipped
    kind: str = "text"


PATTERNS: Final = {
    "clf": r"[0-9]{1,2}/[A-Za-z]{3}/[0-9]{4}:[0-9:]{8} [+-][0-9]{4}",
    "iso": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]{5,}(?:Z| ?[+-][0-9:]{4,6})?",
    "seconds": r"-|-?[0-9]+(?:\.[0-9]+)?",
    "milliseconds": r"-|-?[0-9]+(?:\.[0-9]+)?",
    "microseconds": r"-|-?[0-9]+",
    "status": r"-|[0-9]{3}",
    "number": r"-|[0-9]+",
}
"""The patterns of kinds whose texts are bounded. They may contain no group that captures."""


@dataclass(frozen=True)
class Layout:
    """Lines of fixed text and parts between, as a `log_format` says."""

    name: str
    parts: tuple[str | Part, ...]
    escape: str = "backslash"
    ignored: str = ""

    def kind(self, column: str) -> str | None:
        return next((part.kind for part in self.parts if isinstance(part, Part) and part.column == column), None)

    def texts(self, lines: pl.Series, columns: Collection[str]) -> pl.DataFrame:
        pattern, captured = self._pattern(frozenset(columns))
        found = lines.to_frame("line").select(pl.col("line").str.extract_groups(pattern)).unnest("line")
        found.columns = list(captured)
        return found

    @cache  # noqa: B019  # formats are few, and live as long as the process
    def _pattern(self, columns: frozenset[str]) -> tuple[str, tuple[str, ...]]:
        """Return the pattern of a line, and the columns that its groups are. Rust matches it in linear time."""
        pattern, captured = "^", []
        for at, part in enumerate(self.parts):
            if isinstance(part, str):
                pattern += re.escape(part)
                continue
            following = self.parts[at + 1] if at + 1 < len(self.parts) else ""
            text = PATTERNS.get(part.kind) or _until(following[0] if isinstance(following, str) else "")
            if part.column in columns and part.column not in captured:
                captured.append(part.column)
                pattern += f"({text})"
            else:
                pattern += f"(?:{text})"
        return f"{pattern}$", tuple(captured)


def _until(sign: str) -> str:
    """Return the pattern of a text that ends before this sign."""
    if sign == '"':
        return r'(?:[^"\\]|\\.)*'
    return f"[^{re.escape(sign)}]*" if sign else ".*"


Path = tuple[str, ...]


@dataclass(frozen=True)
class Json:
    """Lines of JSON, with the places of columns."""

    name: str
    kinds: Mapping[str, str] = field(hash=False)
    places: Mapping[str, Sequence[Path]] = field(hash=False)
    """For a column, the paths where its value may be: the first that is there counts."""
    header: Callable[[str], Sequence[Path]] | None = None
    """Where the value of a header is."""
    escape: str = ""
    ignored: str = ""

    def kind(self, column: str) -> str | None:
        if column in self.places:
            return self.kinds.get(column, "text")
        return "text" if self._paths(column) else None

    def texts(self, lines: pl.Series, columns: Collection[str]) -> pl.DataFrame:
        paths = {column: self._paths(column) for column in columns}
        values: dict[str, list[str | None]] = {column: [] for column in columns}
        for line in lines:
            try:
                loaded = orjson.loads(line)
            except orjson.JSONDecodeError:
                loaded = None
            for column, found in values.items():
                found.append(_first(loaded, paths[column]))
        return pl.DataFrame(values, schema=dict.fromkeys(columns, pl.String()))

    def _paths(self, column: str) -> Sequence[Path]:
        if column in self.places:
            return self.places[column]
        if column.startswith(HEADER):
            return self.header(column.removeprefix(HEADER)) if self.header else ()
        return _paths_of(column.removeprefix(FIELD)) if column.startswith(FIELD) else ()


def _paths_of(name: str) -> Sequence[Path]:
    """Return the places that a name with dots may mean: one name, or a name in an object."""
    return ((name,), tuple(name.split("."))) if "." in name else ((name,),)


def _first(loaded: object, paths: Iterable[Path]) -> str | None:
    """Return the first value that is there, as text."""
    for path in paths:
        value = loaded
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, list):
            value = ", ".join(each for each in value if isinstance(each, str))
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return repr(value)
    return None


NGINX: Final = {
    "remote_addr": Part("address"),
    "remote_user": Part("user"),
    "time_local": Part("end", "clf"),
    "time_iso8601": Part("end", "iso"),
    "msec": Part("end", "seconds"),
    "request": Part("request"),
    "request_method": Part("method"),
    "request_uri": Part("target"),
    "uri": Part("path", "decoded"),
    "document_uri": Part("path", "decoded"),
    "args": Part("query"),
    "query_string": Part("query"),
    "status": Part("status", "status"),
    "body_bytes_sent": Part("bytes", "number"),
    "bytes_sent": Part("bytes", "number"),
    "request_time": Part("duration", "seconds"),
    "host": Part("host"),
    "http_host": Part("host"),
    "server_name": Part("host"),
    "http_user_agent": Part("agent"),
    "http_x_forwarded_for": Part("forwarded"),
}
"""The variables of nginx: https://nginx.org/en/docs/varindex.html."""

_NGINX_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def nginx(given: str, *, name: str = "nginx", escape: str = "backslash") -> Layout:
    """Return the format of an nginx `log_format`."""
    parts: list[str | Part] = []
    pieces = [*_NGINX_VARIABLE.split(given), None, None]
    for literal, braced, bare in zip(*[iter(pieces)] * 3, strict=True):
        parts += [literal] if literal else []
        variable = braced or bare or ""
        if variable.startswith("http_") and variable not in NGINX:
            parts.append(Part(HEADER + variable.removeprefix("http_").replace("_", "-")))
        elif variable:
            parts.append(NGINX.get(variable, Part(FIELD + variable)))
    return Layout(name, tuple(parts), escape)


COMMON: Final = nginx(
    '$remote_addr $logname $remote_user [$time_local] "$request" $status $body_bytes_sent', name="common"
)
COMBINED: Final = nginx(
    '$remote_addr $logname $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer"'
    ' "$http_user_agent"',
    name="combined",
)
CADDY: Final = Json(
    "caddy",
    kinds={"end": "epoch", "duration": "seconds", "status": "status", "bytes": "number"},
    places={
        "end": [("ts",)],
        "address": [("request", "remote_ip"), ("request", "remote_addr")],
        "user": [("user_id",)],
        "method": [("request", "method")],
        "host": [("request", "host")],
        "target": [("request", "uri")],
        "status": [("status",)],
        "bytes": [("size",)],
        "duration": [("duration",)],
        "agent": [("request", "headers", "User-Agent")],
        "forwarded": [("request", "headers", "X-Forwarded-For")],
    },
    header=lambda header: [("request", "headers", header.title())],
)

KNOWN: Final[tuple[Format, ...]] = (COMBINED, COMMON, CADDY)
"""Formats that are recognised, the more special ones first."""


GUESSES: Final = {
    "time": "time timestamp @timestamp ts datetime date start_time",
    "address": "address remote_addr remote_ip client_ip clientip client.ip ip client source.ip",
    "user": "user remote_user user_id username user.name",
    "method": "method request_method http_method verb http.request.method",
    "host": "host http_host domain server_name",
    "target": "target request_uri uri url path",
    "path": "",
    "query": "query query_string args",
    "request": "request",
    "status": "status status_code response http.response.status_code code",
    "bytes": "bytes body_bytes_sent bytes_sent size",
    "duration": "",
    "agent": "agent user_agent http_user_agent userAgent user_agent.original",
    "forwarded": "forwarded x_forwarded_for http_x_forwarded_for xff",
}


def named(fields: Mapping[str, str]) -> Json:
    """Return the format of JSON lines whose fields have these names, and otherwise usual names."""
    known = {**GUESSES, "end": ""}
    places: dict[str, list[Path]] = {}
    for column, names in known.items():
        paths = [path for name in ([fields[column]] if column in fields else names.split()) for path in _paths_of(name)]
        if paths:
            places[column] = paths
    for column, name in fields.items():
        if column not in known:
            places[column if column.startswith(FIELD) else FIELD + column] = list(_paths_of(name))
    if "end" in fields and "time" not in fields:
        del places["time"]
    if "path" in fields and "target" not in fields:
        places.pop("target", None)
    kinds = {"time": "any", "end": "any", "duration": "seconds", "status": "status", "bytes": "number"}
    return Json("json", kinds=kinds, places=places)


def given(text: str, fields: Mapping[str, str]) -> Format:
    """Return the format that a name or a format string means."""
    if text == "json":
        return named(fields)
    for each in KNOWN:
        if each.name == text:
            return each
    if "$" in text:
        return nginx(text)
    names = ", ".join(["auto", "json", *(each.name for each in KNOWN)])
    problem, expected = "no such format", f"give one of {names}, or the log_format of the server"
    raise LogError("format", text, problem=problem, expected=expected)
