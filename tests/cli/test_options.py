"""The options of all commands: numbers that are none, out of range or missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from math import inf, nan
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sluicegate.cli.commands import COMMANDS, sluicegate
from sluicegate.cli.output import Between


def options() -> Iterator[tuple[str, click.Option]]:
    for name, module in COMMANDS.items():
        command: click.Command = getattr(import_module(module), name.replace("-", "_"))
        yield from [(name, each) for each in command.params if isinstance(each, click.Option)]


RANGES = (click.IntRange, Between)
NUMBERS = [f"{name} {option.opts[0]}" for name, option in options() if isinstance(option.type, RANGES)]


@pytest.mark.parametrize("given", [str(nan), str(inf), "-inf", "-1", "1e400", "1" * 5000, "", " ", "two", "0x10"])
@pytest.mark.parametrize("option", NUMBERS)
def test_a_number_that_cannot_be_is_an_error(option: str, given: str) -> None:
    """Before anything is asked or waited for."""
    done = CliRunner().invoke(sluicegate, [*option.split(), given])
    assert done.exit_code == 2
    assert "Invalid value for" in done.output


def test_every_number_has_a_range() -> None:
    """click's own types take nan."""
    kinds = (click.types.IntParamType, click.types.FloatParamType)
    numbers = [f"{name} {option.opts[0]}" for name, option in options() if isinstance(option.type, kinds)]
    assert numbers == NUMBERS
    assert {"top --every", "top --limit", "watch --every", "demo --port"} <= set(NUMBERS)


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    done = CliRunner().invoke(sluicegate, ["observability", "export", "/proc/nothing"])
    assert (done.exit_code, done.output) == (2, "sluicegate: /proc/nothing: No such file or directory\n")
    (tmp_path / "alerts.yml").write_bytes(b"\xff")  # a file of somebody, in no known encoding
    done = CliRunner().invoke(sluicegate, ["observability", "export", str(tmp_path)])
    assert (done.exit_code, "--force replaces it" in done.output) == (2, True)
