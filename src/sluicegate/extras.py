"""The import of optional packages, which extras install: `with needs("redis"): import redis`."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from sluicegate.errors import MissingExtraError


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Wrap a block of imports that need this extra. Raises MissingExtraError [SG007] if an import fails.

    The error says which package is missing, or is installed and broken. If an extra includes another extra (`embedded`
    includes `redis`), the error shows the outer extra, because the user asked for this one. An ImportError about
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
    """Return the package that cannot be imported: the one the error names, else the one that raised it."""
    name = error.name
    if name is None:
        trace = error.__traceback__
        while trace is not None:
            name, trace = trace.tb_frame.f_globals.get("__name__", ""), trace.tb_next
    return (name or "").partition(".")[0]


def _is_absent(error: ImportError) -> bool:
    """True if a whole package is missing. False if only a part of a package, or of Python, is missing: then the package
    is installed and broken.
    """
    name = error.name or ""
    return isinstance(error, ModuleNotFoundError) and "." not in name and name not in sys.stdlib_module_names
