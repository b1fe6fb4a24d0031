"""What the insertions of throttle classes have in common: a clock that shows the time of the throttle's own timer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from suites.inside.record import write


class ThrottleClock:
    """The clock of the store. The tests set the time of a throttle as `throttle.timer`."""

    def __init__(self) -> None:
        self.throttle: Any = None
        self.readings = 0

    def now_us(self) -> int:
        """The time of the throttle that was asked last, in microseconds."""
        self.readings += 1
        return 0 if self.throttle is None else round(self.throttle.timer() * 1_000_000)


CLOCK: Final = ThrottleClock()


@pytest.fixture(autouse=True)
def fresh_budgets() -> Iterator[None]:
    """Give each test a store of its own. The tests clear Django's cache for the same reason."""
    from django.test import override_settings

    CLOCK.throttle = None
    with override_settings(SLUICEGATE={"CLOCK": CLOCK}):
        yield


def pytest_sessionfinish() -> None:
    """Record that the throttles were asked."""
    write(requests=CLOCK.readings)
