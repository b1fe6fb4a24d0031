"""Fixtures for the tests of wrappers: a clock, and the modes sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sluicegate import ManualClock
from tests.stores.breakable import Mode


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_760_000_000)


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    with asyncio.Runner() as runner:
        yield Mode(request.param, runner)
