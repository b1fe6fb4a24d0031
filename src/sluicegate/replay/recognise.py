"""Recognition of the format of lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from zoneinfo import ZoneInfo

from sluicegate.extras import needs
from sluicegate.replay.formats import KNOWN, Format, named
from sluicegate.replay.lines import read

with needs("replay"):
    import polars as pl

SAMPLE: Final = 1000
"""Lines by which a format is recognised."""


def recognised(rows: pl.DataFrame, fields: Mapping[str, str], *, zone: ZoneInfo) -> Format | None:
    """Return the format that reads most of the lines; None if none reads any. Equal ones: the first, which is the more
    special.
    """
    sample = rows.head(SAMPLE)
    found, most = None, 0
    for each in (*KNOWN, named(fields)):
        count = len(read(each, sample, ["time"], zone=zone).frame)
        if count > most:
            found, most = each, count
    return found
