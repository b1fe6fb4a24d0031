"""The optional packages of sluicegate's extras, where they are imported: `with needs("redis"): import redis`."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from sluicegate.errors import MissingExtraError


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Imports that this extra makes possible. MissingExtraError [SG007] when one of them fails.

    It names the package that is missing, or that is installed and broken. Where an extra includes another one
    (`embedded` includes `redis`), the outer one is named: it is what the user asked for. An ImportError about
    sluicegate's own modules passes unchanged.
    """
    try:
        yield
    except ImportError as error:
        inner = isinstance(error, MissingExtraError) and isinstance(error.__cause__, ImportError)
        cause: ImportError = error.__cause__ if inner else error  # type: ignore[assignment]
        package = _package(cause)
        if package == "sluicegate":
            raise
        raise MissingExtraError(extra, package, broken="" if _is_absent(cause) else str(cause)) from cause


def _package(error: ImportError) -> str:
    """The package that cannot be imported. An error that names no module comes from the package that raised it."""
    name = error.name
    if name is None:
        trace = error.__traceback__
        while trace is not None:
            name, trace = trace.tb_frame.f_globals.get("__name__", ""), trace.tb_next
    return (name or "").partition(".")[0]


def _is_absent(error: ImportError) -> bool:
    """Whether a whole package is not there. A part of a package, or of Python, is missing from what is installed."""
    name = error.name or ""
    return isinstance(error, ModuleNotFoundError) and "." not in name and name not in sys.stdlib_module_names
