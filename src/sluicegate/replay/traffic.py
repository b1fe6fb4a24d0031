"""Traffic: the columns that the lines of every log format are read into."""

from __future__ import annotations

from typing import Final

from sluicegate.errors import needs

with needs("replay"):
    import polars as pl

COLUMNS: Final = {
    "time": pl.Int64(),
    "address": pl.String(),
    "forwarded": pl.String(),
    "user": pl.String(),
    "method": pl.String(),
    "host": pl.String(),
    "path": pl.String(),
    "query": pl.String(),
    "status": pl.Int16(),
    "bytes": pl.Int64(),
    "duration": pl.Int64(),
    "agent": pl.String(),
}
"""The columns of a frame of traffic, sorted by `time`.

- `time`: microseconds since 1970 in UTC at which the request arrived. A log that has the end and the duration of a
  request gives the difference.
- `address`: the socket's peer. `forwarded`: the header that proxies write, as it was logged.
- `path`: decoded, without the query. `method`: in capitals.
- `duration`: microseconds. `bytes`: of the response. `agent`: the header User-Agent.

A column that no rule and no report needs is not read: then the frame lacks it. A value that the log does not have is
null. Other fields of a log, which keys and costs can name, are in columns named `field:NAME`, as text. A header is
`field:header:name` in small letters.
"""

FIELD: Final = "field:"
HEADER: Final = "field:header:"
