"""`sluicegate show` and `sluicegate reset`: the budgets of one identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from sluicegate.address import parse_address
from sluicegate.cli.budgets import (
    Budgets,
    Known,
    check_rule,
    check_tier,
    identity_text,
    opened,
    takes_identity,
    warn_of_mismatch,
)
from sluicegate.cli.check import store_name
from sluicegate.cli.commands import load_app, option_app
from sluicegate.cli.output import (
    Listing,
    as_json,
    bar,
    confirm,
    console,
    option_yes,
    plain,
    print_json,
    scanning,
    span,
)
from sluicegate.clock import MICROSECOND
from sluicegate.identity import digest
from sluicegate.plan import Outcome, Terms
from sluicegate.replay.words import count


@click.command()
@takes_identity
@option_app
@click.option("--quick", is_flag=True, help="Look only at the rules of the application, and scan no keys.")
@click.option("--tier", metavar="NAME", help="The tier of the identity: of a rule with tiers, show only this one.")
@as_json
def show(
    identity: tuple[str, ...], name: str | None, app: str | None, tier: str | None, *, quick: bool, as_json: bool
) -> None:
    """Show the budgets, slots and bans of one identity: user:alice, ip:203.0.113.7, header:X-API-Key=abc, text:alice.

    Several words are one identity, for a key of several parts.
    """
    application = load_app(app)
    out, found, text = console(), [], ""
    with opened(application) as limiters:
        warn_of_mismatch(limiters, identity)
        if tier is not None:
            check_tier(limiters, tier)
        for budgets in limiters:
            text = identity_text(budgets, identity, name)
            kept, unknown, foreign = _kept(budgets, text, quick=quick)
            kept = [(known, outcome) for known, outcome in kept if known.tier is None or tier in (None, known.tier)]
            lists = _listed(budgets, identity, text)
            if as_json:
                rows = [describe(known, outcome) for known, outcome in kept]
                store = store_name(budgets.settings.store)
                facts = {"budgets": rows, "unknown": [*unknown], "foreign": foreign}
                found.append({"store": store, **facts, "lists": [option for option, _ in lists]})
            else:
                out.print(plain(f"{' '.join(identity) or 'digest'} {digest(text)}", "bold"))
                print_budgets(kept, unknown, foreign, out=out)
                if tier is None and any([known.tier is not None for known, _ in kept]):
                    says = "The server does not know the tier of an identity: a line holds only if it is on that tier."
                    out.print(plain(f"{says} --tier NAME shows one.", "yellow"))
                for option, who in lists:
                    does = "every request is refused with a 403" if option == "deny" else "no rule is applied"
                    out.print(plain(f"{who}, on the list {option!r}: {does}.", "yellow"))
    if as_json:
        print_json({"identity": digest(text), "limiters": found})


@click.command()
@takes_identity
@option_app
@click.option(
    "--rule", metavar="NAME", help="Only the budgets of this rule, or of the charges in this view, or with this id."
)
@option_yes
@as_json
def reset(
    identity: tuple[str, ...], name: str | None, app: str | None, rule: str | None, *, yes: bool, as_json: bool
) -> None:
    """Give one identity its whole budget back: under one rule, or everything, with its slots, strikes and bans."""
    application = load_app(app)
    forgotten: list[str] = []
    with opened(application) as limiters:
        if rule is not None and ":" not in rule and not any([rule in budgets.views for budgets in limiters]):
            check_rule(limiters, rule)
        texts = [identity_text(budgets, identity, name) for budgets in limiters]
        warn_of_mismatch(limiters, identity, rule)
        what = "everything" if rule is None else f"the rule {rule}"
        confirm(f"Forget {what} of {' '.join(identity) or name}?", yes=yes)
        for budgets, text in zip(limiters, texts, strict=True):
            for rule_id in _meant(budgets, text, rule):
                budgets.store.forget(rule_id, text)
                forgotten.append(rule_id)
    if as_json:
        print_json({"identity": digest(texts[0]), "forgotten": forgotten})
        return
    console().print(
        f"Forgot {count(len(forgotten), 'budget')}." if forgotten else "Nothing was used, so nothing was forgotten."
    )
    cached = max(limiting.settings.deny_cache for limiting in application.limiters)
    if forgotten and cached:
        console().print(plain(f"A process may repeat a refusal for {cached:g} s more (deny_cache).", "dim"))


def _meant(budgets: Budgets, text: str, rule: str | None) -> list[str]:
    """Return the ids under which an identity has used something: all, or those of a rule, of a view, or one id."""
    terms = [each.terms for known in budgets.known.values() for each in known if rule in each.names]
    if terms:
        return _used(budgets, text, terms)
    return [rule_id for rule_id in _stored(budgets, text) if rule in (None, rule_id, budgets.owner(rule_id))]


def _used(budgets: Budgets, text: str, terms: list[Terms]) -> list[str]:
    """Return the ids of these terms under which an identity has used something. What is full again is not stored."""
    outcomes = [outcome for each in terms for outcome in budgets.read([(each, text)])]
    pairs = zip(terms, outcomes, strict=True)
    return sorted({each.rule_id for each, outcome in pairs if outcome is not None and outcome.reset_after > 0})


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


def _kept(budgets: Budgets, text: str, *, quick: bool) -> tuple[list[tuple[Known, Outcome]], dict[str, str], list[str]]:
    """Return what an identity has used under each known rule, the ids of stored budgets whose quota is not known, each
    with a reason, and the ids of keys that another program wrote.
    """
    stored = list(budgets.known) if quick else _stored(budgets, text)
    known = [each for rule_id in stored for each in budgets.known.get(rule_id, ())]
    read = [(each, outcome) for each in known for outcome in budgets.read([(each.terms, text)])]
    used = [(each, outcome) for each, outcome in read if outcome is not None and outcome.reset_after > 0]
    foreign = sorted({each.terms.rule_id for each, outcome in read if outcome is None})
    return used, {rule_id: budgets.why_unknown(rule_id) for rule_id in stored if rule_id not in budgets.known}, foreign


def print_budgets(
    kept: Iterable[tuple[Known, Outcome]], unknown: Mapping[str, str], foreign: Sequence[str], *, out: Console
) -> None:
    """Print a table of budgets, and the ids of those whose quota is not known, with the reasons."""
    rows = Listing("Rule", "Used", "", "Left", "Full again in", "Now", right=("Left",))
    for known, outcome in kept:
        facts = describe(known, outcome)
        rows.add_row(known.rule, *used_of(facts), facts["remaining"], span(facts["reset_after"]), now_of(facts))
    if rows.row_count:
        out.print(rows)
    for rule_id, reason in unknown.items():
        out.print(plain(f"{rule_id}: used. {reason}."))
    for rule_id in foreign:
        out.print(plain(f"{rule_id}: another program wrote this key", "red"))
    if not (rows.row_count or unknown or foreign):
        out.print("Nothing is used under this identity, with the secret, prefix and store of this shell.")


def used_of(facts: dict[str, Any]) -> tuple[Text, str]:
    """Return how much of a budget is used, as a bar and in numbers."""
    return bar(facts["used"], facts["limit"]), f"{facts['used']} of {facts['limit']}"


def now_of(facts: dict[str, Any]) -> Text:
    """Return what a budget does with a request now, and for how long."""
    wait = f" for {span(facts['retry_after'])}" if facts["retry_after"] else ""
    if facts["state"] == "passes":
        return plain("passes", "green")
    return plain(f"would refuse{wait}", "yellow") if facts["shadow"] else plain(f"{facts['state']}{wait}", "red")


def describe(known: Known, outcome: Outcome) -> dict[str, Any]:
    """Return one budget, for JSON. Times are in seconds. For a ban, `used` are the refusals that count towards it."""
    banned = known.ban is not None and not outcome.allowed
    state = "banned" if banned else "refused" if outcome.remaining == 0 and known.ban is None else "passes"
    return {
        "rule": known.rule,
        "tier": known.tier,
        "id": known.terms.rule_id,
        "shadow": known.terms.shadow,
        "kind": "ban" if known.ban is not None else "slots" if known.terms.held else "budget",
        "limit": outcome.limit,
        "used": outcome.limit - outcome.remaining,
        "remaining": outcome.remaining,
        "state": state,
        "retry_after": 0 if state == "passes" else outcome.next_after / MICROSECOND,
        "reset_after": outcome.reset_after / MICROSECOND,
    }
