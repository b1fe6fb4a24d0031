"""docs/commands.md and its pictures: the output of each command is what the command prints."""

from __future__ import annotations

from docs import commands
from sluicegate.cli.commands import COMMANDS
from tests.servers import valkey_server

# Their output has names of this machine and random ids. docs/run-time-changes.md shows them.
ELSEWHERE = {"override", "shadow", "off", "enforce", "deny", "allow", "history", "rules", "observability"}
# tests/test_runbook.py compares these with docs/runbook.md.
ELSEWHERE |= {"show", "reset", "bans", "ban", "unban", "top"}
# Its output has a digest that depends on a secret; tests/cli/test_whois.py has it.
ELSEWHERE |= {"whois"}
# It serves until it is stopped; tests/dashboard/test_command.py has it. Those of migrate are in tests/migrate.
ELSEWHERE |= {"dashboard", "migrate"}


def test_the_page_shows_what_the_commands_print() -> None:
    """`python -m docs.commands` writes it again."""
    with valkey_server() as server:
        assert commands.page(server) == commands.PAGE.read_text("utf-8")
        drawn = commands.pictures(server)
        assert drawn == {path: path.read_text("utf-8") for path in commands.drawn_paths()}
        assert not [path for path, text in drawn.items() if "scanning" in text]  # lines of the progress bar


def test_every_output_is_shown_and_fits_80_columns() -> None:
    """Those of doctor and watch by tests of their own, that of demo as a picture."""
    found = commands.BLOCK.findall(commands.PAGE.read_text("utf-8"))
    shown = {command.split()[1] for command, _ in found}
    assert shown == {*COMMANDS} - {"doctor", "watch", "demo", "replay", "suggest"} - ELSEWHERE
    assert max([len(line) for _, output in found for line in output.splitlines()]) <= 80
