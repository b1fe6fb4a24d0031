"""The command line, built with click and rich: one module for each command.

No other part of sluicegate imports this package.
"""

from __future__ import annotations

import sys

from sluicegate.errors import MissingExtraError


def main() -> None:
    """Run the command line. If click is missing, say so in one sentence; the exit status is 2."""
    try:
        from sluicegate.cli.commands import sluicegate
    except MissingExtraError as error:
        print(f"sluicegate: {error}", file=sys.stderr)
        sys.exit(2)
    sluicegate(prog_name="sluicegate")
