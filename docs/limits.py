"""Runs the commands of docs/choose-a-limit.md on a generated log, and writes their output into the page.

    python -m docs.limits

The traffic model gives the same log everywhere, so the output is always the same. A test compares the page with what
this script makes.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from contextlib import chdir
from typing import Final

from click.testing import CliRunner

from docs.pages import DOCS
from examples.shop_log import Model, write
from sluicegate.cli.commands import sluicegate

PAGE: Final = DOCS / "choose-a-limit.md"
BLOCK: Final = re.compile(r"^```text\n\$ (?P<command>sluicegate .*?)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
MORE: Final = re.compile(r"(^Program +Requests.*\n(?:.+\n){5}|^(?=Note: ))(?:.+\n)+", re.MULTILINE)  # than two programs


def run(command: str) -> str:
    """Return what a command prints on a terminal of 80 columns, without the rules to paste."""
    done = CliRunner().invoke(sluicegate, shlex.split(command)[1:], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    text = MORE.sub(r"\1…\n", "".join([f"{line.rstrip()}\n" for line in done.stdout.splitlines()]))
    answer, *_ = text.partition("\n[sluicegate]\n")
    return f"{answer}\n…\n"


def page() -> str:
    """Return the page with the output of each of its commands."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        write(Model(), "access.log")
        return BLOCK.sub(
            lambda match: f"```text\n$ {match['command']}\n{run(match['command'])}```", PAGE.read_text("utf-8")
        )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
