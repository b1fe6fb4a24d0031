"""The proxy of other tests: each of its faults, as a client sees it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import active_count
from time import monotonic
from typing import Any, cast

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.proxies import Proxy, Way, Wire
from tests.servers import HOST, Server, free_port, wait_until

SOON = 0.1  # the client's timeout in seconds


@pytest.fixture
def proxy(valkey: Server) -> Iterator[Proxy]:
    valkey.flush()
    with Proxy(valkey.port) as proxy:
        yield proxy


def increment(one: redis.Redis) -> int:
    """INCRBY is what redis-py's `incr` sends, too."""
    return int(one.incrby("number"))


def client(proxy: Proxy) -> redis.Redis:
    """A client of one connection, without retries."""
    return redis.Redis.from_url(
        proxy.url, socket_timeout=SOON, retry=Retry(NoBackoff(), 0), single_connection_client=False, max_connections=1
    )


def test_everything_passes_and_is_counted(proxy: Proxy) -> None:
    with client(proxy) as one:
        assert one.set("big", "x" * 300_000)
        assert one.get("big") == b"x" * 300_000
        assert [increment(one) for _ in range(3)] == [1, 2, 3]
        with one.pipeline(transaction=False) as pipeline:
            pipeline.lrange("nothing", 0, -1).get("nothing").rpush("list", 1, 2).lrange("list", 0, -1)
            assert pipeline.execute() == [[], None, 2, [b"1", b"2"]]
        assert proxy.counts.requests["INCRBY"] == 3
        assert proxy.counts.requests["LRANGE"] == 2
        assert (proxy.counts.connections, proxy.counts.open) == (1, 1)
        assert proxy.counts.bytes_in > 300_000 < proxy.counts.bytes_out
    proxy.cut()
    assert (proxy.counts.connections, proxy.counts.open) == (1, 0)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (lambda proxy: proxy.lose(to="INCRBY"), redis.TimeoutError),
        (lambda proxy: proxy.lose(to="INCRBY", close=True), redis.ConnectionError),
        (lambda proxy: proxy.truncate(to="INCRBY"), redis.ConnectionError),
        (lambda proxy: proxy.truncate(to="INCRBY", close=False), redis.TimeoutError),
        (lambda proxy: proxy.truncate(to="INCRBY", at=3), redis.ConnectionError),
    ],
    ids=["lost, silent", "lost, closed", "half, closed", "half, silent", "3 of 4 bytes"],
)
def test_a_lost_reply_belongs_to_a_command_that_ran(proxy: Proxy, valkey: Server, fault, error) -> None:
    with client(proxy) as one:
        increment(one)
        fault(proxy)
        one.get("number")  # the fault is for another command
        assert proxy.waiting == 1
        with pytest.raises(error):
            increment(one)
        assert (proxy.waiting, proxy.counts.lost) == (0, 1)
        assert valkey.command("GET number") == "2"
        assert increment(one) == 3  # on a new connection


def test_nothing_arrives_after_what_was_lost(proxy: Proxy, valkey: Server) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=SOON) as connection:
        proxy.lose(to="ECHO")
        connection.sendall(b"*2\r\n$4\r\nECHO\r\n$1\r\na\r\n" + b"*2\r\n$4\r\nINCR\r\n$6\r\nnumber\r\n" + b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(100)
        assert proxy.counts.requests.total() == 3
    assert valkey.command("GET number") == "1"


def test_a_delay_holds_every_reply_back_and_keeps_their_order(proxy: Proxy) -> None:
    with redis.Redis.from_url(proxy.url, socket_timeout=5) as one:
        increment(one)
        proxy.delay(0.05)
        began = monotonic()
        with one.pipeline(transaction=False) as pipeline:
            assert pipeline.incr("number").incr("number").execute() == [2, 3]
        assert 0.05 <= monotonic() - began < 1
        proxy.heal()
        assert increment(one) == 4


def test_a_black_hole_takes_requests_and_gives_nothing(proxy: Proxy, valkey: Server) -> None:
    with client(proxy) as one:
        increment(one)
        proxy.black_hole()
        for _ in range(2):  # on the connection that was open, and on a new one
            with pytest.raises(redis.TimeoutError):
                increment(one)
        assert proxy.counts.connections == 2
        proxy.heal()
        assert increment(one) == 2  # the two never reached the server


def test_a_cut_closes_connections_and_takes_new_ones(proxy: Proxy) -> None:
    with client(proxy) as one, socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as idle:
        increment(one)
        proxy.cut()
        assert proxy.counts.open == 0
        assert idle.recv(1) == b""
        assert increment(one) == 2  # redis-py sees that its idle connection is closed, and opens another
        assert proxy.counts.connections == 3


def test_refused(proxy: Proxy) -> None:
    with client(proxy) as one:
        increment(one)
        proxy.refuse()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                increment(one)
        proxy.heal()
        assert increment(one) == 2


def test_a_server_that_is_down_closes_the_connection() -> None:
    with Proxy(free_port()) as proxy, client(proxy) as one, pytest.raises(redis.ConnectionError):
        one.ping()


def test_it_leaves_nothing_behind(valkey: Server) -> None:
    before = active_count()
    with Proxy(valkey.port) as proxy, client(proxy) as one:
        one.ping()
    assert active_count() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=1)


def ping(connection: socket.socket) -> bytes:
    connection.sendall(b"PING\r\n")
    return connection.recv(100)


@pytest.mark.parametrize("frames", range(6))
def test_a_connection_is_killed_between_any_two_frames(proxy: Proxy, valkey: Server, frames: int) -> None:
    """A request, its reply, and so on: with 0 it is closed before the first request, with 3 after the second one."""
    proxy.kill(frames)
    done = 0
    with socket.create_connection((HOST, proxy.port), timeout=5) as connection:
        for _ in range(3):
            try:
                connection.sendall(b"*2\r\n$4\r\nINCR\r\n$6\r\nnumber\r\n")
                done += connection.recv(100) != b""
            except ConnectionError:
                break
    assert done == frames // 2
    assert max(0, int(valkey.command("GET number"))) == min(3, (frames + 1) // 2)
    with client(proxy) as one:
        assert increment(one) > done  # it strikes once


def test_a_connection_can_be_killed_by_a_reset(proxy: Proxy) -> None:
    proxy.kill(1, reset=True)
    with socket.create_connection((HOST, proxy.port), timeout=5) as connection, pytest.raises(ConnectionResetError):
        ping(connection)


@pytest.fixture
def wire(proxy: Proxy) -> Iterator[Wire]:
    with Wire(proxy.port) as wire:
        yield wire


def test_a_wire_delays_both_directions_and_keeps_the_order(wire: Wire) -> None:
    with socket.create_connection((HOST, wire.port), timeout=5) as connection:
        assert ping(connection) == b"+PONG\r\n"
        wire.slow(latency=0.05, jitter=0.02)
        began = monotonic()
        connection.sendall(b"ECHO a\r\nECHO b\r\n")
        connection.sendall(b"ECHO c\r\n")
        got = b""
        while len(got) < 21:
            got += connection.recv(100)
        assert got == b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"
        assert 0.1 <= monotonic() - began < 2


def test_a_new_connection_costs_the_handshake_as_well(wire: Wire) -> None:
    wire.slow(latency=0.05)
    began = monotonic()
    with socket.create_connection((HOST, wire.port), timeout=5) as connection:
        assert ping(connection) == b"+PONG\r\n"
    assert 0.2 <= monotonic() - began < 2


def test_a_wire_has_a_bandwidth(wire: Wire) -> None:
    with socket.create_connection((HOST, wire.port), timeout=5) as connection:
        wire.slow(bandwidth=10_000)
        began, got = monotonic(), 0
        connection.sendall(b"ECHO " + b"x" * 1000 + b"\r\n")
        sizes = []
        while got < 1009:
            sizes.append(len(connection.recv(2000)))
            got += sizes[-1]
        assert 0.2 <= monotonic() - began < 3
        assert len(sizes) > 1


def test_what_a_wire_holds_arrives_later(wire: Wire) -> None:
    with socket.create_connection((HOST, wire.port), timeout=SOON) as connection:
        assert ping(connection) == b"+PONG\r\n"
        wire.hold()
        with pytest.raises(TimeoutError):
            ping(connection)
        wire.heal()
        assert connection.recv(100) == b"+PONG\r\n"


@pytest.mark.parametrize(
    ("fault", "new"),
    [
        (Wire.vanish, "answers"),
        (Wire.partition, "is silent"),
        (Wire.fill, "does not open"),
        (lambda wire: wire.accept_late(0.5), "answers late"),
    ],
    ids=["vanish", "partition", "fill", "accept late"],
)
def test_connections_after_a_fault(wire: Wire, fault, new: str) -> None:
    """What was lost stays lost, no end of a connection is told, and a connection after `heal` works."""
    with socket.create_connection((HOST, wire.port), timeout=SOON) as old:
        assert ping(old) == b"+PONG\r\n"
        fault(wire)
        found = "does not open"
        began = monotonic()
        with suppress(TimeoutError), socket.create_connection((HOST, wire.port), timeout=SOON) as other:
            found = "is silent"
            other.settimeout(SOON)
            other.sendall(b"PING\r\n")
            with suppress(TimeoutError):
                assert other.recv(100) == b"+PONG\r\n"
                found = "answers"
            other.settimeout(5)
            if new == "answers late":
                assert other.recv(100) == b"+PONG\r\n"
                assert monotonic() - began >= 0.5
                found = new
        assert found == new
        if new == "answers late":
            assert ping(old) == b"+PONG\r\n"
        else:
            with pytest.raises(TimeoutError):
                ping(old)
        wire.heal()
        if new != "answers late":
            with pytest.raises(TimeoutError):
                ping(old)
        with socket.create_connection((HOST, wire.port), timeout=5) as other:
            assert ping(other) == b"+PONG\r\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address on the loopback interface")
def test_a_partition_of_some_sources(wire: Wire) -> None:
    """Earlier and later connections from one address are lost, and those from others are not."""

    def opened(source: str) -> socket.socket:
        return stack.enter_context(socket.create_connection((HOST, wire.port), 5, source_address=(source, 0)))

    def is_lost(connection: socket.socket) -> bool:
        connection.settimeout(SOON)
        with suppress(TimeoutError):
            ping(connection)
            return False
        return True

    with ExitStack() as stack:
        lost, other = opened("127.0.0.2"), opened("127.0.0.3")
        assert ping(lost) == ping(other) == b"+PONG\r\n"
        wire.partition("127.0.0.2")
        assert all([is_lost(each) for each in (lost, opened("127.0.0.2"))])
        assert ping(other) == ping(opened("127.0.0.3")) == b"+PONG\r\n"
        wire.partition("127.0.0.3")
        assert all([is_lost(each) for each in (other, opened("127.0.0.2"))])
        wire.heal()
        assert ping(opened("127.0.0.2")) == ping(opened("127.0.0.3")) == b"+PONG\r\n"


def test_the_delays_of_a_wire_follow_from_its_seed(proxy: Proxy) -> None:
    def delays(seed: int) -> list[float]:
        with Wire(proxy.port, seed=seed) as wire:
            wire.slow(jitter=1.0)
            way = Way(wire, cast("Any", None), "1 back")
            return [way.delay() for _ in range(3)]

    assert delays(1) == delays(1) != delays(2)


def test_a_wire_leaves_nothing_behind(proxy: Proxy) -> None:
    before, files = active_count(), len(list(Path("/proc/self/fd").iterdir()))
    for fault in (Wire.vanish, Wire.partition, Wire.fill, Wire.hold, lambda wire: wire.accept_late(60)):
        with Wire(proxy.port) as wire, socket.create_connection((HOST, wire.port), timeout=5) as connection:
            ping(connection)
            fault(wire)
            connection.sendall(b"PING\r\n")
    assert active_count() == before
    wait_until("the descriptors to be closed", lambda: len(list(Path("/proc/self/fd").iterdir())) <= files)
