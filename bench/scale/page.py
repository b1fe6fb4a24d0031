"""The tables and pictures of docs/scale.md, generated from the JSON of a run.

    python -m bench.scale.page

generates them again from docs/assets/scale.json. It reads and writes files, and measures nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, Spread
from bench.plots import DOCS, MARK, Bar, Panel, Plot, draw
from bench.scale.model import ALGORITHMS, DEEP, DEFAULT, KINDS, PASSES, REFUSED, STALENESS, Known, Point
from bench.scale.tables import SECTIONS, Run

PAGE: Final = DOCS / "scale.md"
KEPT: Final = DOCS / "assets" / "scale.json"
PLOTS: Final = (
    Plot("server", f"CPU of a Valkey core for one check, {DEEP} at once, µs (less is better)", (), "server"),
    Plot("hot", "Requests a second of one worker that all count one identity (more is better)", (), "rate"),
)


def page(text: str, run: dict[str, Any]) -> str:
    """The page, with the text between its marks generated from the run."""
    read = Run(run)
    return MARK.sub(lambda found: f"{found[1]}{SECTIONS[found[2]](read)}\n{found[3]}", text)


def publish(run: dict[str, Any]) -> list[Path]:
    """Write the figures, the pictures and the page; return their paths."""
    KEPT.write_text(json.dumps(run, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    written = [KEPT]
    for plot in PLOTS:
        path = picture(plot)
        path.write_text(drawn(plot, run), encoding="utf-8")
        written.append(path)
    PAGE.write_text(page(PAGE.read_text("utf-8"), run), encoding="utf-8")
    return [*written, PAGE]


def picture(plot: Plot) -> Path:
    """The path of the picture."""
    return KEPT.with_name(f"scale-{plot.name}.svg")


def drawn(plot: Plot, run: dict[str, Any]) -> str:
    """The picture as SVG."""
    known = Run(run).known
    return draw(plot, _by_rules(known) if plot.name == "server" else _by_answer(known))


def _by_rules(known: Known) -> list[Panel]:
    def bars(rules: int) -> list[Bar]:
        points = {name: Point(name, rules) for name in ALGORITHMS}
        points[f"{DEFAULT}, refused"] = Point(DEFAULT, rules, refused=True)
        return [_bar(label, known.figure(each.topic, each.name, "server"), DEFAULT) for label, each in points.items()]

    return [Panel(f"{rules} rule{'s' * (rules > 1)}", 1, bars(rules)) for rules in (1, 2, 3)]


def _by_answer(known: Known) -> list[Panel]:
    refused = {"refused": REFUSED.format(STALENESS[-1]), "refused, deny_cache 0": REFUSED.format(STALENESS[0])}
    topics = {"allowed": PASSES, **refused}
    return [
        Panel(
            kind.name,
            0,
            [_bar(label, known.figure(topic, kind.name, "rate"), "allowed") for label, topic in topics.items()],
        )
        for kind in (KINDS[0], KINDS[-1])
    ]


def _bar(label: str, figure: Figure | None, marked: str) -> Bar:
    return Bar(
        label, "sluicegate" if label.startswith(marked) else "floor", figure.spread if figure else Spread(0, 0, 0)
    )


if __name__ == "__main__":
    for each in publish(json.loads(KEPT.read_text("utf-8"))):
        print(each)
