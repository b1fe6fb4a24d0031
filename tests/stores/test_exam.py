"""Every store, sync and async, passes the public exam against the exact rational model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from sluicegate.clock import Clock
from sluicegate.stores import AsyncStore, Store
from sluicegate.testing import StoreExam
from tests.algorithms.model import ModelStore
from tests.stores.places import PLACES, Place

Maker = Callable[[Clock | None], Store | AsyncStore]


class TestAgainstTheModel(StoreExam):
    place: ClassVar[Place]

    @pytest.fixture(autouse=True, scope="class", params=PLACES)
    @classmethod
    def _place(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        with request.param(request) as cls.place:
            cls.examples = cls.place.examples
            yield

    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        return self.place.make(clock)

    def make_reference(self, clock: Clock) -> Store:
        return ModelStore(clock)
