"""How commands print: tables for people, and JSON for machines.

Names of an application are data: markup in them is not read, and control characters are shown, not sent to the
terminal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from sluicegate.cli.commands import Command
from sluicegate.extras import needs

with needs("cli"):
    import click
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")

option_yes = click.option("--yes", is_flag=True, help="Do not ask.")


class Between:
    """The type of an option that is a number in a range. click's own ranges accept nan."""

    __name__ = "number"  # in the help

    def __init__(self, lowest: float, highest: float) -> None:
        self._lowest, self._highest = lowest, highest
        self._kind: type[float] = type(lowest)  # int: a whole number

    def __call__(self, given: Any) -> float:
        """Return the number. Raises BadParameter for everything else."""
        try:
            found = self._kind(given)
        except ValueError:
            found = math.nan
        if not self._lowest <= found <= self._highest:
            number = "a whole number" if self._kind is int else "a number"
            raise click.BadParameter(f"{given!r}: give {number} from {self._lowest} to {self._highest}")
        return found


def option_every(text: str) -> Callable[[Command], Command]:
    """Return the option --every of a command that looks again and again."""
    return click.option(
        "--every", default=2.0, show_default=True, type=Between(0.1, 3600), metavar="SECONDS", help=text
    )


_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
_WORDS: Final = ("Algorithm", "If down")  # columns of single words, which are not folded
_BAR: Final = 10  # characters


def console(*, stderr: bool = False) -> Console:
    """Return the terminal, or the file that the output goes to."""
    return Console(highlight=False, stderr=stderr)


def plain(text: object, style: str = "") -> Text:
    """Return text of an application as it is printed: without markup, and with control characters shown."""
    return Text("".join([sign if sign.isprintable() else ascii(sign)[1:-1] for sign in str(text)]), style)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table that folds long words, so that nothing is cut off."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        word = column in _WORDS
        made.add_column(column, overflow="fold", justify="right" if column in right else "left", no_wrap=word)
    return made


@contextmanager
def scanning(what: str) -> Generator[Callable[[float], None]]:
    """Show a progress bar on a terminal while keys are scanned. Yields the function that moves it to a share."""
    out = console(stderr=True)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda share: progress.update(task, completed=share)


def count(number: int, what: str) -> str:
    """Return a number of things.

    >>> count(1, "budget"), count(2, "key")
    ('1 budget', '2 keys')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def foreign_keys(number: int) -> str:
    """Return the hint that some keys were skipped; nothing if none was."""
    return f"{count(number, 'key')} under the prefix skipped: another program wrote them." if number else ""


def print_json(found: Any) -> None:
    """Print values as JSON, in ASCII."""
    click.echo(json.dumps(found, indent=2))


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is written, unless it was answered on the command line."""
    if not yes:
        try:
            click.confirm(str(plain(question)), abort=True, err=True)
        except click.Abort:
            click.echo("Nothing was changed. With --yes the command does not ask.", err=True)
            raise click.exceptions.Exit(1) from None


def span(seconds: float) -> str:
    """Return a time in two units at most, rounded up, as a person waits for it.

    >>> span(0.2), span(61), span(3600), span(90_000)
    ('1 s', '1 min 1 s', '1 h', '1 d 1 h')
    """
    left = math.ceil(seconds)
    for i, (unit, length) in enumerate(_UNITS):
        if left >= length:
            rest_unit, rest_length = _UNITS[i + 1] if i + 1 < len(_UNITS) else ("s", 1)
            rest = left % length // rest_length
            return f"{left // length} {unit} {rest} {rest_unit}" if rest else f"{left // length} {unit}"
    return f"{left} s"


def bar(used: int, limit: int, *, out: Console) -> Text:
    """Return how much of a limit is used, as a bar: green, yellow from three quarters on, red if nothing is left."""
    share = min(1.0, used / limit)
    full, empty = ("#", ".") if out.options.ascii_only else ("█", "░")
    filled = _BAR if share == 1 else min(_BAR - 1, math.ceil(share * _BAR))
    color = "red" if share == 1 else "yellow" if share >= 0.75 else "green"
    return Text(full * filled, color) + Text(empty * (_BAR - filled), "dim")
