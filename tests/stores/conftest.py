"""What the tests of wrappers share: a clock, and each colour in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sluicegate import ManualClock
from tests.stores.breakable import Colour


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_760_000_000)


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> Iterator[Colour]:
    with asyncio.Runner() as runner:
        yield Colour(request.param, runner)
