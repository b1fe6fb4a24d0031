"""Permits that a process has prefetched: how many to ask for, which request is served, and what is returned.

The first request of an identity takes one permit. While the identity keeps sending requests, each trip to the store
asks for twice as many as the last trip: up to the rule's `prefetch`, and never for more than the last outcome left. A
permit is served only within the hold time after the store charged it (`hold_us`), so late use is bounded by that.
Permits that are not used in time are refunded with the identity's next trip, or at the end. Permits of a process that
died expire as any other charge does.

A generator here yields calls for the store inside and is sent what they return, so the sync and the async wrapper of
`prefetch` share it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from sluicegate import fork
from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.errors import StoreError
from sluicegate.plan import Check, Checks, Outcomes, Plan

LONGEST_US: Final = MICROSECOND  # the longest time that a permit is held
SIZE: Final = 10_000  # identities with permits; the one that asked longest ago is evicted first


class StoreCall(NamedTuple):
    """A plan to run in the store inside, or to refund there."""

    plan: Plan
    refunded: Outcomes | None = None
    permits: int = 0  # so many are refunded

    def make(self, store: Any) -> Any:
        """Call the store. An async store returns an awaitable."""
        return store.run(self.plan) if self.refunded is None else store.refund(self.plan, self.refunded)

    def is_only(self, plan: Plan) -> bool:
        """True if this call charges one request and nothing else."""
        return self.refunded is None and self.plan is plan


StoreCalls = Generator[StoreCall, Outcomes, Outcomes]
"""Calls to make one after the other. A StoreError of a call is thrown in."""


def prefetches(plan: Plan) -> bool:
    """True if permits may serve a plan: all rules of the plan have `prefetch`, and the plan is not forced."""
    for terms, _, _ in plan.checks:  # noqa: SIM110 - a generator costs more than this loop
        if terms.prefetch == 1 or plan.forced:
            return False
    return True


def hold_us(checks: Checks) -> int:
    """Return how long after its charge a permit may be served: a tenth of the shortest window, at most a second."""
    return min(LONGEST_US, min([check.terms.window_us for check in checks]) // 10)


class _Stock:
    """The permits that this process holds for one plan."""

    __slots__ = ("busy_until", "granted", "left", "outcomes", "room", "sent_at", "until")

    def __init__(self) -> None:
        self.outcomes: Outcomes = ()  # of the last grant
        self.granted = 0  # how many permits the last grant had
        self.left = 0  # how many of them are not used yet
        self.room = 0  # how many more the store had left then
        self.sent_at = 0
        self.until = 0  # when the permits end
        self.busy_until = 0  # a request is fetching several; after this time it counts as lost


class Permits:
    """The permits of one process. The sync and the async wrapper share this class.

    `on_return` is called with the checks of each plan whose permits were refunded.
    """

    def __init__(self, *, clock: Clock | None, size: int, on_return: Callable[[Checks], object] | None) -> None:
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self._size = size
        self._on_return = on_return
        self.served = self.returned = 0  # for the status
        self._start()
        fork.renew(self)

    def after_fork(self) -> None:
        """Begin without permits: they are the parent's."""
        self._start()

    def _start(self) -> None:
        self._lock = threading.RLock()  # a signal handler or finalizer may call this in a thread that holds it
        self._stocks: OrderedDict[Checks, _Stock] = OrderedDict()

    @property
    def held(self) -> int:
        """The permits that this process holds, for the status."""
        with self._lock:
            return sum([stock.left for stock in self._stocks.values()])

    def serve(self, plan: Plan) -> Outcomes | None:
        """Use a permit, or only show it if the plan is a peek. Return None if there is none."""
        with self._lock:
            stock = self._stocks.get(plan.checks)
            now = self._now_us()
            if stock is None or not stock.left or now >= stock.until:
                return None
            stock.left -= plan.charge
            self.served += plan.charge
            return _as_if_used(plan.checks, stock.outcomes, left=stock.left, elapsed=now - stock.sent_at)

    def fetch(self, plan: Plan) -> StoreCalls:
        """Run a plan in the store inside, and ask for several permits if the identity is likely to use them."""
        if not plan.charge or not plan.checks:
            return (yield StoreCall(plan))
        stock, count, sent_at, unused = self._prepare(plan.checks)
        several = count > 1
        try:
            for call in unused:
                yield from self._refund(call)
            if several:
                outcomes = yield StoreCall(_times(plan, count))
                if _all_allowed(outcomes):
                    return (yield from self._granted(plan, stock, outcomes, count=count, sent_at=sent_at))
                sent_at = self._now_us()
            outcomes = yield StoreCall(plan)
            if _all_allowed(outcomes):
                return (yield from self._granted(plan, stock, outcomes, count=1, sent_at=sent_at))
            stock.granted = 0
            return outcomes
        finally:
            if several:
                stock.busy_until = 0

    def give_back(self, rule_id: str | None = None, identity: str | None = None) -> StoreCalls:
        """Refund the unused permits of one budget, or of all."""
        with self._lock:
            found = [
                checks
                for checks in self._stocks
                if identity is None or any([c.identity == identity and c.terms.rule_id == rule_id for c in checks])
            ]
            unused = [call for checks in found for call in _unused(checks, self._stocks.pop(checks))]
        for call in unused:
            yield from self._refund(call)
        return ()

    def rule_ids(self, identity: str) -> set[str]:
        """Return the ids of the rules under which an identity has permits."""
        with self._lock:
            return {c.terms.rule_id for checks in self._stocks for c in checks if c.identity == identity}

    def _refund(self, call: StoreCall) -> Generator[StoreCall, Outcomes]:
        with suppress(StoreError):  # what was not refunded expires
            _ = yield call
        self.returned += call.permits
        if self._on_return is not None:
            self._on_return(call.plan.checks)

    def _prepare(self, checks: Checks) -> tuple[_Stock, int, int, list[StoreCall]]:
        """Return the stock of a plan, how many permits to ask for, the time now, and what to refund on the way."""
        with self._lock:
            now = self._now_us()
            unused: list[StoreCall] = []
            stock = self._stocks.pop(checks, None)
            if stock is None:
                stock = _Stock()
                if len(self._stocks) >= self._size:
                    unused += _unused(*self._stocks.popitem(last=False))
            self._stocks[checks] = stock  # the last to be evicted now
            count = _count(checks, stock, now)
            if count > 1:
                stock.busy_until = now + LONGEST_US
            if now >= stock.until:
                unused += _unused(checks, stock)
            return stock, count, now, unused

    def _granted(self, plan: Plan, stock: _Stock, outcomes: Outcomes, *, count: int, sent_at: int) -> StoreCalls:
        """Keep what the store granted. Permits that cannot be kept are refunded at once: no request would find them."""
        checks, extra = plan.checks, count - 1
        with self._lock:
            from_store = all([outcome.source == "store" for outcome in outcomes])
            kept = from_store and self._stocks.get(checks) is stock and not stock.left
            if kept:
                stock.outcomes, stock.granted, stock.left = outcomes, count, extra
                stock.room = min(
                    [o.remaining // c.cost for c, o in zip(checks, outcomes, strict=True) if c.cost] or [0]
                )
                stock.sent_at, stock.until = sent_at, sent_at + hold_us(checks)
        if extra and not kept:
            yield from self._refund(StoreCall(_times(plan, extra), outcomes, extra))
        return _as_if_used(checks, outcomes, left=extra, elapsed=0)


def _count(checks: Checks, stock: _Stock, now: int) -> int:
    """Return how many permits to ask for: twice the last grant while it lasts, then as many as were used, else 1."""
    if now < stock.busy_until or (stock.left and now < stock.until):
        return 1
    wanted = 1
    if now < stock.until:
        wanted = 2 * stock.granted
    elif now < stock.until + hold_us(checks):
        wanted = stock.granted - stock.left
    return max(1, min(wanted, stock.room, *[check.terms.prefetch for check in checks]))


def _unused(checks: Checks, stock: _Stock) -> list[StoreCall]:
    """Take the unused permits out of a stock, as the refund to make: none or one."""
    left, stock.left = stock.left, 0
    return [StoreCall(_times(Plan(checks), left), stock.outcomes, left)] if left else []


def _as_if_used(checks: Checks, outcomes: Outcomes, *, left: int, elapsed: int) -> Outcomes:
    """Return the outcomes of a grant after `elapsed` microseconds, as if only the used permits had been charged."""
    return tuple(
        [
            outcome._replace(
                remaining=min(outcome.limit, outcome.remaining + left * check.cost),
                reset_after=max(0, outcome.reset_after - elapsed),
                next_after=max(0, outcome.next_after - elapsed),
            )
            for check, outcome in zip(checks, outcomes, strict=True)
        ]
    )


def _times(plan: Plan, count: int) -> Plan:
    return plan._replace(checks=tuple([Check(terms, identity, cost * count) for terms, identity, cost in plan.checks]))


def _all_allowed(outcomes: Outcomes) -> bool:
    return all([outcome.allowed for outcome in outcomes])
