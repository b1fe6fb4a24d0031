"""failures.py: what a failure concerns, and what the clients of other plans and rules notice of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any
from uuid import uuid4

import hiredis
import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from sluicegate import AsyncLimiter, Limiter, StoreError
from sluicegate.identity import identity_text
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.redis.encoding import Encoder
from sluicegate.stores.redis.failures import KINDS, kind_of, store_error
from sluicegate.stores.redis.steps import Address, NoReplyError
from tests.hostile.growth import untraced
from tests.proxies import Proxy
from tests.servers import Server, redis_server, valkey_server, wait_until
from tests.stores.modes import PATIENCE, Blocking

HERE = Address("127.0.0.1", 6379)
PERMISSIONS = (
    "+eval +evalsha +time +del +get +set +lindex +llen +lrange +lrem +lset +ltrim +rpush +zcard +zcount +zrange "
    "+zremrangebyrank +pexpire"
)


@pytest.fixture(params=["sync", "async", "client"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def limiter_of(how: str, url: str, runner: asyncio.Runner, **options: Any) -> Any:
    if how == "client":
        client = redis.Redis.from_url(url, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0))
        return Limiter(RedisStore(client), **options)
    if how == "sync":
        return Limiter(url, deadline=PATIENCE, **options)
    return Blocking(AsyncLimiter(url, deadline=PATIENCE, **options), runner)


@pytest.mark.parametrize(
    ("reply", "concerns"),
    [
        # as Valkey 9 and Redis 7 report an error in a script
        ("WRONGTYPE Operation against a key holding the wrong kind of value script: on @user_script:1.", "rule"),
        ("ERR ACL failure in script: User u has no permissions to run the 'zadd' command script: on …", "rule"),
        ("NOPERM No permissions to access a key", "rule"),
        ("OOM command not allowed when used memory > 'maxmemory'. script: on @user_script:1.", "node"),
        ("NOREPLICAS Not enough good replicas to write. script: on @user_script:1.", "node"),
        ("READONLY You can't write against a read only replica. script: on @user_script:1.", "node"),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "node"),
        ("MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist", "node"),
        ("LOADING Redis is loading the dataset in memory", "node"),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "node"),
        ("BUSYKEY Target key name already exists.", "rule"),
        ("NOAUTH Authentication required.", "node"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "node"),
        ("CLUSTERDOWN The cluster is down", "node"),
        ("CLUSTERDOWN Hash slot not served", "plan"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "plan"),
        ("MOVED 7 127.0.0.1:7001", "plan"),
        ("ERR max number of clients reached", "node"),
        ("ERR value is not an integer or out of range", "rule"),
        # as Redis 6.2 does
        ("ERR Error running script (call to f_d3): @user_script:1: WRONGTYPE Operation against a key", "rule"),
        ("ERR Error running script (call to f_89): @user_script:1: The user can't run this command or", "rule"),
        ("ERR Error running script (call to f_89): @user_script:1: @user_script: 1: -READONLY You can't", "node"),
        ("ERR Error running script (call to f_89): @user_script:1: @user_script: 1: -OOM command not", "node"),
    ],
)
def test_whom_an_error_reply_concerns(reply: str, concerns: str) -> None:
    assert kind_of(hiredis.ReplyError(reply)).concerns == concerns
    error = store_error("there", hiredis.ReplyError(reply))
    assert error.concerns == concerns
    assert reply in str(error)


@pytest.mark.parametrize(("concerns", "expected"), [("plan", "plan"), ("connection", "plan"), ("server", "node")])
def test_whom_a_missing_reply_concerns(concerns: Any, expected: str) -> None:
    error = NoReplyError(HERE, TimeoutError("no answer"), sent=True, concerns=concerns)
    assert store_error("there", error).concerns == expected
    rejected = store_error("there", NoReplyError(HERE, AuthenticationError("invalid"), sent=False))
    assert (rejected.concerns, rejected.advice) == ("node", KINDS["WRONGPASS"].advice)


@pytest.mark.parametrize(
    "loss",
    [partial(Proxy.lose, to="EVALSHA", close=True), partial(Proxy.kill, after=1, reset=True)],
    ids=["FIN", "RST"],
)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_closed_connection_costs_only_the_request_on_it(
    server: Server, how: str, runner: asyncio.Runner, loss: Callable[[Proxy], None]
) -> None:
    """As by CLIENT KILL or a proxy. A server that answers nothing on a new connection is down."""
    changes: list[bool] = []
    who = uuid4().hex
    with Proxy(server.port) as proxy:
        limiter = limiter_of(how, proxy.url, runner, on_store_change=lambda change: changes.append(change.available))
        assert not limiter.hit("100/day", who).degraded
        for left in (97, 95, 93):
            loss(proxy)
            assert limiter.hit("100/day", who).degraded
            decision = limiter.hit("100/day", who)
            assert (decision.degraded, decision.remaining) == (False, left), "no charge was sent again"
        assert changes == []
        proxy.lose(10, to="EVALSHA", close=True)
        assert [limiter.hit("100/day", who).degraded for _ in range(2)] == [True, True]
        assert changes == [False]
        limiter.close()


def test_a_store_of_the_user_fails_as_a_whole() -> None:
    assert StoreError("mine", "it is down").concerns == "store"


def test_a_command_that_is_not_permitted_concerns_its_rule(
    server: Server, how: str, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    """The rule that needs it is decided by its policy, and logged once. All other requests go to the store."""
    changes: list[Any] = []
    with redis.Redis(port=server.port) as admin:
        admin.execute_command(f"ACL SETUSER limited on >secret resetkeys ~sg:* -@all {PERMISSIONS}")
        url = server.url.replace("://", "://limited:secret@")
        limiter = limiter_of(how, url, runner, on_store_change=changes.append)
        who = uuid4().hex
        for number in range(20):
            log = limiter.hit("5/day", who, action="log", algorithm="sliding-log")
            assert log.degraded
            assert log.allowed is (number < 5), "the limit holds in this process"
            assert not limiter.hit("100/day", who).degraded
        limiter.close()
        admin.execute_command("ACL DELUSER limited")
    assert changes == []
    [line] = [record.getMessage() for record in caplog.records if record.name == "sluicegate"]
    assert "rule log: " in line
    assert "zadd" in line or "can't run this command" in line
    assert KINDS["NOPERM"].advice in line
    assert "circuit stays closed" in line


def test_a_key_of_the_wrong_type_concerns_one_identity(
    server: Server, how: str, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    changes: list[Any] = []
    limiter = limiter_of(how, server.url, runner, on_store_change=changes.append)
    bad, good = uuid4().hex, uuid4().hex
    assert not limiter.hit("100/day", good).degraded
    key = _key_of(limiter, "100/day", bad)
    with redis.Redis(port=server.port) as admin:
        admin.hset(key, "not", "a budget")
        for _ in range(5):
            assert limiter.hit("100/day", bad).degraded
            assert not limiter.hit("100/day", good).degraded
        admin.delete(key)
    assert not limiter.hit("100/day", bad).degraded
    limiter.close()
    assert changes == []
    [line] = [record.getMessage() for record in caplog.records if record.name == "sluicegate"]
    assert "another program wrote this key" in line


def test_a_key_of_the_wrong_type_concerns_one_plan_of_a_batch(server: Server) -> None:
    people = [uuid4().hex for _ in range(40)]

    async def main() -> list[bool]:
        async with AsyncLimiter(server.url, deadline=PATIENCE) as limiter:
            await limiter.hit("100/day", "somebody")
            with redis.Redis(port=server.port) as admin:
                admin.hset(_key_of(limiter, "100/day", people[7]), "not", "a budget")
            decisions = await asyncio.gather(*[limiter.hit("100/day", who) for who in people])
            assert {decision.remaining for decision in decisions} == {99}
            return [decision.degraded for decision in decisions]

    assert asyncio.run(main()) == [number == 7 for number in range(40)]


def _key_of(limiter: Any, quota: str, who: str) -> str:
    (terms,) = (limiter._limiter if isinstance(limiter, Blocking) else limiter)._terms(quota, "", None)
    return Encoder(prefix="sg", clock=None, split=False).key(terms.rule_id, identity_text(who))


STATES: dict[str, tuple[str, str]] = {  # by error reply: how the state of the server begins and how it ends
    "OOM": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    "NOREPLICAS": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    "READONLY": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    "MASTERDOWN": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("make", [valkey_server, redis_server], ids=["valkey", "redis6"])
def test_a_server_that_cannot_answer_opens_the_circuit_and_closes_it_when_it_can(
    make: Any, how: str, runner: asyncio.Runner, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate")
    changes: list[bool] = []
    with make("--replica-serve-stale-data", "no" if state == "MASTERDOWN" else "yes") as server:
        limiter = limiter_of(how, server.url, runner, on_store_change=lambda change: changes.append(change.available))
        assert not limiter.hit("100/day", "alice").degraded
        begin, end = STATES[state]
        server.command(begin)
        assert limiter.hit("100/day", "alice").degraded
        assert limiter.hit("100/day", "bob").degraded
        assert changes == [False]
        server.command(end)
        wait_until("the server to be used again", lambda: not limiter.hit("100/day", "alice").degraded)
        assert changes == [False, True]
        limiter.close()
    opened, *_, closed = [record for record in caplog.records if record.name == "sluicegate"]
    assert state in opened.getMessage()
    assert KINDS[state].advice in opened.getMessage()
    assert (closed.levelno, closed.getMessage()) == (
        logging.INFO,
        f"sluicegate: store 127.0.0.1:{server.port} recovered: circuit closed",
    )


# Recovery without traffic


@pytest.mark.parametrize(("how", "call"), [("sync", "peek"), ("async", "peek"), ("async", "hit")])
def test_the_store_is_found_again_between_two_requests(how: str, call: str, runner: asyncio.Runner) -> None:
    """One request opens the circuit. The next one comes when the server answers again, and is the trial."""
    with valkey_server() as server:
        make = Limiter if how == "sync" else AsyncLimiter
        given: Any = make(server.url, on_store_failure="deny", deadline=0.5)
        limiter: Any = given if how == "sync" else Blocking(given, runner)
        assert limiter.hit("100/day", "alice")
        server.pause()
        assert limiter.hit("100/day", "alice").unavailable
        breaker = given.store._breakers.whole
        server.resume()

        if how == "async":
            store: Any = given.store

            async def answered() -> None:
                while breaker.needs_probe:
                    await asyncio.wait([*store._probes, asyncio.create_task(asyncio.sleep(0))])

            runner.run(asyncio.wait_for(answered(), PATIENCE))
        wait_until("a probe to be answered", lambda: not breaker.needs_probe)
        assert not getattr(limiter, call)("100/day", "alice").degraded, "this request is answered by the store"
        assert breaker.closed
        assert not [each for each in given.store._watches.values() if how == "sync" and each.is_alive()]
        limiter.close()


@pytest.mark.parametrize("how", ["sync", "async"])  # a user's client is used as a URL is
def test_close_ends_the_watch(how: str, runner: asyncio.Runner) -> None:
    given: Any = (Limiter if how == "sync" else AsyncLimiter)("redis://127.0.0.1:1")
    limiter: Any = given if how == "sync" else Blocking(given, runner)
    assert limiter.hit("5/day", "alice").degraded
    fallback = given.store
    [watch] = fallback._watches.values()
    limiter.close()
    if how == "sync":
        watch.join(PATIENCE)
        assert not watch.is_alive()
        assert limiter.hit("5/day", "alice").degraded
        assert list(fallback._watches.values()) == [watch], "a closed limiter starts no other thread"
    else:
        assert watch[1].cancelled()


def test_a_deleted_limiter_ends_its_watch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "sluicegate")  # a record keeps the error, and with it the frames of the call
    limiter = Limiter("redis://127.0.0.1:1")
    assert limiter.hit("5/day", "alice").degraded
    store: Any = limiter.store
    [watch] = store._watches.values()
    del limiter, store
    gc.collect()
    watch.join(PATIENCE)
    assert not watch.is_alive()


def test_every_loop_watches_the_store_again() -> None:
    with closing(Limiter("memory://")):
        limiter = AsyncLimiter("redis://127.0.0.1:1")

        async def request() -> Any:
            assert (await limiter.hit("5/day", "alice")).degraded
            store: Any = limiter.store
            [(loop, _)] = store._watches.values()
            return loop

        assert asyncio.run(request()) is not asyncio.run(request())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_watches_the_store_by_itself() -> None:
    """The thread of the parent does not exist in the child. The next request there starts another."""
    with untraced(), Limiter("redis://127.0.0.1:1") as limiter:  # a child inherits the lock of a coverage run
        assert limiter.hit("5/day", "alice").degraded
        fallback: Any = limiter.store
        [watch] = fallback._watches.values()
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            before = watch.is_alive()
            limiter.hit("5/day", "alice")
            [mine] = fallback._watches.values()
            os.write(writer, repr((before, mine is watch, mine.is_alive())).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 100) == b"(False, False, True)"
        os.close(reader)
        os.close(writer)
