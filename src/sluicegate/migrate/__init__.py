"""From another library to this one: rewrites the files of an application, and says what is left for a person.

`peers.py` has a table for each library: what each of its names becomes. `transform.py` applies the tables to the syntax
tree of a file, which keeps its formatting and its comments. `project.py` has what a file must know of the others.
"""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluicegate.errors import needs
from sluicegate.migrate.project import ROOTS, Project

with needs("migrate"):
    import libcst as cst

    from sluicegate.migrate.transform import MARK, rewrite

_OTHERS: Final = ("RATELIMIT_", "MIDDLEWARE", "FastAPI", ".limit", "view_rate_limit")  # words of a file that may change
_NOT_OURS: Final = ("node_modules", "site-packages", "__pycache__")


@dataclass(frozen=True, slots=True)
class Migrated:
    """A file before and after. `problem` says why it stays as it is. `new` has the comments that are new, each with the
    line of the file before that it is about.
    """

    path: Path
    before: bytes
    after: bytes
    problem: str = ""
    new: tuple[tuple[int, str], ...] = ()

    @property
    def left(self) -> list[tuple[int, str]]:
        """The lines of the file after, and what a person has to do there."""
        return [(1, self.problem), *_marked(self.after)] if self.problem else _marked(self.after)

    @property
    def left_before(self) -> list[tuple[int, str]]:
        """The same with the lines of the file before."""
        return self.left if self.problem else sorted([*_marked(self.before), *self.new])

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty without one."""
        before, after = [_text(text).splitlines(keepends=True) for text in (self.before, self.after)]
        lines = difflib.unified_diff(before, after, fromfile=str(self.path), tofile=str(self.path))
        return "".join([line if line.endswith("\n") else f"{line}\n" for line in lines])


def migrate(paths: Iterable[Path]) -> list[Migrated]:
    """Return every Python file at these paths that uses one of the libraries, as it is now and as it would be.

    Nothing is written. Give the whole application at once: a decorator in one file is rewritten because another file
    says what its limiter is.
    """
    texts = {path: path.read_bytes() for path in dict.fromkeys(_files(paths))}
    project = Project()
    for text in texts.values():
        with suppress(SyntaxError, ValueError):  # the report has it
            project.read(ast.parse(text))
    words = [word.encode() for word in (*ROOTS, *project.limiters, MARK, *_OTHERS)]
    return [_migrated(path, text, project) for path, text in texts.items() if any(word in text for word in words)]


def _migrated(path: Path, before: bytes, project: Project) -> Migrated:
    try:
        after, new = rewrite(before, project)
        compile(after, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, cst.ParserSyntaxError) as error:
        return Migrated(path, before, before, problem=f"it cannot be rewritten: {str(error).splitlines()[0]}")
    return Migrated(path, before, after, new=tuple(new))


def _marked(source: bytes) -> list[tuple[int, str]]:
    lines = [line.strip() for line in _text(source).splitlines()]
    return [(number, line.removeprefix(MARK)) for number, line in enumerate(lines, 1) if line.startswith(MARK)]


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            for each in sorted(path.iterdir()):
                own = each.is_dir() and each.name not in _NOT_OURS and not each.name.startswith(".")
                if own or each.suffix == ".py":
                    yield from _files([each])
        elif path.is_file():
            yield path


def _text(source: bytes) -> str:
    return source.decode(tokenize.detect_encoding(io.BytesIO(source).readline)[0], "replace")
