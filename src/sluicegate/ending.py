"""What is done about a request's charges after it was let in: when its response is known, goes on, and has ended.

An adapter finds an ending on the passage of a request that owes something, and on no other. It calls `answered` before
the start of the response is sent, `going_on` between parts of it, and `ended`, or `over` with what was raised, at last;
each charge is given back once, however often these are called. Both colours differ by awaits, and by the asynchronous
one's care for cancellation. A store that does not answer is not waited for: what it holds heals by expiry.
This module knows charges and the calls of a store; no HTTP, no framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

from sluicegate.after import Charges, Due, Response, due, held, owed, refundable
from sluicegate.clock import MICROSECOND
from sluicegate.errors import StoreError
from sluicegate.plan import Decision, Plan

_working: Final[set[asyncio.Task[Any]]] = set()  # a loop keeps only weak references to its tasks


class _Ending:
    """What both colours share: everything but the calls of the store."""

    def __init__(self, store: Any, now_us: Callable[[], int]) -> None:
        self.answered_once = False
        self._store = store
        self._now_us = now_us
        self._waiting: list[Charges] = []  # for the response; those of each decision apart, for they may share a budget
        self._held: list[Due] = []
        self._renew_at = 0
        self._third_us = 0  # of the shortest lease

    @property
    def holds(self) -> bool:
        """Whether anything is held until the response has ended."""
        return bool(self._held)

    def add(self, charges: Charges) -> None:
        """Take care of the charges of one more decision about the request."""
        self._waiting.append([pair for pair in charges if not pair[0].terms.held])
        holding = held(charges)
        if holding:
            self._held.append(due(holding))
            third = min([check.terms.window_us for check, _ in holding]) // 3
            self._third_us = min(third, self._third_us or third)
            self._renew_at = self._now_us() + self._third_us

    def _judged(self, response: Response) -> list[Charges]:
        """What this response gives back. What it does not may be given back by one that replaces it."""
        self.answered_once = True
        given = [refundable(charges, response) for charges in self._waiting]
        self._waiting = [
            [pair for pair in charges if pair not in back] for charges, back in zip(self._waiting, given, strict=True)
        ]
        return [back for back in given if back]

    def _judges(self, error: BaseException | None) -> bool:
        """Whether a request that is over without a response counts as answered by 500.

        Not one that was cancelled: who hangs up before the answer has paid.
        """
        return not self.answered_once and (error is None or isinstance(error, Exception))

    def _is_stale(self) -> bool:
        return bool(self._held) and self._now_us() >= self._renew_at

    def _renewed(self) -> None:
        self._renew_at = self._now_us() + self._third_us

    def _let_go(self) -> list[Due]:
        """What is held, once."""
        held, self._held = self._held, []
        return held


class Ending(_Ending):
    """The end of a request in a synchronous application."""

    def answered(self, response: Response) -> Charges:
        """Give back what this response gives back, before it starts. What was given back."""
        given: Charges = []
        for charges in self._judged(response):
            with suppress(StoreError):
                self._store.refund(*due(charges))
                given += charges
        return given

    def going_on(self) -> None:
        """Charge anew what is held, when a third of its lease has passed: the response is still being sent."""
        if self._is_stale():
            for index, (plan, outcomes) in enumerate(self._held):
                with suppress(StoreError):
                    self._held[index] = plan, self._store.renew(plan, outcomes)
            self._renewed()

    def ended(self) -> None:
        """Release what is held."""
        for plan, outcomes in self._let_go():
            with suppress(StoreError):
                self._store.refund(plan, outcomes)

    def over(self, error: BaseException | None) -> None:
        """The request is over, one way or another; `error` is what it was left by."""
        if self._judges(error):
            self.answered(Response(500))
        self.ended()


class AsyncEnding(_Ending):
    """The end of a request on an event loop.

    What is held is renewed and released in tasks of their own, one after the other, so that no cancellation of the
    request can part a charge from what is known of it. On asyncio it is also renewed while the application is silent.
    """

    def __init__(self, store: Any, now_us: Callable[[], int]) -> None:
        super().__init__(store, now_us)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, charges: Charges) -> None:
        """Take care of the charges of one more decision about the request."""
        super().add(charges)
        self._arm()

    async def answered(self, response: Response) -> Charges:
        """Give back what this response gives back, before it starts. What was given back."""
        given: Charges = []
        for charges in self._judged(response):
            with suppress(StoreError):
                await self._store.refund(*due(charges))
                given += charges
        return given

    async def going_on(self) -> None:
        """Charge anew what is held, when a third of its lease has passed: the response is still being sent."""
        if self._is_stale():
            await self._apart(self._renew)

    async def ended(self) -> None:
        """Release what is held."""
        if self._held:
            await self._apart(self._release)

    async def over(self, error: BaseException | None) -> None:
        """The request is over, one way or another; `error` is what it was left by."""
        try:
            if self._judges(error):
                await self.answered(Response(500))
        finally:
            await self.ended()

    def end_soon(self) -> None:
        """Release what is held, from a callback of the loop that the request is served on."""
        if self._held:
            self._start(self._release)

    def disown(self, task: asyncio.Task[Decision]) -> None:
        """Release what was charged for a request that is not there any more."""
        if not task.cancelled() and task.exception() is None:
            self.add(owed(task.result()))
            self.end_soon()

    async def _apart(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step where a cancellation of this request, however often it is repeated, cannot reach it."""
        if _loop() is None:  # trio, where only stores that never wait can be used
            await step()
        else:
            await asyncio.shield(self._start(step))

    def _start(self, step: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = self._task = asyncio.get_running_loop().create_task(_after(self._task, step))
        _working.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        """Drop a task that has ended: it keeps the request's context, whose scope leads back here."""
        _working.discard(task)
        if self._task is task:
            self._task = None

    async def _renew(self) -> None:
        for index, (plan, outcomes) in enumerate(self._held):
            with suppress(StoreError):
                self._held[index] = plan, await self._store.renew(plan, outcomes)
        self._renewed()
        self._arm()

    async def _release(self) -> None:
        due = self._let_go()
        self._arm()
        for plan, outcomes in due:
            with suppress(StoreError):
                await self._store.refund(plan, outcomes)

    def _arm(self) -> None:
        """Have it renewed after another third of the lease; not if nothing is held any more."""
        loop = _loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held and loop is not None:
            # In an empty context: the loop keeps a cancelled timer for a while, and with it the context of a request.
            self._timer = loop.call_later(self._third_us / MICROSECOND, self._ring, context=Context())

    def _ring(self) -> None:
        if self._held:
            self._start(self._renew)


async def run_apart(run: Callable[[Plan], Awaitable[Decision]], plan: Plan, ending: AsyncEnding) -> Decision:
    """Decide a plan that holds something. A request that is cancelled meanwhile never learns of its charge, so that
    is released when it is known.
    """
    loop = _loop()
    if loop is None:
        return await run(plan)
    task = loop.create_task(_decided(run, plan))
    _working.add(task)
    task.add_done_callback(_working.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(ending.disown)
        raise


async def _decided(run: Callable[[Plan], Awaitable[Decision]], plan: Plan) -> Decision:
    return await run(plan)


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _after(task: asyncio.Task[None] | None, step: Callable[[], Awaitable[None]]) -> None:
    if task is not None and not task.done():
        await asyncio.wait([task])
    await step()
