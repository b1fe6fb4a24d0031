"""Draws the pictures of `sluicegate doctor` and `sluicegate watch` from their text in docs/monitoring.md.

    python -m docs.monitoring

Their figures differ from run to run, so the tests of both commands compare the words of the page with what they print.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from rich.text import Text

from docs.commands import picture
from docs.pages import DOCS

PAGE: Final = DOCS / "monitoring.md"
COLORS: Final = {
    "green": r"✓",
    "red": r"✗|→.*|^ {16}also.*|^1 wrong",
}
BLOCK: Final = re.compile(r"^```text\n\$ (sluicegate (doctor|watch) .*)\n((?:.*\n)*?)```$", re.MULTILINE)


def pictures() -> dict[Path, str]:
    """Return the pictures."""
    found: dict[Path, str] = {}
    for command, name, shown in BLOCK.findall(PAGE.read_text("utf-8")):
        text = Text(shown)
        for color, pattern in COLORS.items():
            text.highlight_regex(re.compile(pattern, re.MULTILINE), color)
        found.setdefault(DOCS / "assets" / f"command-{name}.svg", picture(text, title=command))  # the first of each
    return found


if __name__ == "__main__":
    for path, drawn in pictures().items():
        path.write_text(drawn, "utf-8")
