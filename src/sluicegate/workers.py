"""How many workers a server runs, of which this process is one, as far as a process can tell.

Read from what the server itself reads or hands to its workers: its command line, its variables, its configuration.
A server that says nothing runs one. This module knows servers by name and imports none; of sluicegate, the caution.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from types import ModuleType
from typing import Any, Final

from sluicegate.cautions import caution

_TOLD_BY_ARGUMENTS: Final = ("gunicorn", "hypercorn", "granian")


def warn_of_memory(*, strict: bool) -> None:
    """Warn (SG101) of a memory store in one of several workers: each counts for itself."""
    count = count_workers(sys.argv, os.environ, sys.modules)
    if count > 1:
        caution("SG101", "memory://", strict=strict, count=count)


def count_workers(argv: Sequence[str], environ: Mapping[str, str], modules: Mapping[str, ModuleType]) -> int:
    """The number of workers; 1 where nothing says that there are more.

    >>> count_workers(["/usr/bin/gunicorn", "-w", "4", "app:app"], {}, {})
    4
    """
    for found in (_uwsgi(modules), _uvicorn(modules), _told(argv, environ, modules)):
        if found is not None:
            return found
    return 1


def _uwsgi(modules: Mapping[str, Any]) -> int | None:
    """uWSGI is a module in the processes that it runs."""
    return _number(getattr(modules.get("uwsgi"), "numproc", None))


def _uvicorn(modules: Mapping[str, Any]) -> int | None:
    """What uvicorn hands to each worker, a process of multiprocessing's, whoever told it how many to start.

    A process that is started over when a file changes gets the same, and is the only one.
    """
    if "uvicorn" not in modules or "multiprocessing.process" not in modules:
        return None
    given = getattr(modules["multiprocessing.process"].current_process(), "_kwargs", {})
    config = given.get("config")
    return None if getattr(config, "should_reload", True) else _number(getattr(config, "workers", None))


def _told(argv: Sequence[str], environ: Mapping[str, str], modules: Mapping[str, Any]) -> int | None:
    """What the first that is there says, in gunicorn's own order; of the others only the command line is known."""
    program = _program(argv)
    if program not in _TOLD_BY_ARGUMENTS:
        return None
    found = _option(argv[1:])
    if found is None and program == "gunicorn":
        found = _option(_words(environ.get("GUNICORN_CMD_ARGS", "")))
        if found is None:
            found = _number(getattr(modules.get("__config__"), "workers", None))  # its file, gunicorn.conf.py
        if found is None:
            found = _number(environ.get("WEB_CONCURRENCY"))
    return found


def _program(argv: Sequence[str]) -> str:
    """gunicorn, for /usr/bin/gunicorn and for `python -m gunicorn`."""
    path = PurePath(argv[0] if argv else "")
    return path.parent.name if path.name == "__main__.py" else path.stem


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # gunicorn will say so
        return []


def _option(words: Iterable[str]) -> int | None:
    """The last of `-w 4`, `-w4`, `--workers 4`, `--workers=4`."""
    found: str | None = None
    follows = False
    for word in words:
        if follows:
            found = word
        follows = word in ("-w", "--workers")
        if word.startswith("--workers="):
            found = word.partition("=")[2]
        elif word.startswith("-w") and not follows:
            found = word[2:]
    return _number(found)


def _number(given: object) -> int | None:
    if isinstance(given, int):
        return given
    return int(given) if isinstance(given, str) and given.isdecimal() else None
