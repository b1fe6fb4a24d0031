"""`sluicegate watch` over the metrics of real limiters."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
from sluicegate.prometheus import PrometheusMetrics
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
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    shown = page.partition("$ sluicegate watch")[2].partition("```")[0].splitlines()[1:]
    assert found.stdout.splitlines()[2].split() == shown[2].split()  # the columns
    assert max(map(len, shown)) <= 80


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/metrics", "file:///etc/hosts", "redis://localhost"])
def test_what_cannot_be_read(url: str) -> None:
    found = CliRunner().invoke(sluicegate, ["watch", url.format(port=free_port()), "--once"])
    assert found.exit_code == 2
    assert "give the URL of the application's metrics" in found.output
