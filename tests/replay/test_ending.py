"""How a replay ends that is not let finish: by a signal, and by the death of a process. Real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from sluicegate.replay.work import Work
from tests.running import PATIENCE, ROOT

LINE = '203.0.113.{} - - [23/Nov/2026:14:{:02}:{:02} +0000] "GET / HTTP/1.1" 200 12 "-" "-"\n'
SCRIPT = """
import os, signal
from sluicegate.cli import main
from sluicegate.replay import partitions, run
from tests.replay.test_ending import Endless
partitions.PIECE, run.Work, os.cpu_count = 100, Endless, lambda: 2
# Tests under nohup, or behind "&" in a script, hand on that these are ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


class Endless(Work):
    """Work that is never done. It says that it began."""

    def count(self, part: object) -> Any:
        os.write(1, b".")
        Event().wait()


@contextmanager
def counting(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A replay of which both processes have begun to count. Its temporary files are below `folder`."""
    log, temporary = folder / "access.log", folder / "temporary"
    log.write_text("".join(LINE.format(each % 200, each // 60, each % 60) for each in range(1000)))
    temporary.mkdir()
    started = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "replay", str(log), "--rule", "1/minute by ip"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert started.stdout is not None
        begun = b""
        while len(begun) < 2:
            assert select.select([started.stdout], [], [], PATIENCE)[0], "no process counts"
            read = os.read(started.stdout.fileno(), 2)
            assert read, started.communicate()[1].decode()
            begun += read
        assert any(temporary.iterdir())
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


@pytest.mark.parametrize(
    ("send", "number", "status"),
    [
        (os.killpg, signal.SIGINT, 130),
        (os.killpg, signal.SIGHUP, 129),
        (os.kill, signal.SIGHUP, 129),
        (os.kill, signal.SIGTERM, 143),
        (os.kill, signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_no_process_outlives_a_replay(send: Any, number: int, status: int, tmp_path: Path) -> None:
    """A terminal sends its signal to all processes. The outputs end when the last process that has them is gone."""
    with counting(tmp_path) as started:
        send(started.pid, number)
        _, errors = started.communicate(timeout=PATIENCE)
    assert started.returncode == status
    if number != signal.SIGKILL:  # then nothing can clean up
        assert errors == b""
        assert not [*(tmp_path / "temporary").iterdir()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_output_that_is_full_is_one_sentence(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(LINE.format(1, 1, 1))
    command = [sys.executable, "-m", "sluicegate", "replay", str(log), "--rule", "1/minute"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "sluicegate: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", ["--help", "suggest absent.log"])
def test_an_output_that_is_closed_is_one_sentence(words: str) -> None:
    command = ["sh", "-c", f'exec "$0" -m sluicegate {words} >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "sluicegate: the output cannot be written: it is closed\n"
