"""Files of a log as chunks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluicegate.errors import LogError

CHUNK: Final = 16 << 20
LONGEST: Final = 64 << 10
"""Bytes of the longest line that is read."""


def chunks(path: str) -> Iterator[bytes]:
    """Return the bytes of a file, in chunks that end with a line. A longer line than LONGEST is cut just above that."""
    rest = b""
    try:
        with Path(path).open("rb") as file:
            while block := file.read(CHUNK):
                whole, end, last = (rest + block).rpartition(b"\n")
                rest = last if len(last) <= LONGEST else last[: LONGEST + 1]
                if end:
                    yield whole + end
    except OSError as error:
        raise LogError(
            "log", path, problem=error.strerror or str(error), expected="give a file, or - for standard input"
        ) from error
    if rest:
        yield rest
