"""The pytest plugin: fixtures that control every limiter of the application under test.

pytest loads this module when sluicegate is installed. It imports the rest only when a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sluicegate.clock import ManualClock


@pytest.fixture
def fresh_limits() -> Iterator[None]:
    """Every budget is empty when the test begins, in memory and on servers. Nothing is deleted."""
    from sluicegate.testing.budgets import separate_budgets

    with separate_budgets():
        yield


@pytest.fixture
def limits_clock() -> Iterator[ManualClock]:
    """A clock that moves every limiter: `limits_clock.advance(60)`. Every budget is empty when the test begins."""
    from sluicegate.clock import ManualClock
    from sluicegate.testing.budgets import separate_budgets

    clock = ManualClock()
    with separate_budgets(clock=clock):
        yield clock


@pytest.fixture
def limits_off() -> Iterator[None]:
    """Every limiter allows every request, and no store is called."""
    from sluicegate.testing.budgets import separate_budgets

    with separate_budgets(off=True):
        yield
