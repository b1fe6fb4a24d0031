"""`sluicegate override`, `shadow`, `enforce`, `off`, `deny`, `allow` and `history`: rules steered while they run.

A command makes its change by `Overrides`, whose store shows the change and asks before it writes: what is shown is what
is written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from getpass import getuser
from socket import gethostname
from typing import Any, Final

import click

from sluicegate.cli.budgets import Budgets, check_name, check_tier, one_place, opened, warn_of_mismatch
from sluicegate.cli.check import quota_of
from sluicegate.cli.commands import Command
from sluicegate.cli.output import Listing, Shell, console, operated, option_for, plain, span
from sluicegate.clock import MICROSECOND, epoch_seconds
from sluicegate.identity import Digested, digest, identity_text
from sluicegate.overrides import Action, Entry, Override, Overrides
from sluicegate.overrides.follow import processes, who_follows
from sluicegate.overrides.override import EVERY_RULE, LONGEST, Document, sample_of
from sluicegate.replay.words import count
from sluicegate.stores import HISTORY

_SHOWN: Final = 20  # overrides of one change, and processes


class _Steered(click.Group):
    """A group whose first word may be an argument of its first command: `override login 10/minute`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if not args or args[0] in self.commands else ["set", *args])


def _for_whom(command: Command) -> Command:
    """Add the options that say for whom an override holds."""
    command = click.option("--tier", metavar="NAME", help="Only for this tier of the rule.")(command)
    command = click.option("--pattern", metavar="TEXT", help="Only for identities such as user:test-*.")(command)
    text = "Only for this identity, as user:42. Repeatable."
    return click.option("--identity", "identities", multiple=True, metavar="KEY", help=text)(command)


def _sets(command: Callable[..., object]) -> Callable[..., object]:
    """Add the options of every command that sets an override."""
    reason = click.option("--why", default="", metavar="TEXT", help="The reason, for the history.")
    length = option_for('How long, as "2h" or "7 days"; without it until removed.')
    return length(reason(operated(changes=True)(command)))


@contextmanager
def _place(shell: Shell, *, lists: bool = False) -> Generator[Budgets]:
    """Open where the overrides of an application are. Raises UsageError if that is no single store, or file to list."""
    with opened(shell.application) as places:
        given = one_place(places).settings.overrides
        if isinstance(given, str) and not lists:
            raise click.UsageError(f"the overrides of this application are in {given}; change that file")
        if not given:
            raise click.UsageError("this application follows no overrides: it has overrides=False")
        yield places[0]


def _author() -> str:
    try:
        return f"{getuser()}@{gethostname()}"[:LONGEST]
    except (OSError, KeyError):  # a container may have no such user
        return gethostname()[:LONGEST]


class _Asking:
    """The store of an application, which shows a change of the overrides and asks before it is written."""

    def __init__(self, shell: Shell, budgets: Budgets, whom: Sequence[str]) -> None:
        self._shell, self._budgets = shell, budgets
        self._typed = {digest(budgets.text([word])): word for word in whom}
        self.entry: Entry | None = None  # the last change; None if nothing was written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._budgets.store, name)

    def write_overrides(self, before: bytes, after: bytes, entry: str) -> object:
        self.entry = change = Entry.of(entry)
        for one in change.added:
            lists = one.rule == EVERY_RULE and one.is_list  # these hold where no rule applies
            for word in filter(None, (*self._typed.values(), one.pattern)):
                warn_of_mismatch([self._budgets], (word,), one.rule, lists=lists)
        if not (self._shell.as_json and self._shell.yes):
            _preview(self._budgets, change, Document.of(after).held, typed=self._typed)
        self._shell.confirm("Change it?")
        return self._budgets.store.write_overrides(before, after, entry)


def _change(shell: Shell, budgets: Budgets, change: Callable[[Overrides], object], *, whom: Sequence[str] = ()) -> None:
    """Change the overrides: show it, ask, write it, and tell what was done. `whom` are the identities as typed."""
    store = _Asking(shell, budgets, whom)
    change(budgets.overrides(store))
    if store.entry is None:
        shell.tell({"added": [], "removed": []}, "There was nothing to change, so nothing was written.")
        return
    added, removed = store.entry.added, store.entry.removed
    done = f"Set {_some([one.id for one in added])}." if added else f"{count(len(removed), 'override')} removed."
    told = f"{done} {who_follows(budgets.store)} sluicegate override undo takes it back."
    shell.tell(entry_facts(store.entry), told)


def _preview(budgets: Budgets, entry: Entry, held: Sequence[Override], *, typed: Mapping[str, str]) -> None:
    """Show what a change does: to which rules, for whom, with how many budgets in use, and which processes follow.
    `held` are the overrides after it, and `typed` has typed identities by their digests: no pattern matches a digest.
    """
    out, written = console(stderr=True), {rule.name: quota_of(rule) for rule in budgets.rules}
    rows, names, hidden = list[tuple[str, ...]](), set[str](), set[str]()
    stays, after = [one for one in held if one not in entry.added], {one.target: one for one in entry.added}
    then = [budgets.applied([*stays, *some]) for some in (entry.removed, entry.added)]
    for target, one in ({one.target: one for one in entry.removed} | after).items():
        ruled, who = [one.rule], sample_of(one.pattern) if one.pattern else ""
        words = [typed[each] for each in one.digests if each in typed]
        if one.digests:
            who = identity_text(budgets.identity(words[:1])) if words else Digested(one.digests[0])
        if one.rule == EVERY_RULE:
            apart = set[str]().union(words and set.intersection(*[budgets.apart([word]) for word in words]))
            ruled = [name for name in written if name not in apart] or [EVERY_RULE]
            hidden |= apart
        names.update(() if one.digests else ruled)  # of one identity, `sluicegate show` tells the budgets
        for name in ruled:
            found = [applied.of(name, who, one.tier) for applied in then]
            rule = "" if name == EVERY_RULE else written.get(name, "no such rule")
            holds = [holds_of(one.override) if one else rule for one in found]
            rows.append((name, *holds, whom_of(one), ends_in(after.get(target))))
    out.print(Listing(rows[:_SHOWN], "Rule", "Now", "Then", "For", "Ends in"))
    if len(rows) > _SHOWN:
        out.print(f"and {len(rows) - _SHOWN:,} more")
    if names:
        used = len(set(budgets.having(ids := budgets.ids(names), "counting budgets")))
        leaks = "gcra" in {each.terms.algorithm for rule_id in ids for each in budgets.known[rule_id]}
        unless = "; a bucket starts again at another rate" if leaks else ""
        out.print(plain(f"{count(used, 'budget')} in use{unless}."))
    notes = {"Not shown, because the key is not known to give this identity": ("rule", sorted(hidden))}
    notes |= {"Still holds for some, because it comes first": ("override", _outside(budgets, entry))}
    for says, (what, listed) in notes.items():
        if listed:
            out.print(plain(f"{says}: {count(len(listed), what)} ({', '.join(listed[:_SHOWN])}).", "yellow"))
    following = [each.partition(" ") for each in processes(budgets.store)]
    out.print(plain(f"Following: {count(len(following), 'process', 'processes')}."))
    for name, _, _ in following[:_SHOWN]:
        out.print(plain(f"  {name}", "dim"))
    others = [name for name, _, mark in following if mark not in ("", budgets.mark)]
    if others:
        says = f"warning: another secret than in this shell, so an identity is another one there: {_some(others)}"
        out.print(plain(says, "yellow"))


def _outside(budgets: Budgets, entry: Entry) -> list[str]:
    """Return the ids of the overrides that go on to hold for some identities beside the added one for everybody."""
    if [one.target[1] for one in entry.added] != ["everybody"]:
        return []
    (made,) = entry.added
    same = [one for one in budgets.live if EVERY_RULE in (made.rule, one.rule) or one.rule == made.rule]
    return [one.id for one in same if one.target != made.target and _rank(one) > _rank(made)]


def _rank(override: Override) -> tuple[bool, bool, bool]:
    """Return what decides which of two overrides comes first, if one of them is for everybody."""
    return override.is_list, override.target[1] != "everybody", override.rule != EVERY_RULE


def holds_of(override: Override) -> str:
    """Return what holds: a quota or a mode."""
    return override.quota or override.action


def _some(names: Sequence[str]) -> str:
    """Return the first of these names, and how many others there are."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def whom_of(override: Override) -> str:
    """Return for whom an override holds, in one line: identities as digests."""
    if override.digests:
        return _some(override.digests)
    return override.pattern or (f"tier {override.tier}" if override.tier else "everybody")


def ends_in(override: Override | None) -> str:
    """Return how long an override holds; nothing if it has no end."""
    if override is None or override.until is None:
        return ""
    left = override.until / MICROSECOND - epoch_seconds()
    return span(left) if left > 0 else "ended"


def facts_of(override: Override) -> dict[str, Any]:
    """Return an override for JSON. Times are moments of ISO 8601."""
    times = {"until": override.until and moment_of(override.until), "at": moment_of(override.at)}
    return {"identities" if name == "digests" else name: given for name, given in (asdict(override) | times).items()}


def entry_facts(entry: Entry) -> dict[str, Any]:
    """Return an entry of the history for JSON."""
    sets = {"added": [facts_of(one) for one in entry.added], "removed": [facts_of(one) for one in entry.removed]}
    return {**entry._asdict(), "at": moment_of(entry.at), **sets}


def moment_of(us: int) -> str:
    """Return a moment as text."""
    return datetime.fromtimestamp(us // MICROSECOND, UTC).isoformat().replace("+00:00", "Z")


@click.group(cls=_Steered)
def override() -> None:
    """Let another quota hold for a rule, for everybody or for some identities.

    sluicegate override RULE QUOTA [--identity user:42] [--for 7d] [--why TEXT]

    "override remove '*'" removes all, also what cannot be read.
    """


def _set(
    shell: Shell, rule: str, action: Action, *, identities: tuple[str, ...] = (), duration: str | None, **options: Any
) -> None:
    """Set an override."""
    with _place(shell) as budgets:
        # A ban or one of several quotas has a name too, but an override is for a whole rule.
        if not budgets.meant(rule, options.get("quota")):
            part_of = {name for name, _ in budgets.keys(rule)}
            check_name("rule", rule, {each.name for each in budgets.rules}, part_of=part_of)
        if options.get("tier") is not None:
            check_tier([budgets], options["tier"])
        whom = [budgets.identity([word]) for word in identities] or None
        options |= {"identities": whom, "until": duration, "by": _author()}
        _change(shell, budgets, lambda overrides: overrides.set(rule, action=action, **options), whom=identities)


def _mode(action: Action, text: str) -> click.Command:
    """Return the command that lets something else hold for a rule."""

    @click.command(action, help=text)
    @click.argument("rule")
    @_for_whom
    @_sets
    def command(shell: Shell, rule: str, **options: Any) -> None:
        _set(shell, rule, action, **options)

    return command


shadow = _mode("shadow", "Let a rule count and never refuse.")
off = _mode("off", "Let a rule not apply.")
enforce = _mode("enforce", "Enforce a rule, also one that is in shadow, wholly or for some.")
_quota: Final = _mode("quota", "Let another quota hold: the same as `sluicegate override RULE QUOTA`.")
_quota.params.append(click.Argument(["quota"]))
override.add_command(_quota, "set")


def _access(action: Action, text: str) -> click.Group:
    """Return the group of commands for the identities that are refused, or that pass."""

    @click.group(action, help=f"{text} KEY is an identity such as user:42, or a pattern such as user:test-*.")
    def group() -> None:
        pass

    @group.command(help=text)
    @click.argument("key")
    @click.option("--rule", default=EVERY_RULE, metavar="NAME", help="Only under this rule.")
    @_sets
    def add(shell: Shell, key: str, rule: str, **options: Any) -> None:
        options |= {"pattern": key} if EVERY_RULE in key else {"identities": (key,)}
        _set(shell, rule, action, **options)

    return _held(group, action)


def _held(group: click.Group, action: Action | None = None) -> click.Group:
    """Add the commands that list and remove overrides to a group: all, or those of one action."""

    @group.command("list", help="List what holds now instead of the rules, identities as digests.")
    @operated()
    def listed(shell: Shell) -> None:
        with _place(shell, lists=True) as budgets:
            held = [one for one in budgets.live if action in (None, one.action)]
            given = budgets.settings.overrides
        cells = [(one.id, one.rule, holds_of(one), whom_of(one), ends_in(one), one.by, one.why) for one in held]
        rows = Listing(cells, "Id", "Rule", "Holds", "For", "Ends in", "By", "Why")
        facts = {"overrides": [facts_of(one) for one in held]}
        none = "The rules hold as they are written." if action is None else "Nobody is on this list."
        file = [f"These are in {given}; change that file."] if isinstance(given, str) and held else []
        shell.tell(facts, rows if held else none, *file)

    @group.command(help="Remove one, by its id, its identity or its pattern.")
    @click.argument("which", metavar="ID|KEY")
    @operated(changes=True)
    def remove(shell: Shell, which: str) -> None:
        with _place(shell) as budgets:
            meant = which if which == EVERY_RULE and action is None else _found(budgets, which, action)
            typed = (which,) if ":" in which and EVERY_RULE not in which else ()
            _change(shell, budgets, lambda overrides: overrides.remove(meant, by=_author()), whom=typed)

    return group


def _found(budgets: Budgets, which: str, action: Action | None) -> str:
    """Return the id of the override that a person means: by its id, its pattern or its one identity."""
    key: str | None = which
    if ":" in which and EVERY_RULE in which:  # as it is kept: the name of a header has no case
        key = Override(rule=EVERY_RULE, action="deny", pattern=which).pattern
    elif ":" in which:
        key = digest(budgets.text([which]))
    held = [one for one in budgets.live if action in (None, one.action)]
    found = [one.id for one in held if key in (one.id, one.pattern) or one.digests == (key,)]
    if len(found) != 1:
        among = ", ".join([one.id for one in held if key in one.digests][:_SHOWN])
        hint = f"it is in {among}" if among else "list them"
        raise click.UsageError(f"{count(len(found), 'override')} of this id or key; {hint}; give the id of one")
    return found[0]


_held(override)
deny = _access("deny", "Refuse every request of an identity with a 403.")
allow = _access("allow", "Let every request of an identity pass.")


@override.command()
@operated(changes=True)
def undo(shell: Shell) -> None:
    """Take back the last change; a second time, bring it back."""
    with _place(shell) as budgets:
        _change(shell, budgets, lambda overrides: overrides.undo(by=_author()))


@click.command()
@click.option("-n", "number", default=20, show_default=True, metavar="N", type=click.IntRange(1, HISTORY))
@operated()
def history(shell: Shell, number: int) -> None:
    """Show the last changes of overrides: who has changed what, when and why."""
    with _place(shell) as budgets:
        entries = budgets.overrides().history(number)
    rows = list[tuple[str, ...]]()
    for entry in entries:
        sets = [(one, "") for one in entry.added] + [(one, "not ") for one in entry.removed]
        changes = [f"{entry.what} {one.rule}: {no}{holds_of(one)} for {whom_of(one)}" for one, no in sets]
        first, *others = changes or [entry.what]
        rows += [(moment_of(entry.at), first, entry.by, entry.why), *[("", each) for each in others]]
    shown = Listing(rows, "When", "Change", "By", "Why")
    facts = {"history": [entry_facts(each) for each in entries]}
    shell.tell(facts, shown if entries else "Nothing was changed.")
