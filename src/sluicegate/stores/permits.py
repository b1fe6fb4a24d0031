"""Permits that a process has taken in advance: how many to ask for, who is served, and what goes back.

The first request takes one permit; while an identity keeps asking, each trip asks for
twice as many, up to the lease, and never for more than the last answer left. A permit is served within the hold time
after the store charged it (`hold_us`), so late use is bounded by that. What was not used in time goes back with the
identity's next trip, or at the end; what a dead process held comes free as any other charge does.

A generator here yields trips to a store and is sent what came of them, so both colours of `leases` share it.
This module knows values and clocks, and no store.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Generator
from typing import Final, NamedTuple

from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.plan import Check, Outcome, Plan

LONGEST_US: Final = MICROSECOND  # that a permit is held
SIZE: Final = 10_000  # identities with permits; the one that asked longest ago goes first

Checks = tuple[Check, ...]
Outcomes = tuple[Outcome, ...]


class Trip(NamedTuple):
    """A plan to run in the store inside, or to refund there."""

    plan: Plan
    refunded: Outcomes | None = None


Trips = Generator[Trip, Outcomes, Outcomes]


def hold_us(checks: Checks) -> int:
    """How long after it was charged a permit may be served: a tenth of the shortest window, at most a second."""
    return min(LONGEST_US, min([check.terms.window_us for check in checks]) // 10)


class _Lease:
    """What one process holds for one plan."""

    __slots__ = ("busy_until", "granted", "left", "outcomes", "room", "sent_at", "until")

    def __init__(self) -> None:
        self.outcomes: Outcomes = ()  # of the last grant
        self.granted = 0  # how many permits that was
        self.left = 0  # how many of them nobody has used
        self.room = 0  # how many more the store had then
        self.sent_at = 0
        self.until = 0  # when they are worth nothing any more
        self.busy_until = 0  # somebody is on a trip for several, and is given up for lost then


class Permits:
    """What both colours share."""

    def __init__(self, *, clock: Clock | None, size: int) -> None:
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self._size = size
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._leases: OrderedDict[Checks, _Lease] = OrderedDict()

    def held(self, plan: Plan) -> Outcomes | None:
        """Serve a permit, or show it if the plan only looks. None when there is none."""
        self._notice_fork()
        with self._lock:
            lease = self._leases.get(plan.checks)
            now = self._now_us()
            if lease is None or not lease.left or now >= lease.until:
                return None
            lease.left -= plan.charge
            return _as_if_used(plan.checks, lease.outcomes, left=lease.left, gone=now - lease.sent_at)

    def trips(self, plan: Plan) -> Trips:
        """Ask the store inside, for several permits if that promises anything."""
        lease, ask, sent_at, unused = self._set_out(plan.checks)
        several = ask > 1
        try:
            yield from _each(unused)
            if several:
                outcomes = yield Trip(_times(plan, ask))
                if _all_allowed(outcomes):
                    return (yield from self._granted(plan, lease, outcomes, ask=ask, sent_at=sent_at))
                sent_at = self._now_us()
            outcomes = yield Trip(plan)
            if _all_allowed(outcomes):
                return (yield from self._granted(plan, lease, outcomes, ask=1, sent_at=sent_at))
            lease.granted = 0
            return outcomes
        finally:
            if several:
                lease.busy_until = 0

    def given_up(self, rule_id: str | None = None, identity: str | None = None) -> Trips:
        """Let go of what is held under one budget, or of everything, and give it back."""
        self._notice_fork()
        with self._lock:
            found = [
                checks
                for checks in self._leases
                if identity is None or any([c.identity == identity and c.terms.rule_id == rule_id for c in checks])
            ]
            unused = [trip for checks in found for trip in _unused(checks, self._leases.pop(checks))]
        yield from _each(unused)
        return ()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():  # what was held is the parent's, and so may be the lock
            self._begin()

    def _set_out(self, checks: Checks) -> tuple[_Lease, int, int, list[Trip]]:
        """The lease, how many permits to ask for, when that was, and what to give back on the way."""
        with self._lock:
            now = self._now_us()
            unused: list[Trip] = []
            lease = self._leases.pop(checks, None)
            if lease is None:
                lease = _Lease()
                if len(self._leases) >= self._size:
                    unused += _unused(*self._leases.popitem(last=False))
            self._leases[checks] = lease  # the youngest now
            ask = _ask(checks, lease, now)
            if ask > 1:
                lease.busy_until = now + LONGEST_US
            if now >= lease.until:
                unused += _unused(checks, lease)
            return lease, ask, now, unused

    def _granted(self, plan: Plan, lease: _Lease, outcomes: Outcomes, *, ask: int, sent_at: int) -> Trips:
        """Note what the store granted. What cannot be held goes back at once: nobody would find it again."""
        checks, extra = plan.checks, ask - 1
        with self._lock:
            kept = _all_from_store(outcomes) and self._leases.get(checks) is lease and not lease.left
            if kept:
                lease.outcomes, lease.granted, lease.left = outcomes, ask, extra
                lease.room = min(
                    [o.remaining // c.cost for c, o in zip(checks, outcomes, strict=True) if c.cost] or [0]
                )
                lease.sent_at, lease.until = sent_at, sent_at + hold_us(checks)
        if extra and not kept:
            _ = yield Trip(_times(plan, extra), outcomes)
        return _as_if_used(checks, outcomes, left=extra, gone=0)


def _ask(checks: Checks, lease: _Lease, now: int) -> int:
    """How many permits: twice the last grant while it lasts, as many as were used just after, else one."""
    if now < lease.busy_until or (lease.left and now < lease.until):
        return 1
    wanted = 1
    if now < lease.until:
        wanted = 2 * lease.granted
    elif now < lease.until + hold_us(checks):
        wanted = lease.granted - lease.left
    return max(1, min(wanted, lease.room, *[check.terms.lease for check in checks]))


def _unused(checks: Checks, lease: _Lease) -> list[Trip]:
    """Take away what nobody has used, and say how it is given back."""
    left, lease.left = lease.left, 0
    return [Trip(_times(Plan(checks), left), lease.outcomes)] if left else []


def _as_if_used(checks: Checks, outcomes: Outcomes, *, left: int, gone: int) -> Outcomes:
    """The outcomes of a grant, so long ago, as if only the permits that are used had been charged."""
    return tuple(
        [
            outcome._replace(
                remaining=min(outcome.limit, outcome.remaining + left * check.cost),
                reset_after=max(0, outcome.reset_after - gone),
                next_after=max(0, outcome.next_after - gone),
            )
            for check, outcome in zip(checks, outcomes, strict=True)
        ]
    )


def _each(trips: list[Trip]) -> Trips:
    for trip in trips:
        _ = yield trip  # a list itself could not be sent an answer
    return ()


def _times(plan: Plan, count: int) -> Plan:
    return plan._replace(checks=tuple([Check(terms, identity, cost * count) for terms, identity, cost in plan.checks]))


def _all_allowed(outcomes: Outcomes) -> bool:
    return all([outcome.allowed for outcome in outcomes])


def _all_from_store(outcomes: Outcomes) -> bool:
    return all([outcome.source == "store" for outcome in outcomes])
