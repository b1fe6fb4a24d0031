"""`scripts/test --fast`: a test is skipped where it starts a process or a server, and where it is marked as slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STARTS = {
    "subprocess": "import subprocess; subprocess.run(['true'])",
    "a fork": "import os; os._exit(0) if os.fork() == 0 else os.wait()",
    "posix_spawn": "import os; os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    "os.system": "import os; os.system('true')",
    "multiprocessing": "import multiprocessing; multiprocessing.Process(target=print).start()",
    "asyncio": "import asyncio; asyncio.run(asyncio.create_subprocess_exec('true'))",
    "a server": "import socket; socket.create_server(('127.0.0.1', 0))",
    "a server of asyncio": "import asyncio; asyncio.run(asyncio.start_server(print, '127.0.0.1', 0))",
    "a fixture": "request.getfixturevalue('valkey')",
    "nothing": "import asyncio; asyncio.run(asyncio.sleep(0))",
}


def run(tmp_path: Path, body: str, *options: str) -> str:
    (tmp_path / "test_it.py").write_text(body)
    ours = ["-c", "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *ours, *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[-1].partition(" in ")[0]


def test_what_starts_a_process_or_a_server_is_skipped(tmp_path):
    tests = [f"def test_{at}(request):\n    {text}\n" for at, text in enumerate(STARTS.values())]
    assert run(tmp_path, "".join(tests), "--fast") == f"1 passed, {len(STARTS) - 1} skipped"


@pytest.mark.parametrize(("options", "expected"), [(["--fast"], "1 passed, 1 skipped"), ([], "2 passed")])
def test_what_is_slow_is_skipped(tmp_path, options, expected):
    tests = "import pytest\ndef test_quick(): pass\n@pytest.mark.slow\ndef test_slow(): pass\n"
    assert run(tmp_path, tests, *options) == expected


@pytest.mark.parametrize(("rows", "some"), [(4, "0123"), (5, "024"), (9, "036"), (100, "0255075")])
def test_of_a_table_run_a_few_rows_from_all_its_length(tmp_path, rows, some):
    table = f"@pytest.mark.parametrize('row', range({rows}))"
    tests = f"import pytest\n{table}\ndef test_it(row): assert str(row) in {some!r}\n"
    few = len(range(0, rows, -(-rows // 4)))
    rest = f", {rows - few} deselected" if rows > few else ""
    assert run(tmp_path, tests, "--fast") == f"{few} passed{rest}"
