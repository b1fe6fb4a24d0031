"""The servers of other tests: they reply, have the right version, and stop."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers import MAKERS, Server, ask, free_port, has_ended, is_master, valkey_server, wait_until

ROOT = Path(__file__).parent.parent
EACH = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))


def test_both_reply_to_ping(server: Server) -> None:
    assert server.command("PING") == "PONG"


def test_the_port_works_too(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100) == b"+PONG\r\n"


def test_valkey_is_version_9(valkey: Server) -> None:
    assert "\r\nvalkey_version:9." in valkey.command("INFO server")


def test_redis6_is_version_6_2(redis6: Server) -> None:
    assert "redis_version:6.2." in redis6.command("INFO server")


def test_flush_empties(server: Server) -> None:
    server.command("SET flush-me 1")
    server.flush()
    assert server.command("DBSIZE") == "0"


def test_an_error_reply_raises(server: Server) -> None:
    with pytest.raises(ValueError, match="unknown command"):
        server.command("NO-SUCH")


@EACH
def test_a_stopped_server_has_ended(make: Callable[[], Server]) -> None:
    with make() as server:
        assert server.process is not None
        pid, directory = server.process.pid, Path(server.socket).parent
        assert directory.is_dir()
    assert has_ended(pid)
    assert not directory.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)
    server.stop()  # a second stop does nothing


@EACH
def test_a_failing_test_still_stops_its_server(make: Callable[[], Server]) -> None:
    def failing() -> None:
        with make() as server:
            assert server.process is not None
            pids.append(server.process.pid)
            raise ZeroDivisionError

    pids: list[int] = []
    with pytest.raises(ZeroDivisionError):
        failing()
    assert has_ended(pids[0])


def test_a_restart_keeps_the_address_and_nothing_else() -> None:
    with valkey_server() as server:
        before = server.url, server.unix_url
        server.command("SET kept 1")
        server.kill()
        server.start()
        assert (server.url, server.unix_url) == before
        assert server.command("DBSIZE") == "0"


def test_a_killed_server_leaves_its_files_until_it_is_stopped() -> None:
    with valkey_server() as server:
        left = Path(server.socket).parent / "left"
        left.touch()
        server.kill()
        assert left.exists()
        assert not server.up
        server.start()
        assert server.up
    assert not left.parent.exists()


def test_ask_takes_words_and_gives_values(server: Server) -> None:
    assert ask(server, "RPUSH", "asked for", "a b", "c") == 2
    assert ask(server, "LRANGE", "asked for", 0, -1) == ["a b", "c"]
    assert is_master(server)
    server.flush()


def test_waiting_ends() -> None:
    wait_until("it", iter([False, True]).__next__)
    with valkey_server() as server:
        server.kill()
        with pytest.raises(TimeoutError, match="it: not within"):
            wait_until("it", ask, server, "PING", patience=0.05)


def test_a_paused_server_hangs_and_can_be_stopped() -> None:
    with valkey_server() as server:
        server.pause()
        assert not server.up
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.05) as connection:
            connection.sendall(b"PING\r\n")
            with pytest.raises(TimeoutError):
                connection.recv(100)
        server.resume()
        assert server.command("PING") == "PONG"
        server.pause()


def test_more_flags_reach_the_server() -> None:
    with valkey_server("--maxmemory", "5mb") as server:
        assert "maxmemory:5242880" in server.command("INFO memory")


@EACH
def test_the_same_executable_is_a_sentinel(make: Callable[..., Server], server: Server) -> None:
    config = f"sentinel monitor front 127.0.0.1 {server.port} 1\n"
    with make("--sentinel", config=config) as sentinel:
        assert "name=front" in sentinel.command("INFO sentinel")


@EACH
def test_the_same_executable_is_a_cluster_node(make: Callable[..., Server]) -> None:
    with make("--cluster-enabled", "yes") as node:
        assert "cluster_enabled:1" in node.command("INFO cluster")


def test_a_server_that_cannot_start_says_why() -> None:
    server = valkey_server("--no-such-flag", "1")
    with pytest.raises(RuntimeError, match="no-such-flag"):
        server.start()
    assert server.process is None


def test_a_server_ends_with_a_killed_owner() -> None:
    script = (
        "import signal; from tests.servers import valkey_server; server = valkey_server().start();"
        "print(server.process.pid, server.socket, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, path = owner.stdout.readline().split()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(path)
            owner.send_signal(signal.SIGKILL)
            with suppress(ConnectionResetError):  # it had not accepted the connection yet
                assert connection.recv(1) == b"", f"server {pid} outlived its owner"  # closed by the server's end


def test_a_free_port_stays_free_for_one_server_of_this_process() -> None:
    port = free_port()
    assert port + 10_000 < 32_768  # for the bus of a cluster
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
        pass
