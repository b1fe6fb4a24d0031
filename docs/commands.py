"""Runs the commands of docs/commands.md on a real server, and writes their output into the page and into pictures.

    python -m docs.commands

The page has the settings, and a block of text for each command. The clock stands still, and the same requests come
each time, so the output is always the same. A test compares the page and the pictures with what this script makes.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Final
from unittest.mock import patch

from click.testing import CliRunner
from rich.console import Console
from rich.text import Text

from docs.pages import DOCS
from sluicegate import ManualClock
from sluicegate.cli import application
from sluicegate.cli.budgets import opened
from sluicegate.cli.commands import sluicegate
from sluicegate.plan import Check, Plan
from tests.servers import Server, valkey_server

PAGE: Final = DOCS / "commands.md"
FILE: Final = "limits.toml"
SHOWN: Final = "redis://localhost:6379/0"  # the store in the page's settings
# What clients have done, before the commands run: the rule, who, how many requests.
REQUESTS: Final = (
    *(("default", "user:alice", 640), ("default", "user:bob", 12), ("default", "ip:198.51.100.4", 85)),
    *(("login-minute", "ip:203.0.113.7", 5), ("login-hour", "ip:203.0.113.7", 17), ("guessing", "ip:203.0.113.7", 10)),
    *(("login-minute", "ip:198.51.100.4", 2), ("login-hour", "ip:198.51.100.4", 3)),
)
PICTURES: Final = {  # picture → command
    "top": f"sluicegate top --app {FILE}",
    "demo": "sluicegate demo --once",
}
# The picture is a dark terminal, on light and on dark pages.
DARK: Final = "@media (prefers-color-scheme: dark) { svg { color-scheme: dark } }\n</style>"
BLOCK: Final = re.compile(
    r"^```text\n\$ (?P<command>sluicegate (?!demo|replay|suggest).*?)\n(?P<output>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def settings() -> str:
    """Return the settings of the page."""
    found = re.search(r"^```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@contextmanager
def scene(server: Server) -> Iterator[None]:
    """Put the settings into an empty folder, let the clock stand still, and send the requests."""
    clock, load = ManualClock(), application.load

    def standing(name: str) -> application.Application:
        found = load(name)
        limiters = [each._replace(settings=replace(each.settings, clock=clock)) for each in found.limiters]
        return found._replace(limiters=tuple(limiters))

    with tempfile.TemporaryDirectory() as folder, patch.object(application, "load", standing), chdir(folder):
        Path(FILE).write_text(settings().replace(SHOWN, server.url), "utf-8")
        with opened(standing(FILE)) as (budgets,):
            for rule, who, times in REQUESTS:
                known = [each for found in budgets.known.values() for each in found if rule in each.names]
                (terms,) = {each.terms for each in known if each.terms.name == rule or len(known) == 1}
                budgets.store.run(Plan((Check(terms, budgets.text([who]), times),), forced=True))
        clock.advance(7)
        yield


def drawn_paths() -> list[Path]:
    """Return the paths of the pictures."""
    return [DOCS / "assets" / f"command-{name}.svg" for name in PICTURES]


def run(command: str, server: Server, *, width: int = 80, colors: bool = False) -> str:
    """Return what a command prints on a terminal of this width."""
    env = {"COLUMNS": str(width), "FORCE_COLOR": "1" if colors else None, "TERM": "xterm-256color", "NO_COLOR": None}
    words = command.split()[1:] + (["--once"] if colors and " top " in command else [])
    done = CliRunner().invoke(sluicegate, words, env=env, catch_exceptions=False)
    text = done.stdout.replace(server.url, SHOWN)  # without the progress, which is on stderr
    if " demo " in command:  # it has a real clock: on a busy machine a second passes
        text = re.sub(r"\b(t=|Retry-After: )59\b", r"\g<1>60", text)
    return "".join([f"{line.rstrip()}\n" for line in text.splitlines()])


def page(server: Server) -> str:
    """Return the page with the output of each of its commands, run one after the other."""
    text = PAGE.read_text("utf-8")
    with scene(server):
        text = BLOCK.sub(lambda match: f"```text\n$ {match['command']}\n{run(match['command'], server)}```", text)
    server.flush()
    return text


def pictures(server: Server) -> dict[Path, str]:
    """Return the pictures."""
    found = {}
    with scene(server):
        for path, command in zip(drawn_paths(), PICTURES.values(), strict=True):
            found[path] = picture(Text.from_ansi(run(command, server, width=100, colors=True)), title=command)
    return found


def picture(text: Text, *, title: str) -> str:
    """Return a picture of a terminal with this text."""
    out = Console(width=100, record=True, file=StringIO(), force_terminal=True)
    out.print(text)
    drawn = out.export_svg(title=title, unique_id="sluicegate")
    drawn = re.sub(r"@font-face \{.*?\}\n?", "", drawn, flags=re.DOTALL)  # no page of ours loads fonts
    drawn = drawn.replace("</style>", DARK, 1)
    return "".join([f"{line.rstrip()}\n" for line in drawn.splitlines()])


if __name__ == "__main__":
    with valkey_server() as started:
        PAGE.write_text(page(started), "utf-8")
        for path, text in pictures(started).items():
            path.write_text(text, "utf-8")
