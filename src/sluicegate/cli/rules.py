"""`sluicegate rules check` and `diff`: a file of rules, before it holds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import click

from sluicegate.algorithms import DEFAULT
from sluicegate.cli.check import quota_of, wrong
from sluicegate.cli.output import Listing, Shell, as_json, console, operated, plain, print_json
from sluicegate.cli.overrides import facts_of
from sluicegate.identity import identity_text
from sluicegate.overrides.file import Watched, overrides_in
from sluicegate.replay.words import count, key_text
from sluicegate.rules.rule import Rule
from sluicegate.rules.typed import typed_identity
from sluicegate.runtime.awaiting import label_of
from sluicegate.web.settings import read_rules


@click.group()
def rules() -> None:
    """A file of rules, which an application follows: rules = "rules.toml" in its settings."""


_file = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@rules.command()
@_file
@as_json
def check(file: Path, *, as_json: bool) -> None:
    """Say whether the rules or overrides in a file can hold, with the first error of each and its line. `diff` looks at
    more.
    """
    path = str(file)
    with wrong("file", path, as_json=as_json):
        text = Watched(path).changed() or ""  # as an application reads it, with the same errors
        held = overrides_in(text, path, lambda word: identity_text(typed_identity([word])))
        found = read_rules(text, path, algorithm=DEFAULT, required=not held)
    if as_json:
        rules = [{"name": rule.name, **_facts(rule)} for rule in found]
        print_json({"rules": rules, "overrides": [facts_of(one) for one in held]})
    else:
        numbers = " and ".join([count(len(each), name) for each, name in ((found, "rule"), (held, "override")) if each])
        console().print(plain(f"{file}: {numbers or 'no rule'}, nothing is wrong."))


@rules.command()
@_file
@operated()
def diff(shell: Shell, file: Path) -> None:
    """Show what would change if the application had the rules of this file, or the error of its endpoints."""
    changes, path = list[tuple[str, ...]](), str(file)
    with wrong("file", path, as_json=shell.as_json):
        text = Watched(path).changed() or ""
    for limiting in shell.application.limiters:
        settings = limiting.settings
        with wrong("file", path, as_json=shell.as_json):
            read = read_rules(text, path, algorithm=settings.algorithm)
            limiting.gate.try_rules(read)  # raises what a process refuses
        now = {rule.name: _facts(rule) for rule in settings.rules if isinstance(rule, Rule)}
        then = {rule.name: _facts(rule) for rule in read}
        for name in dict.fromkeys([*now, *then]):
            before, after = now.get(name, {}), then.get(name, {})
            what = "changed" if before and after else "added" if after else "removed"
            pairs = [(option, before.get(option, ""), after.get(option, "")) for option in {**before, **after}]
            changes += [(what, name, *pair) for pair in pairs if pair[1] != pair[2]]
    facts = [dict(zip(("what", "rule", "option", "now", "then"), each, strict=True)) for each in changes]
    rows = Listing(changes, "", "Rule", "Option", "Now", "Then")
    shell.tell({"changes": facts}, rows if changes else "Nothing would change.")


def _facts(rule: Rule) -> dict[str, str]:
    """Return the options of a rule that are not the default, as text."""
    found = {"quota": quota_of(rule)}
    for option in fields(rule):
        given = getattr(rule, option.name)
        if option.name not in ("name", "quota") and given != option.default:
            text = key_text(given) if option.name == "key" else label_of(given) if callable(given) else str(given)
            found[option.name] = ", ".join(sorted(given)) if isinstance(given, frozenset) else text
    return found
