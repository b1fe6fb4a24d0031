"""How commands print: tables for people, and JSON for machines.

Names of an application are data: markup in them is not read, and control characters are shown, not sent to the
terminal. What an encoding cannot write is replaced.
"""

from __future__ import annotations

import codecs
import json
import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from io import TextIOWrapper
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import measure_renderables
from rich.progress import Progress
from rich.table import Column, Table
from rich.text import Text

from sluicegate.cli.commands import Command, load_app, option_app
from sluicegate.replay import words
from sluicegate.rules.typed import with_unit

if TYPE_CHECKING:
    from sluicegate.cli.application import Application

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
_yes: Final = click.option("--yes", is_flag=True, help="Do not ask.")


class Between(click.FloatRange):
    """A number in a range. click's own ranges accept nan."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


def option_every(text: str) -> Callable[[Command], Command]:
    """Return the option --every of a command that looks again and again."""
    return click.option(
        "--every", default=2.0, show_default=True, type=Between(0.1, 3600), metavar="SECONDS", help=text
    )


OVER_TIME: Final = "Over time"  # a column of counts as a row of signs, which is not folded
_BAR: Final = 10  # characters
_WORD: Final = 22  # characters of a word that stays whole, to be copied: a digest; a moment has less


# Each one character wide.
_REPLACED: Final = {"→": ">", "✓": "+", "✗": "x", "░": ".", "…": "."} | dict(zip("▁▂▃▄▅▆▇█", ".:-=+*%#", strict=True))


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Replace a character that an encoding does not have: our own signs by others, all else by its number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    return _REPLACED.get(sign) or sign.encode("ascii", "backslashreplace").decode(), error.start + 1


codecs.register_error("sluicegate", _replace)


def console(*, stderr: bool = False) -> Console:
    """Return the terminal, or the file that the output goes to."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="sluicegate")
    return Console(highlight=False, stderr=stderr)


def plain(text: object, style: str = "") -> Text:
    """Return text of an application as it is printed: without markup, and with control characters shown."""
    return Text(words.printable(str(text)), style)


class Listing:
    """Rows under columns. Where the terminal is too narrow for a table, a block of lines for each row.

    A column without a name belongs to the one before it. A first cell that is empty is that of the row before. Cells
    that are left out are empty, and what is no Text is shown plain.
    """

    def __init__(self, rows: Iterable[Iterable[object]], *columns: str, right: tuple[str, ...] = ()) -> None:
        self._columns, self._right = columns, right
        self._rows = [[cell if isinstance(cell, Text) else plain(cell) for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        columns = zip_longest(map(plain, self._columns), *self._rows, fillvalue=Text())
        sizes = [measure_renderables(console, options, column) for column in columns]
        pairs = zip(self._columns, sizes, strict=True)
        widths = [size.maximum if name == OVER_TIME else min(_WORD, size.minimum) for name, size in pairs]
        spare = options.max_width - sum(widths) - 2 * (len(widths) - 1)
        if spare < 0:
            yield Group(*self._blocks())
            return
        # Not left to rich, which makes a column narrower than its longest word, and cuts off others.
        for place in sorted(range(len(widths)), key=lambda place: sizes[place].maximum):
            more = min(spare, sizes[place].maximum - widths[place])
            widths[place], spare = widths[place] + more, spare - more
        yield self._table(widths)

    def _table(self, widths: list[int]) -> Table:
        """Return a table that folds long words, so that nothing is cut off."""
        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column, width in zip(self._columns, widths, strict=True):
            is_right = column in self._right
            made.add_column(plain(column), overflow="fold", justify="right" if is_right else "left", width=width)
        for row in self._rows:
            made.add_row(*row)
        return made

    def _blocks(self) -> Iterator[RenderableType]:
        """Yield the first cell of each row, and below it a line for each other cell."""
        for number, (head, *cells) in enumerate(self._rows):
            if head.plain:
                yield Text(head.plain, "bold")
            elif number:
                yield ""
            lines: dict[str, Text] = {}
            for column, cell in zip(self._columns[1:], cells, strict=False):
                name = column or next(reversed(lines))
                lines[name] = lines[name] + "  " + cell if name in lines else cell
            block = Table.grid(Column(overflow="fold"), Column(overflow="fold"), padding=(0, 2, 0, 0))
            for name, cell in lines.items():
                if cell.plain.strip():
                    block.add_row(plain(f"  {name}"), cell)
            yield block


@contextmanager
def scanning(what: str) -> Generator[Callable[[float], None]]:
    """Show a progress bar on a terminal while keys are scanned. Yields the function that moves it to a share."""
    out = console(stderr=True)
    with Progress(console=out, transient=True, disable=not out.is_interactive) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda share: progress.update(task, completed=share)


def foreign_keys(number: int) -> str:
    """Return the hint that some keys were skipped; nothing if none was."""
    return f"{words.count(number, 'key')} under the prefix skipped: another program wrote them." if number else ""


WHOSE: Final = "sluicegate whois DIGEST access.log says who has a digest."


def print_json(found: object) -> None:
    """Print values as JSON, in ASCII."""
    click.echo(json.dumps(found, indent=2))


class Shell(NamedTuple):
    """How a command was started: for which application, and how it asks and answers."""

    app: str | None
    as_json: bool
    yes: bool

    @property
    def application(self) -> Application:
        return load_app(self.app)

    def confirm(self, question: str) -> None:
        """Ask before something is written, unless it was answered on the command line."""
        if not self.yes:
            try:
                click.confirm(str(plain(question)), abort=True, err=True)
            except click.Abort:
                click.echo("Nothing was changed. With --yes the command does not ask.", err=True)
                raise click.exceptions.Exit(1) from None

    def tell(self, facts: object, *shown: RenderableType) -> None:
        """Answer: with facts for a program, and with tables and plain text for a person."""
        if self.as_json:
            print_json(facts)
        else:
            console().print(*[plain(each) if isinstance(each, str) else each for each in shown], sep="\n")


def operated(*, changes: bool = False) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Add --app and --json to a command, and --yes to one that changes something. It gets them as its Shell."""

    def add(command: Callable[..., object]) -> Callable[..., object]:
        @wraps(command)
        def run(app: str | None, *, as_json: bool, yes: bool = False, **given: object) -> object:
            return command(Shell(app, as_json, yes), **given)

        run = _yes(as_json(run)) if changes else as_json(run)
        return option_app(run)

    return add


def option_for(text: str) -> Callable[[Command], Command]:
    """Return the option --for of a command: a length of time with a unit."""
    return click.option("--for", "duration", metavar="TIME", callback=_with_unit, help=text)


def _with_unit(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    if how := with_unit(given or ""):
        raise click.BadParameter(f"{given!r}: no unit; {how}")
    return given


def span(seconds: float) -> str:
    """Return a time in two units at most, rounded up, as a person waits for it.

    >>> span(0.2), span(61), span(3600), span(90_000)
    ('1 s', '1 min 1 s', '1 h', '1 d 1 h')
    """
    return words.span(math.ceil(seconds))


def bar(used: int, limit: int) -> Text:
    """Return how much of a limit is used, as a bar: green, yellow from three quarters on, red if nothing is left."""
    share = min(1.0, used / limit)
    filled = _BAR if share == 1 else min(_BAR - 1, math.ceil(share * _BAR))
    color = "red" if share == 1 else "yellow" if share >= 0.75 else "green"
    return Text("█" * filled, color) + Text("░" * (_BAR - filled), "dim")
