"""One server of this machine, shared by the processes of one application: found, started, joined, left.

Its private directory holds all there is to know, and the kernel keeps the books, so that no way of dying is forgotten:

- **A lock on the directory** is held by the server itself. Whoever gets the lock knows that there is no server, and
  passes the lock on to the one that it starts; so there are never two, and a starter that is killed blocks nobody.
- **A pipe with a name** is held open by every process that uses the server. Beside the server a shell reads from it,
  and learns by the end of file that the last one has gone, of its own will or killed. If nobody comes for a while,
  it ends the server: a server of processes that is told to reload may have no worker for a moment.

Nothing is kept on disk, so the server can be ended at any moment; started again, it is empty.
This module knows processes and paths; nothing of plans, and no client but a socket that is opened to see who is there.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sluicegate.clock import MICROSECOND, SystemClock
from sluicegate.errors import StoreURLError

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError as error:
    raise StoreURLError(
        "store", "embedded://", problem="this system has no locks on directories", expected="use redis:// here"
    ) from error

SOCKET: Final = "sluicegate.sock"
USERS: Final = "sluicegate.users"
LOG: Final = "sluicegate.log"
_LONGEST: Final = 103  # bytes of a socket's path on macOS; Linux would take 107
_STEP: Final = 0.002  # seconds between two looks at a server that is starting

# The server and its reader are all that is in their process group, so either ends the other without naming a process
# number, which may belong to somebody else by then. The shell that starts both leaves at once: no child of ours is
# left that a server of processes such as gunicorn, or an asyncio loop, could take for its own.
# To open the pipe again is to wait for the next user; who comes before the time is over stops it.
_KEEPER: Final = f"""
exec 3<&0 4<&1 </dev/null >&2
linger=$1
shift
{{ "$@"; kill -9 0; }} 3<&- &
while :; do
    read -r nobody <&3
    {{ sleep "$linger"; kill -9 0; }} 3<&- &
    exec 3<{USERS}
    kill "$!"
done &
"""


class _Held:
    """A file descriptor that is closed when nobody refers to it any more: no lock, so none to be copied by a fork."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class Resident:
    """A server in a directory of the user's own; the command that starts it is told on which socket to listen.

    It stays for `linger` seconds after the last process has left.
    Safe between threads, and copied by fork as it should be: the child uses the server too. StoreURLError for a
    directory that cannot be used; what goes wrong later is an OSError.
    """

    def __init__(self, directory: Path, command: Callable[[str], Sequence[str | Path]], *, linger: int) -> None:
        self.directory = directory
        self.socket = str(directory / SOCKET)
        if len(os.fsencode(self.socket)) > _LONGEST:
            problem = f"a socket's path may have {_LONGEST} bytes, and would have {len(os.fsencode(self.socket))}"
            raise _unusable(directory, problem, "use a shorter name or directory")
        self._command = [str(linger), *(os.fspath(word) for word in command(self.socket))]
        self._clock = SystemClock()
        self._held: _Held | None = None
        try:
            os.close(self._open())
        except OSError as error:
            raise _unusable(directory, str(error), "give a directory of your own, with mode 700") from error

    def __repr__(self) -> str:
        return f"Resident({str(self.directory)!r})"

    def ensure(self, patience: float) -> None:
        """Join the server, and start it if there is none; wait at most so many seconds until it listens.

        TimeoutError when it does not listen by then, which does not keep it from coming up a little later;
        ConnectionError, with its last words, when it was started and has ended.
        """
        until = self._clock.now_us() + round(patience * MICROSECOND)
        started = False
        while not self._join():
            lock = self._lock()
            if lock is not None:
                try:
                    if started:
                        raise ConnectionError(f"the server ended as soon as it was started: {self._last_words()}")
                    self._start(lock)
                    started = True
                finally:
                    os.close(lock)  # the server has its own copy
            if self._clock.now_us() >= until:
                raise TimeoutError(f"the server was not up within {patience:g} s")
            time.sleep(_STEP)

    def leave(self) -> None:
        """Use it no longer. When the last one has left, the server ends after a while."""
        self._held = None

    def _join(self) -> bool:
        """Whether somebody listens, with us among the users."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self.socket)
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except BlockingIOError:  # it hangs, and as many wait as the kernel lets: a matter for the deadline
                pass
            try:
                self._held = _Held(os.open(self.directory / USERS, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno not in (errno.ENXIO, errno.ENOENT):
                    raise
                # Nobody reads: it is being ended, or its reader was killed and it would stay for ever.
                with suppress(OSError):
                    probe.send(b"SHUTDOWN NOSAVE\r\n")
                return False
        return True

    def _lock(self) -> int | None:
        """The lock, if there is no server and nobody who starts one."""
        directory = self._open()
        try:
            flock(directory, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            os.close(directory)
            return None
        return directory

    def _start(self, lock: int) -> None:
        """Start the server, who keeps the lock, and its reader, who sees us among the users from the beginning."""
        users = self.directory / USERS
        if not users.exists():
            os.mkfifo(users, 0o600)
        reads = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
        try:
            self._held = _Held(os.open(users, os.O_WRONLY | os.O_NONBLOCK))
            os.set_blocking(reads, True)
            with (self.directory / LOG).open("wb") as log:
                subprocess.run(  # noqa: S603 - our own words, and the paths and flags of the store that was named
                    ["/bin/sh", "-c", _KEEPER, "sluicegate", *self._command],
                    stdin=reads,
                    stdout=lock,  # not pass_fds: its number could be any, also one that the script uses
                    stderr=log,
                    cwd=self.directory,
                    env={"PATH": os.defpath},  # no secret of the application's, and no library preloaded into it
                    start_new_session=True,  # outlives the worker that started it, and hears no Ctrl-C
                    check=False,
                )
        finally:
            os.close(reads)

    def _open(self) -> int:
        """The directory, made if it is not there. OSError unless it is certain that nobody else can reach into it."""
        above = self.directory.parent.stat().st_mode
        if above & 0o022 and not above & stat.S_ISVTX:
            raise PermissionError(f"others may write to {self.directory.parent}, and put another in its place")
        with suppress(FileExistsError):
            self.directory.mkdir(mode=0o700)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            os.close(directory)
            raise PermissionError(f"it belongs to user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):o}")
        return directory

    def _last_words(self) -> str:
        lines = (self.directory / LOG).read_text("utf-8", errors="replace").splitlines()
        return lines[-1] if lines else f"it wrote nothing into {self.directory / LOG}"


def _unusable(given: object, problem: str, expected: str) -> StoreURLError:
    return StoreURLError("embedded store", str(given), problem=problem, expected=expected)
