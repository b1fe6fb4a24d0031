"""Draws docs/assets/edge.svg from the real algorithms: what each admits around a window's edge.

    python docs/pictures.py

One client under 100 per minute sends one request, waits 58 seconds, then sends 50 requests a second for two minutes.
Bars are what was admitted in each second, the line is what was admitted in the minute before. A test compares the
committed picture with what this script draws, so a change of an algorithm shows here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from sluicegate.algorithms import find
from sluicegate.quota import Quota

SECOND: Final = 1_000_000
START: Final = 1_000_000_000 * SECOND
LIMIT: Final = 100
SILENT, LONG, EACH = 58, 180, 50  # seconds until the client comes back, seconds in all, requests per second
PICTURE: Final = Path(__file__).parent / "assets" / "edge.svg"

CASES: Final = (
    ("fixed-window", "100/minute"),
    ("sliding-counter", "100/minute"),
    ("gcra", "100/minute"),
    ("gcra", "100/minute burst 10"),
    ("sliding-log", "100/minute"),
    ("sliding-window", "100/minute"),
)


class Run(NamedTuple):
    """One algorithm against this client: when it admitted, in microseconds from the start."""

    algorithm: str
    quota: Quota
    admitted: list[int]

    def inside(self, end: int) -> int:
        """How many were admitted in the minute that ends at this moment."""
        return sum(end - 60 * SECOND < moment <= end for moment in self.admitted)

    @property
    def most(self) -> int:
        """The most that were admitted in any minute."""
        return max(self.inside(moment) for moment in self.admitted)

    @property
    def per_second(self) -> list[int]:
        """How many were admitted in each second."""
        counts = [0] * LONG
        for moment in self.admitted:
            counts[moment // SECOND] += 1
        return counts


def play(name: str, text: str) -> Run:
    """Send this client's requests through an algorithm."""
    algorithm, quota = find(name), Quota.parse(text)
    params, state, admitted = algorithm.params(quota), None, []
    for moment in [0, *range(SILENT * SECOND, LONG * SECOND, SECOND // EACH)]:
        outcome, state = algorithm.decide(state, START + moment, 1, params)
        if outcome.allowed:
            admitted.append(moment)
    return Run(name, quota, admitted)


WIDTH, LEFT, TOP = 790, 40, 50  # of the picture and its margins
ROW, TALL = 128, 84  # of one panel with its title, of its plot
STEP: Final = 4  # pixels per second
STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #333 }
.name { font-weight: 600; font-size: 13px } .back { fill: #fff }
.bar { fill: #9db8d2 } .line { fill: none; stroke: #1f4e79; stroke-width: 1.6 }
.limit { stroke: #b3261e; stroke-dasharray: 4 3 } .over { fill: #b3261e; font-weight: 600 }
.axis { stroke: #bbb } .edge { stroke: #bbb; stroke-dasharray: 1 3 }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .back { fill: #1e2129 } .bar { fill: #41597a } .line { stroke: #8ab8e6 }
.limit { stroke: #f28b82 } .over { fill: #f28b82 } .axis { stroke: #777 } .edge { stroke: #777 }
}
""".strip()


def draw() -> str:
    """The whole picture."""
    runs = [play(*case) for case in CASES]
    height = TOP + ROW * len(runs) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>What each algorithm admits around a window's edge</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}"/>',
        f'<text x="{LEFT}" y="20">100 per minute. One request at 0 s, then 50 a second from 58 s on.</text>',
        f'<text x="{LEFT}" y="38">Bars: admitted in each second. Line: admitted in the minute before.</text>',
    ]
    for at, run in enumerate(runs):
        parts += panel(run, top=TOP + ROW * at)
    bottom = TOP + ROW * len(runs) + 8
    for second in (0, 60, 120, 180):
        parts.append(f'<text x="{LEFT + second * STEP}" y="{bottom}" text-anchor="middle">{second} s</text>')
    return "\n".join([*parts, "</svg>", ""])


def panel(run: Run, *, top: int) -> list[str]:
    """One algorithm's part of the picture."""
    base, right = top + 26 + TALL, LEFT + LONG * STEP

    def height(count: int) -> int:
        return round(count * TALL / 200)

    def bar(second: int, count: int) -> str:
        place = f'x="{LEFT + second * STEP}" y="{base - height(count)}"'
        return f'<rect class="bar" {place} width="{STEP - 1}" height="{height(count)}"/>'

    halves = [run.inside(half * SECOND // 2) for half in range(2 * LONG + 1)]
    points = " ".join(f"{LEFT + half * STEP // 2},{base - height(count)}" for half, count in enumerate(halves))
    verdict = "over" if run.most > LIMIT else "most"
    return [
        f'<g data-algorithm="{run.algorithm}" data-quota="{run.quota}" data-most="{run.most}">',
        f'<text class="name" x="{LEFT}" y="{top + 16}">{run.algorithm}, {run.quota}</text>',
        f'<text class="{verdict}" x="{right}" y="{top + 16}" text-anchor="end">at most {run.most} in a minute</text>',
        *[f'<path class="edge" d="M{LEFT + s * STEP},{base - TALL}V{base}"/>' for s in (60, 120)],
        *[bar(second, count) for second, count in enumerate(run.per_second) if count],
        f'<path class="axis" d="M{LEFT},{base}H{right}"/>',
        f'<path class="limit" d="M{LEFT},{base - height(LIMIT)}H{right}"/>',
        f'<text x="{LEFT - 6}" y="{base - height(LIMIT) + 4}" text-anchor="end">100</text>',
        f'<text x="{LEFT - 6}" y="{base + 4}" text-anchor="end">0</text>',
        f'<polyline class="line" points="{points}"/>',
        "</g>",
    ]


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"drew {PICTURE}")
