"""The group of all commands, and how they find their application. Each command is in a module of its own.

The same group is `sluicegate`, `python -m sluicegate`, `flask sluicegate` and `manage.py sluicegate`. It imports a
command's module when that command runs, and needs only click: Flask imports this module for each of its commands.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from typing import IO, TYPE_CHECKING, Final, NoReturn, TypeVar

from sluicegate.errors import SluicegateError, StoreError, needs

with needs("cli"):
    import click

if TYPE_CHECKING:
    from sluicegate.cli.application import Application

Command = TypeVar("Command", bound=Callable[..., object])

COMMANDS: Final = {
    "check": "sluicegate.cli.check",
    **dict.fromkeys(("show", "reset"), "sluicegate.cli.show"),
    **dict.fromkeys(("bans", "ban", "unban"), "sluicegate.cli.bans"),
    **dict.fromkeys(("override", "shadow", "off", "enforce", "deny", "allow", "history"), "sluicegate.cli.overrides"),
    "whois": "sluicegate.cli.whois",
    "rules": "sluicegate.cli.rules",
    "observability": "sluicegate.cli.observability",
    "top": "sluicegate.cli.top",
    "demo": "sluicegate.cli.demo",
    "doctor": "sluicegate.cli.doctor",
    "watch": "sluicegate.cli.watch",
    "dashboard": "sluicegate.cli.dashboard",
    "replay": "sluicegate.cli.replay",
    "suggest": "sluicegate.cli.suggest",
    "migrate": "sluicegate.cli.migrate",
}
"""The module of each command. It has a click command of the same name."""

VARIABLE: Final = "SLUICEGATE_APP"
_FULL: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EBADF)  # what an output can say


class Commands(click.Group):
    """A group that imports a command's module when the command is used, and prints our errors as one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with needs("cli"):  # the one guard of all commands: their modules import rich and others freely
            found: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of the command line. For --help it imports all commands."""
        with _one_sentence():
            if sys.stdout is None:  # it was closed when the command started, and click would print nothing
                raise OSError(errno.EBADF, "it is closed")
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. The words of the command line and of settings may name modules in the working directory."""
        _search_here()
        with _one_sentence(), _ended_by_signals():
            return super().invoke(ctx)


class Failure(click.ClickException):
    """An error as one sentence on stderr."""

    exit_code = 2

    def show(self, file: IO[str] | None = None) -> None:
        click.echo(f"sluicegate: {self.format_message()}", file=file, err=file is None)


@contextmanager
def _one_sentence() -> Generator[None]:
    """Print a SluicegateError as a sentence, not a traceback; the status is 2. After Ctrl-C it is 130, as in shells."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise click.exceptions.Exit(130) from error
    except StoreError as error:
        raise Failure(f"{error}; run sluicegate doctor") from error
    except SluicegateError as error:
        raise Failure(str(error)) from error
    except OSError as error:
        if error.errno not in _FULL and error.filename is None:
            raise
        raise Failure(f"{error.filename or 'the output cannot be written'}: {error.strerror}") from error


def _search_here() -> None:
    """Import modules from the working directory too, as servers do."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _exit(number: int, _: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # the kernel and the shell both say that a terminal is closed
    sys.exit(128 + number)


@contextmanager
def _ended_by_signals() -> Generator[None]:
    """End by SystemExit on SIGTERM, and on SIGHUP when the terminal is closed, so that temporary files are removed and
    a live view gives the terminal back as it was. The exit status is 143 or 129, as shells have it. A signal that is
    ignored stays ignored, as with nohup.
    """
    if current_thread() is not main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has one
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sluicegate")
def sluicegate() -> None:
    """Rate limiting for Python web applications."""


def option_app(command: Command) -> Command:
    """Add the option --app to a command: the name of its application, for `load_app`."""
    text = "The application: module:app, module:factory(), a Python file, or a TOML file with settings."
    return click.option("--app", metavar="APP", envvar=VARIABLE, show_envvar=True, help=text)(command)


def load_app(name: str | None) -> Application:
    """Return the application for a command: the named one, else that of `flask`, else of DJANGO_SETTINGS_MODULE."""
    from sluicegate.cli import application

    if name:
        return application.load(name)
    surroundings = click.get_current_context().find_root().obj
    if surroundings is not None and hasattr(surroundings, "load_app"):  # Flask's ScriptInfo
        app = surroundings.load_app()
        return application.application_of(app, app.import_name)
    if os.environ.get(application.DJANGO):
        return application.load_django()
    problem = f"no application; give --app module:app, or set {VARIABLE} or {application.DJANGO}"
    raise click.UsageError(problem)
