"""The Redis store behind Sentinels: the exam, and failovers during requests."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from sluicegate import AsyncLimiter, Limiter, StoreError
from sluicegate.clock import Clock
from sluicegate.plan import Check, Decision, Plan
from sluicegate.stores import AsyncStore, Store, StoreChange, open_async_store, open_store
from sluicegate.testing import StoreExam
from sluicegate.testing.driver import Driver
from sluicegate.testing.store import terms
from tests.sentinels import SENTINELS, Sentinels
from tests.servers import ask, wait_until
from tests.stores.modes import PATIENCE

OPENERS: dict[str, Any] = {"sync": open_store, "async": open_async_store}
ONE = Plan((Check(terms("gcra", "5/hour"), "a", 1),))


@pytest.fixture(scope="module", params=SENTINELS)
def calm(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    """Sentinels without a failover."""
    with Sentinels(request.param) as sentinels:
        yield sentinels


class TestUnderSentinels(StoreExam):
    examples = 15
    how: ClassVar[str]
    url: ClassVar[str]

    @pytest.fixture(autouse=True, scope="class", params=OPENERS)
    @classmethod
    def _place(cls, request: pytest.FixtureRequest, calm: Sentinels) -> None:
        cls.how, cls.url = request.param, calm.url

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        store: Store | AsyncStore = OPENERS[self.how](self.url, prefix="exam", clock=clock, deadline=PATIENCE)
        return store


@pytest.mark.parametrize("how", OPENERS)
def test_a_planned_failover_is_followed_without_an_error(each_sentinels: Sentinels, how: str) -> None:
    """The old master runs and replies READONLY. A Sentinel may be down. No budget is lost."""
    with asyncio.Runner() as runner:
        store = Driver(OPENERS[how](each_sentinels.url, prefix="exam", deadline=PATIENCE), runner)
        plan = Plan((Check(terms("sliding-window", "100/day"), "a", 1),))
        assert store.run(plan)[0].remaining == 99
        each_sentinels.failover()
        each_sentinels.sentinels[0].kill()
        assert store.run(plan)[0].remaining == 98
        store.close()


def test_a_crash_causes_no_error_and_admits_at_most_one_more_limit(each_sentinels: Sentinels) -> None:
    """Four threads send requests while the master is killed and a replica is promoted."""
    changes: list[bool] = []
    results: list[Decision] = []
    stop, back = threading.Event(), threading.Event()

    def note(change: StoreChange) -> None:
        changes.append(change.available)
        if change.available:
            back.set()

    identity = uuid4().hex
    with Limiter(each_sentinels.url, on_store_change=note) as limiter:

        def ask() -> None:
            while not stop.wait(0.002):  # 2,000 requests a second, and not as many as a core can make
                results.append(limiter.hit("50/day", identity))

        assert all(limiter.hit("50/day", identity) for _ in range(50))
        each_sentinels.servers[0].command("WAIT 1 1000")  # replicated writes are not lost
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            each_sentinels.crash()
            assert back.wait(10)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert changes == [False, True]
        assert any(decision.degraded for decision in results)
        assert sum(decision.allowed for decision in results) <= 50, "more than one limit was admitted without the store"
        assert not limiter.hit("50/day", identity), "the replica knows what the master knew"


def test_no_sentinel_is_a_store_error_that_says_so() -> None:
    store: Any = open_store("redis+sentinel://127.0.0.1:1,127.0.0.1:2/front", prefix="t", deadline=1)
    with pytest.raises(
        StoreError, match=r"no Sentinel names a master of 'front' \(127.0.0.1:1: .*refused.*; 127.0.0.1:2: "
    ):
        store.run(ONE)


def test_an_unknown_service_is_a_store_error_that_says_so(calm: Sentinels) -> None:
    store: Any = open_store(calm.url.replace(calm.service, "back"), prefix="t", deadline=PATIENCE)
    with pytest.raises(StoreError, match=r"no Sentinel names a master of 'back' \(.*: knows no such service") as caught:
        store.run(ONE)
    assert "do not know this service name" in caught.value.advice
    assert "SENTINEL MASTERS" in caught.value.advice
    assert "password" not in str(caught.value)


_REJECTED = "Authentication required|invalid username-password"


@pytest.mark.parametrize("how", OPENERS)
@pytest.mark.parametrize("wrong", ["missing", "wrong"])
@pytest.mark.parametrize("whose", ["sentinel", "master"])
def test_a_wrong_password_is_a_store_error_that_says_so(
    each_sentinels: Sentinels, how: str, wrong: str, whose: str
) -> None:
    """In the first request and in every later one."""
    url = each_sentinels.url
    if whose == "sentinel":
        for server in each_sentinels.sentinels:
            ask(server, "ACL", "SETUSER", "default", "resetpass", ">right")
    else:
        ask(each_sentinels.servers[0], "CONFIG", "SET", "requirepass", "right")
    if wrong == "wrong":
        url = f"{url}?sentinel_password=bad" if whose == "sentinel" else url.replace("://", "://:bad@")
    with asyncio.Runner() as runner:
        store = Driver(OPENERS[how](url, prefix="exam", deadline=PATIENCE), runner)
        for _ in range(2):
            with pytest.raises(StoreError, match=_REJECTED) as caught:
                store.run(ONE)
            assert "password" in caught.value.advice
            assert caught.value.concerns == ("store" if whose == "sentinel" else "node")
        store.close()


@pytest.mark.parametrize("how", OPENERS)
def test_a_master_that_hangs_is_left_for_the_promoted_one(
    each_sentinels: Sentinels, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    changes: list[StoreChange] = []
    old = each_sentinels.master()
    options: dict[str, Any] = {"deadline": 0.3, "on_store_change": changes.append}

    def promoted() -> None:
        each_sentinels.servers[0].command("WAIT 1 1000")
        old.pause()
        wait_until("another master", lambda: each_sentinels.master() is not old)

    def sync() -> bool:
        with Limiter(each_sentinels.url, **options) as limiter:
            assert not limiter.hit("50/day", "a").degraded
            promoted()
            return until_used(lambda: limiter.hit("50/day", "a").degraded)

    async def main() -> bool:
        async with AsyncLimiter(each_sentinels.url, **options) as limiter:
            assert not (await limiter.hit("50/day", "a")).degraded
            failover = asyncio.create_task(asyncio.to_thread(promoted))
            degraded, ends = True, monotonic() + 2 * PATIENCE
            while (degraded or not failover.done()) and monotonic() < ends:
                degraded = (await limiter.hit("50/day", "a")).degraded
                await asyncio.wait([failover], timeout=0.01)
            await failover
            return not degraded

    def until_used(degraded: Callable[[], bool]) -> bool:
        wait_until("the new master to be used", lambda: not degraded(), patience=PATIENCE)
        return True

    assert sync() if how == "sync" else asyncio.run(main())
    assert [change.available for change in changes] == [False, True]
    assert changes[0].store == changes[1].store == f"127.0.0.1:{old.port}"
    lines = [record.getMessage() for record in caplog.records if record.name == "sluicegate"]
    assert len(lines) == 2
    new = each_sentinels.master()
    assert lines[1] == f"sluicegate: store 127.0.0.1:{old.port} replaced by 127.0.0.1:{new.port}: circuit closed"
