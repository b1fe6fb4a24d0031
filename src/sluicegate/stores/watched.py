"""A wrapper that measures how long the store takes. Only limiters with `on_decision` have it.

It is the innermost wrapper. So a decision without a call of the store has no time: the deny cache or a permit fetched
ahead has made it. The measurement belongs to the decision that is being made in this context, also in a task or thread
that was started for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Generic, TypeVar, cast

from sluicegate.clock import stopwatch
from sluicegate.plan import Checks, Decision, Outcomes, Plan, Terms
from sluicegate.status import Status, describe, percentiles
from sluicegate.stores import AsyncStore, Hit, Origin, Store

_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)
_LAST: Final = 100  # the last calls, for the status


class StoreTime:
    """The seconds that the store took for one decision; None if it was not called.

    It is no part of the event: asgiref compares the values of context variables, and an event that is not made yet has
    nothing to compare.
    """

    __slots__ = ("elapsed",)
    elapsed: float | None


MEASURED: Final[ContextVar[StoreTime | None]] = ContextVar("sluicegate_store_time", default=None)
"""What measures the decision that is being made in this context; None for a probe, and for a call that is none."""


def _add(began: float, last: deque[float]) -> None:
    """Add the seconds since a call began to what measures the decision, and to the last ones of the store."""
    seconds, time = stopwatch() - began, MEASURED.get()
    if time is not None:
        last.append(seconds)
        time.elapsed = seconds if time.elapsed is None else time.elapsed + seconds


class _Call:
    """A `with` block for a call of the store."""

    __slots__ = ("_began", "_last")

    def __init__(self, last: deque[float]) -> None:
        self._last = last
        self._began = stopwatch()

    def __enter__(self) -> None:
        """Do nothing: the time runs since this object was made."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _add(self._began, self._last)

    async def wait_for(self, answer: Awaitable[Any]) -> Any:
        """Return an answer that belongs to the call."""
        with self:
            return await answer


class _Watched(Generic[_AnyStore]):
    """What the sync and the async wrapper share: every part of the store but `run` and `close` is its own."""

    def __init__(self, store: _AnyStore, *, owned: bool = True) -> None:
        self.inside: _AnyStore = store
        self._owned = owned
        self._last: deque[float] = deque(maxlen=_LAST)

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

    def _send_of(self, terms: tuple[Terms, ...]) -> Callable[[Checks], Any] | None:
        prepare = getattr(self.inside, "prepare_send", None)
        return None if prepare is None else prepare(terms)

    def prepare(self, *terms: Terms) -> Hit | None:
        """Prepare the store, which is in memory. The result measures as well."""
        inside: Hit | None = cast("Any", self.inside).prepare(*terms)
        if inside is None:
            return None
        last = self._last

        def hit(identity: str, cost: int, origin: Origin | None = None) -> Decision | None:
            began = stopwatch()
            decision: Decision | None = inside(identity, cost, origin)
            _add(began, last)
            return decision

        return hit


class Watched(_Watched[Store]):
    """A store whose calls for decisions are measured."""

    def run(self, plan: Plan) -> Outcomes:
        """Run the plan in the store inside."""
        with _Call(self._last):
            return self.inside.run(plan)

    def prepare_send(self, terms: tuple[Terms, ...]) -> Callable[[Checks], Any] | None:
        """Prepare the store. The result measures if it sends."""
        send = self._send_of(terms)
        if send is None:
            return None
        last = self._last

        def measured(checks: Checks) -> Any:
            began = stopwatch()
            sent = send(checks)
            if sent is not None:
                _add(began, last)
            return sent

        return measured

    def resume(self, plan: Plan, step: Any, reply: Any, *, until: float) -> Outcomes:
        """Do the rest of a charge in the store inside. It calls the server again only after an error."""
        store: Any = self.inside
        with _Call(self._last) if isinstance(reply, Exception) else nullcontext():
            return store.resume(plan, step, reply, until=until)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the store inside if it is owned."""
        if self._owned:
            self.inside.close()


class AsyncWatched(_Watched[AsyncStore]):
    """The same for asynchronous code."""

    async def run(self, plan: Plan) -> Outcomes:
        """Run the plan in the store inside."""
        with _Call(self._last):
            return await self.inside.run(plan)

    def prepare_send(self, terms: tuple[Terms, ...]) -> Callable[[Checks], Any] | None:
        """Prepare the store. The answers of the result measure."""
        send = self._send_of(terms)
        if send is None:
            return None
        last = self._last

        def measured(checks: Checks) -> Any:
            call = _Call(last)
            sent = send(checks)
            return None if sent is None else (sent[0], call.wait_for(sent[1]), sent[2])

        return measured

    async def resume(self, plan: Plan, step: Any, reply: Any, *, until: float) -> Outcomes:
        """Do the rest of a charge in the store inside. It calls the server again only after an error."""
        store: Any = self.inside
        with _Call(self._last) if isinstance(reply, Exception) else nullcontext():
            return await store.resume(plan, step, reply, until=until)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close the store inside if it is owned."""
        if self._owned:
            await self.inside.close()
