"""The alert rules in the package, evaluated over two scrapes: a small part of PromQL, for tests without a
Prometheus server. Samples are added up by the name of the metric and by two labels.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from prometheus_client import CollectorRegistry

FILE = Path(str(files("sluicegate"))) / "observe" / "alerts.yml"
_GAUGE = re.compile(r"max by \(store\) \((\w+)\) > 0")
_GROWTH = re.compile(r"sum by \(\w+\) \(rate\((\w+)\[\w+\]\)\) > 0")

Samples = dict[tuple[str, ...], float]
"""The value of a metric by its name, and of those about rules also by its name, the rule and the result."""


def alerts() -> dict[str, str]:
    """The queries of the alert rules by name, without a parser of YAML: folded lines are joined."""
    text = re.sub(r">-\n", "", FILE.read_text("utf-8"))
    found = re.findall(r"alert: (\w+)\n +expr:(.*?)\n +for:", text, flags=re.DOTALL)
    return {name: " ".join(query.split()) for name, query in found}


def samples(registry: CollectorRegistry, store: str) -> Samples:
    """The values of a scrape. Of the stores only this one: other limiters of the process have theirs."""
    found: Samples = {}
    for metric in registry.collect():
        for name, labels, value, *_ in metric.samples:
            if labels.get("store", store) != store:
                continue
            for key in {(name,), (name, labels.get("rule", ""), labels.get("result", ""))}:
                found[key] = found.get(key, 0.0) + value
    return found


def holds(query: str, before: Samples, now: Samples) -> bool:
    """True if a query is true now, when `before` was the scrape at the start of its window. A query says "a gauge is
    above 0" or "a counter has grown". The others are about traffic, and not true here.
    """
    if found := _GAUGE.fullmatch(query):
        return now[found[1],] > 0
    if found := _GROWTH.fullmatch(query):
        return now.get((found[1],), 0.0) > before.get((found[1],), 0.0)
    return False
