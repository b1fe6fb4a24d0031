"""The commands of the Redis store: one round trip, expiries, sizes, scripts, clients, clocks, faults."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import fakeredis
import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluicegate import AsyncLimiter, ConfigurationError, Limiter, ManualClock, Quota, SluicegateWarning, StoreError
from sluicegate.errors import StoreURLError
from sluicegate.identity import digest, identity_text
from sluicegate.plan import Check, Plan
from sluicegate.stores.redis import AsyncRedisStore, RedisStore
from sluicegate.testing.store import NAMES, terms
from tests.proxies import Proxy
from tests.servers import Server, valkey_server
from tests.stores.modes import MODES, PATIENCE, sync_limiter
from tests.stores.places import client, monitored, sent_by_clients, url

ALGORITHMS = pytest.mark.parametrize("algorithm", NAMES)
THREE = "5/minute; 100/hour; 1000/day"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Any:
    return MODES[request.param]


@pytest.fixture
def identity() -> str:
    """A new identity."""
    return uuid4().hex


@pytest.fixture
def connection(server: Server) -> Iterator[Any]:
    """A client of redis-py, to inspect the server."""
    with client(server, decode_responses=True) as plain:
        yield plain


def keys_of(connection: Any, identity: str) -> list[str]:
    return sorted(connection.scan_iter(f"sg:{{{digest(identity_text(identity))}}}:*", count=10_000))


def test_a_request_with_three_rules_is_one_evalsha(server: Server, mode: Any, identity: str) -> None:
    with mode(url(server)) as limiter:
        limiter.hit(THREE, identity)  # connects and loads the script
        with monitored(server) as seen:
            limiter.hit(THREE, identity)
    assert sent_by_clients(seen) == ["EVALSHA"]
    assert not any(identity in command["command"] for command in seen), "an identity was sent in plain text"


@ALGORITHMS
@pytest.mark.parametrize("clock", [None, ManualClock()], ids=["server's clock", "manual clock"])
def test_every_key_expires_and_not_before_its_state(
    server: Server, connection: Any, algorithm: str, clock: ManualClock | None, identity: str
) -> None:
    with closing(RedisStore.from_url(url(server), clock=clock, deadline=10)) as store:
        for cost in (0, 1, 2, 3, 4, 1):  # peek, charges, refusals that are counted, never
            rule = terms(algorithm, "3/hour", counted=True)
            (outcome,) = store.run(Plan((Check(rule, identity_text(identity), cost),)))
            for key in keys_of(connection, identity):
                left = connection.pttl(key)
                assert outcome.reset_after - 5_000_000 <= left * 1000  # minus the time of the test itself
                longest = outcome.reset_after + rule.window_us // 8  # not every hit sets the expiry again
                assert left <= longest / 1000 + 3_600_000 + 3  # with a ManualClock keys live an hour longer
        for cost in (1, 3):
            store.run(
                Plan((Check(terms(algorithm, "3/second", scope="short", counted=True), identity_text(identity), cost),))
            )
            assert all(connection.pttl(key) != -1 for key in keys_of(connection, identity))


@ALGORITHMS
def test_a_period_of_one_microsecond_is_no_error(server: Server, algorithm: str, identity: str) -> None:
    with sync_limiter(url(server), algorithm=algorithm) as limiter:
        assert [limiter.hit(Quota(3, 0.000001), identity, cost=3).allowed for _ in range(10)] == [True] * 10


@ALGORITHMS
def test_peeks_and_refusals_write_nothing(server: Server, connection: Any, algorithm: str, identity: str) -> None:
    with sync_limiter(url(server), algorithm=algorithm) as limiter:
        limiter.peek("1/hour", identity)
        limiter.hit("1/hour", identity, cost=0)
        limiter.hit("1/hour", identity, cost=2)
        assert keys_of(connection, identity) == []
        limiter.hit("1/hour", identity)
        (key,) = keys_of(connection, identity)
        with client(server) as raw:
            before = raw.dump(key)
            for _ in range(5):
                assert not limiter.hit("1/hour", identity)
            assert raw.dump(key) == before


def test_keys_have_one_hash_tag_and_no_identity(server: Server, connection: Any, identity: str) -> None:
    with sync_limiter(url(server), prefix="shop") as limiter:
        limiter.hit("5/minute; 10/hour", identity, action="reply")
        limiter.hit("5/minute", identity, action="a {b} c\n" * 100, algorithm="gcra")
    tag = f"shop:{{{digest(identity_text(identity))}}}:"
    found = sorted(connection.scan_iter(f"{tag}*", count=10_000))
    assert found[:2] == [f"{tag}reply:sw3600", f"{tag}reply:sw60"]
    assert len(found) == 3
    assert found[2].startswith(f"{tag}~")
    assert found[2].count("{") == 1
    assert len(found[2]) < 80


def test_10_per_minute_takes_at_most_300_bytes(server: Server, connection: Any, identity: str, capsys: Any) -> None:
    clock = ManualClock(1_760_000_000.123457)
    with sync_limiter(url(server), clock=clock) as limiter:
        for _ in range(10):
            assert limiter.hit("10/minute", identity)
            clock.advance(5.999983)
    (key,) = keys_of(connection, identity)
    size = connection.memory_usage(key, samples=0)
    with capsys.disabled():
        print(f"\n{server.name}: sliding-window, 10/minute, full: {size} bytes")
    assert size <= 300


class Overheard:
    """A client that records the script and the arguments instead of sending them."""

    connection_pool = redis.ConnectionPool(socket_timeout=1)

    def execute_command(self, name: str, script: str, *words: Any) -> list[int]:
        if name == "EVALSHA":
            raise redis.exceptions.NoScriptError
        self.script, self.words = script, words
        return [0, 0, 1, 0, 0, 0, 0]


MANY = """
local run, clock, admitted = loadstring(ARGV[#ARGV]), #ARGV - 1, 0
local start = tonumber(ARGV[clock])
for hit = 0, 9999 do
  ARGV[clock] = string.format('%.0f', start + hit * 599)
  local used = string.match(run(), '^%d+ %d+ %d+ (%d*)')
  if used == '' or used + 0 < ARGV[2] + 0 then admitted = admitted + 1 end
end
return admitted
"""


def test_a_million_per_minute_takes_at_most_2_kb(server: Server, connection: Any, identity: str, capsys: Any) -> None:
    clock = ManualClock(1_760_000_000.123457)
    check = Check(terms("sliding-window", "1000000/minute"), identity_text(identity), 1)
    overheard = Overheard()
    for _ in range(10):
        RedisStore(overheard, clock=clock).run(Plan((check,)))  # type: ignore[arg-type]
        assert connection.eval(MANY, *overheard.words, overheard.script) == 10_000
        clock.advance_us(10_000 * 599)
    (key,) = keys_of(connection, identity)
    size = connection.memory_usage(key, samples=0)
    with capsys.disabled():
        print(f"\n{server.name}: sliding-window, 1000000/minute, 100,000 hits: {size} bytes")
    assert size <= 2048


def test_gcra_takes_at_most_110_bytes(server: Server, connection: Any, identity: str, capsys: Any) -> None:
    with sync_limiter(url(server), algorithm="gcra") as limiter:
        limiter.hit("100/minute", identity, cost=50)
    (key,) = keys_of(connection, identity)
    size = connection.memory_usage(key)
    with capsys.disabled():
        print(f"\n{server.name}: gcra takes {size} bytes, of which the key is {len(key)}")
    assert size <= 110


def test_scripts_may_be_flushed_between_calls(server: Server, connection: Any, mode: Any, identity: str) -> None:
    with mode(url(server)) as limiter:
        for remaining in (4, 3, 2):
            assert limiter.hit("5/hour", identity).remaining == remaining
            connection.script_flush()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [True, False])
def test_protocols_and_decoding(server: Server, protocol: int, decode: bool, identity: str) -> None:
    options = {"protocol": protocol, "decode_responses": decode}
    with client(server, **options) as given:
        decision = Limiter(RedisStore(given)).hit("5/hour; 7/day", identity, cost=2)
        assert [outcome.remaining for outcome in decision.outcomes] == [3, 5]
        assert Limiter(RedisStore(given)).hit("5/hour", identity, cost=6).retry_after is None

    async def main() -> None:
        async with redis.asyncio.Redis.from_url(
            server.url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=10,
            **options,  # type: ignore[arg-type]
        ) as given:
            limiter = AsyncLimiter(AsyncRedisStore(given, deadline=PATIENCE))
            decision = await limiter.hit("5/hour; 7/day", identity, cost=2)
            assert [outcome.remaining for outcome in decision.outcomes] == [1, 3]

    asyncio.run(main())


def test_protocol_in_the_url(server: Server, mode: Any, identity: str) -> None:
    for remaining, protocol in ((4, 2), (3, 3)):
        with mode(url(server, f"protocol={protocol}")) as limiter:
            assert limiter.hit("5/hour", identity).remaining == remaining


def test_every_scheme(server: Server, mode: Any, identity: str) -> None:
    tcp = url(server)
    for remaining, where in (
        (4, tcp),
        (3, tcp.replace("redis:", "valkey:")),
        (2, tcp.replace("redis", "REDIS", 1)),
        (1, server.unix_url),
    ):
        with mode(where) as limiter:
            assert limiter.hit("5/hour", identity).remaining == remaining


@pytest.mark.parametrize(("options", "codes"), [
    ({"retry": Retry(NoBackoff(), 0), "socket_timeout": 1}, []),
    ({"retry": Retry(NoBackoff(), 3), "socket_timeout": 1}, ["SG106"]),
    ({"retry": Retry(NoBackoff(), 0), "socket_timeout": None}, ["SG107"]),
    ({"retry": Retry(NoBackoff(), 3), "socket_timeout": None}, ["SG106", "SG107"]),
])  # fmt: skip
@pytest.mark.parametrize(
    ("make", "wrap"),
    [
        (redis.Redis, lambda client: Limiter(RedisStore(client))),
        (redis.asyncio.Redis, lambda client: AsyncLimiter(AsyncRedisStore(client))),
    ],
)
def test_clients_that_retry_or_hang_are_warned_about(
    options: dict[str, Any], codes: list[str], make: Any, wrap: Any
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrap(make(**options))
    assert [warning.message.code for warning in caught if isinstance(warning.message, SluicegateWarning)] == codes
    assert {warning.filename for warning in caught} <= {__file__}


def connections(connection: Any, name: str) -> int:
    return sum(each["name"] == name for each in connection.client_list())


def closed(connection: Any, name: str) -> bool:
    """Whether the server has noticed that the connection was closed. It may need some time."""
    return any(connections(connection, name) == 0 for _ in range(1000))


def test_the_connections_of_a_url_are_closed(server: Server, connection: Any, mode: Any, identity: str) -> None:
    with mode(url(server, f"client_name={identity}")) as limiter:
        limiter.hit("5/hour", identity)
        assert connections(connection, identity) == 1
    assert closed(connection, identity)


def test_a_client_of_the_user_is_not_closed(server: Server, connection: Any, identity: str) -> None:
    with client(server, client_name=identity) as given:
        with Limiter(RedisStore(given)) as limiter:
            limiter.hit("5/hour", identity)
        limiter.store.close()
        assert connections(connection, identity) == 1
        assert given.ping()

    async def main() -> None:
        given = redis.asyncio.Redis.from_url(
            server.url, retry=Retry(NoBackoff(), 0), socket_timeout=10, client_name=identity
        )
        async with given:
            async with AsyncLimiter(AsyncRedisStore(given)) as limiter:
                await limiter.hit("5/hour", identity)
            await limiter.store.close()
            assert connections(connection, identity) == 1
            assert await given.ping()

    assert closed(connection, identity)
    asyncio.run(main())


def test_two_event_loops_one_after_the_other(server: Server, identity: str) -> None:
    limiter = AsyncLimiter(url(server), deadline=PATIENCE)

    async def main() -> int | None:
        decision = await limiter.hit("5/hour", identity)
        await limiter.close()
        return decision.remaining

    assert [asyncio.run(main()) for _ in range(3)] == [4, 3, 2]


FORK = """
import os, sys
from sluicegate import Limiter
where, who = sys.argv[1:]
limiter = Limiter(where)
assert limiter.hit("5/hour", who).remaining == 4
child = os.fork()
if not child:
    os._exit(limiter.hit("5/hour", who).remaining)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), limiter.hit("5/hour", who).remaining)
"""


def test_fork_after_use(server: Server, identity: str) -> None:
    script = [sys.executable, "-W", "ignore", "-c", FORK, url(server), identity]
    assert subprocess.run(script, check=True, capture_output=True, text=True).stdout.split() == ["3", "2"]


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_a_client_s_own_clock_does_not_matter(
    server: Server, identity: str, skew: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync_limiter(url(server)) as limiter:
        assert [limiter.hit("2/minute", identity).allowed for _ in range(3)] == [True, True, False]
        honest = time.time
        monkeypatch.setattr(time, "time", lambda: honest() + skew)
        monkeypatch.setattr(time, "time_ns", lambda: int((honest() + skew) * 1e9))
        refused = limiter.hit("2/minute", identity)
        assert not refused
        assert refused.retry_after is not None
        assert 0 < refused.retry_after <= 60


def test_a_lost_reply_is_charged_once(server: Server, mode: Any, identity: str) -> None:
    with Proxy(server.port) as proxy, mode(proxy.url) as limiter:
        assert limiter.hit("50/hour", identity).remaining == 49
        before = proxy.counts.requests["EVALSHA"]
        proxy.lose(to="EVALSHA", close=True)
        with pytest.raises(StoreError, match="SG020"):
            limiter.hit("50/hour", identity)
        assert proxy.counts.requests["EVALSHA"] == before + 1
        assert limiter.peek("50/hour", identity).remaining == 48


def test_a_dead_and_a_hung_server_are_store_errors_soon(mode: Any) -> None:
    with valkey_server() as server, mode(server.url, deadline=0.5) as limiter:
        assert limiter.hit("50/hour", "a").remaining == 49
        for stop, go in ((server.pause, server.resume), (server.kill, server.start)):
            stop()
            began = time.monotonic()
            with pytest.raises(StoreError) as caught:
                limiter.hit("50/hour", "a")
            assert time.monotonic() - began < 2
            assert str(server.port) in str(caught.value)
            assert isinstance(caught.value.cause, redis.RedisError | OSError)
            go()
        assert limiter.hit("50/hour", "a").remaining == 49, "a restarted server is empty, and has no script"


def test_a_wrong_type_is_a_store_error(server: Server, connection: Any, mode: Any, identity: str) -> None:
    with mode(url(server)) as limiter:
        limiter.hit("5/hour", identity)
        (key,) = keys_of(connection, identity)
        connection.set(key, "something else", keepttl=True)
        with pytest.raises(StoreError, match=r"WRONGTYPE|wrong kind"):
            limiter.hit("5/hour", identity)
        with pytest.raises(StoreError, match=r"WRONGTYPE|wrong kind"):
            limiter.peek("5/hour", identity)


def test_a_refused_login_is_a_store_error_that_keeps_the_secret(mode: Any) -> None:
    with valkey_server("--requirepass", "sesame") as server:
        with mode(server.url.replace("redis://", "redis://:mustard@")) as limiter:
            with pytest.raises(StoreError) as caught:
                limiter.hit("5/hour", "a")
            assert "mustard" not in str(caught.value)
        with mode(server.url.replace("redis://", "redis://:sesame@")) as limiter:
            assert limiter.hit("5/hour", "a")


@pytest.mark.parametrize("algorithm", ["fixed-window", "sliding-counter", "gcra"])
def test_an_invalid_value_counts_as_empty(server: Server, connection: Any, algorithm: str, identity: str) -> None:
    with sync_limiter(url(server), algorithm=algorithm) as limiter:
        limiter.hit("5/hour", identity, cost=5)
        (key,) = keys_of(connection, identity)
        texts = ("", "x", "1:2:3:4", "-1:5", "9" * 400, "nan:nan", "16362000:1000003257143369", "1:234567890")
        for garbage in (*texts, b"\x00" * 10, b"\x00" * 14, b"\xff" * 11, b"\xff" * 400):
            connection.set(key, garbage, px=1000)
            assert limiter.hit("5/hour", identity).remaining == 4, garbage


BAD_URLS = [
    "redis://user:sesame@host:notaport/0",
    "redis://user:sesame@host:99999999/0",
    "redis://:sesame@host:6379/0?no_such_option=1",
    "redis://:sesame@host:6379/0?socket_timeout=soon",
    "redis://:sesame@[::1/0",
    "redis://:sesame@host:6379/0?password=sesame&nonsense=1",
    "ftp://user:sesame@host/",
    "redis+nothing://:sesame@host",
]


@pytest.mark.parametrize("where", BAD_URLS)
@pytest.mark.parametrize("limiter", [Limiter, AsyncLimiter])
def test_a_wrong_url_is_refused_at_once_and_its_password_not_shown(limiter: Any, where: str) -> None:
    with pytest.raises(StoreURLError) as caught:
        limiter(where)
    error: BaseException | None = caught.value
    assert "SG004" in str(error)
    assert "sesame" not in str(error)
    assert "sesame" not in repr(error)
    assert "sesame" not in repr(vars(error))


@pytest.mark.parametrize("where", ["", "redis", "localhost:6379", "redis:/x", None, 3, b"redis://"])
def test_what_is_neither_a_url_nor_a_store(where: Any) -> None:
    for limiter in (Limiter, AsyncLimiter):
        with pytest.raises(ConfigurationError, match="SG004"):
            limiter(where)


@pytest.mark.parametrize("prefix", ["", "a b", "a{b", "a}b", "a\n", "ä", None, 3])
def test_a_prefix_cannot_change_the_slot_of_a_key(prefix: Any) -> None:
    for limiter in (Limiter, AsyncLimiter):
        with pytest.raises(StoreURLError, match="prefix"):
            limiter("redis://localhost", prefix=prefix)
    with pytest.raises(StoreURLError, match="prefix"):
        RedisStore(fakeredis.FakeRedis(socket_timeout=1, retry=Retry(NoBackoff(), 0)), prefix=prefix)


def test_sync_and_async_share_a_fake_server(identity: str) -> None:
    fake = fakeredis.FakeServer()
    limiter = Limiter(RedisStore(fakeredis.FakeRedis(server=fake, socket_timeout=1)), on_store_failure="raise")
    assert limiter.hit("5/hour", identity).remaining == 4

    async def main() -> int | None:
        async with fakeredis.FakeAsyncRedis(server=fake, socket_timeout=1) as given:
            return (await AsyncLimiter(AsyncRedisStore(given)).hit("5/hour", identity)).remaining

    assert asyncio.run(main()) == 3
    fake.connected = False
    with pytest.raises(StoreError):
        limiter.hit("5/hour", identity)


def test_a_repr_shows_no_identity_and_no_password() -> None:
    store = Limiter("redis://user:sesame@localhost:6379/0").store
    assert "RedisStore(redis://localhost:6379/0)" in repr(store)
    assert "sesame" not in repr(AsyncLimiter("redis://user:sesame@localhost:6379/0?password=sesame").store)


@ALGORITHMS
def test_a_budget_named_twice_is_charged_twice(server: Server, algorithm: str, identity: str) -> None:
    """A plan should not do this. Regression: the second charge overwrote the first, or wrote an invalid value."""
    check = Check(terms(algorithm, "5/hour"), identity_text(identity), 1)
    with closing(RedisStore.from_url(url(server))) as store:
        for remaining in (3, 1):
            store.run(Plan((check, check)))
            assert store.run(Plan((check,), charge=False))[0].remaining == remaining


def test_a_key_that_is_always_busy_does_not_grow(server: Server, connection: Any, identity: str) -> None:
    """Regression: totals that grew without bound took eight bytes each."""
    clock, check = (
        ManualClock(1_760_000_000.123457),
        Check(terms("sliding-window", "10/minute"), identity_text(identity), 1),
    )
    overheard = Overheard()
    RedisStore(overheard, clock=clock).run(Plan((check,)))  # type: ignore[arg-type]
    connection.eval(MANY.replace("599", "5999983"), *overheard.words, overheard.script)
    (key,) = keys_of(connection, identity)
    assert connection.llen(key) == 10
    assert connection.memory_usage(key, samples=0) <= 300


def test_a_demoted_server_is_reconnected(mode: Any) -> None:
    """The host name leads to another master now. The open connection still leads to the old one."""
    with valkey_server() as old, valkey_server() as new, Proxy(old.port) as proxy, mode(proxy.url) as limiter:
        assert limiter.hit("5/hour", "a").remaining == 4
        old.command(f"REPLICAOF 127.0.0.1 {new.port}")
        with pytest.raises(StoreError, match="READONLY"):
            limiter.hit("5/hour", "a")
        proxy.upstream = new.port
        assert limiter.hit("5/hour", "a").remaining == 4
        assert limiter.hit("5/hour", "a").remaining == 3
