"""The description on the package index: README.md, whose links the index cannot follow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Where the files of a release can be read, with a slash at the end. Links are names of files while nobody knows it.
BASE: Final = ""


def description(readme: str, base: str = BASE) -> str:
    """Make relative links absolute, or without a base replace them by their text, and pictures by nothing.

    >>> description("See [Keys](docs/keys.md).", "https://example.org/")
    'See [Keys](https://example.org/docs/keys.md).'
    >>> description("See [Keys](docs/keys.md).")
    'See Keys (`docs/keys.md`).'
    """
    relative = r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)"
    if base:
        return re.sub(relative, rf"]({base}\1\2)", readme)
    without_pictures = re.sub(rf"!\[[^]]*{relative}\n*", "", readme)
    return re.sub(rf"\[([^]]+){relative}", r"\1 (`\2`)", without_pictures)


class Description(MetadataHookInterface):
    """Sets the description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling when it builds."""
        text = description((Path(self.root) / "README.md").read_text("utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
