"""`manage.py sluicegate …`: the commands of `sluicegate`, for this project."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from sluicegate.cli.commands import sluicegate


class Command(BaseCommand):
    """All commands of sluicegate. `manage.py` has set DJANGO_SETTINGS_MODULE, by which they find the project."""

    help = "See and steer the rate limits of this project."
    requires_system_checks = ()  # `manage.py sluicegate check` says what is wrong

    def add_arguments(self, parser: CommandParser) -> None:
        """Take all words: `call_command` gives them here."""
        parser.add_argument("words", nargs=REMAINDER)

    def run_from_argv(self, argv: list[str]) -> None:
        """Give all words to click, options too, except those of `manage.py` itself, which Django has read already."""
        of_django = ArgumentParser(add_help=False, allow_abbrev=False)
        of_django.add_argument("--settings")
        of_django.add_argument("--pythonpath")
        _, words = of_django.parse_known_args(argv[2:])
        sluicegate.main(args=words, prog_name="manage.py sluicegate")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run a command for `call_command("sluicegate", "check")`."""
        sluicegate.main(args=options["words"], prog_name="manage.py sluicegate", standalone_mode=False)
