"""How long the store takes for a decision, measured only for limiters with `on_decision`.

The measured Run is inside the guard. So a decision without a call of the store has no time: the deny cache has made it.
The measurement belongs to the decision that is being made in this context, also in a task or thread started for it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from sluicegate.clock import stopwatch
from sluicegate.plan import Checks, Network, Outcomes
from sluicegate.stores import AsyncRun, Run

LAST: Final = 100
"""How many of the last decisions are kept, for the status."""


class StoreTime:
    """The seconds that the store takes for one decision, from now on until `stop`.

    It is no part of the event: asgiref compares the values of context variables, and an event that is not made yet has
    nothing to compare.
    """

    __slots__ = ("elapsed",)

    def __init__(self) -> None:
        self.elapsed: float | None = None
        _MEASURED.set(self)

    def stop(self) -> float | None:
        """Return the seconds; None if the store was not called. A later call in this context is not measured."""
        _MEASURED.set(None)
        return self.elapsed


_MEASURED: Final[ContextVar[StoreTime | None]] = ContextVar("sluicegate_store_time", default=None)
"""What measures the decision that is being made in this context; None for a probe, and for a call that is none."""


def timed(run: Run) -> Run:
    """Return a Run that is measured."""

    def measured(checks: Checks, network: Network = None) -> Outcomes:
        time, began = _MEASURED.get(), stopwatch()
        try:
            return run(checks, network)
        finally:
            if time is not None:
                time.elapsed = (time.elapsed or 0.0) + stopwatch() - began

    return measured


def timed_async(run: AsyncRun) -> AsyncRun:
    """Return an AsyncRun that is measured."""

    async def measured(checks: Checks, network: Network = None) -> Outcomes:
        time, began = _MEASURED.get(), stopwatch()
        try:
            found = run(checks, network)
            return found if isinstance(found, tuple) else await found
        finally:
            if time is not None:
                time.elapsed = (time.elapsed or 0.0) + stopwatch() - began

    return measured
