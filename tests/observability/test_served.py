"""Metrics of real applications: they equal what the load generator has counted, by rule and result."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from docs.pages import DOCS, blocks
from examples.observability.shop import create_app
from tests.observability.test_metrics import Probe, Sums, of_opentelemetry, of_prometheus
from tests.running import ROOT, ask, running
from tests.servers import Server, free_port

CLIENTS, ORDERS, SEARCHES, NOWHERE = 7, 9, 6, 2  # and so many requests of each client
RULES = ("endpoint", "method", "result"), ("rule", "result")
Get = Callable[[str, str], int]
SCRAPE = """
client = app.test_client()
for _ in range(3):
    client.get("/nowhere").close()
print(client.get("/metrics").text)
"""


def load(get: Get, *, first: int = 0) -> tuple[Sums, Sums]:
    """Send requests of several clients at a time, from a first number. Return the decisions and the outcomes that the
    answers tell.
    """
    endpoints = {"/orders/7": "/orders/<int:number>", "/search": "/search", "/nowhere": ""}
    paths = ["/orders/7"] * ORDERS + ["/search"] * SEARCHES + ["/nowhere"] * NOWHERE

    def of_client(number: int) -> tuple[Sums, Sums]:
        decisions, outcomes, searches = Counter[tuple[str, ...]](), Counter[tuple[str, ...]](), 0
        for path in paths:
            said = "refused" if get(path, f"client {number}") == 429 else "allowed"
            decisions[endpoints[path], "GET", said] += 1
            outcomes["default", "allowed"] += 1
            if path == "/orders/7":
                outcomes["orders", said] += 1
            elif path == "/search":
                searches += 1
                outcomes["search", "allowed" if searches <= 2 else "shadow"] += 1
        return decisions, outcomes

    with ThreadPoolExecutor(CLIENTS) as threads:
        found = list(threads.map(of_client, range(first, first + CLIENTS)))
    return sum([each[0] for each in found], Counter()), sum([each[1] for each in found], Counter())


def scraped(text: str) -> tuple[Sums, Sums]:
    """Return the decisions and the outcomes in the text of a scrape."""
    found = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    names = "sluicegate_decisions_total", "sluicegate_outcomes_total"
    for sample in [each for family in text_string_to_metric_families(text) for each in family.samples]:
        for sums, name, labels in zip(found, names, RULES, strict=True):
            if sample.name == name:
                sums[tuple([sample.labels[label] for label in labels])] += int(sample.value)
    return found


@pytest.mark.slow
def test_the_metrics_of_four_workers_equal_what_was_sent(valkey: Server, tmp_path: Path) -> None:
    valkey.flush()
    port, log = free_port(), tmp_path / "log"
    configuration = ROOT / "examples" / "observability" / "gunicorn.conf.py"
    command = f"-m gunicorn -w 4 --threads 2 -b 127.0.0.1:{port} -c {configuration}".split()
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "SLUICEGATE_STORE": valkey.url, "SLUICEGATE_DEADLINE": "10"}
    with running([*command, "examples.observability.shop:create_app()"], port, env=env, log_to=log):
        sent = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        for turn in range(20):
            more = load(lambda path, client: ask(port, "GET", path, {"X-Client": client}).status, first=turn * CLIENTS)
            sent = sent[0] + more[0], sent[1] + more[1]
            if len(list(tmp_path.glob("counter_*.db"))) > 1:  # the system chooses the worker of a connection
                break
        for _ in range(200):  # an event is delivered after its answer
            text = ask(port, "GET", "/metrics").body.decode()
            found = scraped(text)
            if sum(map(Counter.total, found)) >= sum(map(Counter.total, sent)):
                break
        assert found == sent
        assert len(list(tmp_path.glob("counter_*.db"))) > 1, "several workers have decided"
        assert "client" not in text
    assert sent[1]["orders", "refused"] == (turn + 1) * CLIENTS * (ORDERS - 3)
    lines = [line for line in log.read_text().splitlines() if "sluicegate.refusals" in line]
    assert any("rule 'search' would have refused" in line for line in lines)
    assert "client" not in "".join(lines)
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ


@pytest.mark.parametrize("shared", [False, True])
def test_the_view_for_several_processes_shows_each_series_once(tmp_path: Path, *, shared: bool) -> None:
    """The view of docs/metrics.md, as a reader copies it, without files and with them."""
    page = list(blocks(DOCS / "metrics.md"))
    (module,) = [block.text for block in page if block.title == "shop_metrics.py"]
    (view,) = [block.text for block in page if "MultiProcessCollector" in block.text]
    (tmp_path / "shop_metrics.py").write_text(module)
    env = os.environ | ({"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)} if shared else {})
    command = [sys.executable, "-c", view + SCRAPE]
    text = subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True).stdout
    series = Counter(line.rsplit(" ", 1)[0] for line in text.splitlines() if line[:1] not in ("", "#"))
    assert set(series.values()) == {1}
    assert scraped(text)[1] == {("default", "allowed"): 3}
    assert bool(list(tmp_path.glob("counter_*.db"))) == shared


@pytest.mark.parametrize("probe", [of_prometheus, of_opentelemetry])
def test_the_metrics_of_one_process_equal_what_was_sent(probe: Callable[[], Probe]) -> None:
    handle, sums = probe()
    app = create_app([handle])

    def get(path: str, client: str) -> int:
        with app.test_client().get(path, headers={"X-Client": client}) as response:
            return int(response.status_code)

    sent = load(get)
    assert (sums("decisions_total", *RULES[0]), sums("outcomes_total", *RULES[1])) == sent
