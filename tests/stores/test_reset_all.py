"""`reset_all`: everything of one identity is forgotten, in the store and in this process, and nothing of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluicegate import AsyncLimiter, Ban, Concurrency, ConfigurationError, Limiter, ManualClock, Rule, StoreError
from sluicegate.identity import digest
from sluicegate.plan import Check, Decision, Plan
from sluicegate.stores.redis import RedisStore
from tests.cluster import Cluster
from tests.servers import Server, free_port
from tests.stores.breakable import Breakable
from tests.stores.places import PATIENCE, client

SECRET = "a secret of 16 bytes or more"
BAN = Ban(after=1, within=60, duration=60, name="banned")
SLOT = Rule(name="slot", quota=Concurrency(1)).terms("sliding-window")
LIMITS = [("1/hour", ""), ("1/hour; 50/day", "reply")]
BUDGETS = 1 + 2 + 1 + 1  # of the two limits, the slot and the ban


def _at_once(made: Any) -> Any:
    return made


@contextmanager
def opened(kind: str, where: str, **options: Any) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    """A limiter, and a function that waits for what its methods return."""
    if kind == "sync":
        with Limiter(where, deadline=PATIENCE, **options) as limiter:
            yield limiter, _at_once
        return
    with asyncio.Runner() as runner:
        of_loop = AsyncLimiter(where, deadline=PATIENCE, **options)

        async def wait(made: Any) -> Any:
            return await made

        yield of_loop, lambda made: runner.run(wait(made))
        runner.run(of_loop.close())


@pytest.fixture(params=["memory", "valkey", "cluster"])
def where(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else str(request.getfixturevalue(request.param).url)


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "sealed"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_everything_of_one_identity(where: str, kind: str, secret: str | None) -> None:
    with opened(kind, where, secret=secret, prefix=f"all-{uuid4()}", deny_cache=60) as (limiter, wait):

        def run(terms: Any, identity: object) -> Decision:
            text = limiter.text(identity)
            made: Decision = wait(limiter.run(Plan(tuple([Check(each, text, 1) for each in terms]))))
            return made

        def banned() -> set[str]:
            return set(wait(limiter.bans(BAN)))

        def hits(identity: object) -> list[bool]:
            return [wait(limiter.hit(quota, identity, action=action)).allowed for quota, action in LIMITS]

        for identity in ("alice", ("user", "alice")):
            assert hits(identity) == [True] * 2
            assert hits(identity) == [False] * 2  # remembered for the hour, by a cache of a minute
            assert run(SLOT, identity).allowed
            wait(limiter.ban(identity, BAN))
        for number in range(150):  # more keys than one step of a scan inspects
            wait(limiter.hit("5/hour", number))

        assert wait(limiter.reset_all("alice")) == BUDGETS
        assert wait(limiter.reset_all("alice")) == 0
        assert run(SLOT, "alice").allowed
        assert hits("alice") == [True] * 2

        other = ("user", "alice")
        assert banned() == {digest(limiter.text(other))}
        assert hits(other) == [False] * 2
        assert not run(SLOT, other).allowed
        assert wait(limiter.reset_all(other)) == BUDGETS
        assert banned() == set()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_only_this_process_remembers_is_forgotten_too(kind: str, valkey: Server) -> None:
    options: dict[str, Any] = {"prefix": f"here-{uuid4()}", "deny_cache": 60}
    with (
        opened(kind, valkey.url, **options) as (limiter, wait),
        opened("sync", valkey.url, **options) as (elsewhere, _),
    ):
        assert [wait(limiter.hit("1/hour", "alice")).allowed for _ in range(2)] == [True, False]
        assert elsewhere.reset_all("alice") == 1
        assert not wait(limiter.hit("1/hour", "alice")).allowed  # from the deny cache of this process
        assert wait(limiter.reset_all("alice")) == 1
        assert wait(limiter.hit("1/hour", "alice")).allowed


def test_keys_of_others_stay(server: Server) -> None:
    """A prefix with pattern characters matches only its own keys."""
    identity = f"{uuid4()}"
    with client(server) as given:
        limiters = [Limiter(RedisStore(given, prefix=prefix), deny_cache=0) for prefix in ("a*b", "axb", "a*b:c")]
        for limiter in limiters:
            limiter.hit("5/minute", identity, action="a}:b")
        limiters[1].hit("5/minute", identity, action="not under the first prefix")
        assert limiters[0].reset_all(identity) == 1
        assert [limiter.peek("5/minute", identity, action="a}:b").remaining for limiter in limiters] == [5, 4, 4]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_store_that_does_not_answer(kind: str) -> None:
    options: dict[str, Any] = {"on_store_failure": "allow"}
    with opened(kind, f"redis://127.0.0.1:{free_port()}", **options) as (limiter, wait), pytest.raises(StoreError):
        wait(limiter.reset_all("alice"))


def test_a_store_that_cannot_list_says_so(each_cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="cannot list budgets"):
        Limiter(Breakable()).reset_all("alice")
    node = each_cluster.masters[0]
    options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": PATIENCE}
    with redis.RedisCluster(host="127.0.0.1", port=node.port, **options) as given:
        limiter = Limiter(RedisStore(given))
        with pytest.raises(ConfigurationError, match=r"redis\+cluster"):
            limiter.reset_all("alice")


def test_a_budget_that_has_reset_is_not_counted() -> None:
    """Regression: a ban was counted until the time within which it counts strikes had passed."""
    clock = ManualClock()
    limiter = Limiter(clock=clock)
    limiter.ban("alice", Ban(after=1, within=60, duration=1, name="short"))
    clock.advance(2)
    assert limiter.reset_all("alice") == 0
