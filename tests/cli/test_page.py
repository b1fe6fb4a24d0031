"""docs/commands.md and its pictures: the output of each command is what the command prints."""

from __future__ import annotations

from docs import commands
from tests.servers import valkey_server


def test_the_page_shows_what_the_commands_print() -> None:
    """`python -m docs.commands` writes it again."""
    with valkey_server() as server:
        assert commands.page(server) == commands.PAGE.read_text("utf-8")
        server.flush()
        assert commands.pictures(server) == {path: path.read_text("utf-8") for path in commands.drawn_paths()}
