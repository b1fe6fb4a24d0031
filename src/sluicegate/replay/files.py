"""Files of a log as chunks of whole lines: plain, gzip, zstd and standard input, in bounded memory."""

from __future__ import annotations

import errno
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Final

from sluicegate.errors import LogError, needs

with needs("replay"):
    import zstandard

CHUNK: Final = 4 << 20
"""Bytes that are read at one time."""
LONGEST: Final = 64 << 10
"""Bytes of the longest line that is read."""
STANDARD_INPUT: Final = "-"

_SLICE: Final = 1 << 10  # of compressed data: a hostile one becomes 32 MB at most
_BOM: Final = b"\xef\xbb\xbf"

Decompressor = Callable[[], Any]


def _zstd() -> Any:
    return zstandard.ZstdDecompressor().decompressobj()


_BEGINNINGS: Final[dict[bytes, Decompressor | str]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(31),
    b"\x28\xb5\x2f\xfd": _zstd,
    b"\x50\x2a\x4d\x18": _zstd,  # pzstd begins with a frame to skip
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\3\4": "zip",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""What data begins with, and the object that decompresses one member of it, or the name of what cannot be read."""


class LogFile:
    """One file of a log."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.taken = 0
        """Bytes that were read, perhaps compressed."""
        self.damage = ""
        """Why the compressed data could not be read to its end."""

    @property
    def size(self) -> int | None:
        """The bytes of the file; None for standard input and for a pipe."""
        path = Path(self.path)
        return None if self.path == STANDARD_INPUT or not path.is_file() else path.stat().st_size

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        """Return the bytes in chunks of about this size that end with a line. A line over LONGEST is cut there."""
        rest, is_first = b"", True
        with closing(self._pieces(size)) as pieces:
            for piece in pieces:
                block = piece.removeprefix(_BOM) if is_first else piece
                is_first = False
                whole, end, last = (rest + block).rpartition(b"\n")
                rest = last.lstrip(b"\0")[: LONGEST + 1]  # a file that was cut while a server wrote it has a hole
                if end:
                    yield whole + end
        if rest and not self.damage:  # else it is a part of a line
            yield rest

    def _pieces(self, size: int) -> Generator[bytes]:
        """Return the bytes in pieces of about this size, decompressed."""
        try:
            if self.path == STANDARD_INPUT:
                if sys.stdin is None:  # it was closed when the command started
                    raise OSError(errno.EBADF, "standard input is closed")
                yield from self._read(sys.stdin.buffer, size)
            else:
                with Path(self.path).open("rb") as file:
                    yield from self._read(file, size)
        except OSError as error:
            expected = f"give a file that can be read, or {STANDARD_INPUT} for standard input"
            raise LogError("log", self.path, problem=error.strerror or str(error), expected=expected) from error

    def _read(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        self.taken = 0
        block = self._next(file, size)
        made = next((made for start, made in _BEGINNINGS.items() if block.startswith(start)), None)
        if isinstance(made, str):
            expected = "give plain text in UTF-8, which gzip or zstd may have compressed"
            raise LogError("log", self.path, problem=f"it is {made}", expected=expected)
        if made is None:
            while block:
                yield block
                block = self._next(file, size)
            return
        found = bytearray()
        stream = made()
        try:
            while block:
                for at in range(0, len(block), _SLICE):
                    data = block[at : at + _SLICE]
                    while data := data.lstrip(b"\0") if stream.eof else data:
                        if stream.eof:  # members may follow each other, and zeros that fill a block
                            stream = made()
                        found += stream.decompress(data)
                        data = stream.unused_data
                    if len(found) >= size:
                        yield bytes(found)
                        found.clear()
                block = self._next(file, min(size, 1 << 20))
        except (zlib.error, zstandard.ZstdError):
            self.damage = "the compressed data is damaged from here on"
        else:
            self.damage = "" if stream.eof else "the compressed data ends too early"
        if found:
            yield bytes(found)

    def _next(self, file: BinaryIO, size: int) -> bytes:
        block = file.read(size)
        self.taken += len(block)
        return block
