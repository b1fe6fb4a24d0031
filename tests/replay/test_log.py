"""Logs read into traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sluicegate.errors import LineError
from sluicegate.replay.log import Log

MIXED = r"""{"ts":"2026-03-01T12:00:00.5Z", "client":{"ip":"10.0.0.1"}, "path": "/a%20b?x=1", "status": 200, "key":"k1"}
{"ts": "2026-03-01T12:00:01+01:00", "client": {"ip": "10.0.0.1"}, "method": "post", "path": "/", "status": "404"}
garbage
1.2.3.4 - bob [01/Mar/2026:12:00:00 +0100] "GET /caf\xC3\xA9?x=\x22 HTTP/1.1" 200 5

1.2.3.4 - - [01/Mar/2026:12:00:00 +0100] "\x16\x03\x01" 400 5
"""


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_text(MIXED)
    return path


def rows_of(log: Log, *wanted: str) -> list[dict[str, Any]]:
    return pl.concat(list(log.frames(wanted))).to_dicts()


def test_lines_of_several_formats_are_read_in_the_order_of_time(mixed: Path) -> None:
    log = Log([mixed], fields={"address": "client.ip", "time": "ts"}, window=7200, show_identities=True)
    wanted = ("address", "method", "path", "query", "status", "user", "field:key", "duration")
    found = [tuple(row.values()) for row in rows_of(log, *wanted)]
    noon = 1772366400_000000
    assert found == [
        (noon - 3600_000000, "1.2.3.4", "GET", "/café", 'x="', 200, "bob", None, None),
        (noon - 3600_000000, "1.2.3.4", None, None, None, 400, None, None, None),
        (noon - 3599_000000, "10.0.0.1", "POST", "/", None, 404, None, None, None),
        (noon + 500000, "10.0.0.1", None, "/a b", "x=1", 200, None, "k1", None),
    ]
    assert log.read.lines == 5
    assert log.read.unreadable == (1, ((str(mixed), 3, "garbage"),))
    assert log.read.missing == ("duration",)


def test_a_strict_log_stops_at_the_line(mixed: Path) -> None:
    with pytest.raises(LineError, match="line 3") as raised:
        list(Log([mixed], strict=True).frames(()))
    assert (raised.value.file, raised.value.line) == (str(mixed), 3)
