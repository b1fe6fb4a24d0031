"""`sluicegate replay`: runs the traffic of access logs through rules, and says what each would have done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sluicegate.cli.commands import Failure
from sluicegate.cli.logs import Options, open_log, progress, some, takes_logs, trusted
from sluicegate.cli.output import as_json, console

if TYPE_CHECKING:
    from sluicegate.replay.candidates import Candidate
    from sluicegate.replay.result import Result

PAGE: Final = click.Path(dir_okay=False, writable=True, path_type=Path)


_BEGINNING: Final = b"<!doctype html>"


def _page(_context: click.Context, _option: click.Parameter, given: Path | None) -> Path | None:
    """Check before the log is read that the page can be written."""
    if given is not None and not given.parent.is_dir():
        raise click.BadParameter(f"{str(given.parent)!r} is no folder; give a file in one that exists")
    if given is not None and given.is_file():
        with given.open("rb") as file:
            if file.read(len(_BEGINNING)) not in (b"", _BEGINNING):
                raise click.BadParameter(f"{str(given)!r} is a file, and no page: it would be lost; give another name")
    return given


takes_page: Final = click.option(
    "--html", "page", type=PAGE, callback=_page, metavar="FILE", help="Write the report as a web page too."
)


def write_page(page: Path, found: Result, said: Sequence[str] = ()) -> None:
    """Write the page of a result, which begins with the sentences that are `said`."""
    from sluicegate.replay.page import html  # here: the help needs no extra

    try:
        page.write_text(html(found, said), "utf-8")
    except OSError as error:
        raise Failure(f"--html {page}: {error.strerror}; give a file that can be written") from error


@click.command()
@takes_logs
@click.option("--rule", "rules", multiple=True, metavar="TEXT", help='One rule, as "5/minute by ip on POST /login".')
@click.option("--rules", "files", multiple=True, metavar="FILE", help="A TOML file with the rules of an application.")
@click.option("--together", is_flag=True, help="All --rule are one candidate: they hold at the same time.")
@takes_page
@as_json
def replay(
    *, rules: tuple[str, ...], files: tuple[str, ...], together: bool, page: Path | None, as_json: bool, **options: Any
) -> None:
    """Say what rules would have done with past traffic: whom they refuse, where, when and for how long.

    Each --rule and each --rules FILE is one candidate; they are compared. Nothing is sent to a store.

    \b
    sluicegate replay access.log --rule "login: 5/minute by ip on POST /login"
    """
    from sluicegate.cli import report  # here: the help needs no extra
    from sluicegate.replay import result, run

    candidates = _candidates(rules, files, together=together, proxies=trusted(options))
    if not candidates:
        raise click.UsageError('no candidate; give --rule "5/minute by ip", or --rules limits.toml')
    log, common = open_log(options)
    with progress() as bar:
        curves = as_json or page is not None
        found = run.replay(log, candidates, **common, curves=curves, progress=bar.read, deciding=bar.decided)
    some(found.traffic.requests, log)
    if page is not None:
        write_page(page, found)
    if as_json:
        click.echo(result.as_json(found), nl=False)
    else:
        report.show(found, console())


def _candidates(rules: tuple[str, ...], files: tuple[str, ...], *, together: bool, proxies: Options) -> list[Candidate]:
    """Return the candidates in the order of the command's options."""
    from sluicegate.replay.candidates import from_file, from_rules

    sets = [rules] if together and rules else [(rule,) for rule in rules]
    found = [from_rules(each, **proxies) for each in sets]
    return found + [from_file(Path(file), **proxies) for file in files]
