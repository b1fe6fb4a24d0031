"""Every store, sync and async, passes the public exam against the exact rational model.

So does a store in its wrappers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from sluicegate.clock import Clock
from sluicegate.stores import AsyncStore, Store, open_async_store, open_store
from sluicegate.stores.wrappers import StoreOptions
from tests.algorithms.model import ModelStore
from tests.stores.own_exam import OwnExam
from tests.stores.places import PATIENCE, PLACES, Place

Maker = Callable[[Clock | None], Store | AsyncStore]


@contextmanager
def wrapped(request: pytest.FixtureRequest) -> Iterator[Place]:
    where = request.getfixturevalue("valkey").url

    def make(clock: Clock | None) -> Store:
        store = open_store(where, prefix="wrapped", clock=clock, deadline=PATIENCE)
        return StoreOptions(clock=clock).wrap(store, owned=True)

    yield Place(make, examples=60)


@contextmanager
def wrapped_async(request: pytest.FixtureRequest) -> Iterator[Place]:
    where = request.getfixturevalue("valkey").url

    def make(clock: Clock | None) -> AsyncStore:
        store = open_async_store(where, prefix="wrapped", clock=clock, deadline=PATIENCE)
        return StoreOptions(clock=clock).wrap_async(store, owned=True)

    yield Place(make, examples=30)


WRAPPED = [pytest.param(place, id=place.__name__) for place in (wrapped, wrapped_async)]


class TestAgainstTheModel(OwnExam):
    place: ClassVar[Place]

    @pytest.fixture(autouse=True, scope="class", params=[*PLACES, *WRAPPED])
    @classmethod
    def _place(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        with request.param(request) as cls.place:
            cls.examples = cls.place.examples
            yield

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return self.place.make(clock)

    def make_reference(self, clock: Clock) -> Store:
        return ModelStore(clock)
