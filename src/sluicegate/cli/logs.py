"""The options of commands that read access logs, and the progress bar while they read."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sluicegate.cli.commands import Command, Failure
from sluicegate.cli.output import Between, console
from sluicegate.clock import MICROSECOND
from sluicegate.errors import LineError

if TYPE_CHECKING:
    from sluicegate.replay.log import Log

Options = dict[str, Any]
"""The options of a command, as click parses them."""

_DAY: Final = 86_400
_WHO: Final = "The log has its clients in clear: show them, or hide them as digests in a report for others."


def moment(given: str, zone: ZoneInfo, option: str) -> int:
    """Read the time that an option was given, in microseconds since 1970."""
    try:
        found = datetime.fromisoformat(given)
        found = found if found.tzinfo is not None else found.replace(tzinfo=zone)
        return round(found.astimezone(UTC).timestamp() * MICROSECOND)
    except (ValueError, OverflowError):
        problem = f"{given!r}: give a time like 2026-11-23 or 2026-11-23T14:05:00Z"
        raise click.BadParameter(problem, param_hint=[option]) from None


def _zone(_context: click.Context, _option: click.Parameter, given: str) -> ZoneInfo:
    try:
        return ZoneInfo(given)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise click.BadParameter(f"{given!r}: give a time zone like UTC or Europe/Berlin") from None


def _fields(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in given:
        name, sign, field = each.partition("=")
        if not sign or not name or not field:
            raise click.BadParameter(f"{each!r}: write it like user=client.id: a column, and the log's own name")
        found[name] = field
    return found


def _proxies(_context: click.Context, _option: click.Parameter, given: str | None) -> int | list[str] | None:
    if given is None:
        return None
    return int(given) if given.isascii() and given.isdecimal() else [each.strip() for each in given.split(",")]


_OPTIONS: Final = (
    click.option(
        "--format", default="auto", metavar="FORMAT", help="A name, the server's format string, or its nginx.conf."
    ),
    click.option("--field", "fields", multiple=True, callback=_fields, metavar="COLUMN=NAME", help="Name a field."),
    click.option("--zone", default="UTC", callback=_zone, metavar="ZONE", help="The zone of times that have none."),
    click.option(
        "--window",
        default=60.0,
        type=Between(0.0, _DAY),
        metavar="SECONDS",
        show_default=True,
        help="How late a line may be.",
    ),
    click.option("--strict", is_flag=True, help="Stop at a line that cannot be read."),
    click.option("--since", metavar="TIME", help="Leave out earlier requests."),
    click.option("--until", metavar="TIME", help="Leave out requests at this time and later."),
    click.option("--trusted-proxies", callback=_proxies, metavar="N|NETWORKS", help="As in the settings."),
    click.option("--trusted-header", metavar="NAME", help="As in the settings."),
)


def takes_logs(command: Command) -> Command:
    """Add the names of logs and the options about them to a command."""
    command = click.option("--show-identities/--hide-identities", default=True, help=_WHO)(command)
    return click.argument("logs", metavar="LOG…", nargs=-1, required=True)(reads_logs(command))


def reads_logs(command: Command) -> Command:
    """Add the options about logs to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def open_log(options: Options) -> tuple[Log, Options]:
    """Return the log that these options of `takes_logs` name, and the arguments common to `replay` and `suggest`."""
    from sluicegate.replay.log import Log  # here: the help needs no extra

    zone, since, until = [options[name] for name in ("zone", "since", "until")]
    show = options.get("show_identities", False)
    reading = {name: options[name] for name in ("format", "fields", "window", "strict")}
    log = Log(options["logs"], zone=zone, show_identities=show, **reading)
    first = None if since is None else moment(since, zone, "--since")
    end = None if until is None else moment(until, zone, "--until")
    if first is not None and end is not None and first >= end:
        raise click.BadParameter(f"--since {since} is not before --until {until}; give an earlier --since")
    return log, {"since": first, "until": end, "show_identities": show, "processes": os.cpu_count() or 1}


def trusted(options: Options) -> Options:
    """Return the settings about proxies that were given."""
    return {name: options[name] for name in ("trusted_proxies", "trusted_header") if options[name] is not None}


class Nothing(Failure):
    """Nothing to print: a line that cannot be read under --strict, no request, or no rule."""

    exit_code = 1


def some(requests: int, log: Log) -> None:
    """Raise Nothing if no request is left."""
    if not requests:
        expected = "give a log with requests, or other --since and --until"
        raise Nothing(f"no request is left (lines read: {log.read.lines:,}); {expected}")


class Bar:
    """A progress bar on a terminal: first for the bytes of a log, then for its partitions."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("reading", total=None, done="")
        self._decided: TaskID | None = None

    def read(self, log: Log) -> None:
        read = log.read
        self._progress.update(self._task, total=read.total, completed=read.bytes, done=f"{read.lines:,} lines")

    def decided(self, number: int, of: int) -> None:
        """Move to the partitions that are decided."""
        if self._decided is None:
            self._progress.stop_task(self._task)
            self._decided = self._progress.add_task("deciding", total=of, done="")
        self._progress.update(self._decided, completed=number, done=f"{number} of {of} parts")


@contextmanager
def progress() -> Generator[Bar]:
    """Show a progress bar on a terminal while a log is read, and after that. A LineError becomes a Nothing."""
    out = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeRemainingColumn())
    try:
        with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
            yield Bar(bar)
    except LineError as error:
        raise Nothing(str(error)) from error
