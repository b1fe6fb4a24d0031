"""The command line: one verb per module. Nothing of sluicegate imports this package.

`sluicegate demo` shows a real application being limited. The words are click's and rich's; the verbs are ours.
"""

from __future__ import annotations

import sys

from sluicegate.errors import SluicegateError


def main() -> None:
    """Run the command line; an error of ours is one sentence and exit code 2, never a traceback."""
    try:
        from sluicegate.cli.commands import sluicegate

        sluicegate()
    except SluicegateError as error:
        print(f"sluicegate: {error}", file=sys.stderr)
        sys.exit(2)
