"""The Redis store under Sentinels: the exam, and failovers with requests on their way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from sluicegate import Limiter
from sluicegate.clock import Clock
from sluicegate.plan import Check, Decision, Plan
from sluicegate.stores import AsyncStore, Store, StoreChange, open_async_store, open_store
from sluicegate.testing import StoreExam
from sluicegate.testing.store import Driver, terms
from tests.sentinels import SENTINELS, Sentinels
from tests.stores.colours import PATIENCE

OPENERS: dict[str, Any] = {"sync": open_store, "async": open_async_store}


@pytest.fixture(scope="module", params=SENTINELS)
def calm(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    """Sentinels with nothing to do."""
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
    """The old master is alive and says READONLY; a Sentinel may be gone; budgets are where they were."""
    with asyncio.Runner() as runner:
        store = Driver(OPENERS[how](each_sentinels.url, prefix="exam", deadline=PATIENCE), runner)
        plan = Plan((Check(terms("sliding-window", "100/day"), "a", 1),))
        assert store.run(plan)[0].remaining == 99
        each_sentinels.failover()
        each_sentinels.sentinels[0].kill()
        assert store.run(plan)[0].remaining == 98
        store.close()


def test_a_crash_costs_no_request_an_error_and_admits_one_more_limit_at_most(each_sentinels: Sentinels) -> None:
    """Four threads go on asking while the master dies and a replica takes its place."""
    changes: list[bool] = []
    told: list[Decision] = []
    stop, back = threading.Event(), threading.Event()

    def note(change: StoreChange) -> None:
        changes.append(change.available)
        if change.available:
            back.set()

    who = uuid4().hex
    with Limiter(each_sentinels.url, on_store_change=note) as limiter:

        def ask() -> None:
            while not stop.wait(0.002):  # 2,000 requests a second, and not as many as a core can make
                told.append(limiter.hit("50/day", who))

        assert all(limiter.hit("50/day", who) for _ in range(50))
        each_sentinels.servers[0].command("WAIT 1 1000")  # what is replicated is not lost
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
        assert any(decision.degraded for decision in told)
        assert sum(decision.allowed for decision in told) <= 50, "more than one limit was admitted without the store"
        assert not limiter.hit("50/day", who), "the replica knows what the master knew"


def test_no_sentinel_is_a_store_error_that_says_so() -> None:
    store: Any = open_store("redis+sentinel://127.0.0.1:1,127.0.0.1:2/front", prefix="t", deadline=1)
    with pytest.raises(Exception, match=r"no Sentinel names a master of 'front' \[SG020\]"):
        store.run(Plan((Check(terms("gcra", "5/hour"), "a", 1),)))


def test_an_unknown_service_is_a_store_error_that_says_so(calm: Sentinels) -> None:
    store: Any = open_store(calm.url.replace(calm.service, "back"), prefix="t", deadline=PATIENCE)
    with pytest.raises(Exception, match=r"no Sentinel names a master of 'back' \[SG020\]"):
        store.run(Plan((Check(terms("gcra", "5/hour"), "a", 1),)))
