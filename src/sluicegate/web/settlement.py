"""Settlement: refunds, renews and releases the charges of an allowed request as its response starts, goes on and ends.

Only a request with charges that depend on the response has a settlement. The adapter calls `answered` before it sends
the start of the response, `going_on` between its parts, and at the end `ended`, or `over` with the exception. Each
charge is refunded once, however often these methods are called. The async settlement also works if the request is
cancelled. If the store is unavailable, the settlement does not retry: the charges expire.

A charge inside the view uses `give_back` when it refuses. Its `with` block uses `keep` and `release`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, Final

from sluicegate.clock import MICROSECOND
from sluicegate.errors import StoreError
from sluicegate.plan import Check, Decision, Outcome, Plan
from sluicegate.reservation import IN_FLIGHT, Correction
from sluicegate.rules.cost import Body, Ended, units, untold
from sluicegate.rules.response import Response
from sluicegate.runtime import fork
from sluicegate.stores.completion import Steps, complete, running_loop
from sluicegate.web.charges import Charges, Due, apart, due, held, owed, refundable

_FAILED: Final = Response(500)


class HeldCharges:
    """The charges of one decision that hold slots, until they are released."""

    __slots__ = ("__weakref__", "blocks", "charges", "in_block", "outcomes", "plan")

    def __init__(self, charges: Charges) -> None:
        self.charges = charges
        self.plan: Plan
        self.outcomes: tuple[Outcome, ...]  # a renewal replaces them
        self.plan, self.outcomes = due(charges)
        self.blocks = 0  # how many `with` blocks use them now
        self.in_block = False  # True: the last of these blocks releases them at its end

    def has(self, outcomes: Sequence[Outcome]) -> bool:
        """True if one of these outcomes is of these charges."""
        return any([known is outcome for _, known in self.charges for outcome in outcomes])


class _Settlement:
    """The common part of the sync and the async settlement: everything except the calls of the store."""

    def __init__(self, store: Any, now_us: Callable[[], int]) -> None:
        self.answered_once = False
        self.complete = False  # whether the whole response was sent
        self.is_cut = False  # whether the client has gone while it was sent
        self.is_over = False  # whether the request has ended: a thread that Django left behind may still add a charge
        self._store = store
        self._now_us = now_us
        self._waiting: list[Charges] = []  # one list per decision: two decisions may charge one budget
        self._held: list[HeldCharges] = []
        self._costs: Charges = []  # whose actual cost the response tells
        self._told: dict[int, object] = {}  # the costs that the view has told, by the object identity of the outcome
        self._response = _FAILED  # until one has started
        self._body: Body | None = None  # until a part of it was sent
        self._process = fork.generation()
        self._renew_at = 0
        self._third_us = 0  # of the shortest lease: if one renewal fails, the next one still comes in time

    @property
    def holds(self) -> bool:
        """True if the end of the response releases a slot or settles a cost."""
        return bool(self._held or self._costs)

    def add(self, charges: Charges) -> None:
        """Add the charges of one more decision about the request."""
        self._waiting.append([pair for pair in charges if not pair[0].terms.held])
        for pair in charges:
            if pair[0].terms.cost_after is not None:
                self._costs = [*self._costs, pair]
        holding = held(charges)
        if holding:
            kept = HeldCharges(holding)
            self._held.append(kept)
            IN_FLIGHT.add(kept, self._store, kept.plan.checks)
            third = min([check.terms.window_us for check, _ in holding]) // 3
            self._third_us = min(third, self._third_us or third)
            self._renew_at = self._now_us() + self._third_us

    def keep(self, outcomes: Sequence[Outcome], own: Sequence[Outcome]) -> list[HeldCharges]:
        """Return what is held by these outcomes, for a `with` block that begins. If they are the block's own, the last
        block that uses them releases them at its end.
        """
        kept = [each for each in self._held if each.has(outcomes)]
        for each in kept:
            each.blocks += 1
            each.in_block = each.in_block or each.has(own)
        return kept

    def settle(self, used: object, unit: str | None = None, *, own: Sequence[Outcome] | None = None) -> bool:
        """Note the cost so far, in place of what `cost_after` will return: of this unit or of all, perhaps only of the
        charge with its `own` outcomes. False if no charge has such a cost, and the request has not ended.
        """
        noted = self.is_over or self.complete
        for check, outcome in [*self._costs]:  # a copy: another thread may end the request
            if unit in (None, check.terms.unit) and (own is None or any([outcome is each for each in own])):
                self._told[id(outcome)], noted = used, True
        return noted

    def read(self, part: bytes | str) -> None:
        """Note a part of the body that is sent."""
        if self._costs:
            self._body = self._body or Body()
            self._body.add(part.encode() if isinstance(part, str) else part)

    def read_file(self, path: str | None) -> None:
        """Note a file that the server sends as the body, if there is one."""
        if self._costs and path is not None:
            self._body = self._body or Body()
            with suppress(OSError):  # the server raises it where the application can see it
                self._body.size += Path(path).stat().st_size

    def _correction(self) -> Correction:
        """Return what corrects the costs to what the view or the response tells. An unknown cost stays the estimate."""
        costs, self._costs, told = self._costs, [], self._told
        ended = (self._body or Body()).of(self._response, complete=self.complete)
        found = [
            (
                check,
                outcome,
                units(check.terms.name, "cost_after", partial(_cost, check, ended, told=told.get(id(outcome)))),
            )
            for check, outcome in costs
        ]
        return Correction.of([(check, outcome, cost) for check, outcome, cost in found if cost is not None])

    @property
    def in_blocks(self) -> Charges:
        """The charges that a `with` block holds now."""
        return [pair for each in self._held if each.in_block for pair in each.charges]

    def _all_due(self, charges: Charges) -> list[Due]:
        """Return what to refund if the request so far is free: these charges, and what is held outside of `with`
        blocks. No earlier charge waits for the response any more.
        """
        self._waiting, self._costs = [], []
        released = self._take([each for each in self._held if not each.in_block])
        return [*map(due, apart([pair for pair in charges if not pair[0].terms.held])), *released]

    def _refunds(self, response: Response) -> list[Charges]:
        """Return the charges that this response refunds. Another response that replaces it may refund other charges."""
        self._disown()
        self.answered_once, self._response = True, response
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

    def _disown(self) -> None:
        """In the child of a fork, forget all charges: they are the parent's, which settles them."""
        if self._process != fork.generation():
            self._process, self._waiting, self._held, self._costs = fork.generation(), [], [], []

    def _is_stale(self) -> bool:
        return bool(self._held) and self._now_us() >= self._renew_at

    def _renewed(self) -> None:
        self._renew_at = self._now_us() + self._third_us

    def _take(self, released: Sequence[HeldCharges]) -> list[Due]:
        """Return what to refund to release these charges, if they are still held. From now on they are not."""
        self._disown()
        taken: list[Due] = []
        for each in [*released]:
            with suppress(ValueError):  # another thread of the request was quicker
                self._held.remove(each)  # before the refund: a slot is released once, by the caller that removes it
                IN_FLIGHT.remove(each)
                taken.append((each.plan, each.outcomes))
        return taken

    def _due(self, charges: Charges) -> list[Due]:
        """Return what to refund to give these charges back. They do not wait for the response any more."""
        self._waiting = [[pair for pair in waiting if pair not in charges] for waiting in self._waiting]
        self._costs = [pair for pair in self._costs if pair not in charges]
        return [*map(due, apart(charges))]


def _cost(check: Check, ended: Ended, *, told: object) -> object:
    """Return the cost of a charge: what the view has told, or else what the rule's function reads from the response."""
    return (check.terms.cost_after or untold)(ended) if told is None else told


class Settlement(_Settlement):
    """The settlement of a request in a synchronous application."""

    def add(self, charges: Charges) -> None:
        """Add the charges of one more decision about the request. If the request has ended, release them."""
        super().add(charges)
        if self.is_over:
            self.ended()

    def answered(self, response: Response) -> Charges:
        """Refund the charges that this response refunds, before the response starts. Return the refunded charges."""
        given: Charges = []
        for charges in self._refunds(response):
            with suppress(StoreError):
                self._store.refund(*due(charges))
                given += charges
        return given

    def going_on(self, part: bytes | str = b"") -> None:
        """Note a part of the body, and renew the held charges if a third of the lease has passed. Call it while the
        response is being sent.
        """
        self.read(part)
        if self._is_stale():
            for each in self._held:
                with suppress(StoreError):
                    each.outcomes = self._store.renew(each.plan, each.outcomes)
            self._renewed()

    def ended(self) -> None:
        """Release the held charges, and settle the costs: in this order, so that no function of the user's that raises
        keeps a slot.
        """
        self.is_over = True  # first: a charge that comes from now on is released at once
        self.release(self._held)
        if self._costs:
            with suppress(StoreError):
                self._correction().make(self._store)

    def release(self, released: Sequence[HeldCharges]) -> None:
        """Release some of the held charges, before the request ends."""
        self._refund_all(self._take(released))

    def give_back(self, charges: Charges) -> None:
        """Refund all charges of the request so far: these, and those that hold a slot outside of a `with` block."""
        self._refund_all(self._all_due(charges))

    def refund(self, charges: Charges) -> None:
        """Refund some charges of the request, of which none holds a slot."""
        self._refund_all(self._due(charges))

    def _refund_all(self, dues: list[Due]) -> None:
        for plan, outcomes in dues:
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
        self._steps: Steps[Any] = Steps()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, charges: Charges) -> None:
        super().add(charges)
        self._arm()
        if self.is_over:
            self.end_soon()

    async def answered(self, response: Response) -> Charges:
        given: Charges = []
        for charges in self._refunds(response):
            with suppress(StoreError):
                await complete(self._store.refund(*due(charges)))
                given += charges
        return given

    async def going_on(self, part: bytes | str = b"") -> None:
        self.read(part)
        if self._is_stale():
            await self._steps.do(self._renew)

    async def ended(self) -> None:
        self.is_over = True
        if self._held or self._costs:  # not `holds`: a call less in each request
            await self._steps.do(self._end)

    async def sent(self, *, complete: bool) -> None:
        """Do the same when the last byte was sent, except for the slots of `with` blocks, which a background task may
        have begun.
        """
        self.complete = complete
        if self._held or self._costs:
            await self._steps.do(partial(self._end, outside=True))

    async def release(self, released: Sequence[HeldCharges]) -> None:
        await self._steps.do(partial(self._release, released))

    async def give_back(self, charges: Charges) -> None:
        await self._steps.do(partial(self._refund_all, self._all_due(charges)))

    async def refund(self, charges: Charges) -> None:
        await self._steps.do(partial(self._refund_all, self._due(charges)))

    async def over(self, error: BaseException | None) -> None:
        try:
            if self._counts_as_500(error):
                await self.answered(Response(500))
        finally:
            await self.ended()

    def end_soon(self) -> None:
        """Do the same as `ended`, from a callback of the event loop that serves the request."""
        self.is_over = True
        if self._held or self._costs:
            self._steps.start(self._end)

    async def release_late(self, decision: Decision) -> None:
        """Release the slot of this decision. The request was cancelled before the decision was known."""
        self.add(owed(decision))
        await self._release()

    async def _renew(self) -> None:
        for each in self._held:
            with suppress(StoreError):
                each.outcomes = await self._store.renew(each.plan, each.outcomes)
        self._renewed()
        self._arm()

    async def _end(self, *, outside: bool = False) -> None:
        await self._release([each for each in self._held if not (outside and each.in_block)])
        if self._costs:
            with suppress(StoreError):
                await self._correction().make_async(self._store)

    async def _release(self, released: Sequence[HeldCharges] | None = None) -> None:
        await self._refund_all(self._take(self._held if released is None else released))

    async def _refund_all(self, dues: list[Due]) -> None:
        self._arm()
        for plan, outcomes in dues:
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
