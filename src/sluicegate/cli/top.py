"""`sluicegate top`: who uses most of a budget, and who is refused, from what the server keeps.

It scans all keys, a few at a time, and reads the budgets among them. The server serves the application between two of
these steps, and as long as a step took, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any, Final, NamedTuple

from sluicegate.cli.budgets import Budgets, Known, opened
from sluicegate.cli.commands import load_app, option_app
from sluicegate.cli.show import describe, now_of
from sluicegate.clock import monotonic
from sluicegate.extras import needs
from sluicegate.identity import Digested
from sluicegate.plan import Outcome

with needs("cli"):
    import click
    from rich.console import Console, Group
    from rich.live import Live

    from sluicegate.cli.output import as_json, bar, console, plain, print_json, scanning, table

BATCH: Final = 16  # budgets in one step: the server needs about a fifth of a millisecond for them
_KEPT: Final = 10  # times as many as are shown, before the rest is dropped


class Use(NamedTuple):
    """What one identity has used of one budget."""

    known: Known
    who: str  # the digest
    outcome: Outcome

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Who is refused comes first, then who has used the largest part; the longest wait first among equals."""
        outcome = self.outcome
        refused = outcome.remaining == 0 and not self.known.terms.shadow
        return refused, 1 - outcome.remaining / outcome.limit, outcome.next_after


class Top:
    """One pass over the keys of an application."""

    def __init__(self, count: int, rule: str | None) -> None:
        self._count, self._rule = count, rule
        self._best: dict[tuple[str, str], Use] = {}
        self.scanned = 0  # budgets of known rules
        self.unknown = 0  # budgets that no rule of the application has
        self.refused = 0

    @property
    def best(self) -> list[Use]:
        """The identities to show, in order."""
        return sorted(self._best.values(), key=lambda use: use.rank, reverse=True)[: self._count]

    def scan(self, budgets: Budgets, seen: Callable[[float], object]) -> None:
        """Read all budgets of one limiter."""
        rules = {rule_id: _loosest(known) for rule_id, known in budgets.known.items()}
        waiting: dict[str, dict[str, None]] = {rule_id: {} for rule_id in rules}
        started = monotonic()
        for page in budgets.pages(None, seen):
            for who, rule_id in page:
                known = rules.get(rule_id)
                if known is None:
                    self.unknown += 1
                elif self._rule is None or self._rule in known.names:
                    waiting[rule_id][who] = None
                    if len(waiting[rule_id]) == BATCH:
                        started = _rest(started)
                        self._read(budgets, known, waiting[rule_id])
            started = _rest(started)
        for rule_id, left in waiting.items():
            self._read(budgets, rules[rule_id], left)

    def _read(self, budgets: Budgets, known: Known, names: dict[str, None]) -> None:
        """Read these budgets, and empty the list of their names."""
        outcomes = budgets.peek([(known.terms, Digested(who)) for who in names])
        for who, outcome in zip(names, outcomes, strict=True):
            if outcome.remaining < outcome.limit:
                self._best[known.terms.rule_id, who] = Use(known, who, outcome)
            self.refused += outcome.remaining == 0
        self.scanned += len(names)
        names.clear()
        if len(self._best) > _KEPT * self._count:
            self._best = {(use.known.terms.rule_id, use.who): use for use in self.best}


def _loosest(known: Iterable[Known]) -> Known:
    """Return the terms with the highest limit. Tiers share a budget, and the server knows nobody's tier."""
    return max(known, key=lambda each: each.terms.limit)


def _rest(started: float) -> float:
    """Wait for as long as the work since `started` took. Return the time when it goes on."""
    Event().wait(monotonic() - started)
    return monotonic()


@click.command()
@option_app
@click.option("--limit", "count", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many to show.")
@click.option("--match", "rule", metavar="RULE", help="Only the budgets of this rule or ban.")
@click.option("--once", is_flag=True, help="Look once. This is also done where the output is not a terminal.")
@click.option("--every", default=2.0, show_default=True, metavar="SECONDS", help="The pause between two looks.")
@as_json
def top(app: str | None, count: int, rule: str | None, every: float, *, once: bool, as_json: bool) -> None:
    """Show who uses most of a budget and who is refused, as digests, until Ctrl-C."""
    application = load_app(app)
    out = console()
    with opened(application) as limiters, suppress(KeyboardInterrupt):
        if once or as_json or not out.is_terminal:
            found = Top(count, rule)
            with scanning("scanning keys") as seen:
                for budgets in limiters:
                    found.scan(budgets, seen)
            print_json(_values(found)) if as_json else out.print(_table(found, 1.0, out=out))
            return
        with Live(console=out, auto_refresh=False, screen=True) as live:
            now = shown = Top(count, rule)
            while True:
                draw = partial(_draw, live, shown, out=out)  # the last whole look, or the first one while it is made
                for budgets in limiters:
                    now.scan(budgets, draw)
                _draw(live, now, 1.0, out=out)
                shown, now = now, Top(count, rule)
                Event().wait(every)


def _draw(live: Live, found: Top, share: float, *, out: Console) -> None:
    live.update(_table(found, share, out=out), refresh=True)


def _table(found: Top, share: float, *, out: Console) -> Group:
    rows = table("Rule", "Identity", "Used", "", "Now")
    for known, who, outcome in found.best:
        facts = describe(known, outcome)
        rows.add_row(
            plain(known.rule),
            plain(who),
            bar(facts["used"], facts["limit"], out=out),
            plain(f"{facts['used']} of {facts['limit']}"),
            now_of(facts),
        )
    unknown = f", {found.unknown} of other rules" if found.unknown else ""
    progress = "" if share == 1 else f" ({share:.0%} scanned)"
    return Group(plain(f"{found.scanned} budgets{unknown}, {found.refused} used up{progress}", "bold"), rows)


def _values(found: Top) -> dict[str, Any]:
    """Return the same for JSON."""
    rows = [{"identity": who, **describe(known, outcome)} for known, who, outcome in found.best]
    return {"scanned": found.scanned, "unknown": found.unknown, "used_up": found.refused, "top": rows}
