"""Settlement: refunds, renews and releases the charges of an allowed request when its response starts, continues and
ends.

Only a request with charges that depend on the response has a settlement. The adapter calls `answered` before it sends
the start of the response, `going_on` between its parts, and at the end `ended`, or `over` with the exception. Each
charge is refunded once, however often these methods are called. The async settlement also works if the request is
cancelled. If the store is unavailable, the settlement does not retry: the charges expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

from sluicegate.clock import MICROSECOND
from sluicegate.errors import StoreError
from sluicegate.plan import Decision
from sluicegate.rules.response import Response
from sluicegate.stores.completion import Steps, complete, running_loop
from sluicegate.web.charges import Charges, Due, due, held, owed, refundable


class _Settlement:
    """The common part of the sync and the async settlement: everything except the calls of the store."""

    def __init__(self, store: Any, now_us: Callable[[], int]) -> None:
        self.answered_once = False
        self._over = False  # whether the request has ended: a thread that Django left behind may still add a charge
        self._store = store
        self._now_us = now_us
        self._waiting: list[Charges] = []  # one list per decision: two decisions may charge one budget
        self._held: list[Due] = []
        self._renew_at = 0
        self._third_us = 0  # of the shortest lease

    @property
    def holds(self) -> bool:
        """True if the request holds a slot until the response has ended."""
        return bool(self._held)

    def add(self, charges: Charges) -> None:
        """Add the charges of one more decision about the request."""
        self._waiting.append([pair for pair in charges if not pair[0].terms.held])
        holding = held(charges)
        if holding:
            self._held.append(due(holding))
            third = min([check.terms.window_us for check, _ in holding]) // 3
            self._third_us = min(third, self._third_us or third)
            self._renew_at = self._now_us() + self._third_us

    def _refunds(self, response: Response) -> list[Charges]:
        """Return the charges that this response refunds. Another response that replaces it may refund other charges."""
        self.answered_once = True
        given = [refundable(charges, response) for charges in self._waiting]
        self._waiting = [
            [pair for pair in charges if pair not in back] for charges, back in zip(self._waiting, given, strict=True)
        ]
        return [back for back in given if back]

    def _counts_as_500(self, error: BaseException | None) -> bool:
        """True if a request that ended without a response counts as a request with the response 500.

        False if the request was cancelled: a client that disconnects early is not refunded.
        """
        return not self.answered_once and (error is None or isinstance(error, Exception))

    def _is_stale(self) -> bool:
        return bool(self._held) and self._now_us() >= self._renew_at

    def _renewed(self) -> None:
        self._renew_at = self._now_us() + self._third_us

    def _take_held(self) -> list[Due]:
        """Return the held charges. From now on the settlement holds none."""
        held, self._held = self._held, []
        return held


class Settlement(_Settlement):
    """The settlement of a request in a synchronous application."""

    def add(self, charges: Charges) -> None:
        """Add the charges of one more decision about the request. If the request has ended, release them."""
        super().add(charges)
        if self._over:
            self.ended()

    def answered(self, response: Response) -> Charges:
        """Refund the charges that this response refunds, before the response starts. Return the refunded charges."""
        given: Charges = []
        for charges in self._refunds(response):
            with suppress(StoreError):
                self._store.refund(*due(charges))
                given += charges
        return given

    def going_on(self) -> None:
        """Renew the held charges if a third of the lease has passed. Call it while the response is being sent."""
        if self._is_stale():
            for index, (plan, outcomes) in enumerate(self._held):
                with suppress(StoreError):
                    self._held[index] = plan, self._store.renew(plan, outcomes)
            self._renewed()

    def ended(self) -> None:
        """Release the held charges."""
        self._over = True
        for plan, outcomes in self._take_held():
            with suppress(StoreError):
                self._store.refund(plan, outcomes)

    def over(self, error: BaseException | None) -> None:
        """End the settlement, whether the request succeeded or not. `error` is the exception that ended it."""
        if self._counts_as_500(error):
            self.answered(Response(500))
        self.ended()


class AsyncSettlement(_Settlement):
    """The settlement of a request on an event loop.

    Held charges are renewed and released in separate tasks, one after the other, so that a cancellation of the request
    cannot lose a charge. On asyncio the held charges are renewed even while the application sends nothing.
    """

    def __init__(self, store: Any, now_us: Callable[[], int]) -> None:
        super().__init__(store, now_us)
        self._steps: Steps[None] = Steps()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, charges: Charges) -> None:
        """Add the charges of one more decision about the request. If the request has ended, release them."""
        super().add(charges)
        self._arm()
        if self._over:
            self.end_soon()

    async def answered(self, response: Response) -> Charges:
        """Refund the charges that this response refunds, before the response starts. Return the refunded charges."""
        given: Charges = []
        for charges in self._refunds(response):
            with suppress(StoreError):
                await complete(self._store.refund(*due(charges)))
                given += charges
        return given

    async def going_on(self) -> None:
        """Renew the held charges if a third of the lease has passed. Call it while the response is being sent."""
        if self._is_stale():
            await self._steps.do(self._renew)

    async def ended(self) -> None:
        """Release the held charges."""
        self._over = True
        if self._held:
            await self._steps.do(self._release)

    async def over(self, error: BaseException | None) -> None:
        """End the settlement, whether the request succeeded or not. `error` is the exception that ended it."""
        try:
            if self._counts_as_500(error):
                await self.answered(Response(500))
        finally:
            await self.ended()

    def end_soon(self) -> None:
        """Release the held charges, from a callback of the event loop that serves the request."""
        self._over = True
        if self._held:
            self._steps.start(self._release)

    async def release_late(self, decision: Decision) -> None:
        """Release the slot of this decision. The request was cancelled before the decision was known."""
        self.add(owed(decision))
        await self._release()

    async def _renew(self) -> None:
        for index, (plan, outcomes) in enumerate(self._held):
            with suppress(StoreError):
                self._held[index] = plan, await self._store.renew(plan, outcomes)
        self._renewed()
        self._arm()

    async def _release(self) -> None:
        due = self._take_held()
        self._arm()
        for plan, outcomes in due:
            with suppress(StoreError):
                await self._store.refund(plan, outcomes)

    def _arm(self) -> None:
        """Set the timer for the next renewal, after a third of the lease. Without held charges, cancel the timer."""
        loop = running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held and loop is not None:
            # In an empty context: the loop keeps a cancelled timer for a while, and the timer keeps its context.
            self._timer = loop.call_later(self._third_us / MICROSECOND, self._on_timer, context=Context())

    def _on_timer(self) -> None:
        if self._held:
            self._steps.start(self._renew)
