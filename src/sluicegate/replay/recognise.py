"""Recognition of the format of lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from zoneinfo import ZoneInfo

from sluicegate.errors import LogError, needs
from sluicegate.replay.formats import Format
from sluicegate.replay.known import KNOWN, UVICORN_WITHOUT_TIME, csv_lines, json_lines, named, w3c
from sluicegate.replay.lines import read, time_of
from sluicegate.replay.words import shape

with needs("replay"):
    import polars as pl

SAMPLE: Final = 1000
"""Lines by which a format is recognised."""
_NAMES: Final = "#Fields:"


def recognised(
    rows: pl.DataFrame, fields: Mapping[str, str], *, zone: ZoneInfo, before: Format | None = None
) -> Format | None:
    """Return the format that reads most of the lines; None if none reads any. Of formats that read equally many, the
    first is the most special. Raises LogError for lines that have no time.

    `before` is the format of another file. If it reads all lines, only a more special format is preferred to it, and
    only one that reads all lines too: a format that does not fit the first line is not tried.
    """
    sample = rows.head(SAMPLE)

    def count(form: Format) -> int:
        return len(read(form, sample, (), zone=zone).frame)

    found, most, fits_all = None, 0, before is not None and count(before) == len(sample)
    for each in _candidates(sample["line"], fields):
        if fits_all and each == before:
            return before
        if fits_all and each.texts(sample["line"].head(1), [time_of(each)])[time_of(each)].has_nulls():
            continue
        if (number := count(each)) > most:
            found, most = each, number
        if most == len(sample):
            break
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
