"""Fallback: a store that answers though the one inside does not. Around it stands a breaker, in its place a stand-in.

Only StoreError is caught: what else a store raises is a mistake in it, and must not let everybody pass. A charge is
never sent again. While the breaker is open no request waits for the store: the probe, which runs a request's own plan
without charging, has a thread of its own, or a task. This module knows the breaker and the stand-in.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from sluicegate.errors import ConfigurationError, StoreError
from sluicegate.plan import Outcome, Plan
from sluicegate.stores import AsyncStore, Store
from sluicegate.stores.breaker import Breaker, Breakers, Loan
from sluicegate.stores.standin import Standin


class _Guarded:
    """What both colours share."""

    def __init__(self, *, breakers: Breakers, standin: Standin, owned: bool = True) -> None:
        self._breakers = breakers
        self._standin = standin
        self._owned = owned

    def _breaker_of(self, plan: Plan) -> Breaker:
        return self._breakers.of(*[check.identity for check in plan.checks])

    def _failed(self, error: StoreError, asked: Breaker, plan: Plan, *, closed: int) -> None:
        identities = tuple([check.identity for check in plan.checks])
        self._breakers.failed(error, asked, closed=closed, identities=identities)

    def _left_alone(self, breaker: Breaker) -> StoreError:
        return StoreError(breaker.store, "it did not answer a moment ago, and is left alone for now")


class Fallback(_Guarded):
    """The store inside while it answers, the stand-in while it does not.

    Closing it closes the store only if that is `owned`. `launch` runs a probe away from the request that found it due.
    """

    def __init__(
        self,
        store: Store,
        *,
        breakers: Breakers,
        standin: Standin,
        owned: bool = True,
        launch: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__(breakers=breakers, standin=standin, owned=owned)
        self._store = store
        self._launch = _in_a_thread if launch is None else launch

    def __repr__(self) -> str:
        return f"Fallback({self._store!r})"

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none: in the store, or in its place."""
        breaker = self._breakers.whole if self._breakers.single else self._breaker_of(plan)
        closed = breaker.closed
        try:
            outcomes = self._store.run(plan) if closed else self._try(plan, breaker)
        except StoreError as error:
            self._failed(error, breaker, plan, closed=closed)
            return self._standin.answer(plan, error)
        self._standin.note(plan, outcomes)
        return outcomes

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give back what a plan took, where it took it. What cannot be given back now heals by expiry."""
        self._standin.refund(plan, outcomes)
        breaker = self._breaker_of(plan)
        closed = breaker.closed
        if closed:
            try:
                self._store.refund(plan, outcomes)
            except StoreError as error:
                self._failed(error, breaker, plan, closed=closed)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Charge again as of now what a plan took, where it took it. What cannot be renewed now is as it was."""
        outcomes = self._standin.renew(plan, outcomes)
        breaker = self._breaker_of(plan)
        closed = breaker.closed
        if closed:
            try:
                return self._store.renew(plan, outcomes)
            except StoreError as error:
                self._failed(error, breaker, plan, closed=closed)
        return outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop a budget in both places. StoreError when the store does not answer: then it was not dropped there."""
        self._standin.forget(rule_id, identity)
        breaker = self._breakers.of(identity)
        closed = breaker.closed
        if not closed:
            raise self._left_alone(breaker)
        try:
            self._store.forget(rule_id, identity)
        except StoreError as error:
            self._breakers.failed(error, breaker, closed=closed, identities=(identity,))
            raise

    def close(self) -> None:
        """Forget what was counted here, and close the store if it is owned."""
        self._standin.close()
        if self._owned:
            self._store.close()

    def _try(self, plan: Plan, breaker: Breaker) -> tuple[Outcome, ...]:
        """Send the plan if it may be the trial; StoreError otherwise."""
        trial = breaker.trial() if plan.charge else None
        if trial is not None:
            with trial:
                return self._store.run(plan)
        probe = breaker.probe()
        if probe is not None:
            with suppress(RuntimeError):  # there may be no thread to be had: the probe comes back by itself
                self._launch(partial(self._probe, plan._replace(charge=False), breaker, probe=probe))
        raise self._left_alone(breaker)

    def _probe(self, plan: Plan, breaker: Breaker, *, probe: Loan) -> None:
        with suppress(StoreError, ConfigurationError), probe:  # the trial tells whoever asks what is wrong
            self._store.run(plan)
            self._breakers.answered(breaker, *[check.identity for check in plan.checks])


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="sluicegate-probe", daemon=True).start()


class AsyncFallback(_Guarded):
    """The same for asynchronous code; the probe is a task of the loop that found it due."""

    def __init__(
        self, store: AsyncStore, *, breakers: Breakers, standin: Standin, deadline: float, owned: bool = True
    ) -> None:
        super().__init__(breakers=breakers, standin=standin, owned=owned)
        self._store = store
        self._deadline = deadline
        self._probes: set[asyncio.Task[None]] = set()  # the loop itself would let them go

    def __repr__(self) -> str:
        return f"AsyncFallback({self._store!r})"

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none: in the store, or in its place."""
        breaker = self._breakers.whole if self._breakers.single else self._breaker_of(plan)
        closed = breaker.closed
        try:
            outcomes = await (self._store.run(plan) if closed else self._try(plan, breaker))
        except StoreError as error:
            self._failed(error, breaker, plan, closed=closed)
            return self._standin.answer(plan, error)
        self._standin.note(plan, outcomes)
        return outcomes

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give back what a plan took, where it took it. What cannot be given back now heals by expiry."""
        self._standin.refund(plan, outcomes)
        breaker = self._breaker_of(plan)
        closed = breaker.closed
        if closed:
            try:
                await self._store.refund(plan, outcomes)
            except StoreError as error:
                self._failed(error, breaker, plan, closed=closed)

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Charge again as of now what a plan took, where it took it. What cannot be renewed now is as it was."""
        outcomes = self._standin.renew(plan, outcomes)
        breaker = self._breaker_of(plan)
        closed = breaker.closed
        if closed:
            try:
                return await self._store.renew(plan, outcomes)
            except StoreError as error:
                self._failed(error, breaker, plan, closed=closed)
        return outcomes

    async def forget(self, rule_id: str, identity: str) -> None:
        """Drop a budget in both places. StoreError when the store does not answer: then it was not dropped there."""
        self._standin.forget(rule_id, identity)
        breaker = self._breakers.of(identity)
        closed = breaker.closed
        if not closed:
            raise self._left_alone(breaker)
        try:
            await self._store.forget(rule_id, identity)
        except StoreError as error:
            self._breakers.failed(error, breaker, closed=closed, identities=(identity,))
            raise

    async def close(self) -> None:
        """Forget what was counted here, end the probes of this loop, and close the store if it is owned."""
        self._standin.close()
        here = asyncio.get_running_loop()
        for task in [task for task in self._probes if task.get_loop() is here]:
            task.cancel()
        if self._owned:
            await self._store.close()

    async def _try(self, plan: Plan, breaker: Breaker) -> tuple[Outcome, ...]:
        """Send the plan if it may be the trial; StoreError otherwise."""
        trial = breaker.trial() if plan.charge else None
        if trial is not None:
            with trial:
                return await self._store.run(plan)
        probe = breaker.probe()
        if probe is not None:
            task = asyncio.get_running_loop().create_task(self._probe(plan._replace(charge=False), breaker, probe))
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)
        raise self._left_alone(breaker)

    async def _probe(self, plan: Plan, breaker: Breaker, probe: Loan) -> None:
        with suppress(StoreError, ConfigurationError), probe:  # the trial tells whoever asks what is wrong
            try:
                async with asyncio.timeout(self._deadline):
                    await self._store.run(plan)
            except TimeoutError as error:
                raise StoreError(breaker.store, error) from error
            self._breakers.answered(breaker, *[check.identity for check in plan.checks])
