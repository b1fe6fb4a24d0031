"""Six workers of two web servers on one Redis under load: all follow what an operator sets, and no request is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import NamedTuple

import pytest

from tests.load import Load
from tests.running import ROOT, ask, running
from tests.servers import Server, free_port, valkey_server

WORKERS, RATE = (4, 2), 200
PLAIN, RAISED = 50_000, 70_000
pytestmark = pytest.mark.slow


class Seen(NamedTuple):
    """One answer to the customer."""

    at: float
    pid: str
    limit: int


class Customer:
    """Asks all workers again and again, and notes which process answered with which limit."""

    def __init__(self, ports: tuple[int, ...]) -> None:
        self.seen: list[Seen] = []
        self.wrong: list[object] = []
        self._ports, self._over, self._lock = ports, Event(), Lock()
        self._threads = [Thread(target=self._drive, args=(port,)) for port in ports for _ in range(2)]

    def __enter__(self) -> Customer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _drive(self, port: int) -> None:
        while not self._over.wait(0.02):  # on a new connection, so that each worker gets some
            answer = ask(port, "GET", "/", {"x-user": "acme"})
            with self._lock:
                if answer.status != 200:
                    self.wrong.append(answer)
                else:
                    self.seen.append(Seen(monotonic(), answer.body.decode(), int(answer.headers["x-ratelimit-limit"])))

    def follows(self, limit: int, since: float, *, within: float) -> None:
        """All six workers answer with this limit from so many seconds after `since` on."""
        end = since + within
        while monotonic() < end + 2:
            self._over.wait(0.1)
        late = [each for each in self.seen if each.at > end]
        assert {each.limit for each in late} == {limit}, [each for each in late if each.limit != limit]
        assert len({each.pid for each in late}) == sum(WORKERS)


class Fleet(NamedTuple):
    server: Server
    ports: tuple[int, int]

    def command(self, *words: str) -> float:
        """Run a command of an operator. Return the moment at its end."""
        env = {**os.environ, "STORE": self.server.url, "SLUICEGATE_APP": "tests.overrides.fleet:wsgi"}
        command = [sys.executable, "-m", "sluicegate", *words, "--yes"]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return monotonic()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Four workers of gunicorn and two of uvicorn, on a server that keeps its data when it is killed."""
    ports = free_port(), free_port()
    with valkey_server("--appendonly", "yes", "--appendfsync", "always") as server, ExitStack() as stack:
        env = {"STORE": server.url}
        for port, command in zip(
            ports,
            (
                f"-m gunicorn --workers {WORKERS[0]} --bind 127.0.0.1:{ports[0]} tests.overrides.fleet:wsgi",
                f"-m uvicorn --workers {WORKERS[1]} --port {ports[1]} --log-level warning tests.overrides.fleet:asgi",
            ),
            strict=True,
        ):
            stack.enter_context(running(command.split(), port, env=env, log_to=tmp_path / f"{port}"))
        yield Fleet(server, ports)


def traffic(fleet: Fleet) -> list[Load]:
    """Requests of many other users, on both servers."""
    return [Load(port, rate=RATE / 2, connections=4, headers=lambda phase: {"x-user": phase}) for port in fleet.ports]


def away(server: Server) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("outage", [False, True], ids=["healthy", "killed in between"])
def test_all_workers_follow_within_two_seconds(fleet: Fleet, outage: bool) -> None:
    between: Callable[[], object] = (lambda: away(fleet.server)) if outage else (lambda: None)
    with ExitStack() as stack:
        loads = [stack.enter_context(load) for load in traffic(fleet)]
        customer = stack.enter_context(Customer(fleet.ports))
        customer.follows(PLAIN, monotonic(), within=1)
        at = fleet.command("override", "page", f"{RAISED}/day", "--identity", "header:x-user=acme")
        customer.follows(RAISED, at, within=2)
        between()
        customer.follows(RAISED, monotonic(), within=2)
        customer.follows(PLAIN, fleet.command("override", "undo"), within=2)
        between()
        # It ends so long after it was written. On a busy machine the command ends some seconds later.
        at = fleet.command("override", "page", f"{RAISED}/day", "--identity", "header:x-user=acme", "--for", "9s")
        customer.follows(RAISED, at, within=2)
        customer.follows(PLAIN, at + 9, within=0.5)
    for load in loads:
        assert set(load.summary("before").statuses) == {200}, load.summary("before")
    assert not customer.wrong
    if not outage:  # while the server was away, workers counted for themselves
        words = [sys.executable, "-m", "sluicegate", "show", "header:x-user=acme", "--json"]
        env = {**os.environ, "STORE": fleet.server.url, "SLUICEGATE_APP": "tests.overrides.fleet:wsgi"}
        shown = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True)
        assert f'"used": {len(customer.seen)},' in shown.stdout
