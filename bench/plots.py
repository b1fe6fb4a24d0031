"""The pictures and tables of docs/performance.md and of bench/README.md, generated from the JSON of a run.

    python -m bench.plots [FILE]

generates them again from docs/assets/bench.json, or from FILE. It reads and writes files, and measures nothing. A
picture has its own background and colours for light and dark mode, so it is readable on any page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.budgets import MEMORY, NONE, ONE_RULE, TASKS, verdicts
from bench.figures import MEASURES, Figure, Spread, by_merit, from_json, ratio
from bench.report import FRAMEWORKS, GRIDS, budget_rows, markdown, rows

DOCS: Final = Path(__file__).parent.parent / "docs"
PAGES: Final = (DOCS / "performance.md", Path(__file__).parent / "README.md")
KEPT: Final = DOCS / "assets" / "bench.json"
MARK: Final = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Bar(NamedTuple):
    label: str
    role: str
    value: Spread


class Panel(NamedTuple):
    title: str
    digits: int
    bars: list[Bar]


class Plot(NamedTuple):
    """A picture of one measure: a panel for each topic, `relative` to the topic's floor if set."""

    name: str
    title: str
    topics: tuple[str, ...]
    measure: str
    relative: bool = False


PLOTS: Final = (
    Plot("memory", "Microseconds for one check in memory (less is better)", (MEMORY,), "time"),
    Plot(
        "redis",
        "Microseconds of CPU for one check on a server, client and server (less is better)",
        (ONE_RULE,),
        "time",
    ),
    Plot("asyncio", "Checks for one second of the client's CPU, 64 tasks (more is better)", (TASKS,), "pace"),
    Plot("added", "Microseconds of CPU added to one request (less is better)", FRAMEWORKS, "added"),
    Plot(
        "flood",
        "Refused requests for a second of CPU, as a multiple of requests without a limiter (more is better)",
        tuple(f"flood, {framework}" for framework in FRAMEWORKS),
        "capacity",
        relative=True,
    ),
)

WIDTH, LEFT, RIGHT = 790, 250, 90  # of the picture, of its labels, of its numbers
ROW, HEAD, GAP = 24, 30, 14
STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-size: 14px; font-weight: 600 }
.panel { font-weight: 600 } .back { fill: #fff } .axis { stroke: #999 } .spread { stroke: #333; stroke-width: 1.5 }
.sluicegate { fill: #1f6feb } .peer { fill: #b8a07e } .floor { fill: #9aa5b1 }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .back { fill: #1e2129 } .axis { stroke: #777 } .spread { stroke: #eee }
.sluicegate { fill: #58a6ff } .peer { fill: #8a7555 } .floor { fill: #5c6670 }
}
""".strip()


def panels(plot: Plot, figures: Sequence[Figure]) -> list[Panel]:
    """The panels of the picture, without topics that were not measured."""
    found = []
    for topic in plot.topics:
        here = by_merit([each for each in figures if each.topic == topic and each.measure == plot.measure])
        floor = next((each for each in here if each.contender == NONE), None)
        if not here or (plot.relative and floor is None):
            continue
        bars = [
            Bar(each.contender, each.role, ratio(each, floor) if plot.relative and floor is not None else each.spread)
            for each in here
        ]
        digits = 2 if plot.relative else MEASURES[plot.measure].digits
        found.append(Panel(topic.removeprefix("flood, "), digits, bars))
    return found


def draw(plot: Plot, shown: Sequence[Panel]) -> str:
    """The picture as SVG."""
    height = 40 + sum(HEAD * (len(shown) > 1) + ROW * len(panel.bars) + GAP for panel in shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{plot.title}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="4"/>',
        f'<text class="title" x="12" y="24">{plot.title}</text>',
    ]
    top = 40
    for panel in shown:
        if len(shown) > 1:
            parts.append(f'<text class="panel" x="{LEFT}" y="{top + 18}">{panel.title}</text>')
            top += HEAD
        parts += _bars(panel, top)
        top += ROW * len(panel.bars) + GAP
    return "\n".join([*parts, "</svg>", ""])


def _bars(panel: Panel, top: int) -> list[str]:
    most = max(bar.value.high for bar in panel.bars)
    found = [f'<path class="axis" d="M{LEFT},{top}V{top + ROW * len(panel.bars)}"/>']

    def pixels(value: float) -> int:
        return round(max(value, 0) / most * (WIDTH - LEFT - RIGHT))

    for at, bar in enumerate(panel.bars):
        y, (low, middle, high) = top + ROW * at, bar.value
        end = max(pixels(middle), pixels(high))
        number = f"{middle:,.{panel.digits}f}"
        found += [
            f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{bar.label}</text>',
            f'<rect class="{bar.role}" x="{LEFT}" y="{y + 4}" width="{pixels(middle)}" height="{ROW - 8}"/>',
            f'<path class="spread" d="M{LEFT + pixels(low)},{y + ROW // 2}H{LEFT + pixels(high)}"/>',
            f'<text x="{LEFT + end + 6}" y="{y + 16}">{number}</text>',
        ]
    return found


def page(text: str, run: dict[str, Any]) -> str:
    """A page, with the text between its marks generated from the run."""
    figures = from_json(run["figures"])
    open_ones = [each for each in verdicts(figures) if not each.met]  # the JSON has all
    tables = {grid.name: rows(grid, figures, on_page=True) for grid in GRIDS} | {"budgets": budget_rows(open_ones)}
    sections = {name: markdown(table) if table else "Not measured." for name, table in tables.items()}
    sections["machine"] = machine(run)
    return MARK.sub(lambda found: f"{found[1]}{sections[found[2]]}\n{found[3]}", text)


def machine(run: dict[str, Any]) -> str:
    """The machine, the effort, the commit and the versions of the run, and what differs in later runs of parts."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    parts: dict[str, list[str]] = {}
    for part, text in run.get("later", {}).items():
        parts.setdefault(text.removesuffix(f" {versions}."), []).append(f"`{part}`")
    later = [f"\n\nA later run has the figures of {', '.join(names)}: {text}" for text, names in parts.items()]
    whole = f"{run['machine']}. {run['effort'].capitalize()} run of sluicegate {run['commit']}. {versions}."
    return "".join([whole, *later])


def merged(whole: dict[str, Any], run: dict[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """The run of all parts, with the figures of a later run of these parts."""
    topics = {each["topic"] for each in run["figures"]}
    figures = [*[each for each in whole["figures"] if each["topic"] not in topics], *run["figures"]]
    budgets = [each.to_json() for each in verdicts(from_json(figures))]
    later = {**whole.get("later", {}), **dict.fromkeys(parts, machine(run))}
    return {**whole, "figures": figures, "budgets": budgets, "later": later}


def publish(run: dict[str, Any]) -> list[Path]:
    """Write the figures, the pictures and the pages; return their paths."""
    KEPT.write_text(json.dumps(run, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
    figures = from_json(run["figures"])
    written = [KEPT]
    for plot in PLOTS:
        path = picture(plot)
        path.write_text(draw(plot, panels(plot, figures)), encoding="utf-8")
        written.append(path)
    for path in PAGES:
        path.write_text(page(path.read_text("utf-8"), run), encoding="utf-8")
    return [*written, *PAGES]


def picture(plot: Plot) -> Path:
    """The path of the picture."""
    return KEPT.with_name(f"bench-{plot.name}.svg")


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT
    for each in publish(json.loads(source.read_text("utf-8"))):
        print(each)
