"""`sluicegate check`: validates an application, and prints its rules with the routes that each holds for."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from sluicegate.cli.application import Application, Limiting
from sluicegate.cli.budgets import Budgets
from sluicegate.cli.commands import Failure, load_app, option_app
from sluicegate.cli.output import Listing, as_json, console, plain, print_json
from sluicegate.concurrency import Concurrency
from sluicegate.errors import ConfigurationError, SluicegateWarning
from sluicegate.quota import Quota
from sluicegate.replay.words import key_text
from sluicegate.rules.rule import Rule
from sluicegate.rules.tiers import Tiers
from sluicegate.runtime.hidden import shown_url
from sluicegate.web.bound import Bound
from sluicegate.web.endpoint import Endpoint, label_of
from sluicegate.web.settings import Settings

# The options of a rule that are printed if they are not the default: the others have a column, or are in the endpoint.
_OPTIONS: Final = (
    *("cost", "scope", "methods", "path", "when", "count_denied", "charge_when", "refund_when"),
    *("estimate", "cost_after", "unit", "per_method", "once_per", "error_message", "on_denied"),
)
_CHOSEN: Final = "throttles: chosen for each request, not checked"
_NONE: Final = "no rule"
_ROUTES: Final = 3  # of a rule that are named: more are counted


class Wrong(Failure):
    """A configuration that cannot work."""

    exit_code = 1


@contextmanager
def wrong(what: str, name: str | None, *, as_json: bool) -> Generator[None]:
    """Print a ConfigurationError inside as JSON, if that was asked for, and raise Wrong."""
    try:
        yield
    except ConfigurationError as error:
        further = getattr(error, "__notes__", [])
        if as_json:
            print_json({what: name, "error": {"code": error.code, "message": str(error), "further": further}})
        raise Wrong("\n".join([str(error), *further])) from error


@click.command()
@click.argument("application", metavar="[APP|FILE]", required=False)
@option_app
@click.option("--routes", is_flag=True, help="Print each endpoint with its rules, in the order of charging.")
@as_json
def check(application: str | None, app: str | None, *, routes: bool, as_json: bool) -> None:
    """Validate an application, and print a line for each rule with its routes, and for the routes without a rule.

    The exit status is 0, 1 for a configuration that cannot work, 2 for a wrong command. Nothing is sent to the store.
    """
    with wrong("application", application or app, as_json=as_json), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", SluicegateWarning)
        found = load_app(application or app)
        unknown = [text for each in found.limiters for text in _unknown(each)]
    cautions = [str(each.message) for each in warned if issubclass(each.category, SluicegateWarning)] + unknown
    if as_json:
        print_json({**describe(found), "warnings": cautions})
        return
    out = console()
    for limiting in found.limiters:
        show_limiter(found, limiting, by_route=routes, out=out)
    for caution in cautions:
        out.print(plain(f"warning: {caution}", "yellow"))


def _unknown(limiting: Limiting) -> list[str]:
    """Return a warning for each override of a file whose rule the application does not have. Raises for a file that
    cannot hold, and for a quota that a rule cannot have.
    """
    place = Budgets((limiting,), None)  # a file needs no server
    missing = [one for one in place.live if not place.meant(one.rule, one.quota)]
    known = ", ".join([rule.name for rule in place.rules]) or "none"
    return [f"override {one.id}: no rule {one.rule!r}; the rules are {known}" for one in missing]


def describe(application: Application) -> dict[str, Any]:
    """Return the endpoints and rules of an application, for JSON."""
    limiters = [_limiter(limiting) for limiting in application.limiters]
    return {"application": application.name, "limiters": limiters}


def show_limiter(application: Application, limiting: Limiting, *, by_route: bool, out: Console) -> None:
    """Print one limiter: where it counts, and a table of its rules, or of its endpoints."""
    facts = _limiter(limiting)
    out.print(plain(f"{application.name}: counted in {facts['store']}, prefix {facts['prefix']}", "bold"))
    if not facts["enabled"]:
        out.print("enabled is False: every request passes.", style="yellow")
    for option in ("allow", "deny"):
        if facts[option]:
            out.print(plain(f"{option}: {', '.join(facts[option])}"))
    out.print((_by_route if by_route else _by_rule)(facts["endpoints"]))


def _by_rule(endpoints: list[dict[str, Any]]) -> Listing:
    """Return a row for each rule, and for the endpoints that have none or choose theirs: with their routes."""
    every = [_place(endpoint, endpoints) for endpoint in endpoints]
    held = dict[tuple[str, str, str], dict[int, str]]()  # of a row: the numbers of its endpoints, and their names in it
    for number, endpoint in enumerate(endpoints):
        for rule in endpoint["rules"]:
            options, methods = rule["options"], endpoint["methods"]
            if only := options.get("methods", "").split():  # of the methods of an endpoint a rule may have some
                methods = [each for each in methods or only if each in only]
            own = {**endpoint, "methods": methods, "route": endpoint["route"] or options.get("path")}
            name = f"{rule['name']} (shadow)" if "shadow" in options else rule["name"]
            held.setdefault((name, rule["quota"], rule["key"]), {})[number] = _place(own, endpoints)
        if endpoint["throttles"] or not endpoint["rules"]:
            held.setdefault((endpoint["throttles"] or _NONE, "", ""), {})[number] = every[number]
    last = sorted(held, key=lambda row: row[0] == _NONE)
    rows = [[plain(cell, "" if row[1] else "yellow") for cell in (*row, _routes(held[row], every))] for row in last]
    return Listing(rows, "Rule", "Quota", "Key", "Routes")


def _routes(held: dict[int, str], every: list[str]) -> str:
    """Return the routes of a rule in a few words. If it holds for most of them, those that are left.

    >>> _routes({1: "GET /a"}, ["/", "GET /a", "GET /b"]), _routes({0: "/", 1: "GET /a"}, ["/", "GET /a", "GET /b"])
    ('GET /a', 'all but GET /b')
    """
    left = [place for number, place in enumerate(every) if held.get(number) != place]
    if not left:
        return "all"
    but, named = ("all but ", left) if len(left) < len(held) else ("", [*dict.fromkeys(held.values())])
    more = f" and {len(named) - _ROUTES} more" if len(named) > _ROUTES else ""
    return but + ", ".join(named[:_ROUTES]) + more


def _place(endpoint: dict[str, Any], endpoints: list[dict[str, Any]]) -> str:
    nowhere = "requests without a route" if len(endpoints) > 1 else "any request"
    root = "/" if endpoint["view"] else nowhere  # Django's first page, and a mount there, have an empty template
    return " ".join([*endpoint["methods"], endpoint["route"] or root])


def _by_route(endpoints: list[dict[str, Any]]) -> Listing:
    """Return a row for each endpoint and rule, with the options that are not the default."""
    several = any(rule["options"] for endpoint in endpoints for rule in endpoint["rules"])
    rows = list[tuple[Text, ...]]()
    for endpoint in endpoints:
        place = plain(_place(endpoint, endpoints))
        if not endpoint["rules"] and not endpoint["throttles"]:
            rows.append((place, plain(_NONE, "yellow")))
        for rule in endpoint["rules"]:
            options = ", ".join([f"{name}: {value}" for name, value in rule["options"].items()])
            words = (rule["name"], rule["quota"], rule["key"], rule["algorithm"], rule["on_store_failure"])
            rows.append((place, *map(plain, [*words, options] if several else words)))
            place = plain("")
        if endpoint["throttles"]:
            rows.append((place, plain(endpoint["throttles"], "yellow")))
    return Listing(rows, "Endpoint", "Rule", "Quota", "Key", "Algorithm", "If down", *["Options"] * several)


def _limiter(limiting: Limiting) -> dict[str, Any]:
    settings = limiting.settings
    endpoints = []
    for endpoint, bounds, chosen in limiting.endpoints:
        rules = [_rule(bound, limiting, endpoint) for bound in bounds if _may_hold(bound, endpoint)]
        facts = {"methods": [*endpoint.methods], "route": endpoint.route, "view": endpoint.label, "rules": rules}
        endpoints.append({**facts, "throttles": None if chosen is None else _CHOSEN})
    return {
        "store": store_name(settings.store),
        "prefix": settings.prefix,
        "enabled": settings.enabled,
        "allow": _entries(settings, "allow"),
        "deny": _entries(settings, "deny"),
        "endpoints": endpoints,
    }


def _entries(settings: Settings, option: str) -> list[str]:
    """Return the networks and the functions of an access list, and whether it has identities, which are not shown."""
    lists = [each for each in settings.lists if each.option == option]
    found = [str(network) for each in lists for network in each.networks]
    found += [label_of(function) for each in lists for function in each.functions]
    others = len(list(getattr(settings, option))) - len(found)
    return [*found, f"identities: {others}"] if others else found


def store_name(store: object) -> str:
    """Return the URL of a store without its password, or what the store calls itself."""
    return shown_url(store) if isinstance(store, str) else repr(store)


def _rule(bound: Bound, limiting: Limiting, endpoint: Endpoint) -> dict[str, Any]:
    rule, settings = bound.rule, limiting.settings
    known = rule.known
    held = bool(known) and all(isinstance(quota, Concurrency) for quota in known)
    chosen = rule.algorithm or settings.algorithm
    algorithms = dict.fromkeys(["calendar" if each.quota.calendar else chosen for each in bound.terms or ()])
    return {
        "name": rule.name,
        "quota": quota_of(rule),
        "key": key_text(limiting.gate.key_of(bound)),
        "algorithm": "slots" if held else ", ".join(algorithms) or chosen,
        "on_store_failure": rule.on_store_failure or settings.on_store_failure,
        "options": _options(rule, own=endpoint.label),
    }


def quota_of(rule: Rule) -> str:
    """Return the quotas of a rule as text; for a function, its name."""
    quota: Any = rule.quota
    if isinstance(quota, Tiers):
        return ", ".join([f"{tier}: {_quotas(found)}" for tier, found in quota.table.items()])
    return f"by {label_of(quota)}" if callable(quota) else _quotas(quota)


def _quotas(quotas: tuple[Quota, ...] | Concurrency | None) -> str:
    if quotas is None:
        return "no limit"
    return str(quotas) if isinstance(quotas, Concurrency) else "; ".join(map(str, quotas))


def _options(rule: Rule, *, own: str) -> dict[str, str]:
    """Return the options of a rule that are not the default, as text, without the scope of a view's `own` budget."""
    found = {"shadow": "never refuses"} if rule.mode == "shadow" else {}
    if rule.enforce_percent != 100:
        found["enforced"] = f"for {rule.enforce_percent:g} %"
    for option in _OPTIONS[rule.priced == "estimate" :]:  # the cost is the estimate
        value = getattr(rule, option)
        is_own = option == "scope" and own and str(value).startswith(own)
        if value != Rule.__dataclass_fields__[option].default and not is_own:
            shown = sorted(value - {"HEAD"} if "GET" in value else value) if option == "methods" else value
            text = " ".join(shown) if option == "methods" else label_of(value) if callable(value) else str(value)
            found[option] = "yes" if value is True else text
    if rule.ban is not None:
        lengths = rule.ban.terms
        found["ban"] = f"{lengths.name}, after {lengths.quota.limit} refusals in {lengths.quota.span}"
    return found


def _may_hold(bound: Bound, endpoint: Endpoint) -> bool:
    """False if no request to this endpoint can have the method or the path of a rule."""
    if bound.methods is not None and endpoint.methods and bound.methods.isdisjoint(endpoint.methods):
        return False
    pattern = bound.rule.path
    if pattern is None or not endpoint.route or endpoint.route.startswith("^"):  # a regular expression of Django
        return True
    template = f"/{endpoint.route.lstrip('/')}"
    ours, theirs = _start_of(pattern), _start_of(template)
    if theirs == template:  # a path without parameters
        return bound.path is not None and bound.path.fullmatch(template) is not None
    return ours.startswith(theirs) or (theirs.startswith(ours) and ours != pattern)


def _start_of(text: str) -> str:
    """Return the part of a template or of a pattern that is the same for all its paths."""
    return text[: min([at for sign in "{<(*?[" if (at := text.find(sign)) >= 0], default=len(text))]
