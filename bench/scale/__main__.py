"""The command `python -m bench.scale`: measure scaling, store the figures, and write docs/scale.md.

python -m bench.scale [--quick] [--publish]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.__main__ import RESULTS, about, console
from bench.figures import Figure, from_json, to_json
from bench.plots import KEPT as BENCH
from bench.race import Course, Effort
from bench.scale import growth, hot, server, size
from bench.scale.page import publish
from bench.scale.tables import SECTIONS, Run

VERSIONS = ("Valkey", "Redis", "redis", "hiredis")


class Part(NamedTuple):
    """One part: its function, and its effort in a quick and in a full run."""

    measure: Callable[[Course], list[Figure]]
    quick: Effort
    full: Effort


# The seconds bound each part, without its warm-up.
PARTS = {
    "server": Part(server.measure, Effort(3, 1_000, 12), Effort(9, 4_000, 50)),
    "growth": Part(growth.measure, Effort(3, 0, 12, turn=0.2), Effort(5, 0, 35, turn=0.6)),
    "hot": Part(hot.measure, Effort(3, 0, 10, turn=0.2), Effort(5, 0, 20, turn=0.5)),
    "size": Part(size.measure, Effort(1, 50_000, 12), Effort(1, 1_000_000, 110)),
}


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="how far sluicegate scales")
    parser.add_argument(
        "--quick", dest="effort", action="store_const", const="quick", default="full", help="a short run"
    )
    parser.add_argument("--publish", action="store_true", help="update docs/scale.md and its pictures")
    options = parser.parse_args()
    run = about(options.effort)
    run["versions"] = {name: run["versions"][name] for name in VERSIONS}
    console.print(run["machine"])
    figures: list[Figure] = []
    troubles: list[str] = []
    for name, part in PARTS.items():
        began = time.monotonic()
        course = Course(getattr(part, options.effort), say=lambda text: console.print(text, style="red", markup=False))
        figures += part.measure(course)
        troubles += course.troubles
        console.print(f"{name} took {time.monotonic() - began:.0f} s")
    run |= {"cores": os.cpu_count(), "figures": to_json(figures), "apps": applications(), "troubles": troubles}
    keep(run, publishing=options.publish)
    return 0


def applications() -> dict[str, Any]:
    """The CPU of whole applications for one request, as scripts/bench measured it."""
    if not BENCH.is_file():
        return {"of": "not measured", "cpu": {}}
    bench = json.loads(BENCH.read_text("utf-8"))
    cpu: dict[str, dict[str, float]] = {}
    for each in from_json(bench["figures"]):
        if each.measure == "cpu" and each.contender in ("no limiter", "sluicegate Redis") and "," not in each.topic:
            cpu.setdefault(each.topic, {})[each.contender] = round(each.middle, 1)
    whole = {name: each for name, each in cpu.items() if len(each) > 1}
    return {"of": f"{bench['effort']} run of {bench['commit']}", "cpu": whole}


def keep(run: dict[str, Any], *, publishing: bool) -> None:
    """Write the JSON, print the tables, and with `publishing` write the page."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%dT%H%M%S')}-scale-{run['effort']}.json"
    path.write_text(json.dumps(run, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    read = Run(run)
    for name, section in SECTIONS.items():
        console.print(f"\n{name}\n{section(read)}", markup=False, soft_wrap=True)
    console.print(f"stored in {path}")
    if publishing:
        for written in publish(run):
            console.print(f"wrote {written}")


if __name__ == "__main__":
    sys.exit(main())
