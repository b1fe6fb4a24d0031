"""`sluicegate ban`, `unban` and `bans`: the bans of an application, by hand."""

from __future__ import annotations

import click

from sluicegate.cli.budgets import (
    Budgets,
    forget_everyone,
    identity_text,
    opened,
    takes_identity,
    warn_of_mismatch,
)
from sluicegate.cli.commands import Command
from sluicegate.cli.output import WHOSE, Listing, Shell, foreign_keys, operated, option_for, plain, scanning, span
from sluicegate.clock import MICROSECOND
from sluicegate.identity import Digested, digest
from sluicegate.plan import Check, Plan
from sluicegate.rules.ban import Ban


def _option_ban(command: Command) -> Command:
    text = "The ban, by its own name or that of its rule. Not needed if there is only one."
    return click.option("--ban", "--rule", "which", metavar="NAME", help=text)(command)


@click.command()
@takes_identity
@_option_ban
@option_for('How long, as "1 hour"; without it as long as the ban says.')
@operated(changes=True)
def ban(shell: Shell, identity: tuple[str, ...], name: str | None, *, which: str | None, duration: str | None) -> None:
    """Ban one identity from now on: all rules that have this ban refuse it."""
    with opened(shell.application) as limiters:
        budgets, found = _chosen(limiters, which)
        terms = found.terms if duration is None else found.lasting(duration)
        text = identity_text(budgets, identity, name)
        warn_of_mismatch([budgets], identity, found.name, fails="so this ban would refuse nobody")
        shell.confirm(f"Ban {' '.join(identity) or name} by {found.name}?")
        budgets.store.run(Plan((Check(terms, text, found.after),)))
        (outcome,) = budgets.peek([(terms, text)])
    left, who = (outcome.retry_after or 0) / MICROSECOND, digest(text)
    facts = {"ban": found.name, "identity": who, "seconds": left}
    shell.tell(facts, f"Banned {who} by {found.name} for {span(left)}.")


@click.command()
@takes_identity
@_option_ban
@click.option("--everyone", is_flag=True, help="Of all identities: give no identity.")
@operated(changes=True)
def unban(shell: Shell, identity: tuple[str, ...], name: str | None, *, which: str | None, everyone: bool) -> None:
    """End a ban of one identity, and forget its earlier strikes and bans."""
    with opened(shell.application) as limiters:
        budgets, found = _chosen(limiters, which)
        if everyone:
            if identity or name is not None:
                raise click.UsageError("--everyone is for all identities; give none")
            what = f"the ban {found.name} and its strikes"
            forget_everyone(shell, [budgets], lambda _: {found.terms.rule_id}, what=what)
            return
        text = identity_text(budgets, identity, name)
        warn_of_mismatch([budgets], identity, found.name)
        shell.confirm(f"End the ban {found.name} of {' '.join(identity) or name}?")
        (before,) = budgets.peek([(found.terms, text)])
        budgets.store.forget(found.terms.rule_id, text)
    facts = {"ban": found.name, "identity": digest(text), "was_banned": not before.allowed}
    was = "is no longer banned" if not before.allowed else "was not banned; its strikes are forgotten"
    more = plain("The budgets of its rules stay as they are: reset gives them back.", "dim")
    shell.tell(facts, f"{digest(text)} {was}.", more)


@click.command()
@operated()
def bans(shell: Shell) -> None:
    """List who is banned, as digests, and for how long."""
    found: list[tuple[str, str, float]] = []
    foreign = 0
    with opened(shell.application) as limiters:
        for budgets in limiters:
            named = {each.terms.rule_id: each for each in budgets.bans.values()}
            with scanning("scanning keys") as seen:
                stored = set[tuple[str, str]]()
                for page in budgets.pages(None, seen):
                    stored.update(pair for pair in page.budgets if pair[1] in named)
                    foreign += page.foreign
            for who, rule_id in stored:
                (outcome,) = budgets.read([(named[rule_id].terms, Digested(who))])
                foreign += outcome is None
                if outcome is not None and not outcome.allowed:
                    found.append((named[rule_id].name, who, (outcome.retry_after or 0) / MICROSECOND))
    found.sort(key=lambda each: (each[0], -each[2], each[1]))
    shown = Listing([(which, who, span(left)) for which, who, left in found], "Ban", "Identity", "Ends in")
    rows = [dict(zip(("ban", "identity", "seconds"), each, strict=True)) for each in found]
    notes = [plain(note, "dim") for note in (WHOSE if found else "", foreign_keys(foreign)) if note]
    shell.tell({"bans": rows, "foreign": foreign}, shown if found else "Nobody is banned.", *notes)


def _chosen(limiters: list[Budgets], which: str | None) -> tuple[Budgets, Ban]:
    """Return the ban with this name, and where it is kept."""
    pairs = [(budgets, name, each) for budgets in limiters for name, each in budgets.bans.items()]
    found = [(budgets, each) for budgets, name, each in pairs if which in (None, name)]
    if not pairs:
        raise click.UsageError("no rule of this application has a ban")
    if len({id(budgets) for budgets, _ in found}) != 1 or len({each.name for _, each in found}) != 1:
        problem = "give --ban" if which is None else f"no ban {which!r}"
        raise click.UsageError(f"{problem}; the bans are {', '.join(sorted({each.name for _, _, each in pairs}))}")
    return found[0]
