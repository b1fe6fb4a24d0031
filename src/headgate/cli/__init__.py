"""The command line: one verb per module. Nothing of headgate imports this package.

`headgate demo` shows a real application being limited. The words are click's and rich's; the verbs are ours.
"""

from __future__ import annotations

import sys

from headgate.errors import HeadgateError


def main() -> None:
    """Run the command line; an error of ours is one sentence and exit code 2, never a traceback."""
    try:
        from headgate.cli.commands import headgate

        headgate()
    except HeadgateError as error:
        print(f"headgate: {error}", file=sys.stderr)
        sys.exit(2)
