"""The dashboard and the alert rules in the package: every metric and label in them exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sluicegate.observe.prometheus import PrometheusMetrics
from tests.observability.alerts import FILE, alerts

DASHBOARD: Any = json.loads(FILE.with_name("dashboard.json").read_text("utf-8"))
FROM_PROMETHEUS = {"le"}
WORDS = {"by", "sum", "max", "rate", "topk", "histogram_quantile", "label_values"}


def panel_queries() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*targets, *[each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]]


def known() -> tuple[set[str], set[str]]:
    """The names of samples, and of labels, that PrometheusMetrics makes."""
    registry = CollectorRegistry()
    PrometheusMetrics(registry=registry)
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    names = {f"{each.name}{suffix}" for each in registry.collect() for suffix in suffixes[each.type]}
    labels = {"application", "endpoint", "method", "result", "rule", "source", "store"}
    return names, labels | FROM_PROMETHEUS


@pytest.mark.parametrize("query", [*alerts().values(), *panel_queries()])
def test_a_query_names_what_exists(query: str) -> None:
    names, labels = known()
    bare = re.sub(r'"[^"]*"', '""', query)
    found = set(re.findall(r"sluicegate_\w+", bare))
    assert found, "a query without a metric"
    assert found <= names
    for group in re.findall(r"by \(([^)]*)\)", bare):
        assert set(group.replace(" ", "").split(",")) <= labels
    assert set(re.findall(r"(\w+) ?(?:=~|!=|=)", bare)) <= labels
    assert all(bare.count(one) == bare.count(other) for one, other in ("()", "[]", "{}"))
    assert set(re.findall(r"\b([a-z_]+)(?= ?\()", bare)) <= WORDS


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(panel_queries())
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known()[0]}
    assert [name for name in sorted(names) if name not in shown] == []


def test_legends_name_labels_of_their_queries() -> None:
    for target in [target for panel in DASHBOARD["panels"] for target in panel["targets"]]:
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert re.search(rf"by \([^)]*\b{label}\b", target["expr"])


def test_promtool_accepts_the_rules_and_the_queries(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: scripts/programs installs it; the names and labels are checked above")
    rules = [
        {"record": f"panel:{at}", "expr": query.replace("$__rate_interval", "5m")}
        for at, query in enumerate(panel_queries())
        if not query.startswith("label_values")
    ]
    panels = tmp_path / "panels.yml"
    panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")  # JSON is YAML
    for path in (FILE, panels):
        checked = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(("minutes", "fires"), [(1, []), (2, []), (10, [*range(6, 13)])])
def test_the_alert_about_decisions_without_the_store(minutes: int, fires: list[int], tmp_path: Path) -> None:
    """An outage begins at 0:30. A short one wakes nobody once it is over, and a long one after five minutes."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: scripts/programs installs it")
    alert: dict[str, Any] = {
        "exp_labels": {"application": "shop", "severity": "warning"},
        "exp_annotations": {
            "summary": "shop decides without its store",
            "description": "Each process counts by itself. At most sluicegate_degraded_allowed_total requests passed "
            "that the store would have refused.",
        },
    }
    grown = {"series": 'sluicegate_degraded_decisions_total{application="shop"}'}
    grown["values"] = f"0x1 150+150x{4 * minutes - 1} {600 * minutes}x80"  # ten a second, read every 15 seconds
    asked = [
        {"eval_time": f"{at}m", "alertname": "RateLimitDegraded", "exp_alerts": [alert] if at in fires else []}
        for at in range(20)
    ]
    case = {"interval": "15s", "input_series": [grown], "alert_rule_test": asked}
    file = tmp_path / "outage.yml"
    file.write_text(json.dumps({"rule_files": [str(FILE)], "evaluation_interval": "15s", "tests": [case]}), "utf-8")
    checked = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
