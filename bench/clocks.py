"""The CPU time of other processes, and one CPU for this process and a server. Only on Linux."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import Server

_SCHEDULED = 2  # the clock of the scheduler: exact, unlike the ticks in /proc/<pid>/stat


def cpu(process: int) -> float:
    """Seconds of CPU that a process used, in user and kernel mode, ended threads included."""
    return time.clock_gettime((~process << 3) | _SCHEDULED)  # the clock's id as clock_getcpuclockid(3) makes it


def process_of(server: Server) -> int:
    """The process of a running server."""
    if server.process is None:
        raise RuntimeError(f"{server!r} does not run")
    return server.process.pid


@contextmanager
def on_one_cpu(server: Server, *processes: int) -> Iterator[None]:
    """Keep this thread, the server and these processes on one CPU: then they take turns, and none waits for another CPU
    to wake.
    """
    before = os.sched_getaffinity(0)
    one = {max(before)}
    for process in (process_of(server), *processes):
        for task in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(task.name), one)
    os.sched_setaffinity(0, one)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
