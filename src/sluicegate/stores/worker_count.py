"""The number of workers of the web server that runs this process, if a process can find it out.

The number is read from the sources that the web server itself reads or passes to its workers: the command line,
environment variables and the configuration. A web server without a configured number runs one worker. This module
imports no web server.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from types import ModuleType
from typing import Final

from sluicegate.errors import warn

_WITH_OPTIONS: Final = ("gunicorn", "hypercorn", "granian")


def warn_of_memory(*, strict: bool) -> None:
    """Warn (SG101) of a memory store in one of several workers: each worker counts separately."""
    count = count_workers(sys.argv, os.environ, sys.modules)
    if count > 1:
        warn("SG101", "memory://", strict=strict, count=count)


def count_workers(argv: Sequence[str], environ: Mapping[str, str], modules: Mapping[str, ModuleType]) -> int:
    """Return the number of workers; 1 if no number is configured.

    >>> count_workers(["/usr/bin/gunicorn", "-w", "4", "app:app"], {}, {})
    4
    """
    uwsgi = _number(getattr(modules.get("uwsgi"), "numproc", None))  # uWSGI adds a module to its workers
    sources = [uwsgi, _uvicorn(modules), *_options(argv, environ, modules)]
    return next((found for found in sources if found is not None), 1)


def _uvicorn(modules: Mapping[str, ModuleType]) -> int | None:
    """Return the number of workers from uvicorn's configuration. Uvicorn passes its configuration to each worker, which
    is a process of `multiprocessing`.

    With `--reload` uvicorn passes the same configuration, but runs only one process.
    """
    if "uvicorn" not in modules or "multiprocessing.process" not in modules:
        return None
    given = getattr(modules["multiprocessing.process"].current_process(), "_kwargs", {})
    config = given.get("config")
    return None if getattr(config, "should_reload", True) else _number(getattr(config, "workers", None))


def _options(argv: Sequence[str], environ: Mapping[str, str], modules: Mapping[str, ModuleType]) -> list[int | None]:
    """Return the number of each source in gunicorn's order. Other web servers use only the command line."""
    path = PurePath(argv[0] if argv else "")
    program = path.parent.name if path.name == "__main__.py" else path.stem  # the first: `python -m gunicorn`
    if program not in _WITH_OPTIONS:
        return []
    found = [_option(argv[1:])]
    if program == "gunicorn":
        found.append(_option(_words(environ.get("GUNICORN_CMD_ARGS", ""))))
        found.append(_number(getattr(modules.get("__config__"), "workers", None)))  # gunicorn.conf.py
        found.append(_number(environ.get("WEB_CONCURRENCY")))
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # gunicorn reports it
        return []


def _option(words: Iterable[str]) -> int | None:
    """Return the number in the last `-w 4`, `-w4`, `--workers 4` or `--workers=4`; None without such an option."""
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
