"""`sluicegate suggest`: proposes limits from access logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from sluicegate.cli.logs import Nothing, Options, open_log, progress, some, takes_logs, trusted
from sluicegate.cli.output import Listing, as_json, console, plain
from sluicegate.cli.replay import takes_page, write_page
from sluicegate.replay.words import KINDS, count, share, span

if TYPE_CHECKING:
    from rich.console import Console

    from sluicegate.replay.suggest import Suggestion, Suggestions


_PROGRAMS: Final = 5  # that are shown; JSON has more
_REASONS: Final = 2  # of each program; JSON has all
_YOURS: Final = (
    "Programs may be your monitor, your own jobs, search engines or partners: put those on `allow`, or `@exempt` the "
    "views that they ask for, before you enforce a limit."
)
_NUMBERS: Final = ("Exact", "Held out", "People refused", "Programs stopped")


def _share(_context: click.Context, _option: click.Parameter, given: str) -> float:
    number, percent, rest = given.partition("%")
    try:
        found = float(number) / 100
    except ValueError:
        found = -1.0
    if rest or not percent or not 0 <= found <= 1:  # 0.1 alone may be meant as 0.1 % or as 10 %
        raise click.BadParameter(f"{given!r}: give a share from 0% to 100%, with the sign, such as 0.1%")
    return found


@click.command()
@takes_logs
@click.option("--by", "key", default="ip", show_default=True, metavar="KEY", help="Whose requests are counted.")
@click.option(
    "--share",
    default="0.1%",
    show_default=True,
    callback=_share,
    metavar="SHARE",
    help="Of people, refused at most.",
)
@click.option("--group", "groups", multiple=True, metavar="PATTERN", help='As "/api/*" or "POST /login".')
@click.option("--toml", is_flag=True, help="Print only the rules, as TOML.")
@click.option(
    "--decorators",
    "framework",
    type=click.Choice(["starlette", "fastapi", "flask", "django"]),
    help="Print only the rules, as decorators.",
)
@takes_page
@as_json
def suggest(
    *,
    key: str,
    share: float,
    groups: tuple[str, ...],
    toml: bool,
    framework: str | None,
    page: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Propose limits from past traffic: the smallest that refuse programs and hardly any people.

    Each limit is replayed through the engine, and the figures are those of the replay.

    \b
    sluicegate suggest access.log
    sluicegate suggest access.log --by user --group "/api/*" --share 0.5%
    """
    from sluicegate.replay import paste, result, run  # here: the help needs no extra
    from sluicegate.replay.files import STANDARD_INPUT
    from sluicegate.replay.suggest import candidates, suggest

    log, common = open_log(options)
    once = [each for each in options["logs"] if each == STANDARD_INPUT or Path(each).is_fifo()]
    if page is not None and once:
        raise click.UsageError(f"--html reads the log twice, and {once[0]!r} can be read once only; give a file")
    proxies = trusted(options)
    with progress() as bar:
        shown: Options = {"progress": lambda: bar.read(log), "counting": bar.decided}
        found = suggest(log, groups, key=key, share=share, options=proxies, **common, **shown)
    some(found.requests + found.uncounted, log)
    pastable = any(each.quota is not None for each in found.suggestions)
    if not pastable and (toml or framework is not None or page is not None):
        raise Nothing("\n".join([f"no rule for {each.requests_to}: {each.verdict}" for each in found.suggestions]))
    if page is not None:
        with progress() as bar:
            tried = run.replay(log, candidates(found, proxies), **common, progress=bar.read, deciding=bar.decided)
        write_page(page, tried, [_said(each) for each in found.suggestions])
    if as_json:
        click.echo(result.as_json(found), nl=False)
    elif toml:
        click.echo(paste.as_toml(found), nl=False)
    elif framework is not None:
        click.echo(paste.as_decorators(found, framework), nl=False)
    else:
        out = console()
        _show(found, out)
        if pastable:
            out.print()
            out.print(plain("Rules to paste", "bold"))
            click.echo(paste.as_toml(found), nl=False)


def _said(each: Suggestion) -> str:
    return f"{each.requests_to}: {each.quota or 'no limit'} is suggested. {each.verdict} {each.warning}".rstrip()


def _show(found: Suggestions, out: Console) -> None:
    kinds = dict(found.kinds)
    programs = kinds.pop("automated", 0)
    people = count(sum(kinds.values()), "other identity", "other identities")
    known = ", ".join([count(kinds[kind], *KINDS[kind]) for kind in ("shared", "unclear") if kind in kinds])
    out.print(plain(f"{found.requests:,} requests in {span(found.seconds)}, counted by {found.key}", "bold"))
    out.print(plain(f"{count(programs, 'program')}; {people}, counted as people{known and f' ({known})'}"))
    for note in found.notes:
        out.print(plain(f"Note: {note}.", "dim"))
    if found.programs:
        rows = list[tuple[str, ...]]()
        for program in found.programs[:_PROGRAMS]:
            name = f" as {program.agent}" if program.agent else ""
            asks = [f"mostly {program.path}{name}"] if program.path else []
            rows.append((program.identity, f"{program.requests:,}", "; ".join([*asks, *program.reasons[:_REASONS]])))
        out.print()
        out.print(Listing(rows, "Program", "Requests", "Why", right=("Requests",)))
        out.print(plain(_YOURS, "yellow"))
    for each in found.suggestions:
        out.print()
        _show_one(each, out)


def _show_one(each: Suggestion, out: Console) -> None:
    out.print(plain(each.requests_to, "bold"))
    by = f"{count(each.identities, 'identity', 'identities')} of people"
    if each.programs:
        programs = f"{each.program_requests:,} by {count(each.programs, 'program')}"
        by = f"{each.requests - each.program_requests:,} by {by}, {programs}"
    out.print(plain(f"{count(each.requests, 'request')}{':' if each.programs else ' by'} {by}"))
    rows, chosen = list[list[Text]](), (each.quota or "").split("; ")
    for limit in each.limits:
        days = "" if limit.low is None else f"{limit.low:,} to {limit.high:,}"
        held_out = "" if limit.held_out is None else share(limit.held_out, 1)
        stopped = share(limit.stopped, 1) if each.programs else ""
        cells = (limit.quota, limit.exact, days, held_out, limit.people, stopped)
        rows.append([plain(cell, "bold" if limit.quota in chosen else "") for cell in cells])
    if each.limits:
        out.print(Listing(rows, "Limit", "Exact", "Other days", *_NUMBERS[1:], right=_NUMBERS))
    out.print(plain(each.verdict))
    if each.warning:
        out.print(plain(each.warning, "yellow"))
