"""Greenlets: the Redis store keeps its promises when gevent or eventlet has patched the standard library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.proxies import Proxy
from tests.servers import Server, wait_until
from tests.stores.modes import PATIENCE

ROOT = Path(__file__).parents[2]
LIBRARIES = ["gevent", "eventlet"]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def running(library: str, story: str, *urls: str) -> Iterator[subprocess.Popen[str]]:
    """The program while it runs one of its stories."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.stores.greenlets", library, story, *urls]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(library: str, story: str, *urls: str) -> list[str]:
    with running(library, story, *urls) as process:
        output, errors = process.communicate(timeout=3 * PATIENCE)  # the old code waited for ever
        assert not errors
        return output.splitlines()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    server.flush()
    with Proxy(server.port) as proxy:
        yield proxy


def test_the_deadline_holds_against_a_hung_server(library: str, proxy: Proxy) -> None:
    with running(library, "hung", proxy.url) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "answered\n"
        proxy.black_hole()
        output, errors = process.communicate("\n", timeout=3 * PATIENCE)
    assert not errors
    *lines, others = output.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("error") for line in lines), lines
    assert others == "others ran"


def test_greenlets_share_few_connections(library: str, server: Server) -> None:
    server.flush()
    assert lines_of(library, "many", server.url) == ["True"]


@pytest.mark.parametrize(("story", "first"), [("killed", ["killed"]), ("timed_out", 3 * ["timeout"])])
def test_a_greenlet_that_is_interrupted_loses_no_connection(
    library: str, proxy: Proxy, story: str, first: list[str]
) -> None:
    proxy.black_hole()
    with running(library, story, proxy.url) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in first] == first
        proxy.heal()
        proxy.cut()  # a connection that was opened to the black hole stays silent
        output, errors = process.communicate("\n", timeout=3 * PATIENCE)
    assert not errors
    assert output == "999999\n"
    wait_until("every connection is closed", lambda: proxy.counts.open == 0)


def test_the_reply_of_a_killed_greenlet_reaches_nobody(library: str, proxy: Proxy) -> None:
    with running(library, "killed_late", proxy.url) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "answered\n"
        proxy.delay(0.2)
        output, errors = process.communicate("\n", timeout=3 * PATIENCE)
    assert not errors
    assert output.split() == ["998000", "997000", "996000", "995000", "994000"], "the reply of another request"
    assert proxy.counts.connections == 6, "a connection was used again"
    wait_until("every connection is closed", lambda: proxy.counts.open == 0)


def test_a_reply_that_came_in_time_is_read_after_a_stall(library: str, server: Server) -> None:
    server.flush()
    assert lines_of(library, "stalled", server.url) == ["999998"]
