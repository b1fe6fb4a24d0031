"""The deny cache: a store that repeats a refusal without a call of the store inside, which would return the same.

A refusal is repeated until any number in it would change. It is never repeated for longer than the staleness, because
another process may have dropped the budget or raised the limit in that time. The process's monotonic clock measures the
staleness too, because the store's own clock may step back or stand still. The time for which the numbers hold starts
before the store is called, so no client is refused too long. The reported wait starts after the store has replied, so
it is never too short. A refusal is repeated for the same checks at the same costs only: at another cost the wait
differs. A refusal by a concurrency limit is not remembered, because any request that ends frees a slot.

When this process changes a budget, it drops every remembered refusal that has a check on that budget. A budget is
changed by a charge that passes, a forced charge, a counted refusal, a refund, a renewal and a reset. Other costs and
other rules of the same request change the numbers too. A refusal is not remembered if one of its budgets was changed
between the call of the store and its reply.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from operator import is_
from typing import Final, Generic, NamedTuple, TypeVar

from sluicegate.clock import MICROSECOND, Clock, monotonic, reading
from sluicegate.observe.status import Status, describe
from sluicegate.plan import BAN, Check, Checks, Outcome, Outcomes, Plan, Terms
from sluicegate.runtime import fork
from sluicegate.stores import AsyncStore, Hit, Store

SIZE: Final = 10_000  # refusals that are remembered; the oldest is evicted first
MASK: Final = 1023  # the low bits of the hash of an identity choose one of 1,024 marks

_Before = tuple[int, list[object]]  # the reading of the clock before the call, and the marks of the identities
_NO_ANSWER: Final[Outcomes] = ()
_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)


class CachedRefusal(NamedTuple):
    """The outcomes that a store returned for a refused plan, and the time for which the cache may return them again."""

    outcomes: Outcomes
    answered_at: int
    until: int
    stale_at: float  # on the process's monotonic clock


class Refusals:
    """The refusals that still hold. The sync and the async deny cache share this class.

    `staleness` is in seconds; `size` bounds how many refusals are remembered.

    A change of a budget first sets a new mark for its identity, then looks in the index for refusals to drop. `learn`
    first adds a refusal to the index, then compares the marks with those from before the call of the store, and
    publishes the refusal only if they are the same. So one of the two always sees the other, and a charge that passes
    takes the lock only if there is a refusal to drop. Identities share the marks by their hashes: after a change of one
    identity the refusal of another identity may not be remembered once.
    """

    def __init__(self, *, staleness: float, clock: Clock | None = None, size: int = SIZE) -> None:
        self.read, self._unit = reading(clock)
        self.kept: OrderedDict[Checks, CachedRefusal] = OrderedDict()
        self.index: dict[tuple[str, str], set[Checks]] = {}  # the index by budget: the rule's id, and the identity
        self.marks: list[object] = [None] * (MASK + 1)
        self._staleness, self._staleness_us = staleness, round(staleness * MICROSECOND)
        self._size = size
        self.repeated = 0  # refusals, for the status
        self._lock = threading.RLock()  # a finalizer may refund in a thread that holds it
        fork.renew(self)

    def after_fork(self) -> None:
        """Begin empty: another thread of the parent may have been changing the index."""
        self.kept, self.index, self._lock = OrderedDict(), {}, threading.RLock()

    def look(self, plan: Plan) -> tuple[Outcomes | None, _Before]:
        """Return a remembered refusal as the store would return it now, or None; and what `learn` needs if the store is
        called.

        A peek and a forced plan always go to the store.
        """
        checks, marks = plan[0], self.marks
        known = self.kept.get(checks) if self.kept else None
        read = self.read()  # after the look-up: another thread may have remembered the refusal just before it
        if known is not None:
            now = read // self._unit
            if not known.answered_at <= now < known.until or monotonic() >= known.stale_at:
                with self._lock:
                    self._drop(checks)
            elif plan.charge and not plan.forced:
                self.repeated += 1
                gone = now - known.answered_at  # less than any remaining wait: what is 0 or NEVER stays so
                return tuple(
                    [
                        Outcome(
                            allowed, limit, left, retry and retry - gone,
                            reset and reset - gone, following and following - gone, at + gone, source,
                        )
                        for allowed, limit, left, retry, reset, following, at, source in known.outcomes
                    ]
                ), (read, [])  # fmt: skip
        return None, (read, [marks[hash(identity) & MASK] for _, identity, _ in checks])

    def learn(self, plan: Plan, outcomes: Outcomes, before: _Before) -> None:
        """Drop the refusals that this plan has changed, or remember its refusal. `before` is from `look`.

        `outcomes` are empty when the store failed. The store may have charged all the same.
        """
        if plan[1]:  # it charges
            for outcome in outcomes:
                if not outcome[0] and not plan.forced:
                    # If the local fallback decided, the store may have charged before its reply was lost.
                    if all([outcome.source == "store" for outcome in outcomes]):
                        self._remember(plan.checks, outcomes, before)
                        return
                    break
            self.changed(plan[0])

    def changed(self, checks: Checks) -> None:
        """Drop the refusals on all budgets that these checks charge or refund."""
        marks, known = self.marks, self.index
        for terms, identity, cost in checks:
            if cost or terms.algorithm == BAN:
                marks[hash(identity) & MASK] = object()
                if known and (terms.rule_id, identity) in known:
                    self.drop(terms.rule_id, identity)

    def drop(self, rule_id: str, identity: str) -> None:
        """Drop the refusals on one budget."""
        self.marks[hash(identity) & MASK] = object()
        with self._lock:
            for checks in list(self.index.get((rule_id, identity), ())):
                self._drop(checks)

    def rule_ids(self, identity: str) -> set[str]:
        """Return the ids of the rules whose budgets of an identity a refusal is about."""
        with self._lock:
            return {rule_id for rule_id, refused in self.index if refused == identity}

    def _remember(self, checks: Checks, outcomes: Outcomes, before: _Before) -> None:
        """Drop the refusals that a refused plan has changed all the same, and remember its own if that holds."""
        read, marks = before
        counted = _counted(checks, outcomes)
        pairs = zip(checks, outcomes, strict=True)
        holds = all([not outcome.allowed and check.terms.algorithm == BAN for check, outcome in counted]) and not any(
            [terms.count_denied or (terms.held and not outcome.allowed) for (terms, _, _), outcome in pairs]
        )
        waits = [wait for each in outcomes for wait in (each.retry_after, each.reset_after, each.next_after) if wait]
        until = read // self._unit + min([self._staleness_us, *waits])
        stale_at = monotonic() + self._staleness
        refusal = CachedRefusal(outcomes, self.read() // self._unit, until, stale_at=stale_at)
        if counted:  # `drop` sets new marks: they must not be taken for a change by another request
            holds = holds and self._has(marks, checks)
            for check, _ in counted:
                self.drop(check.terms.rule_id, check.identity)
            marks = self._marks_of(checks)
        if not holds:
            return
        with self._lock:
            self._drop(checks)
            for check in checks:
                self.index.setdefault((check.terms.rule_id, check.identity), set()).add(checks)
            if self._has(marks, checks):
                self.kept[checks] = refusal
                if len(self.kept) > self._size:
                    self._drop(next(iter(self.kept)))
            else:
                self._drop(checks)

    def _marks_of(self, checks: Checks) -> list[object]:
        return [self.marks[hash(identity) & MASK] for _, identity, _ in checks]

    def _has(self, marks: list[object], checks: Checks) -> bool:
        return all(map(is_, self._marks_of(checks), marks))

    def _drop(self, checks: Checks) -> None:
        self.kept.pop(checks, None)
        for check in checks:
            of = self.index.get((check.terms.rule_id, check.identity))
            if of is not None:
                of.discard(checks)
                if not of:
                    self.index.pop((check.terms.rule_id, check.identity), None)


def _counted(checks: Checks, outcomes: Outcomes) -> list[tuple[Check, Outcome]]:
    """Return what a refused plan has charged: the checks that count refusals, and the bans that got a strike.

    A ban that held before gets no strike. A ban that has just begun lasts for exactly one of its durations.
    """
    pairs = list(zip(checks, outcomes, strict=True))
    strikes = [(check.terms.ban, check.identity) for check, outcome in pairs if not outcome.allowed]
    return [
        (check, outcome)
        for check, outcome in pairs
        if (check.terms.count_denied and check.cost)
        or ((check.terms, check.identity) in strikes and (outcome.allowed or outcome.next_after in check.terms.params))
    ]


class _DenyCache(Generic[_AnyStore]):
    """What the sync and the async deny cache share: everything but the call of the store inside."""

    inside: _AnyStore

    def __init__(self, store: _AnyStore, refusals: Refusals) -> None:
        self.inside = store
        self.refusals = refusals

    def prepare(self, *terms: Terms) -> Hit | None:
        """Return a function that decides checks of these terms, if the store inside has one for while it is healthy."""
        prepare: Callable[[tuple[Terms, ...], Refusals], Hit | None] | None = getattr(self.inside, "healthy", None)
        return None if prepare is None else prepare(terms, self.refusals)

    def remembered(self, identity: str) -> set[str]:
        """Return the ids of the rules under which this process remembers something of an identity."""
        inside: set[str] = self.inside.remembered(identity)  # type: ignore[attr-defined]
        return inside | self.refusals.rule_ids(identity)

    def describe(self) -> Status:
        """Return the status of the store inside, with the number of refusals that were repeated here."""
        return describe(self.inside)._replace(cached_refusals=self.refusals.repeated)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inside!r})"


class DenyCache(_DenyCache[Store]):
    """A store that repeats the refusals of the store inside."""

    def run(self, plan: Plan) -> Outcomes:
        """Repeat a refusal, or ask the store inside."""
        refusals, outcomes = self.refusals, _NO_ANSWER
        repeated, before = refusals.look(plan)
        if repeated is not None:
            return repeated
        try:
            outcomes = self.inside.run(plan)
            return outcomes
        finally:
            refusals.learn(plan, outcomes, before)

    def refund(self, plan: Plan, outcomes: Outcomes) -> None:
        """Refund in the store inside, then drop the refusals on these budgets: they have more left now."""
        try:
            self.inside.refund(plan, outcomes)
        finally:
            self.refusals.changed(plan.checks)

    def renew(self, plan: Plan, outcomes: Outcomes) -> Outcomes:
        """Renew in the store inside, then drop the refusals on these budgets: their slots are held for longer now."""
        try:
            return self.inside.renew(plan, outcomes)
        finally:
            self.refusals.changed(plan.checks)

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop a budget in the store inside, then the refusals on it."""
        try:
            self.inside.forget(rule_id, identity)
        finally:
            self.refusals.drop(rule_id, identity)

    def close(self) -> None:
        """Close the store inside."""
        self.inside.close()


class AsyncDenyCache(_DenyCache[AsyncStore]):
    """A DenyCache for asynchronous code."""

    async def run(self, plan: Plan) -> Outcomes:
        refusals, outcomes = self.refusals, _NO_ANSWER
        repeated, before = refusals.look(plan)
        if repeated is not None:
            return repeated
        try:
            outcomes = await self.inside.run(plan)
            return outcomes
        finally:
            refusals.learn(plan, outcomes, before)

    async def refund(self, plan: Plan, outcomes: Outcomes) -> None:
        try:
            await self.inside.refund(plan, outcomes)
        finally:
            self.refusals.changed(plan.checks)

    async def renew(self, plan: Plan, outcomes: Outcomes) -> Outcomes:
        try:
            return await self.inside.renew(plan, outcomes)
        finally:
            self.refusals.changed(plan.checks)

    async def forget(self, rule_id: str, identity: str) -> None:
        try:
            await self.inside.forget(rule_id, identity)
        finally:
            self.refusals.drop(rule_id, identity)

    async def close(self) -> None:
        await self.inside.close()
