"""From another library to this one: rewrites the files of an application, and says what is left for a person.

`peers.py` has a table for each library: what each of its names becomes. `transform.py` applies the tables to the syntax
tree of a file, which keeps its formatting and its comments. `project.py` has what a file must know of the others.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import shutil
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from sluicegate.errors import needs
from sluicegate.migrate.project import ROOTS, Project

with needs("migrate"):
    import libcst as cst

    from sluicegate.migrate.transform import ADVICE, MARK, rewrite

_OTHERS: Final = ("RATELIMIT_", "MIDDLEWARE", "FastAPI", ".limit", "view_rate_limit")  # words of a file that may change
_PROBLEMS: Final = (OSError, SyntaxError, ValueError, RecursionError, MemoryError, cst.ParserSyntaxError)
_NOT_OURS: Final = ("node_modules", "site-packages", "__pycache__")


class Place(NamedTuple):
    """What a person has to do. `needed` says whether the application does not start before."""

    line: int
    text: str
    needed: bool


@dataclass(frozen=True, slots=True)
class Migrated:
    """A file before and after. `problem` says why it stays as it is."""

    path: Path
    before: bytes
    after: bytes
    problem: str = ""

    @property
    def left(self) -> list[Place]:
        """The comments in the file after, also those of a run before."""
        if self.problem:
            return [Place(1, self.problem, needed=True)]
        lines = enumerate(map(str.strip, _text(self.after).splitlines()), 1)
        marked = [(number, line.removeprefix(MARK)) for number, line in lines if line.startswith(MARK)]
        return [Place(number, text.removeprefix(ADVICE), not text.startswith(ADVICE)) for number, text in marked]

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty without one."""
        if self.before == self.after:
            return ""
        before, after = [_text(text).splitlines(keepends=True) for text in (self.before, self.after)]
        lines = difflib.unified_diff(before, after, fromfile=str(self.path), tofile=str(self.path))
        return "".join([line if line.endswith("\n") else f"{line}\n" for line in lines])


def migrate(paths: Iterable[Path]) -> list[Migrated]:
    """Return every Python file at these paths that uses one of the libraries, as it is now and as it would be.

    Nothing is written. Give the whole application at once: a decorator in one file is rewritten because another file
    says what its limiter is.
    """
    found: list[Migrated] = []
    trees: dict[str, list[ast.Module]] = {}
    for path in dict.fromkeys(_files(paths)):
        text = b""
        try:
            text = path.read_bytes()
            tree = ast.parse(text)  # before libcst, which ends the process on an expression that is too deep
            trees.setdefault(path.parent.name if path.stem == "__init__" else path.stem, []).append(tree)
            problem = ""
        except _PROBLEMS as error:
            problem = _problem(error)
        found.append(Migrated(path, text, text, problem=problem))
    project = Project()
    project.read(trees)
    words = [word.encode() for word in (*ROOTS, *project.limiters, MARK, *_OTHERS)]
    about = [each for each in found if any(word in each.before for word in words) or (each.problem and not each.before)]
    made = [_migrated(each, project) for each in about]
    if any(b"RateLimitMiddleware" in each.after for each in (*found, *made)):
        return made
    project.has_middleware = False  # and the file of the first limit says so
    return [_migrated(each, project) for each in about]


def write(files: Iterable[Migrated]) -> None:
    """Write these files, each beside its file and then in its place.

    What says what a limiter is comes last, after what imports a library: so a run that ended between two files is
    finished by another one. Raises OSError.
    """
    words = [root.encode() for root in ROOTS]
    for each in sorted(files, key=lambda each: (b"Limiter(" in each.before, any(map(each.before.count, words)))):
        path = each.path.resolve()
        new = path.with_name(f".{path.name}.sluicegate")
        try:
            new.write_bytes(each.after)
            shutil.copymode(path, new)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


def _migrated(file: Migrated, project: Project) -> Migrated:
    if file.problem:
        return file
    try:
        after = rewrite(file.before, project)
        compile(after, str(file.path), "exec", dont_inherit=True)
    except _PROBLEMS as error:
        return replace(file, problem=_problem(error))
    return replace(file, after=after)


def _problem(error: BaseException) -> str:
    return f"it cannot be rewritten: {(str(error) or type(error).__name__).splitlines()[0]}"


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Return the files of the application. A link is not followed: it may be a loop, or lead to what is not its own."""
    for path in paths:
        if path.is_file():
            yield path
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(each for each in folders if each not in _NOT_OURS and not each.startswith("."))
            every = [Path(folder, each) for each in sorted(files) if each.endswith(".py")]
            yield from (each for each in every if not each.is_symlink())


def _text(source: bytes) -> str:
    """Return the text of a file that Python can read."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding, "replace")
