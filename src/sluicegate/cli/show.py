"""`sluicegate show` and `sluicegate reset`: the budgets of one identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
from rich.console import RenderableType
from rich.text import Text

from sluicegate.address import parse_address
from sluicegate.cli.budgets import (
    Budgets,
    Known,
    check_rule,
    check_tier,
    forget_everyone,
    identity_text,
    opened,
    takes_identity,
    warn_of_mismatch,
)
from sluicegate.cli.check import store_name
from sluicegate.cli.output import Listing, Shell, bar, operated, plain, scanning, span
from sluicegate.cli.overrides import facts_of, holds_of
from sluicegate.identity import digest
from sluicegate.observe.usage import Budget
from sluicegate.plan import Outcome
from sluicegate.replay.words import count

TIERS: Final = "The server does not know the tier of an identity: a line holds only if it is on that tier."


@click.command()
@takes_identity
@click.option("--quick", is_flag=True, help="Look only at the rules of the application, and scan no keys.")
@click.option("--tier", metavar="NAME", help="The tier of the identity: of a rule with tiers, show only this one.")
@operated()
def show(shell: Shell, identity: tuple[str, ...], name: str | None, *, tier: str | None, quick: bool) -> None:
    """Show the budgets, slots and bans of one identity: user:alice, ip:203.0.113.7, header:X-API-Key=abc, text:alice.

    Several words are one identity, for a key of several parts.
    """
    found, shown, text = list[dict[str, Any]](), list[RenderableType](), ""
    with opened(shell.application) as limiters:
        warn_of_mismatch(limiters, identity)
        if tier is not None:
            check_tier(limiters, tier)
        for budgets in limiters:
            text = identity_text(budgets, identity, name)
            known, overrides = budgets.steered(identity, text, budgets.followed())
            kept, unknown, foreign = _kept(budgets, text, known, quick=quick)
            kept = [(known, outcome) for known, outcome in kept if known.tier is None or tier in (None, known.tier)]
            lists = _listed(budgets, identity, text)
            rows = [describe(known, outcome) for known, outcome in kept]
            facts = {"budgets": rows, "unknown": [*unknown], "foreign": foreign}
            facts |= {"overrides": [facts_of(one) for one in overrides], "lists": [option for option, _ in lists]}
            found.append({"store": store_name(budgets.settings.store), **facts})
            shown.append(plain(f"{' '.join(identity) or 'digest'} {digest(text)}", "bold"))
            shown += _table(rows, unknown, foreign)
            notes = list[str]()
            if tier is None and any([row["tier"] is not None for row in rows]):
                notes.append(f"{TIERS} --tier NAME shows one.")
            for option, who in lists:
                does = "every request is refused with a 403" if option == "deny" else "no rule is applied"
                notes.append(f"{who}, on the list {option!r}: {does}.")
            for one in overrides:
                says = f"Override {one.id}: under the rule {one.rule} holds {holds_of(one)}."
                notes.append(f"{says} {one.why}".rstrip())
            shown += [plain(note, "yellow") for note in notes]
    shell.tell({"identity": digest(text), "limiters": found}, *shown)


@click.command()
@takes_identity
@click.option(
    "--rule", metavar="NAME", help="Only the budgets of this rule, or of the charges in this view, or with this id."
)
@click.option("--everyone", is_flag=True, help="Of all identities: give the rule, and no identity.")
@operated(changes=True)
def reset(shell: Shell, identity: tuple[str, ...], name: str | None, *, rule: str | None, everyone: bool) -> None:
    """Give one identity its whole budget back: under one rule, or everything, with its slots, strikes and bans."""
    application = shell.application
    with opened(application) as limiters:
        if everyone:
            if rule is None or identity or name is not None:
                raise click.UsageError("--everyone needs --rule, and no identity")
            check_rule(limiters, rule)
            names = {rule}
            forget_everyone(shell, limiters, lambda budgets: budgets.ids(names), what=f"the rule {rule}")
            return
        if rule is not None and ":" not in rule and not any([rule in budgets.views for budgets in limiters]):
            check_rule(limiters, rule)
        texts = [identity_text(budgets, identity, name) for budgets in limiters]
        warn_of_mismatch(limiters, identity, rule)
        what = "everything" if rule is None else f"the rule {rule}"
        shell.confirm(f"Forget {what} of {' '.join(identity) or name}?")
        meant = [(budgets, text, _meant(budgets, text, rule)) for budgets, text in zip(limiters, texts, strict=True)]
        for budgets, text, rule_ids in meant:
            for rule_id in rule_ids:
                budgets.store.forget(rule_id, text)
    forgotten = [rule_id for *_, rule_ids in meant for rule_id in rule_ids]
    told = [plain("Nothing was used, so nothing was forgotten.")]
    if forgotten:
        cached = max(limiting.settings.deny_cache for limiting in application.limiters)
        later = [plain(f"A process may repeat a refusal for {cached:g} s more (deny_cache).", "dim")] if cached else []
        told = [plain(f"Forgot {count(len(forgotten), 'budget')}."), *later]
    shell.tell({"identity": digest(texts[0]), "forgotten": forgotten}, *told)


def _meant(budgets: Budgets, text: str, rule: str | None) -> list[str]:
    """Return the ids under which an identity has used something: all, or those of a rule, of a view, or one id."""
    terms = [each.terms for known in budgets.known.values() for each in known if rule in each.names]
    if not terms:
        return [rule_id for rule_id in _stored(budgets, text) if rule in (None, rule_id, budgets.owner(rule_id))]
    read = [(each, outcome) for each in terms for outcome in budgets.read([(each, text)])]
    # What is full again is not stored.
    return sorted({each.rule_id for each, outcome in read if outcome is not None and outcome.reset_after > 0})


def _listed(budgets: Budgets, words: tuple[str, ...], text: str) -> dict[tuple[str, str], None]:
    """Return the access lists that have this identity or a typed address, each with what it has; the list that decides
    comes first.
    """
    typed = [parse_address(word.removeprefix("ip:")) for word in words if word.startswith("ip:")]
    who = digest(text)
    found = []
    for listed in budgets.lists:
        holding = [network for network in listed.networks if any([one in network for one in typed if one])]
        found += [(listed.option, f"The address is in {network}") for network in holding]
        if any([digest(budgets.sealed(each)) == who for each in listed.identities]):
            found.append((listed.option, "The identity is one"))
    return dict.fromkeys(sorted(found, key=lambda each: each[0] == "allow"))


def _stored(budgets: Budgets, text: str) -> list[str]:
    """Return the ids of the rules under which an identity has a budget, by a scan."""
    with scanning("scanning keys") as seen:
        return sorted({rule_id for page in budgets.pages(text, seen) for _, rule_id in page.budgets})


def _kept(
    budgets: Budgets, text: str, known: Mapping[str, tuple[Known, ...]], *, quick: bool
) -> tuple[list[tuple[Known, Outcome]], dict[str, str], list[str]]:
    """Return what an identity has used under each known rule, the ids of stored budgets whose quota is not known, each
    with a reason, and the ids of keys that another program wrote.
    """
    stored = list(known) if quick else _stored(budgets, text)
    rules = [each for rule_id in stored for each in known.get(rule_id, ())]
    read = [(each, outcome) for each in rules for outcome in budgets.read([(each.terms, text)])]
    used = [(each, outcome) for each, outcome in read if outcome is not None and outcome.reset_after > 0]
    foreign = sorted({each.terms.rule_id for each, outcome in read if outcome is None})
    # A rule has a budget of its own while an override holds, such as that in shadow. The other one is not in use.
    unknown = [rule_id for rule_id in stored if rule_id not in known and rule_id not in budgets.known]
    return used, {rule_id: budgets.why_unknown(rule_id) for rule_id in unknown}, foreign


def _table(
    rows: Sequence[Mapping[str, Any]], unknown: Mapping[str, str], foreign: Sequence[str]
) -> Iterator[RenderableType]:
    """Yield a table of budgets, and the ids of those whose quota is not known, with the reasons."""
    cells = [
        (each["rule"], *used_of(each), each["remaining"], span(each["reset_after"]), now_of(each)) for each in rows
    ]
    if cells:
        yield Listing(cells, "Rule", "Used", "", "Left", "Full again in", "Now", right=("Left",))
    yield from [f"{rule_id}: used. {reason}." for rule_id, reason in unknown.items()]
    yield from [plain(f"{rule_id}: another program wrote this key", "red") for rule_id in foreign]
    if not (rows or unknown or foreign):
        yield "Nothing is used under this identity, with the secret, prefix and store of this shell."


def used_of(facts: Mapping[str, Any]) -> tuple[Text, str]:
    """Return how much of a budget is used, as a bar and in numbers."""
    return bar(facts["used"], facts["limit"]), f"{facts['used']} of {facts['limit']}"


def now_of(facts: Mapping[str, Any]) -> Text:
    """Return what a budget does with a request now, and for how long."""
    wait = f" for {span(facts['retry_after'])}" if facts["retry_after"] else ""
    if facts["state"] == "passes":
        return plain("passes", "green")
    return plain(f"would refuse{wait}", "yellow") if facts["shadow"] else plain(f"{facts['state']}{wait}", "red")


def describe(known: Known, outcome: Outcome) -> dict[str, Any]:
    """Return one budget, for JSON. Times are in seconds. For a ban, `used` are the refusals that count towards it."""
    budget = Budget.of(known.terms, outcome)
    banned = known.ban is not None and not outcome.allowed
    refused = outcome.remaining == 0 and known.ban is None and known.held not in ("off", "allow")
    state = "denied" if known.held == "deny" else "banned" if banned else "refused" if refused else "passes"
    return {
        "rule": known.rule,
        "tier": known.tier,
        "id": known.terms.rule_id,
        "shadow": known.terms.shadow,
        "override": known.held,
        "kind": budget.kind,
        "limit": budget.limit,
        "used": budget.used,
        "remaining": budget.remaining,
        "state": state,
        "retry_after": 0 if state in ("passes", "denied") else budget.next_after,
        "reset_after": budget.reset_after,
    }
