"""`sluicegate watch` over the metrics of real limiters."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from rich.console import Console

from sluicegate import Limiter
from sluicegate.cli.commands import sluicegate
from sluicegate.cli.watch import Reading, Series, frame, parse, quantiles, rates
from sluicegate.observe.prometheus import PrometheusMetrics
from tests.servers import free_port

ROOT = Path(__file__).parent.parent.parent


def series(registry: CollectorRegistry) -> Series:
    return {(name, labels): value for name, labels, value in parse(generate_latest(registry).decode())}


def shown(found: Any) -> str:
    console = Console(width=80, record=True, file=StringIO())
    console.print(frame(found, rows=None))
    return console.export_text()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def limiter(registry: CollectorRegistry) -> Iterator[Limiter]:
    with Limiter(application="shop", on_decision=PrometheusMetrics(registry=registry)) as limiter:
        yield limiter


def test_the_growth_between_two_readings(limiter: Limiter, registry: CollectorRegistry) -> None:
    limiter.hit("1/hour", "alice", action="reply")  # before the first reading
    before = Reading(100.0, series(registry))
    for _ in range(4):
        limiter.hit("1/hour", "alice", action="reply")
    for _ in range(6):
        limiter.hit("100/hour", "alice", action="read")
    found = rates(before, Reading(102.0, series(registry)))
    assert (found.allowed, found.refused) == (3.0, 2.0)
    assert [rule.rule for rule in found.rules] == ["reply", "read"]
    assert {rule.rule: {key: rate for key, rate in rule.by_result.items() if rate} for rule in found.rules} == {
        "reply": {"refused": 2.0},
        "read": {"allowed": 3.0},
    }
    assert found.store is not None  # the memory
    text = shown(found)
    assert "5.0 decisions/s, 2.0 refused (40.0 %)\nstore: half within 0.5 ms" in text
    assert re.search(r"^reply +- +2\.0 +- +- +- +-", text, re.M)


def test_a_process_that_starts_again(registry: CollectorRegistry) -> None:
    labels = frozenset({"application": "", "rule": "r", "result": "allowed", "source": "store"}.items())
    name = "sluicegate_outcomes_total"
    found = rates(Reading(0.0, {(name, labels): 50.0}), Reading(10.0, {(name, labels): 20.0}))
    assert found.rules[0].by_result["allowed"] == 2.0
    assert "not called" in shown(found)


def test_the_latency_of_a_histogram() -> None:
    bounds = {"0.001": 60.0, "0.01": 98.0, "0.1": 100.0, "+Inf": 100.0}
    assert quantiles([({"le": le}, count) for le, count in bounds.items()]) == (0.001, 0.1)
    assert quantiles([]) is None


def test_one_frame_of_a_real_application(limiter: Limiter, registry: CollectorRegistry) -> None:
    """The requests go on until the frame is printed, so no time is measured."""
    port, done = free_port(), Event()
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    limiter.hit("1/hour", "alice", action="reply")

    def visit() -> None:
        while not done.wait(0.001):
            limiter.hit("1/hour", "alice", action="reply")

    visitor = Thread(target=visit)
    visitor.start()
    try:
        found = CliRunner().invoke(
            sluicegate, ["watch", f"http://127.0.0.1:{port}/metrics", "--once", "--every", "0.5"], env={"COLUMNS": "80"}
        )
    finally:
        done.set()
        visitor.join()
        server.shutdown()
        server.server_close()
        thread.join()
    assert found.exit_code == 0, found.output
    assert re.search(r"^reply +- +[\d.]+ ", found.stdout, re.M)
    assert "alice" not in found.output
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\$ sluicegate watch .*\n((?:.*\n)*?)```$", page, re.MULTILINE)
    assert found.stdout.splitlines()[2].split() == shown.splitlines()[2].split()  # the columns
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/metrics", "file:///etc/hosts", "redis://localhost"])
def test_what_cannot_be_read(url: str) -> None:
    found = CliRunner().invoke(sluicegate, ["watch", url.format(port=free_port()), "--once"])
    assert found.exit_code == 2
    assert "give the URL of the application's metrics" in found.output
    assert ("nothing listens there; start the application" in " ".join(found.output.split())) is ("{port}" in url)


class Answers:
    """A server that gives each connection the next of some answers, as they are, and keeps the requests."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[bytes] = []
        self._answers, self._listener = answers, socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = Thread(target=self._serve)

    def __enter__(self) -> Answers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # it wakes the thread if fewer have come
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        for answer in self._answers:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self.requests.append(client.recv(65536))
                client.sendall(answer)


def answer(text: str, *, cut: int = 0) -> bytes:
    return f"HTTP/1.0 200 OK\r\nContent-Length: {len(text) + cut}\r\n\r\n{text}".encode()


GOOD = answer("sluicegate_open_circuits 1\n")


@pytest.mark.parametrize(
    ("password", "host"),
    [("SECRET", "127.0.0.1"), ("SECRET", "127.0.0.1:{port}"), ("SEC/RET", "127.0.0.1:{port}"), ("[SECRET]", "h")],
)
def test_a_password_is_never_shown(password: str, host: str) -> None:
    url = f"http://user:{password}@{host.format(port=free_port())}/metrics"
    found = CliRunner().invoke(sluicegate, ["watch", url, "--once"])
    assert found.exit_code == 2, found.exception
    assert "give the URL of the application's metrics" in found.output
    assert "SEC" not in found.output


def test_a_password_is_sent_as_basic_authentication() -> None:
    with Answers(GOOD, GOOD) as server:
        url = f"http://user:p%40ss@127.0.0.1:{server.port}/metrics"
        found = CliRunner().invoke(sluicegate, ["watch", url, "--once", "--every", "0.1"])
    assert found.exit_code == 0, found.output
    assert "1 circuit open" in found.output
    for request in server.requests:
        assert b"Authorization: Basic dXNlcjpwQHNz\r\n" in request
        assert f"Host: 127.0.0.1:{server.port}\r\n".encode() in request


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (b"\x1b[31mgarbage\r\n", r"garbage"),
        (answer("sluicegate_entries 1", cut=10), "IncompleteRead"),
        (b"", "closed connection"),
        (answer("sluicegate_entries one"), "'one'"),
        (answer("sluicegate_entries NaN"), "the value NaN"),
        (answer('sluicegate_outcomes_total{rule="r",result="allowed",source="store"} 1'), "the label application"),
        (answer("sluicegate_decisions_total 1"), "the label result"),
        (answer('sluicegate_store_seconds_bucket{le="x"} 1'), "'x'"),
    ],
)
def test_an_answer_that_is_no_metrics(given: bytes, says: str) -> None:
    with Answers(given) as server:
        found = CliRunner().invoke(sluicegate, ["watch", f"http://127.0.0.1:{server.port}/metrics", "--once"])
    assert found.exit_code == 2, found.exception
    assert says in found.output
    assert "\x1b" not in found.output


def test_the_live_view_goes_on_after_a_failed_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt  # the first frame, after the failed reading

    monkeypatch.setattr("sluicegate.cli.watch.frame", leave)
    with Answers(GOOD, b"garbage\r\n", GOOD) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        found = CliRunner().invoke(sluicegate, ["watch", url, "--every", "0.1"])
    assert found.exit_code == 0, found.output
    assert len(server.requests) == 3
