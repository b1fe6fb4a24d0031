"""`sluicegate demo`, run as a process."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.running import ask
from tests.servers import Server, free_port

SLUICEGATE = [sys.executable, "-c", "from sluicegate.cli import main; main()"]
STATUSES = [200] * 5 + [429] * 2 + [200] * 2 + [429]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SLUICEGATE, *words], capture_output=True, text=True, timeout=60, check=False)


def check_transcript(text: str) -> None:
    lines = [line.split() for line in text.splitlines() if "POST /reply" in line]
    assert [int(line[3]) for line in lines if line[1] == "POST"] == STATUSES
    assert all("RateLimit:" in line for line in lines)
    waits = [int(line[line.index("Retry-After:") + 1]) for line in lines if "429" in line]
    assert len(waits) == 3
    assert all(50 <= wait <= 60 for wait in waits)


def test_once_prints_the_transcript_and_exits() -> None:
    done = run("demo", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    check_transcript(done.stdout)


def test_once_on_a_server(server: Server) -> None:
    done = run("demo", "--once", "--store", server.url)
    assert done.returncode == 0, done.stderr
    check_transcript(done.stdout)


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("demo", "--once", "--port", str(taken.getsockname()[1]))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "(Address already in use); give another one" in done.stderr


def test_without_once_it_runs_until_interrupted() -> None:
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen([*SLUICEGATE, "demo"], stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        address = next(line for line in process.stdout if "keeps running" in line)
        port = int(re.search(r"127\.0\.0\.1:(\d+)", address)[1])  # type: ignore[index]
        assert ask(port, "POST", "/reply", {"X-User": "alice"}).status == 429
        assert ask(port, "POST", "/reply", {"X-User": "you"}).status == 200
        for _ in range(2):
            assert next(line for line in process.stdout if line.strip()).strip().startswith("curl -i -X POST")
        process.send_signal(signal.SIGINT)
        assert not process.stdout.read().strip()
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--store", "redsi://localhost"], 'unknown scheme "redsi"'),
        (["--store", "nothing"], "not a URL"),
        (["--store", f"redis://127.0.0.1:{free_port()}"], "Connection refused"),
    ],
)
def test_an_error_is_one_sentence(words: list[str], says: str) -> None:
    done = run("demo", "--once", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
