"""The report of a replay on a terminal: the answer first, then candidates side by side, then each of them.

Text of a log is data: markup in it is not read, and control characters are shown, not sent to the terminal. Where the
output is ASCII, so is every character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from sluicegate.cli.output import OVER_TIME, Listing
from sluicegate.replay import words
from sluicegate.replay.result import Candidate, Result, Traffic

_GAP: Final = 2
_MOST: Final = 10  # routes and identities
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


def show(result: Result, console: Console) -> None:
    for part in Report(result, console).parts():
        console.print(part)


class Report:
    """What is printed for one result, on a console of its width and encoding."""

    def __init__(self, result: Result, console: Console) -> None:
        self._result = result
        self._width = console.width
        self._ascii = console.options.ascii_only

    def parts(self) -> Iterator[RenderableType]:
        traffic, candidates = self._result.traffic, self._result.candidates
        for warning in traffic.warnings:
            yield self._text(f"Warning: {warning}", "bold yellow")
        for each in candidates:
            yield self._text(each.name, "bold") + self._text(f" {words.answer(each)}", "red" if each.refused else "")
        if not candidates:
            yield self._text("No candidate: give a rule, and the report says whom it would have refused.", "bold")
        yield from self._traffic(traffic)
        if candidates and traffic.requests:
            yield from self._side_by_side(candidates)
            for each in candidates:
                yield from self._candidate(each)

    def _traffic(self, traffic: Traffic) -> Iterator[RenderableType]:
        yield self._title("Read")
        yield self._indented(f"{words.what_was_read(traffic)}; read and decided in {words.span(self._result.seconds)}")
        for name, form in traffic.files:
            yield self._indented(f"{name}: {form}", "dim")
        for note in words.notes(traffic._replace(warnings=())):  # these came first
            yield self._indented(note, "yellow")
        for file, line, example in traffic.unreadable.examples:
            yield self._indented(f"Not read: {file}:{line}: {example}", "dim")

    def _side_by_side(self, candidates: Sequence[Candidate]) -> Iterator[RenderableType]:
        names, facts = [each.name for each in candidates], [words.facts(each) for each in candidates]
        rows = [[title, *[each[at][1] for each in facts]] for at, (title, _) in enumerate(facts[0])]
        yield self._title("Side by side")
        yield from self._table(["", *names], rows, right=names)
        yield self._indented(words.FACTS, "dim")

    def _candidate(self, found: Candidate) -> Iterator[RenderableType]:
        yield self._title(found.name)
        yield from self._table(
            ["Rule", "Quota", "Key", "On", "Refused", "Identities"],
            [
                [rule.name, rule.quota, rule.key, rule.applies_to or "all", rule.refused, rule.identities]
                for rule in found.rules
            ],
            right=["Refused", "Identities"],
        )
        if not found.decided:
            return
        if note := words.rollout(found):
            yield self._indented(note, "yellow")
        yield self._indented(f"{words.closed_loop(found.closed_loop)} Refused: {words.kinds(found)}.")
        if found.curves_note:
            yield self._indented(found.curves_note, "yellow")
        yield from self._load(found)
        if found.refused:
            yield from self._refusals(found)

    def _load(self, found: Candidate) -> Iterator[RenderableType]:
        load, size = found.load, max(10, min(120, self._width - 34))
        if not load.logged:
            return
        top, busiest = max(load.logged), f"Busiest {words.span(load.bucket)}"
        yield from self._table(
            ["Load", OVER_TIME, busiest],
            [
                [name, _sparkline(counts, size=size, top=top), f"{words.peak(counts, load):.3g}/s"]
                for name, counts in (("without", load.logged), ("with", load.passed))
            ],
            right=[busiest],
        )

    def _refusals(self, found: Candidate) -> Iterator[RenderableType]:
        routes = sorted(found.routes, key=lambda route: -route.refused)
        yield from self._table(
            ["Route", "Requests", "Refused", "", "Identities"],
            [
                [
                    route.route,
                    route.requests,
                    route.refused,
                    words.share(route.refused, route.requests),
                    f"{route.refused_identities:,} of {route.identities:,}",
                ]
                for route in routes[:_MOST]
                if route.refused
            ],
            right=["Requests", "Refused", "", "Identities"],
        )
        yield from self._table(
            ["Worst moments", "For", "Requests", "Refused", "Identities"],
            [[f"{words.moment(at)} UTC", words.span(seconds), *numbers] for at, seconds, *numbers in found.worst],
            right=["For", "Requests", "Refused", "Identities"],
        )
        yield from self._table(
            ["Most refused", "Requests", "Refused", "Blocked", "Kind", OVER_TIME],
            [
                [
                    each.identity,
                    each.requests,
                    each.refused,
                    words.span(each.seconds),
                    words.KINDS[each.kind][0],
                    _sparkline(each.refusals, size=max(12, min(40, self._width - 69)), top=0),
                ]
                for each in found.most_refused[:_MOST]
            ],
            right=["Requests", "Refused", "Blocked"],
        )

    def _table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str | int]], *, right: Sequence[str] = ()
    ) -> Iterator[RenderableType]:
        if rows:
            made = Listing(*map(self._shown, columns), right=tuple(map(self._shown, right)))
            for row in rows:
                made.add_row(*[self._text(f"{cell:,}" if isinstance(cell, int) else cell) for cell in row])
            yield made
            yield Text()

    def _title(self, text: str) -> Text:
        return Text("\n") + self._text(text, "bold underline")

    def _indented(self, text: str, style: str = "") -> Padding:
        return Padding(self._text(text, style), (0, 0, 0, _GAP), expand=False)

    def _text(self, text: str, style: str = "") -> Text:
        return Text(self._shown(text), style, overflow="fold")

    def _shown(self, text: str) -> str:
        text = words.printable(text)
        # Before the widths are computed: what replaces a sign may be longer.
        return text.encode("ascii", "sluicegate").decode() if self._ascii else text


def _sparkline(counts: Sequence[float], *, size: int, top: float) -> str:
    """Return counts as a row of signs, `top` being the highest of them; their own maximum if it is less.

    Neighbours share a sign if there are more than `size`: the highest of them is shown.
    """
    size = min(size, len(counts))
    edges = [i * len(counts) // size for i in range(size + 1)] if size else []
    cells = [max(counts[a:b]) for a, b in pairwise(edges)]
    top = max([top, *cells]) or 1
    return "".join([_BLOCKS[ceil(each * (len(_BLOCKS) - 1) / top)] for each in cells])
