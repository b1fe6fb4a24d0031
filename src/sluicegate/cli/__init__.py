"""The command line, built with click and rich: one module for each command.

`sluicegate demo` runs a real application under a limit. No other part of sluicegate imports this package.
"""

from __future__ import annotations

import sys

from sluicegate.errors import SluicegateError


def main() -> None:
    """Run the command line. A SluicegateError is printed as one sentence, without a traceback; the exit code is 2."""
    try:
        from sluicegate.cli.commands import sluicegate

        sluicegate()
    except SluicegateError as error:
        print(f"sluicegate: {error}", file=sys.stderr)
        sys.exit(2)
