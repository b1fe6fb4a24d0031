"""Every store, sync and async, passes the public exam against the exact rational model.

So do the functions that a wrapped store prepares for the rules of one identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from sluicegate.clock import Clock
from sluicegate.plan import BAN, Outcome, Plan
from sluicegate.stores import AsyncStore, Store, open_async_store, open_store
from sluicegate.stores.deny_cache import AsyncDenyCache, DenyCache
from sluicegate.stores.wrappers import StoreOptions
from sluicegate.testing import StoreExam
from tests.algorithms.model import ModelStore
from tests.stores.places import PATIENCE, PLACES, Place

Maker = Callable[[Clock | None], Store | AsyncStore]


def prepared(store: Any, plan: Plan) -> Any:
    """The decision of the prepared function of a plan's rules; None if it has none, or does not decide."""
    if len({(identity, cost) for _, identity, cost in plan.checks}) != 1 or not plan.charge or plan.forced:
        return None
    terms, (_, identity, cost) = [check.terms for check in plan.checks], plan.checks[0]
    hit = store.prepare(*terms)
    unusual = any([each.shadow or each.count_denied or each.held or each.algorithm == BAN for each in terms])
    assert (hit is None) is (unusual or len({each.rule_id for each in terms}) < len(terms))
    return None if hit is None else hit(identity, cost, None)


class Prepared(DenyCache):
    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        decision = prepared(self, plan)
        return super().run(plan) if decision is None else decision.outcomes


class PreparedAsync(AsyncDenyCache):
    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        decision = prepared(self, plan)
        return await super().run(plan) if decision is None else (await decision).outcomes


@contextmanager
def by_functions(request: pytest.FixtureRequest) -> Iterator[Place]:
    where = request.getfixturevalue("valkey").url

    def make(clock: Clock | None) -> Store:
        store = open_store(where, prefix="prepared", clock=clock, deadline=PATIENCE)
        wrapped: Any = StoreOptions(clock=clock).wrap(store, owned=True)
        return Prepared(wrapped.inside, wrapped.refusals)

    yield Place(make, examples=60)


@contextmanager
def by_functions_async(request: pytest.FixtureRequest) -> Iterator[Place]:
    where = request.getfixturevalue("valkey").url

    def make(clock: Clock | None) -> AsyncStore:
        store = open_async_store(where, prefix="prepared", clock=clock, deadline=PATIENCE)
        wrapped: Any = StoreOptions(clock=clock).wrap_async(store, owned=True)
        return PreparedAsync(wrapped.inside, wrapped.refusals)

    yield Place(make, examples=30)


FUNCTIONS = [pytest.param(place, id=place.__name__) for place in (by_functions, by_functions_async)]


class TestAgainstTheModel(StoreExam):
    place: ClassVar[Place]

    @pytest.fixture(autouse=True, scope="class", params=[*PLACES, *FUNCTIONS])
    @classmethod
    def _place(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        with request.param(request) as cls.place:
            cls.examples = cls.place.examples
            yield

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return self.place.make(clock)

    def make_reference(self, clock: Clock) -> Store:
        return ModelStore(clock)
