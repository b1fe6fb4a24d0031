"""The proxy that other tests stand on: each of its faults, as a client meets it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import active_count
from time import monotonic

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.proxies import Proxy
from tests.servers import Server

SOON = 0.1  # the client's patience


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
    ],
    ids=["lost, silent", "lost, closed", "half, closed", "half, silent"],
)
def test_a_lost_reply_belongs_to_a_command_that_ran(proxy: Proxy, valkey: Server, fault, error) -> None:
    with client(proxy) as one:
        increment(one)
        fault(proxy)
        one.get("number")  # not the command that is meant
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


def test_a_server_that_is_not_there_closes_the_connection() -> None:
    from tests.servers import free_port

    with Proxy(free_port()) as proxy, client(proxy) as one, pytest.raises(redis.ConnectionError):
        one.ping()


def test_it_leaves_nothing_behind(valkey: Server) -> None:
    before = active_count()
    with Proxy(valkey.port) as proxy, client(proxy) as one:
        one.ping()
    assert active_count() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=1)
