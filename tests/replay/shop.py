"""The traffic of the modelled shop as frames."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import polars as pl

from examples.shop_log import Event, Model, days
from sluicegate.replay.traffic import COLUMNS


def frames(model: Model) -> Iterator[pl.DataFrame]:
    """Yield the traffic of each day: the columns of COLUMNS, and `kind` and `actor`, which are the truth."""
    schema: dict[str, pl.DataType] = {**COLUMNS, "kind": pl.String(), "actor": pl.String()}
    for events in islice(days(model), model.days):
        known = pl.DataFrame(events, schema={name: schema[name] for name in Event._fields}, orient="row")
        fixed = pl.lit("shop.example").alias("host"), pl.lit(None, pl.String()).alias("forwarded")
        yield known.with_columns(fixed).select(*schema)
