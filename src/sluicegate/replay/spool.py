"""The folder of a replay's temporary files. A replay that was killed leaves its folder: the next one removes it.

A folder in use is locked, and the kernel gives the lock back when its process ends, however it ends. The number of a
process would not do: another process may have it by now, and it says nothing in another container. The cleaning of
systemd leaves locked folders alone too.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Final

from sluicegate.errors import ReplayError

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock

_PREFIX: Final = "sluicegate-"
_MARK: Final = "locked"  # a file in each folder that was locked: without it, a folder may be one that is being made


@contextmanager
def spool() -> Generator[Path]:
    """Make a folder for files with numbers as names, and remove it at the end."""
    with ExitStack() as stack:
        with temporary():
            folder = stack.enter_context(_folder())
        yield folder


@contextmanager
def temporary() -> Generator[None]:
    """Raise a ReplayError if temporary files cannot be written or read."""
    try:
        yield
    except OSError as error:
        expected = "set TMPDIR to a folder that can be written and has room for half of the log"
        folder, problem = tempfile.tempdir or "TMPDIR", error.strerror or str(error)
        raise ReplayError("temporary files in", folder, problem=problem, expected=expected) from error


@contextmanager
def _folder() -> Generator[Path]:
    if sys.platform == "win32":  # there are no such locks: a folder that was left stays
        with TemporaryDirectory(prefix=_PREFIX) as made:
            yield Path(made)
        return
    _remove_left(Path(gettempdir()))
    with TemporaryDirectory(prefix=_PREFIX) as made, _opened(Path(made)) as folder:
        with suppress(OSError):  # a file system of a network that has no locks: nobody else gets one either
            flock(folder, LOCK_EX)
            os.close(os.open(_MARK, os.O_CREAT | os.O_WRONLY, mode=0o600, dir_fd=folder))
        yield Path(made)


def _remove_left(temporary: Path) -> None:
    """Remove the folders of replays that were killed. Whoever may write here can put links and folders with such names
    here: no link is followed, only our own files are removed, and a folder goes only when it is empty.
    """
    for path in temporary.glob(f"{_PREFIX}*"):
        with suppress(OSError), _opened(path) as folder:
            names = os.listdir(folder)  # noqa: PTH208  # by what was opened, not by its name
            if _MARK not in names or os.fstat(folder).st_uid != os.geteuid():
                continue
            flock(folder, LOCK_EX | LOCK_NB)  # OSError: it is in use
            for name in sorted(names, key=_MARK.__eq__):  # the mark goes last
                if name == _MARK or name.isdecimal():
                    os.unlink(name, dir_fd=folder)
            path.rmdir()


@contextmanager
def _opened(path: Path) -> Generator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield folder
    finally:
        os.close(folder)
