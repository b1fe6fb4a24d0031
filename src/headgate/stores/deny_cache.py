"""The deny cache: a store that repeats a refusal by itself, for as long as the store inside would say the same.

That is until any number in it would change, and no longer than the staleness, for another process may have dropped the
budget or raised the limit meanwhile. It is counted from before the store was asked, so nobody is refused too long; the
waits that are told are counted from after, so nobody is told too short a one. A refusal speaks for the very same checks
at the same costs: at another cost the wait is another. A refusal for want of a place in flight holds for no time at
all, for any request that ends makes room.
This module knows values and clocks, and of the store inside its calls.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from headgate.clock import MICROSECOND, Clock, SystemClock
from headgate.plan import Check, Outcome, Plan
from headgate.stores import AsyncStore, Store

SIZE: Final = 10_000  # refusals that are remembered; the oldest goes first

Checks = tuple[Check, ...]


class _Refusal(NamedTuple):
    outcomes: tuple[Outcome, ...]
    told_at: int
    until: int


class _Refusals:
    """What both colours share: the refusals that still hold."""

    def __init__(self, *, staleness: float, clock: Clock | None, size: int) -> None:
        self.now_us = (SystemClock() if clock is None else clock).now_us
        self.drops = 0  # how often something was dropped: an answer from before that is not remembered
        self.kept: OrderedDict[Checks, _Refusal] = OrderedDict()
        self._of: dict[str, set[Checks]] = {}  # the same by identity
        self._staleness_us = round(staleness * MICROSECOND)
        self._size = size
        self._lock = threading.Lock()

    def repeat(self, plan: Plan, refusal: _Refusal) -> tuple[Outcome, ...] | None:
        """The refusal as the store would tell it now; None if it would tell another, or the plan only looks."""
        now = self.now_us()
        if now >= refusal.until:
            with self._lock:
                self._drop(plan.checks)
            return None
        if not plan.charge or plan.forced:
            return None
        gone = now - refusal.told_at  # less than any wait that is left: what is 0 or NEVER stays so
        return tuple(
            [
                Outcome(
                    allowed, limit, left, retry and retry - gone,
                    reset and reset - gone, following and following - gone, at + gone, source,
                )
                for allowed, limit, left, retry, reset, following, at, source in refusal.outcomes
            ]
        )  # fmt: skip

    def keep(self, plan: Plan, outcomes: tuple[Outcome, ...], *, sent_at: int, drops: int) -> None:
        """Remember a refusal, if it is one that holds for a while."""
        if not plan.charge or any([terms.count_denied for terms, _, _ in plan.checks]):
            return
        if any([outcome.source != "store" for outcome in outcomes]) or _are_strikes(plan.checks, outcomes):
            return
        if any([terms.held and not told.allowed for (terms, _, _), told in zip(plan.checks, outcomes, strict=True)]):
            return
        waits = [wait for each in outcomes for wait in (each.retry_after, each.reset_after, each.next_after) if wait]
        refusal = _Refusal(outcomes, self.now_us(), sent_at + min([self._staleness_us, *waits]))
        with self._lock:
            if drops == self.drops:
                self._drop(plan.checks)
                self.kept[plan.checks] = refusal
                for check in plan.checks:
                    self._of.setdefault(check.identity, set()).add(plan.checks)
                if len(self.kept) > self._size:
                    self._drop(next(iter(self.kept)))

    def drop(self, *identities: str) -> None:
        """Forget the refusals of these identities, whatever the rule."""
        with self._lock:
            self.drops += 1
            for identity in identities:
                for checks in list(self._of.get(identity, ())):
                    self._drop(checks)

    def _drop(self, checks: Checks) -> None:
        if self.kept.pop(checks, None) is not None:
            for identity in {check.identity for check in checks}:
                of = self._of[identity]
                of.discard(checks)
                if not of:
                    del self._of[identity]


def _are_strikes(checks: Checks, outcomes: tuple[Outcome, ...]) -> bool:
    """Whether a refusal is to be counted, when it comes again, towards a ban that does not hold yet."""
    refused = [check for check, outcome in zip(checks, outcomes, strict=True) if not outcome.allowed]
    holding = {(check.terms, check.identity) for check in refused}
    return any([terms.ban is not None and (terms.ban, identity) not in holding for terms, identity, _ in refused])


class DenyCache:
    """A store that remembers what the store inside has refused, for at most `staleness` seconds."""

    def __init__(self, store: Store, *, staleness: float, clock: Clock | None = None, size: int = SIZE) -> None:
        self._store = store
        self._refusals = _Refusals(staleness=staleness, clock=clock, size=size)

    def __repr__(self) -> str:
        return f"DenyCache({self._store!r})"

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Repeat a refusal, or ask the store inside."""
        refusals = self._refusals
        known = refusals.kept.get(plan.checks)
        if known is not None:
            repeated = refusals.repeat(plan, known)
            if repeated is not None:
                return repeated
        drops, sent_at = refusals.drops, refusals.now_us()
        outcomes = self._store.run(plan)
        if plan.forced:  # there is less now, and a longer wait
            refusals.drop(*[check.identity for check in plan.checks])
            return outcomes
        for outcome in outcomes:
            if not outcome.allowed:
                refusals.keep(plan, outcomes, sent_at=sent_at, drops=drops)
                break
        return outcomes

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Pass on, and forget what was refused to whom it concerns: there is more now."""
        self._store.refund(plan, outcomes)
        self._refusals.drop(*[check.identity for check in plan.checks])

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Pass on."""
        return self._store.renew(plan, outcomes)

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop a budget in the store inside, and what was refused for want of it."""
        self._store.forget(rule_id, identity)
        self._refusals.drop(identity)

    def close(self) -> None:
        """Close the store inside."""
        self._store.close()


class AsyncDenyCache:
    """The same for asynchronous code."""

    def __init__(self, store: AsyncStore, *, staleness: float, clock: Clock | None = None, size: int = SIZE) -> None:
        self._store = store
        self._refusals = _Refusals(staleness=staleness, clock=clock, size=size)

    def __repr__(self) -> str:
        return f"AsyncDenyCache({self._store!r})"

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Repeat a refusal, or ask the store inside."""
        refusals = self._refusals
        known = refusals.kept.get(plan.checks)
        if known is not None:
            repeated = refusals.repeat(plan, known)
            if repeated is not None:
                return repeated
        drops, sent_at = refusals.drops, refusals.now_us()
        outcomes = await self._store.run(plan)
        if plan.forced:  # there is less now, and a longer wait
            refusals.drop(*[check.identity for check in plan.checks])
            return outcomes
        for outcome in outcomes:
            if not outcome.allowed:
                refusals.keep(plan, outcomes, sent_at=sent_at, drops=drops)
                break
        return outcomes

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Pass on, and forget what was refused to whom it concerns: there is more now."""
        await self._store.refund(plan, outcomes)
        self._refusals.drop(*[check.identity for check in plan.checks])

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Pass on."""
        return await self._store.renew(plan, outcomes)

    async def forget(self, rule_id: str, identity: str) -> None:
        """Drop a budget in the store inside, and what was refused for want of it."""
        await self._store.forget(rule_id, identity)
        self._refusals.drop(identity)

    async def close(self) -> None:
        """Close the store inside."""
        await self._store.close()
