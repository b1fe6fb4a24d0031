"""The runtime matrix: each runtime, with memory and a real server, keeps the same laws.

- Exactly the limit is allowed while nothing fails, and nothing is degraded.
- The deadline holds against a hung server.
- No descriptor and no thread is left, and nothing hangs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.running import ROOT
from tests.runtimes.program import CALLS, LIMIT, RUNTIMES, WORKERS
from tests.servers import Server, valkey_server

PATIENCE = 60.0  # seconds that a program may take on a busy machine
SEPARATE = {"fork", "forkserver", "spawn", "prefork"}  # each process has a memory of its own
SAMPLE = {
    ("threads", "valkey"),
    ("asyncio", "valkey"),
    ("uvloop", "valkey"),
    ("gevent", "valkey"),
    ("prefork", "memory"),
    ("trio", "memory"),
    ("asyncio", "hung"),
    ("gevent", "hung"),
}


def program(runtime: str, url: str, deadline: float) -> Any:
    """What a program on this runtime has seen."""
    if runtime == "eager" and sys.version_info < (3, 12):
        pytest.skip("eager tasks are new in Python 3.12")
    command = [sys.executable, "-X", "dev", "-m", "tests.runtimes.program", runtime, url, str(deadline)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=False)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"{runtime} hangs: {error.stderr!r}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def cells(*laws: str) -> list[Any]:
    found = []
    for runtime in RUNTIMES:
        for law in laws:
            if runtime == "trio" and law != "memory":
                continue  # refused: tests/runtimes/test_trio.py
            marks = () if (runtime, law) in SAMPLE else pytest.mark.matrix
            found.append(pytest.param(runtime, law, marks=marks, id=f"{runtime}-{law}"))
    return found


@pytest.mark.parametrize(("runtime", "store"), cells("memory", "valkey", "redis6"))
def test_exactly_the_limit_is_allowed_and_nothing_is_left(
    runtime: str, store: str, request: pytest.FixtureRequest
) -> None:
    url, budgets = "memory://", WORKERS if runtime in SEPARATE else 1
    if store != "memory":
        server = request.getfixturevalue(store)
        server.flush()
        url, budgets = server.url, 1
    seen = program(runtime, url, PATIENCE)
    assert (seen["calls"], seen["degraded"], seen["left"]) == (CALLS, 0, [0, 0])
    assert seen["allowed"] == min(CALLS, LIMIT * budgets)


@pytest.fixture
def hung() -> Iterator[Server]:
    with valkey_server() as server:
        server.pause()
        yield server


@pytest.mark.parametrize(("runtime", "law"), cells("hung"))
def test_the_deadline_holds_against_a_hung_server(runtime: str, law: str, hung: Server) -> None:
    seen = program(runtime, hung.url, 0.5)
    assert seen["calls"] == seen["degraded"] == CALLS
    assert seen["longest"] < 0.5 + 5, "a busy machine may add to the deadline"
    assert seen["left"] == [0, 0]
