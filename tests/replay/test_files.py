"""Files of a log: compressed, in several parts, out of order, damaged, hostile."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from time import gmtime, strftime
from typing import Any, Final

import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.errors import LogError
from sluicegate.replay import order, words
from sluicegate.replay.candidates import from_rules
from sluicegate.replay.files import LONGEST, LogFile
from sluicegate.replay.log import Log
from sluicegate.replay.run import replay

NOON: Final = 1772366400


def line(second: int, address: str = "192.0.2.1", path: str = "/") -> str:
    time = strftime("%d/%b/%Y:%H:%M:%S +0000", gmtime(NOON + second))
    return f'{address} - - [{time}] "GET {path} HTTP/1.1" 200 5\n'


def seconds_of(log: Log) -> list[int]:
    frames = list(log.frames(("path",)))
    return [time // 1_000_000 - NOON for frame in frames for time in frame["time"]]


LINES: Final = "".join(line(second) for second in range(100)).encode()
PACKED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "members": lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:]) + bytes(9_999),
    "frames": lambda data: zstandard.compress(data[:999]) + zstandard.compress(data[999:]),
    "pzstd": lambda data: b"\x50\x2a\x4d\x18" + bytes([4, 0, 0, 0, *b"size"]) + zstandard.compress(data),
}


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("is_input", [False, True], ids=["file", "input"])
def test_compressed_files_are_read(
    packed: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_input: bool
) -> None:
    path, data = tmp_path / "access.log", packed(LINES)
    path.write_bytes(data)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    log = Log(["-" if is_input else path])
    assert seconds_of(log) == list(range(100))
    assert (log.read.lines, log.read.bytes, log.read.unreadable.lines) == (100, len(data), 0)
    assert log.read.total == (None if is_input else len(data))


def test_a_file_that_is_damaged_before_its_first_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(zstandard.compress(LINES)[:20])
    with pytest.raises(LogError, match="the compressed data ends too early; give the whole file"):
        list(Log([path]).frames(()))


@pytest.mark.parametrize(
    ("packed", "name"),
    [(bz2.compress, "bzip2"), (lzma.compress, "xz"), (lambda data: data.decode().encode("utf-16"), "UTF-16")],
)
def test_what_is_no_text_is_named(packed: Callable[[bytes], bytes], name: str, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(packed(LINES))
    with pytest.raises(LogError, match=f"it is {name}; give plain text in UTF-8"):
        list(Log([path]).frames(()))


@pytest.mark.slow
@pytest.mark.parametrize("packed", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize(
    ("change", "reason"), [(lambda data: data[:-9], "ends too early"), (lambda data: data + b"?garbage", "is damaged")]
)
def test_damaged_files_are_read_as_far_as_possible(
    packed: Callable[[bytes], bytes], change: Callable[[bytes], bytes], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "access.log"
    lines = "".join(line(0, path=f"/{random.randbytes(20).hex()}") for _ in range(20_000)).encode()
    path.write_bytes(change(packed(lines)))
    log = Log([path])
    read = len(seconds_of(log))
    assert read > 19_000
    assert reason in log.read.unreadable.examples[-1][2]
    assert (log.read.unreadable.lines, log.read.lines) == (1, read + 1)  # issue 26: a line that was cut is not another


def test_rotated_files_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("access.log", "access.log.1", "access.log.2.gz")]
    paths[0].write_text("".join(line(second) for second in range(2000, 3000)))
    paths[1].write_text("".join(line(second) for second in range(1000, 2010)))
    paths[2].write_bytes(gzip.compress("".join(line(second) for second in range(1000)).encode()))
    log = Log(paths)
    found = seconds_of(log)
    assert found == sorted([*range(2010), *range(2000, 3000)])
    assert (log.read.lines, log.read.late) == (3010, 0)
    assert [name for _, name in log.read.formats] == ["common"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 3])
def test_lines_out_of_order_within_the_window_are_sorted(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogFile.chunks, "__defaults__", (5_000,))
    drawn = random.Random(7)
    moments = sorted((second + drawn.uniform(0, 30), second) for second in range(3000))
    paths = [tmp_path / str(at) for at in range(files)]
    for at, path in enumerate(paths):
        path.write_text("".join(line(second) for _, second in moments[at::files]))
    log = Log(paths, window=30)
    assert seconds_of(log) == list(range(3000))
    assert log.read.late == 0


def as_documented(seconds: Sequence[int], window: int) -> tuple[list[int], int]:
    """What docs/replay-formats.md says of lines at these seconds: the times in order, and how many lines are late."""
    found: list[int] = []
    newest = late = 0
    for before, second in pairwise([0, *seconds]):
        if before - second <= 86_400:
            newest = max(newest, before)
        found.append(newest if second < newest - window else second)
        late += second < newest - window
    return sorted(found), late


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "rows", "most"), [(80, 3, 90), (500, 10, 90), (4 << 20, 100_000, 90), (500, 7, 5)])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_later_lines_are_counted_and_put_at_the_newest_moment(
    tmp_path: Path, data: st.DataObject, chunk: int, rows: int, most: int
) -> None:
    """Issue 26: for every window, wherever a piece of the file ends. Only the most rows that wait are a limit."""
    moves = st.one_of(st.integers(0, 3), st.integers(-50, 50), st.sampled_from([-7200, 7200, 10**8]))
    seconds = [max(0, each) for each in accumulate(data.draw(st.lists(moves, max_size=60)), initial=100_000)]
    window = data.draw(st.sampled_from([0, 10, 60, 3600, 86_400]))
    (tmp_path / "access.log").write_text("".join(map(line, seconds)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogFile.chunks, "__defaults__", (chunk,))
        patch.setattr(order, "_PIECE", rows)
        patch.setattr(order, "_MOST", most)
        log = Log([tmp_path / "access.log"], window=window)
        found = seconds_of(log)
    assert found == sorted(found)
    if most > len(seconds):
        assert (found, log.read.late) == as_documented(seconds, window)
    else:
        assert log.read.late >= as_documented(seconds, window)[1]


@pytest.mark.parametrize(
    ("seconds", "late", "by"),
    [([3600, 0], 1, 3600), ([*range(3600), *range(3600)], 3539, 3599), ([60, 0], 0, 0), ([0, 10**9, 1], 0, 0)],
)
def test_when_time_goes_back_the_reader_is_told(seconds: Sequence[int], late: int, by: int, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("".join(map(line, seconds)))
    found = replay(Log([path]), [from_rules(["5/minute"])], curves=False)
    assert (found.traffic.late, found.traffic.late_by) == (late, by)
    told = [note for note in words.notes(found.traffic) if note.startswith("Time goes back")]
    assert len(told) == bool(late)
    if late:
        assert f"by up to {words.span(by)}, first after {words.moment(NOON + 3600 - (late > 1))} UTC" in told[0]
        assert f"{words.count(late, 'line is', 'lines are')} later than --window, and replayed at the newest" in told[0]


def test_one_wrong_time_in_the_future_makes_no_other_line_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogFile.chunks, "__defaults__", (5_000,))
    path = tmp_path / "access.log"
    path.write_text("".join([*map(line, range(1000)), line(10**9), *map(line, range(1000, 2000))]))
    log = Log([path])
    assert seconds_of(log) == [*range(2000), 10**9]
    assert log.read.late == 0


HOSTILE: Final[dict[str, tuple[bytes, Sequence[int], int]]] = {
    "empty": (b"", [], 0),
    "blank lines": (b"\n\r\n \n" + LINES, [*range(100)], 1),
    "no newline at the end": (LINES[:-1], [*range(100)], 0),
    "CRLF": (LINES.replace(b"\n", b"\r\n"), [*range(100)], 0),
    "BOM": (b"\xef\xbb\xbf" + LINES, [*range(100)], 0),
    "NUL and no UTF-8": (LINES + b"\0\xff\xfe\0\n" + line(100).encode(), [*range(101)], 1),
    "a long line": (LINES + b"x" * (5 << 20) + b"\n" + line(100).encode(), [*range(101)], 1),
    "a long line at the end": (LINES + line(100, path="/" + "x" * (5 << 20)).encode(), [*range(100)], 1),
    "a path as long as a line may be": (line(0, path="/".ljust(LONGEST - 100, "x")).encode(), [0], 0),
    "no address": (LINES + line(100, "<script>alert(1)</script>").encode(), [*range(100)], 1),
    "quotes": (LINES + b'192.0.2.1 - " [" ' + b'"\\' * 1000 + b"\n", [*range(100)], 1),
}


@pytest.mark.parametrize(("data", "expected", "unreadable"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_read(
    data: bytes, expected: Sequence[int], unreadable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogFile.chunks, "__defaults__", (1 << 20,))
    path = tmp_path / "access.log"
    path.write_bytes(data)
    log = Log([path], show_identities=True)
    assert seconds_of(log) == list(expected)
    assert log.read.unreadable.lines == unreadable
    assert log.read.lines == len(expected) + unreadable
    for _, number, text in log.read.unreadable.examples:
        assert text.isprintable()
        assert len(text) <= 2000
        assert data.split(b"\n")[number - 1][:1].decode("latin-1") in {text[:1], "\0"}


@pytest.mark.slow
def test_a_bomb_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "access.log.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(LINES)
        for _ in range(300):
            file.write(bytes(1 << 20))
        file.write(b"\n" + LINES)
    tracemalloc.start()
    try:
        found = sum(len(chunk) for chunk in LogFile(str(path)).chunks())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found < 20 << 20
    assert peak < 120 << 20


@pytest.mark.parametrize("path", ["missing", "."])
def test_a_file_that_cannot_be_read_is_an_error(path: str, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="give a file that can be read"):
        list(Log([tmp_path / path]).frames(()))


def test_standard_input_that_is_closed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(LogError, match="standard input is closed; give a file"):
        list(Log(["-"]).frames(()))


def test_standard_input_is_given_once() -> None:
    with pytest.raises(LogError, match="given twice; give it once"):
        Log(["-", "access.log", "-"])


def test_the_same_log_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(LINES)
    log = Log([path])
    first: Any = pl.concat(list(log.frames(("address",))))
    assert first.equals(pl.concat(list(log.frames(("address",)))))
    assert log.read.lines == 100
