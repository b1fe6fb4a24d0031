"""Real applications on real servers, for tests: started as commands, called over HTTP, stopped by their id."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPMessage
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
HOST = "127.0.0.1"
PATIENCE = 30.0  # seconds to start on a busy machine
_STEP = 0.05


class Answer(NamedTuple):
    """The response."""

    status: int
    headers: HTTPMessage
    body: bytes


@contextmanager
def running(
    command: Sequence[str],
    port: int,
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    log_to: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command as a process that listens on the port. It is stopped, with its workers, at the end.

    What it writes is appended to `log_to`.
    """
    with tempfile.TemporaryFile() if log_to is None else log_to.open("a+b") as log:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_for(port, process, log)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def ask(port: int, method: str, path: str, headers: Mapping[str, str] | None = None, body: str = "") -> Answer:
    """Send one request on a new connection."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
    try:
        connection.request(method, path, body=body or None, headers=dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: object) -> None:
    """Return when the process listens on the port. AssertionError with its log if it does not."""
    for _ in range(int(PATIENCE / _STEP)):
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            pass
        try:
            process.wait(_STEP)
        except subprocess.TimeoutExpired:
            continue
        break
    log.seek(0)  # type: ignore[attr-defined]
    raise AssertionError(f"no server listens on {port}: {log.read().decode()}")  # type: ignore[attr-defined]
