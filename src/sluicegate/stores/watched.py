"""A wrapper that measures how long the store takes. Only limiters with `on_decision` have it.

It is the innermost wrapper. So a decision without a call of the store has no time: the deny cache or a permit fetched
ahead has made it. The measurement belongs to the decision that is being made in this context, also in a task or thread
that was started for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar, cast

from sluicegate.clock import stopwatch
from sluicegate.plan import Checks, Decision, Outcomes, Plan, Terms
from sluicegate.stores import AsyncStore, Hit, Origin, Store

_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)


class StoreTime:
    """The seconds that the store took for one decision; None if it was not called. An event is one of these."""

    __slots__ = ("elapsed",)
    elapsed: float | None


MEASURED: Final[ContextVar[StoreTime | None]] = ContextVar("sluicegate_store_time", default=None)
"""What measures the decision that is being made in this context; None for a probe, and for a call that is none."""


def _add(seconds: float) -> None:
    time = MEASURED.get()
    if time is not None:
        time.elapsed = seconds if time.elapsed is None else time.elapsed + seconds


async def _measured(answer: Awaitable[Any], began: float) -> Any:
    try:
        return await answer
    finally:
        _add(stopwatch() - began)


class _Watched(Generic[_AnyStore]):
    """What the sync and the async wrapper share: every part of the store but `run` and `close` is its own."""

    def __init__(self, store: _AnyStore, *, owned: bool = True) -> None:
        self.inside: _AnyStore = store
        self._owned = owned

    def __getattr__(self, name: str) -> Any:
        if name == "inside":  # not set yet
            raise AttributeError(name)
        return getattr(self.inside, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inside!r})"

    def _send_of(self, terms: tuple[Terms, ...]) -> Any:
        prepare = getattr(self.inside, "prepare_send", None)
        return None if prepare is None else prepare(terms)

    def prepare(self, *terms: Terms) -> Hit | None:
        """Prepare the store, which is in memory. The result measures as well."""
        inside: Hit | None = cast("Any", self.inside).prepare(*terms)
        if inside is None:
            return None

        def hit(identity: str, cost: int, origin: Origin | None = None) -> Decision | None:
            began = stopwatch()
            decision: Decision | None = inside(identity, cost, origin)
            _add(stopwatch() - began)
            return decision

        return hit


class Watched(_Watched[Store]):
    """A store whose calls for decisions are measured."""

    def run(self, plan: Plan) -> Outcomes:
        """Run the plan in the store inside."""
        return self._measured(self.inside.run, plan)

    def prepare_send(self, terms: tuple[Terms, ...]) -> Callable[[Checks], Any] | None:
        """Prepare the store. The result measures if it sends."""
        send: Callable[[Checks], Any] | None = self._send_of(terms)
        if send is None:
            return None

        def measured(checks: Checks) -> Any:
            began = stopwatch()
            sent = send(checks)
            if sent is not None:
                _add(stopwatch() - began)
            return sent

        return measured

    def resume(self, plan: Plan, step: Any, reply: Any, *, until: float) -> Outcomes:
        """Do the rest of a charge in the store inside."""
        resume: Callable[..., Outcomes] = cast("Any", self.inside).resume
        return self._measured(resume, plan, step, reply, until=until)

    def _measured(self, call: Callable[..., Outcomes], *arguments: Any, **named: Any) -> Outcomes:
        began = stopwatch()
        try:
            return call(*arguments, **named)
        finally:
            _add(stopwatch() - began)

    def close(self) -> None:
        """Close the store inside if it is owned."""
        if self._owned:
            self.inside.close()


class AsyncWatched(_Watched[AsyncStore]):
    """The same for asynchronous code."""

    async def run(self, plan: Plan) -> Outcomes:
        """Run the plan in the store inside."""
        return cast("Outcomes", await _measured(self.inside.run(plan), stopwatch()))

    def prepare_send(self, terms: tuple[Terms, ...]) -> Callable[[Checks], Any] | None:
        """Prepare the store. The replies of the result measure."""
        send: Callable[[Checks], Any] | None = self._send_of(terms)
        if send is None:
            return None

        def measured(checks: Checks) -> Any:
            began = stopwatch()
            sent = send(checks)
            if sent is None:
                return None
            step, answer, until = sent
            return step, _measured(answer, began), until

        return measured

    async def resume(self, plan: Plan, step: Any, reply: Any, *, until: float) -> Outcomes:
        """Do the rest of a charge in the store inside."""
        rest = cast("Any", self.inside).resume(plan, step, reply, until=until)
        return cast("Outcomes", await _measured(rest, stopwatch()))

    async def close(self) -> None:
        """Close the store inside if it is owned."""
        if self._owned:
            await self.inside.close()
