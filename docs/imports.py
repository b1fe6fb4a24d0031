"""Draws docs/assets/imports.svg from the source: the parts of the package in their order, and which imports which.

    python -m docs.imports

A test compares the committed picture with what this script draws, so a new import between two parts shows in a review.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from tests.test_house import ORDER, SOURCE, fits, own

PICTURE: Final = Path(__file__).parent / "assets" / "imports.svg"
WIDTH, ROW, TALL, GAP = 790, 74, 34, 16  # of the picture, between two rows, of a box, between two boxes
STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #1f3347; text-anchor: middle }
.name { font-weight: 600; font-size: 13px }
rect { fill: #e8eff6; stroke: #7d93a8 } path { fill: none; stroke: #7d93a8; stroke-width: 1.2 } circle { fill: #1f4e79 }
@media (prefers-color-scheme: dark) {
text { fill: #dce6f0 } rect { fill: #26384a } circle { fill: #a9cbea }
}
""".strip()


def part_of(name: str) -> str:
    """The part of the package that a module belongs to, as ORDER in tests/test_house.py says it."""
    return next(part for row in ORDER for part, members in row.items() if fits(name, members))


@cache
def arrows() -> dict[tuple[str, str], int]:
    """How many imports lead from one part to another."""
    found: dict[tuple[str, str], int] = {}
    for module in SOURCE:
        for target in {own(target) for _, target in module.imports if target.split(".")[0] == "sluicegate"}:
            arrow = part_of(module.name), part_of(target)
            if arrow[0] != arrow[1]:
                found[arrow] = found.get(arrow, 0) + 1
    return dict(sorted(found.items()))


@cache
def boxes() -> dict[str, tuple[int, int, int]]:
    """For each part its left edge, its width and its upper edge. The part that may import the most parts is on top."""
    placed = {}
    for floor, row in enumerate(reversed(ORDER)):
        width = (WIDTH - GAP * (len(row) + 1)) // len(row)
        for at, part in enumerate(row):
            placed[part] = (GAP + at * (width + GAP), width, GAP + floor * ROW)
    return placed


def draw() -> str:
    """The whole picture. A line ends with a dot on what is imported; it passes over the boxes between."""
    placed, drawn = boxes(), arrows()
    sizes = {part: sum(part_of(module.name) == part for module in SOURCE) for part in placed}
    height = GAP + ROW * (len(ORDER) - 1) + TALL + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The parts of sluicegate, and which imports which</title>",
        f"<style>{STYLE}</style>",
    ]
    for part, (left, width, top) in placed.items():
        parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{TALL}" rx="5"/>')
        modules = f"{sizes[part]} module{'s' * (sizes[part] > 1)}"
        parts.append(f'<text x="{left + width // 2}" y="{top + 15}"><tspan class="name">{part}</tspan></text>')
        parts.append(f'<text x="{left + width // 2}" y="{top + 29}">{modules}</text>')
    for (source, target), count in drawn.items():
        parts += line(source, target, count)
    return "\n".join([*parts, "</svg>", ""])


def line(source: str, target: str, count: int) -> list[str]:
    """One arrow, from the lower edge of a box to the upper edge of another below it. Each box spreads its lines."""
    placed = boxes()
    left, width, top = placed[source]
    below = [to for to in placed if (source, to) in arrows()]
    start = left + width * (below.index(target) + 1) // (len(below) + 1)
    near, wide, end = placed[target]
    stop = min(max(start, near + 6), near + wide - 6)
    title = f"<title>{source} imports {target}: {count} imports</title>"
    return [f'<path d="M{start},{top + TALL}L{stop},{end}">{title}</path>', f'<circle cx="{stop}" cy="{end}" r="3"/>']


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"drew {PICTURE}: {len(arrows())} arrows, {sum(arrows().values())} imports")
