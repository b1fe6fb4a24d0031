"""`sluicegate top`: who uses most of a budget, and who is refused, from what the server keeps.

It scans all keys, a few at a time, and reads the budgets among them. The server serves the application between two of
these steps, and as long as a step took, nothing is sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from threading import Event
from typing import Final, NamedTuple

import click
from rich.console import Group
from rich.live import Live

from sluicegate.cli.budgets import Budgets, Known, check_rule, opened
from sluicegate.cli.output import WHOSE, Listing, Shell, console, foreign_keys, operated, option_every, plain, scanning
from sluicegate.cli.show import TIERS, describe, now_of, used_of
from sluicegate.clock import monotonic
from sluicegate.identity import Digested
from sluicegate.plan import Outcome
from sluicegate.replay.words import count

BATCH: Final = 16  # budgets in one step: the server needs about a fifth of a millisecond for them
_REASONS: Final = 3  # why quotas are not known: `show` has the others
_KEPT: Final = 10  # times as many as are shown, before the rest is dropped


class Use(NamedTuple):
    """What one identity has used of one budget."""

    known: Known
    who: str  # the digest
    outcome: Outcome
    kept_in: int  # which of several stores or prefixes

    @property
    def place(self) -> tuple[int, str, int, str]:
        """What it is of: a budget, and the limit of one tier."""
        return self.kept_in, self.known.terms.rule_id, self.known.terms.limit, self.who

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Who is refused comes first, then who has used the largest part; the longest wait first among equals."""
        outcome = self.outcome
        refused = outcome.remaining == 0 and not self.known.terms.shadow
        return refused, 1 - outcome.remaining / outcome.limit, outcome.next_after


class Top:
    """One pass over the keys of an application."""

    def __init__(self, most: int, rule: str | None) -> None:
        self._most, self._rule = most, rule
        self._best: dict[tuple[int, str, int, str], Use] = {}
        self.scanned = 0  # budgets of known rules
        self.foreign = 0  # keys that another program wrote
        self.unknown = 0  # budgets whose quota is not known
        self.reasons: dict[str, str] = {}  # why, by the id of the rule
        self.refused = 0

    @property
    def best(self) -> list[Use]:
        """The identities to show, in order."""
        return sorted(self._best.values(), key=lambda use: use.rank, reverse=True)[: self._most]

    def scan(self, budgets: Budgets, seen: Callable[[float], object]) -> None:
        """Read all budgets of one limiter, under the overrides that hold. No pattern matches a digest."""
        applied = budgets.followed()
        named = {who for each in applied.overrides for who in each.digests}  # whose terms may be their own

        @cache
        def rules(own: str) -> dict[str, tuple[Known, ...]]:
            found, _ = budgets.steered((), Digested(own) if own else "", applied)
            return {rule_id: _tiers(known, self._rule) for rule_id, known in found.items()}

        waiting = defaultdict[tuple[str, str], dict[str, None]](dict)
        started = monotonic()
        for page in budgets.pages(None, seen):
            self.foreign += page.foreign
            for who, rule_id in page.budgets:
                own = who if who in named else ""
                known = rules(own).get(rule_id)
                if known is None:
                    if self._rule in (None, budgets.owner(rule_id)):
                        self.unknown += 1
                        self.reasons[rule_id] = self.reasons.get(rule_id) or budgets.why_unknown(rule_id)
                elif known:
                    names = waiting[own, rule_id]
                    names[who] = None
                    if len(names) * len(known) >= BATCH:
                        started = _rest(started)
                        self._read(budgets, known, names)
            started = _rest(started)
        for (own, rule_id), left in waiting.items():
            self._read(budgets, rules(own)[rule_id], left)

    def _read(self, budgets: Budgets, known: tuple[Known, ...], names: dict[str, None]) -> None:
        """Read these budgets, and empty the list of their names."""
        pairs = [(each, who) for who in names for each in known]
        outcomes = budgets.read([(each.terms, Digested(who)) for each, who in pairs])
        read = [(*pair, outcome) for pair, outcome in zip(pairs, outcomes, strict=True) if outcome is not None]
        uses = [Use(*each, kept_in=id(budgets)) for each in read]
        self._best |= {use.place: use for use in uses if use.outcome.remaining < use.outcome.limit}
        self.refused += len({use.who for use in uses if use.outcome.remaining == 0})
        whole = len({use.who for use in uses})
        self.scanned += whole
        self.foreign += len(names) - whole
        names.clear()
        if len(self._best) > _KEPT * self._most:
            self._best = {use.place: use for use in self.best}


def _tiers(known: Iterable[Known], rule: str | None) -> tuple[Known, ...]:
    """Return those of a rule, one for each limit. Tiers share a budget, and the server knows nobody's tier."""
    return tuple({each.terms.limit: each for each in known if rule is None or rule in each.names}.values())


def _rest(started: float) -> float:
    """Wait for as long as the work since `started` took. Return the time when it goes on."""
    Event().wait(monotonic() - started)
    return monotonic()


@click.command()
@click.option("--limit", "most", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many to show.")
@click.option("--rule", metavar="NAME", help="Only the budgets of this rule or ban.")
@click.option("--once", is_flag=True, help="Look once. This is also done where the output is not a terminal.")
@option_every("The pause between two looks.")
@operated()
def top(shell: Shell, most: int, rule: str | None, *, every: float, once: bool) -> None:
    """Show who uses most of a budget and who is refused, as digests, until Ctrl-C.

    It shows who is refused now, because a server stores what is used and counts no refusals; only a ban counts them.
    How often a rule refuses is in `sluicegate watch`.
    """
    out = console()
    with opened(shell.application) as limiters:
        if rule is not None:
            check_rule(limiters, rule)
        if once or shell.as_json or not out.is_interactive:
            found = Top(most, rule)
            with scanning("scanning keys") as seen:
                for budgets in limiters:
                    found.scan(budgets, seen)
            shell.tell(_values(found), _table(found, 1.0))
            return
        with suppress(KeyboardInterrupt), Live(console=out, auto_refresh=False, screen=True) as live:
            now = shown = Top(most, rule)
            while True:
                draw = partial(_draw, live, shown)  # the last whole look, or the first one while it is made
                for budgets in limiters:
                    now.scan(budgets, draw)
                _draw(live, now, 1.0)
                shown, now = now, Top(most, rule)
                Event().wait(every)


def _draw(live: Live, found: Top, share: float) -> None:
    live.update(_table(found, share), refresh=True)


def _table(found: Top, share: float) -> Group:
    best = [(who, describe(known, outcome)) for known, who, outcome, _ in found.best]
    cells = [(each["rule"], who, *used_of(each), now_of(each)) for who, each in best]
    rows = Listing(cells, "Rule", "Identity", "Used", "", "Now")
    unknown = f", {count(found.unknown, 'budget')} of unknown quota" if found.unknown else ""
    progress = "" if share == 1 else f" ({share:.0%} scanned)"
    title = f"{count(found.scanned, 'budget')}, {found.refused:,} used up{unknown}{progress}"
    reasons = [f"{reason}." for reason in [*dict.fromkeys(found.reasons.values())][:_REASONS]]
    tiers = any([each["tier"] is not None for _, each in best])
    notes = [TIERS if tiers else "", *reasons, WHOSE if cells else "", foreign_keys(found.foreign)]
    return Group(plain(title, "bold"), rows, *[plain(note, "dim") for note in notes if note])


def _values(found: Top) -> dict[str, object]:
    rows = [{"identity": who, **describe(known, outcome)} for known, who, outcome, _ in found.best]
    facts = {"scanned": found.scanned, "unknown": found.unknown, "foreign": found.foreign, "used_up": found.refused}
    return {**facts, "top": rows}
