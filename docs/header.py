"""Hooks of mkdocs: the site shows the version of the package that it describes, and README.md as its home page."""

from __future__ import annotations

import re
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

README: Final = Path(__file__).parent.parent / "README.md"
# The examples of the frameworks: sections one after the other in README.md, tabs on the site.
EXAMPLE: Final = re.compile(r"^### (?P<name>.+)\n(?P<text>(?:(?!##).*\n)+)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Put the version after the name of the site, in the header and in the titles of pages."""
    config.site_name = f"{config.site_name} {version('sluicegate')}"
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put README.md into the home page, which has no text of its own."""
    return home(README.read_text("utf-8")) if page.file.src_uri == "index.md" else markdown


def home(readme: str) -> str:
    """Return the home page: links lead from `docs/`, and examples are tabs.

    >>> print(home("[Keys](docs/keys.md)\\n\\n### Flask\\n\\nSave as `app.py`:\\n"))
    [Keys](keys.md)
    <BLANKLINE>
    === "Flask"
    <BLANKLINE>
        Save as `app.py`:
    <BLANKLINE>
    """
    tabs = EXAMPLE.sub(lambda found: f'=== "{found["name"]}"\n{textwrap.indent(found["text"], "    ")}', readme)
    return tabs.replace("](docs/", "](")
