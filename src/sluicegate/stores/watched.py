"""A wrapper that measures how long the store takes to run a plan. Only limiters with `on_decision` have it.

It is the innermost wrapper. So a decision without a call of the store has no time: the deny cache
has made it. The measurement belongs to the decision that is being made in this context, also in a task or thread
that was started for it. A prepared charge always calls the store: who sends it measures it, without this wrapper.
"""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

from sluicegate.clock import stopwatch
from sluicegate.observe.status import Status, describe, percentiles
from sluicegate.plan import Outcomes, Plan
from sluicegate.stores import AsyncStore, Store

_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)
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


class _Watched(Generic[_AnyStore]):
    """What the sync and the async wrapper share: every part of the store but `run` and `close` is its own. `last` are
    the seconds that it took for the last decisions.
    """

    def __init__(self, store: _AnyStore, last: deque[float], *, owned: bool = True) -> None:
        self.inside: _AnyStore = store
        self._last = last
        self._owned = owned

    def __getattr__(self, name: str) -> Any:
        if name == "inside":  # not set yet
            raise AttributeError(name)
        return getattr(self.inside, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inside!r})"

    def describe(self) -> Status:
        """Return the status of the store inside. The round trips are those of decisions, if there were any."""
        known = describe(self.inside)
        return known._replace(round_trip=percentiles(tuple(self._last)) or known.round_trip)

    @staticmethod
    def _add(began: float) -> None:
        """Add the seconds since a call began to what measures the decision."""
        time = _MEASURED.get()
        if time is not None:
            time.elapsed = (time.elapsed or 0.0) + stopwatch() - began


class Watched(_Watched[Store]):
    """A store whose calls for decisions are measured."""

    def run(self, plan: Plan) -> Outcomes:
        began = stopwatch()
        try:
            return self.inside.run(plan)
        finally:
            self._add(began)

    def close(self) -> None:
        if self._owned:
            self.inside.close()


class AsyncWatched(_Watched[AsyncStore]):
    """The same for asynchronous code."""

    async def run(self, plan: Plan) -> Outcomes:
        began = stopwatch()
        try:
            return await self.inside.run(plan)
        finally:
            self._add(began)

    async def close(self) -> None:
        if self._owned:
            await self.inside.close()
