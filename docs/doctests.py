"""For the reference page: shows the examples of docstrings as code, which Markdown would take for quotations.

An extension of griffe, the library with which mkdocstrings reads the source.
"""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

_EXAMPLE: Final = re.compile(r"^>>> (?:.+\n?)+", re.MULTILINE)  # from a prompt to the next empty line


class Doctests(griffe.Extension):
    """Puts a fence around every example."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object, once it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(
                lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", obj.docstring.value
            )
