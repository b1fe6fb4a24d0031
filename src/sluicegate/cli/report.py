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
        columns = ["Rule", "Quota", "Key", "On", "Refused", "Identities"]
        rules = [
            (one.name, one.quota, one.key, one.applies_to or "all", one.refused, one.identities) for one in found.rules
        ]
        yield from self._table(columns, rules, right=columns[-2:])
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
        rows = [
            (name, _sparkline(counts, size=size, top=top), f"{words.peak(counts, load):.3g}/s")
            for name, counts in (("without", load.logged), ("with", load.passed))
        ]
        yield from self._table(["Load", OVER_TIME, busiest], rows, right=[busiest])

    def _refusals(self, found: Candidate) -> Iterator[RenderableType]:
        numbers = ["Requests", "Refused", "", "Identities"]
        routes = [
            (
                one.route,
                one.requests,
                one.refused,
                words.share(one.refused, one.requests),
                f"{one.refused_identities:,} of {one.identities:,}",
            )
            for one in sorted(found.routes, key=lambda route: -route.refused)[:_MOST]
            if one.refused
        ]
        yield from self._table(["Route", *numbers], routes, right=numbers)
        numbers = ["For", "Requests", "Refused", "Identities"]
        worst = [(f"{words.moment(at)} UTC", words.span(seconds), *counts) for at, seconds, *counts in found.worst]
        yield from self._table(["Worst moments", *numbers], worst, right=numbers)
        numbers = ["Requests", "Refused", "Blocked"]
        size = max(12, min(40, self._width - 69))
        most = [
            (
                one.identity,
                one.requests,
                one.refused,
                words.span(one.seconds),
                words.KINDS[one.kind][0],
                _sparkline(one.refusals, size=size, top=0),
            )
            for one in found.most_refused[:_MOST]
        ]
        yield from self._table(["Most refused", *numbers, "Kind", OVER_TIME], most, right=numbers)

    def _table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
    ) -> Iterator[RenderableType]:
        if rows:
            cells = [[self._text(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row] for row in rows]
            yield Listing(cells, *map(self._shown, columns), right=tuple(map(self._shown, right)))
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
