"""Fixtures for every test. A worker starts each real server once, when a test first needs it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Generator, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from hypothesis import settings

from sluicegate import errors
from tests.cluster import Cluster
from tests.environments import Environments
from tests.sentinels import SENTINELS, Sentinels
from tests.servers import MAKERS, Server, named_server, redis_server, valkey_server

# A slow reply of a real server must not fail a test. (In CI the parent is Hypothesis's own "ci" profile.)
settings.register_profile("sluicegate", settings(), deadline=None)
settings.load_profile("sluicegate")

# What Python reports before a process starts or a server listens. Python reports no start by multiprocessing.
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.bind"}

CLUSTERS = {"valkey": "cluster", "redis6": "redis6_cluster", "named": "named_cluster"}  # by their servers


ROWS = 4  # of each table --fast runs so many, from all its length
RERUNS = 5  # so many tests of one run may pass only when they run again


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="a few cases of each test that starts nothing and is not slow")
    parser.addoption("--matrix", action="store_true", help="run the matrices whole; without it a sample of them runs")


@pytest.hookimpl(trylast=True)  # when pytest-rerunfailures has connected its workers
def pytest_configure(config: pytest.Config) -> None:
    # Before each test a worker asks the controller how often that test failed, in two messages. With Nagle's algorithm
    # the second waits for the delayed acknowledgement of the first: 40 ms a test.
    if connection := getattr(getattr(config, "failures_db", None), "sock", None):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    # A shell starts a job in the background with SIGINT ignored, and all processes of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--fast"):
        os.environ.setdefault("SLUICEGATE_EXAMPLES", "5")  # Hypothesis draws few examples, and new ones in each run
    elif not config.getoption("--matrix"):
        os.environ.setdefault("SLUICEGATE_EXAMPLES", "30%")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector. It would visit a growing number of objects, all of them in use."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = [item for item in items if config.getoption("--matrix") or "matrix" not in item.keywords]
    if config.getoption("--fast"):
        tables: dict[str, list[pytest.Item]] = {}
        for item in kept:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="--fast: it is slow"))
            tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
        kept = [item for rows in tables.values() for item in rows[:: -(-len(rows) // ROWS)]]
    config.hook.pytest_deselected(items=list(set(items).difference(kept)))
    items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"failed once: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    repeated = {report.nodeid for report in reporter.stats.get("rerun", ())} if reporter else set()
    if len(repeated) > RERUNS and not session.exitstatus:
        reporter.write_line(f"{len(repeated)} tests failed before they passed. At most {RERUNS} may.", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True, scope="session")
def _without_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --fast, skip each test at the moment when it starts a process or a server. So no list of such tests is
    needed.
    """
    if not request.config.getoption("--fast"):
        yield
        return
    running = True

    def skip(event: str, given: tuple[Any, ...]) -> None:
        if running and event in STARTS:
            if event == "socket.bind":
                given[0].close()
            pytest.skip("--fast: it starts a process or a server")

    sys.addaudithook(skip)  # Python cannot remove the hook before this process ends
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseProcess, "start", lambda process: skip("subprocess.Popen", (process,)))
        yield
    running = False


@pytest.fixture(autouse=True, scope="session")
def _frozen() -> None:
    """Freeze the objects that the imports made: a test that runs the garbage collector need not visit them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _forget_warnings() -> None:
    """Forget which warnings were given. A warning is given once in a process: without this, a later test misses it."""
    errors.forget_warnings()


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """Valkey 9, shared by the worker's tests: use own keys, or `valkey.flush()`."""
    with valkey_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis6() -> Iterator[Server]:
    """Redis 6.2, shared by the worker's tests: use own keys, or `redis6.flush()`."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def named() -> Iterator[Server]:
    """The server that SLUICEGATE_REDIS_SERVER names, shared like `valkey`. If the variable is set, `server` includes
    it.
    """
    with named_server() as server:
        yield server


@pytest.fixture(scope="session", params=MAKERS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the real servers in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """Environments with the wheel of sluicegate and chosen packages, made when a test first needs one."""
    return Environments(tmp_path_factory.mktemp("environments"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three masters of Valkey 9, shared by the worker's tests: use own keys, or `cluster.flush()`."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis6_cluster() -> Iterator[Cluster]:
    """Three masters of Redis 6.2, shared by the worker's tests: use own keys, or `redis6_cluster.flush()`."""
    with Cluster(redis_server) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def named_cluster() -> Iterator[Cluster]:
    """Three masters of the server that SLUICEGATE_REDIS_SERVER names."""
    with Cluster(named_server) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=[CLUSTERS[name] for name in MAKERS])
def each_cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each of the clusters in turn."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def moving_cluster(each_cluster: Cluster) -> Iterator[Cluster]:
    """Each of the clusters in turn, to move slots and to stop nodes. After the test it is restored, and empty."""
    yield each_cluster
    each_cluster.restore()


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    """A master with a replica under three Sentinels, for one test."""
    with Sentinels() as sentinels:
        yield sentinels


@pytest.fixture(params=SENTINELS)
def each_sentinels(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    """A master with a replica under three Sentinels, for one test and for each kind of server in turn."""
    with Sentinels(request.param) as sentinels:
        yield sentinels
