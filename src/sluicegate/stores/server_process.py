"""A server process on this machine, shared by the processes of one application.

All its state is in a private directory. The kernel keeps that state, so it is right even when a process is killed:

- **A lock on the directory** is held by the server itself. A process that gets the lock knows that there is no server.
  It starts one and passes the lock to it. So there are never two servers, and a starter that is killed blocks no other
  process.
- **A named pipe** is held open by every process that uses the server. A shell next to the server reads from it. At the
  end of file the shell knows that the last process has closed the pipe or was killed. If no process opens the pipe for
  a while, the shell ends the server. It waits because a process manager that reloads may have no worker for a moment.

A second shell looks every second whether the path still leads to the server. If somebody deleted the socket or moved
the directory, new processes cannot find this server and start another one. Then the shell ends this server, so that
all processes use the same server again.

Only root and this process's user can put a server there. Every directory above must belong to one of them, and the
kernel says whose process listens at the other end of a connection.

Nothing is kept on disk, so the server can be ended at any time. A new server is empty.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import subprocess
import sys
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
    problem, expected = "this system has no locks on directories", "use redis:// here"
    raise StoreURLError("store", "embedded://", problem=problem, expected=expected) from error

SOCKET: Final = "sluicegate.sock"  # the server listens on it
USERS: Final = "sluicegate.users"  # the named pipe
LOG: Final = "sluicegate.log"  # of the server and its shells
_LONGEST: Final = 103  # bytes of a socket's path on macOS; Linux would take 107
_STEP: Final = 0.002  # seconds between two checks of a server that is starting
_SOL_LOCAL: Final = 0  # the level of LOCAL_PEERCRED, and the bytes of its answer
_XUCRED: Final = 76
_LINKS: Final = 40  # symbolic links in one path, as in Linux

# The server and its shells are alone in their process group. So each can end the others without a process number, which
# may belong to another process by then. The shell that starts all exits at once, so the application has no child
# process that a process manager such as gunicorn, or an asyncio loop, could take for its own.
# The working directory is the one that was locked, also after the path leads elsewhere. A server that starts has no
# socket yet: it gets 10 seconds. A system without `sleep` or `-ef` has no such check.
# Opening the pipe again waits for the next user. A user that comes before the linger time is over stops the timer.
_SCRIPT: Final = f"""
exec 3<&0 4<&1 </dev/null >&2
linger=$1
directory=$2
shift 2
{{ "$@"; kill -9 0; }} 3<&- &
{{
    [ . -ef . ] || exit
    patience=10
    while sleep 1 || exit; [ "$directory" -ef . ]; do
        if [ -S {SOCKET} ]; then patience=0; elif [ "$((patience -= 1))" -lt 0 ]; then break; fi
    done
    kill -9 0
}} 3<&- &
while :; do
    read -r nobody <&3
    {{ sleep "$linger"; kill -9 0; }} 3<&- &
    exec 3<{USERS}
    kill "$!"
done &
"""


class _OpenFile:
    """A file descriptor that is closed with its last reference. It needs no lock, which a fork would copy."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class ServerProcess:
    """A server in a private directory. `command` makes the command that starts it from the path of its socket.

    The server ends `linger` seconds after the last process has left. Safe between threads. After a fork the child uses
    the server too. Raises StoreURLError for a directory that cannot be used. Later failures are an OSError.
    """

    def __init__(self, directory: Path, command: Callable[[str], Sequence[str | Path]], *, linger: int) -> None:
        self.directory = directory
        self.socket = str(directory / SOCKET)
        if len(os.fsencode(self.socket)) > _LONGEST:
            problem = f"the path of its socket would have {len(os.fsencode(self.socket))} bytes; {_LONGEST} are allowed"
            expected = "use a shorter name or directory"
            raise StoreURLError("embedded store", str(directory), problem=problem, expected=expected)
        self._command = [str(linger), str(directory), *(os.fspath(word) for word in command(SOCKET))]
        self._clock = SystemClock()
        self._user: _OpenFile | None = None
        try:
            os.close(self._open())
        except OSError as error:
            raise unusable(directory, error) from error

    def __repr__(self) -> str:
        return f"ServerProcess({str(self.directory)!r})"

    def ensure(self, timeout: float) -> None:
        """Join the server, and start it if there is none. Wait at most `timeout` seconds until it listens.

        Raises TimeoutError if the server does not listen by then; the server may still start a little later. Raises
        ConnectionError, with the last line of the server's log, if the server was started and has ended.
        """
        until = self._clock.now_us() + round(timeout * MICROSECOND)
        started = False
        while not self._join():
            lock = self._try_lock()
            if lock is not None:
                try:
                    if started:
                        raise ConnectionError(f"the server ended as soon as it was started: {self._last_log_line()}")
                    self._start(lock)
                    started = True
                finally:
                    os.close(lock)  # the server has its own copy
            if self._clock.now_us() >= until:
                raise TimeoutError(f"the server was not up within {timeout:g} s")
            time.sleep(_STEP)

    def check(self, connection: socket.socket) -> None:
        """Raise PermissionError if the server of a connection was started by a user who is neither this one nor root.

        `ensure` has checked the directory, but its owner or root may delete it before the connection is opened. The
        kernel recorded the user when the server began to listen. A system that does not tell it checks nothing here.
        """
        try:
            if sys.platform == "linux":  # process, user, group
                _, user, _ = struct.unpack("iIi", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            elif hasattr(socket, "LOCAL_PEERCRED"):  # macOS and FreeBSD: version, user, groups
                _, user = struct.unpack_from("II", connection.getsockopt(_SOL_LOCAL, socket.LOCAL_PEERCRED, _XUCRED))
            else:
                return
        except OSError as error:
            raise PermissionError(f"the system does not say whose server listens ({error.strerror})") from error
        if user not in (0, os.geteuid()):
            raise PermissionError(f"the server that listens there belongs to user {user}")

    def leave(self) -> None:
        """Stop using the server. After the last process has left, it ends within the linger time."""
        self._user = None

    def _join(self) -> bool:
        """True if a server listens. If so, this process is one of its users now."""
        os.close(self._open())  # another user may have made the directory after it was deleted
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self.socket)
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except BlockingIOError:  # it hangs, and the queue of connections is full: the deadline handles this
                pass
            else:
                self.check(probe)
            try:
                self._user = _OpenFile(os.open(self.directory / USERS, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno not in (errno.ENXIO, errno.ENOENT):
                    raise
                # No shell reads the pipe: the server is ending, or the shell was killed and it would never end.
                with suppress(OSError):
                    probe.send(b"SHUTDOWN NOSAVE\r\n")
                return False
        return True

    def _try_lock(self) -> int | None:
        """Return the lock, if no server runs and no process starts one."""
        directory = self._open()
        try:
            flock(directory, LOCK_EX | LOCK_NB)
            is_there = os.path.samestat(os.fstat(directory), self.directory.stat())  # another one may have its name
        except (BlockingIOError, FileNotFoundError):
            is_there = False
        if not is_there:
            os.close(directory)
            return None
        return directory

    def _start(self, lock: int) -> None:
        """Start the server, which keeps the lock, and the shell, which sees this process as a user from the start."""
        Path(self.socket).unlink(missing_ok=True)  # a server that was killed leaves it
        users = self.directory / USERS
        if not users.exists():
            os.mkfifo(users, 0o600)
        reads = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
        try:
            self._user = _OpenFile(os.open(users, os.O_WRONLY | os.O_NONBLOCK))
            os.set_blocking(reads, True)
            with (self.directory / LOG).open("wb") as log:
                subprocess.run(  # noqa: S603 - constant words, and the paths and flags of the store in the URL
                    ["/bin/sh", "-c", _SCRIPT, "sluicegate", *self._command],
                    stdin=reads,
                    stdout=lock,  # not pass_fds: the descriptor could have a number that the script uses
                    stderr=log,
                    cwd=self.directory,
                    env={"PATH": os.defpath},  # no secret of the application, and no preloaded library
                    start_new_session=True,  # outlives the worker that started it, and gets no Ctrl-C
                    check=False,
                )
        finally:
            os.close(reads)

    def _open(self) -> int:
        """Return the open directory, created if missing. Raises OSError if another user could read or replace it."""
        _check_above(self.directory)
        with suppress(FileExistsError):
            self.directory.mkdir(mode=0o700)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            os.close(directory)
            raise PermissionError(f"it belongs to user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):o}")
        return directory

    def _last_log_line(self) -> str:
        lines = (self.directory / LOG).read_text("utf-8", errors="replace").splitlines()
        return lines[-1] if lines else f"it wrote nothing into {self.directory / LOG}"


def _check_above(directory: Path) -> None:
    """Raise PermissionError if another user could replace a part of the path above the directory.

    It begins at the root. A part can be trusted when nobody else can write to the directory that it is in, so nobody
    else changes a part after it was checked. A link is followed by hand, because its target has other parts.
    """
    here, links = Path("/"), 0
    parts = ["/", *directory.parts[1:-1]][::-1]
    while parts:
        part = parts.pop()
        if part == "..":
            here = here.parent
            continue
        found = (here / part).lstat()
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{here / part} belongs to user {found.st_uid}, who could replace the directory")
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(directory))
            parts += (here / part).readlink().parts[::-1]
            continue
        here /= part
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise PermissionError(f"others may write to {here} and replace the directory")


def unusable(directory: Path, error: OSError) -> StoreURLError:
    """Return the error for a directory that cannot be used."""
    expected = "give a directory of your own with mode 700, where only you and root may write to the ones above it"
    return StoreURLError("embedded store", str(directory), problem=str(error), expected=expected)
