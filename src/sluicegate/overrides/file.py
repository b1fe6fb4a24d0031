"""Files that a process follows: TOML with [[overrides]] or [[rules]], looked at by `stat` and read when it changes.

[[overrides]]
rule = "export"
quota = "300/minute"
identities = ["user:42"]
until = 2026-12-01T00:00:00Z
why = "a big import"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from datetime import datetime
from os import getpid
from pathlib import Path
from typing import Any, Final, TypeVar

from sluicegate.errors import ConfigurationError, IdentityError, OverrideError
from sluicegate.overrides.override import Override, checked
from sluicegate.overrides.write import override_from

T = TypeVar("T")

_ARRAYS: Final = ("rules", "overrides")  # of a file: it may be followed for both


class Watched:
    """A file that is read again when its `stat` has changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None

    def changed(self) -> str | None:
        """Return the text of the file if it has changed since the last call. Raises OverrideError if it is unreadable.

        An editor that replaces the file changes its inode; one that writes into it its time.
        """
        try:
            stat = Path(self.path).stat()
            # With the process: the parent of a fork may have read what it had not applied then.
            seen = getpid(), stat.st_mtime_ns, stat.st_ino, stat.st_size
            if seen == self._seen:
                return None
            text = Path(self.path).read_text("utf-8")
        except (OSError, ValueError) as error:  # a ValueError: the path or the text cannot be decoded
            raise OverrideError("file", self.path, problem=str(error), expected="give a readable file") from None
        self._seen = seen  # of before the reading: what is written during it is read by the next call
        return text

    def read_overrides(self, known: bytes) -> str | None:
        """Return the text if it has changed: the gate asks a file as it asks a store."""
        return self.changed()


def tables(
    text: str, name: str, path: str, *, make: Callable[[dict[str, Any], int], T], required: bool = False
) -> tuple[T, ...]:
    """Return what `make` makes of each table of an array in a TOML file, and of its number. Raises OverrideError with
    the first error of each table and its line; also for a file that is not TOML, has an unknown name (a misspelt one
    must not silently remove what holds), or lacks a `required` array.
    """
    try:
        read = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: a number too long, arrays too deep
        raise OverrideError("file", path, problem=str(error), expected="correct it") from None
    for other in read:
        if other not in _ARRAYS:
            expected = "write [[rules]] or [[overrides]]; sluicegate check reads a file of settings"
            raise OverrideError("file", path, problem=f"{other!r} is not known here", expected=expected)
    if required and name not in read:
        raise OverrideError("file", path, problem=f"it has no {name}", expected=f"write {name} = [] to have none")
    found = read.get(name, [])
    if not isinstance(found, list) or not all([isinstance(each, dict) for each in found]):
        raise OverrideError("file", path, problem=f"{name} is no array of tables", expected=f"write [[{name}]]")
    heads = re.compile(rf"[ \t]*\[\[[ \t]*{name}[ \t]*\]\]")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if heads.match(line)]
    if len(lines) != len(found):  # written in another form, which TOML allows: then the line is not known
        lines = [1] * len(found)
    made, wrong = list[T](), list[str]()
    for number, (line, options) in enumerate(zip(lines, found, strict=True), 1):
        try:
            made.append(make(options, number))
        except ConfigurationError as error:  # one error does not hide the others
            # Not the text of an identity: what is wrong goes into logs.
            said = f"identities: {error.expected}" if isinstance(error, IdentityError) else error
            wrong.append(f"line {line}: {said}")
    if wrong:
        raise OverrideError("file", path, problem="; ".join(wrong), expected="nothing of it holds")
    return tuple(made)


def overrides_in(text: str, path: str, text_of: Callable[[str], str]) -> tuple[Override, ...]:
    """Return the overrides in the text of a file. `text_of` returns the text of an identity that a person wrote.

    Raises OverrideError with all that is wrong.
    """

    def made(options: dict[str, Any], number: int) -> Override:
        until = options.get("until")
        if until is not None and not isinstance(until, datetime):  # a length of time has no beginning here
            expected = "write it like 2026-12-01T00:00:00Z"
            raise OverrideError("until", until, problem="not a moment with its zone", expected=expected)
        return override_from(options, lambda word: text_of(str(word)), now=0, name=f"table-{number}")

    return checked(tables(text, "overrides", path, make=made))
