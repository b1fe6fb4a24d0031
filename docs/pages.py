"""The code blocks of the pages, and the folders that a reader makes of them.

A block with a title is a file: `title="app.py"`. A block with `title="app.py, continued"` is the next part of that
file. A title that the page has used already begins a new folder. A block in a content tab (`=== "Flask"`) belongs to
that tab, and each tab has a folder of its own. A `python` block without a title is a program by itself. A `pycon` block
continues the session of its page, which sees the names of everything above it. A `py` block is code of another
library, on the pages about migrating: tests/test_migrating.py runs it beside the `python` block that follows it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
PAGES: Final = (README, *sorted(DOCS.rglob("*.md")))

FENCE: Final = re.compile(
    r'^(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^",]+)(?P<continued>, continued)?")?[^\n]*\n'
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
TAB: Final = re.compile(r'^=== "(.+)"$', re.MULTILINE)


class Block(NamedTuple):
    """A fence of a page."""

    page: Path
    line: int  # of its first line of text, counted from 0
    language: str
    text: str
    title: str | None
    continued: bool
    tab: str | None

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.page.name}:{self.line + 1}"


class Folder(NamedTuple):
    """What one reader of a page copies into one empty folder."""

    page: Path
    name: str
    blocks: tuple[Block, ...]

    def of(self, *languages: str) -> list[Block]:
        """The blocks in these languages."""
        return [block for block in self.blocks if block.language in languages]

    @property
    def files(self) -> dict[str, str]:
        """The text of each file."""
        files: dict[str, str] = {}
        for block in self.blocks:
            if block.title is not None:
                before = f"{files[block.title]}\n\n" if block.continued else ""
                files[block.title] = before + block.text
        return files

    @property
    def programs(self) -> list[Block]:
        """The blocks that run by themselves."""
        return [block for block in self.of("python") if block.title is None]

    @property
    def commands(self) -> list[str]:
        """The lines for the shell."""
        return shell_lines(self.of("bash"))

    @property
    def requests(self) -> list[str]:
        """The requests of the page, which go to every server that it starts."""
        lines = shell_lines(block for block in blocks(self.page) if block.language == "bash")
        return [line for line in lines if line.startswith("curl ")]


def shell_lines(found: Iterable[Block]) -> list[str]:
    """The commands of these blocks, without comments; a line that ends in a backslash continues on the next line."""
    text = "\n".join(block.text for block in found).replace("\\\n", "")
    return [line for line in (re.sub(r"(^|\s+)#.*", "", line).strip() for line in text.splitlines()) if line]


@cache
def written(page: Path) -> str:
    """The text of a page."""
    return page.read_text("utf-8")


def blocks(page: Path) -> Iterator[Block]:
    """Every fence of a page."""
    text = written(page)
    for match in FENCE.finditer(text):
        tab = (TAB.findall(text, 0, match.start()) or [None])[-1] if match["indent"] else None
        line = text.count("\n", 0, match.start("text"))
        body = textwrap.dedent(match["text"])
        yield Block(page, line, match["language"], body, match["title"], bool(match["continued"]), tab)


def folders(page: Path) -> Iterator[Folder]:
    """Every folder that a page makes, each with the blocks of its own tab and those outside all tabs."""
    found = list(blocks(page))
    for tab in dict.fromkeys(block.tab for block in found if block.tab is not None) or (None,):
        parts: list[list[Block]] = [[]]
        for block in found:
            if block.tab not in {None, tab}:
                continue
            if block.title in {other.title for other in parts[-1] if other.title} and not block.continued:
                parts.append([])
            parts[-1].append(block)
        for number, part in enumerate(parts, 1):
            name = "-".join([page.stem, *([tab] if tab else []), *([str(number)] if len(parts) > 1 else [])])
            yield Folder(page, name.lower(), tuple(part))


def every_folder() -> list[Folder]:
    """Every folder of every page."""
    return [folder for page in PAGES for folder in folders(page)]
