"""Recognition of the format of lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from zoneinfo import ZoneInfo

from sluicegate.errors import LogError
from sluicegate.extras import needs
from sluicegate.replay.formats import Format
from sluicegate.replay.known import KNOWN, UVICORN_WITHOUT_TIME, csv_lines, json_lines, named, w3c
from sluicegate.replay.lines import read
from sluicegate.replay.words import shape

with needs("replay"):
    import polars as pl

SAMPLE: Final = 1000
"""Lines by which a format is recognised."""
_NAMES: Final = "#Fields:"


def recognised(rows: pl.DataFrame, fields: Mapping[str, str], *, zone: ZoneInfo) -> Format | None:
    """Return the format that reads most of the lines; None if none reads any. Of formats that read equally many, the
    first is the most special. Raises LogError for lines that have no time.
    """
    sample = rows.head(SAMPLE)
    found, most = None, 0
    for each in _candidates(sample["line"], fields):
        count = len(read(each, sample, (), zone=zone).frame)
        if count > most:
            found, most = each, count
    if found is None and UVICORN_WITHOUT_TIME.texts(sample["line"], ["status"])["status"].is_not_null().any():
        problem = "the lines of uvicorn have no time"
        expected = 'log with a time: set the formatter of uvicorn.access to "%(asctime)s %(levelprefix)s …"'
        raise LogError("log", shape(sample["line"][0][:200]), problem=problem, expected=expected)
    return found


def _candidates(lines: pl.Series, fields: Mapping[str, str]) -> Iterator[Format]:
    names = lines.filter(lines.str.starts_with(_NAMES))
    if len(names):
        is_tabbed = lines.filter(~lines.str.starts_with("#")).str.contains("\t", literal=True).any()
        name, separator = ("cloudfront", "\t") if is_tabbed else ("w3c", " ")
        yield w3c(names[0].removeprefix(_NAMES), separator=separator, name=name)
    if not fields:
        yield from KNOWN
    yield json_lines(fields)
    if (found := csv_lines(lines[0], fields)) is not None:
        yield found
    if fields:
        yield from [named(each, fields) for each in KNOWN]
