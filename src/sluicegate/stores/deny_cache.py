"""The deny cache: a store that repeats a refusal without asking the store inside, which would answer the same.

A refusal is repeated until any number in it would change. It is never repeated for longer than the staleness, because
another process may have dropped the budget or raised the limit meanwhile. That time starts before the store is asked,
so no client is refused too long. The reported wait starts after the store has answered, so it is never too short. A
refusal is repeated for the same checks at the same costs only: at another cost the wait differs. A refusal by a
concurrency limit is not remembered, because any request that ends makes room.

Whatever this process does to a budget ends every remembered refusal that has a check on that budget: a charge that
passes, a forced one, a counted refusal, a refund, a renewal, a reset. Other costs and other rules of the same request
change the numbers too. An answer is not remembered if one of its budgets was changed while it was under way.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.plan import BAN, Check, Outcome, Plan
from sluicegate.stores import AsyncStore, Store

SIZE: Final = 10_000  # refusals that are remembered; the oldest goes first
_MASK: Final = 1023  # the low bits of the hash of an identity choose one of 1,024 marks

Checks = tuple[Check, ...]
_Asked = tuple[int, list[object]]


class _Refusal(NamedTuple):
    outcomes: tuple[Outcome, ...]
    told_at: int
    until: int


class Refusals:
    """The refusals that still hold. The synchronous and the asynchronous deny cache share this class.

    `staleness` is in seconds; `size` bounds how many refusals are remembered.

    A change of a budget first sets a new mark for its identity, then looks in the index for refusals to drop. `learn`
    first adds a refusal to the index, then looks whether the marks are still those from before the store was asked, and
    only then lets others see the refusal. So one of the two finds the other, and a charge that passes takes no lock
    unless there is something to drop. Identities share the marks by their hashes: a change of one may keep an answer to
    another from being remembered, until the next answer.
    """

    def __init__(self, *, staleness: float, clock: Clock | None = None, size: int = SIZE) -> None:
        self.now_us = (SystemClock() if clock is None else clock).now_us
        self.kept: OrderedDict[Checks, _Refusal] = OrderedDict()
        self._of: dict[tuple[str, str], set[Checks]] = {}  # the index by budget: the rule's id, and the identity
        self._marks: list[object] = [None] * (_MASK + 1)
        self._staleness_us = round(staleness * MICROSECOND)
        self._size = size
        self._lock = threading.RLock()  # a finalizer may refund in a thread that holds it

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

    def ask(self, checks: Checks) -> _Asked:
        """What `learn` needs to know from before the store is asked: the time, and the marks of the identities."""
        marks = self._marks
        if len(checks) == 1:
            return self.now_us(), [marks[hash(checks[0][1]) & _MASK]]
        return self.now_us(), [marks[hash(identity) & _MASK] for _, identity, _ in checks]

    def learn(self, plan: Plan, outcomes: tuple[Outcome, ...], asked: _Asked) -> None:
        """Note what the store answered: drop what the plan has changed, or remember a refusal that holds for a while.

        Without outcomes there was no answer, and the store may have charged all the same.
        """
        if plan.charge:
            refused = False
            for outcome in outcomes:
                if outcome.source != "store":  # the store may have charged, and its answer was lost
                    break
                if not outcome.allowed:
                    refused = not plan.forced
            else:
                if refused:
                    self._refused(plan.checks, outcomes, asked)
                    return
            self.changed(plan)

    def changed(self, plan: Plan) -> None:
        """Drop the refusals on all budgets that the plan charges, or gives back to."""
        marks, known = self._marks, self._of
        for terms, identity, cost in plan.checks:
            if cost or terms.algorithm == BAN:
                marks[hash(identity) & _MASK] = object()
                if (terms.rule_id, identity) in known:
                    self.drop(terms.rule_id, identity)

    def drop(self, rule_id: str, identity: str) -> None:
        """Drop the refusals on one budget."""
        self._marks[hash(identity) & _MASK] = object()
        with self._lock:
            for checks in list(self._of.get((rule_id, identity), ())):
                self._drop(checks)

    def _refused(self, checks: Checks, outcomes: tuple[Outcome, ...], asked: _Asked) -> None:
        """Drop what a refused plan has changed all the same, and remember the refusal, if it is one that holds."""
        sent_at, marks = asked
        counted = _counted(checks, outcomes)
        pairs = zip(checks, outcomes, strict=True)
        holds = all([not told.allowed and check.terms.algorithm == BAN for check, told in counted]) and not any(
            [terms.count_denied or (terms.held and not told.allowed) for (terms, _, _), told in pairs]
        )
        waits = [wait for each in outcomes for wait in (each.retry_after, each.reset_after, each.next_after) if wait]
        refusal = _Refusal(outcomes, self.now_us(), sent_at + min([self._staleness_us, *waits]))
        if counted:  # which is not to be taken for a change by somebody else
            holds = holds and self.ask(checks)[1] == marks
            for check, _ in counted:
                self.drop(check.terms.rule_id, check.identity)
            marks = self.ask(checks)[1]
        if not holds:
            return
        with self._lock:
            self._drop(checks)
            for check in checks:
                self._of.setdefault((check.terms.rule_id, check.identity), set()).add(checks)
            if self.ask(checks)[1] == marks:
                self.kept[checks] = refusal
                if len(self.kept) > self._size:
                    self._drop(next(iter(self.kept)))
            else:
                self._drop(checks)

    def _drop(self, checks: Checks) -> None:
        self.kept.pop(checks, None)
        for check in checks:
            of = self._of.get((check.terms.rule_id, check.identity))
            if of is not None:
                of.discard(checks)
                if not of:
                    self._of.pop((check.terms.rule_id, check.identity), None)


def _counted(checks: Checks, outcomes: tuple[Outcome, ...]) -> list[tuple[Check, Outcome]]:
    """What a refused plan has charged: the checks that count refusals, and the bans that got a strike.

    A ban that held before gets no strike. One that has just begun lasts for exactly one of its lengths.
    """
    pairs = list(zip(checks, outcomes, strict=True))
    strikes = [(check.terms.ban, check.identity) for check, outcome in pairs if not outcome.allowed]
    return [
        (check, outcome)
        for check, outcome in pairs
        if (check.terms.count_denied and check.cost)
        or ((check.terms, check.identity) in strikes and (outcome.allowed or outcome.next_after in check.terms.params))
    ]


class DenyCache:
    """A store that repeats what the store inside has refused.

    `refusals` are also given to whatever inside changes budgets without being asked to: permits that go back.
    """

    def __init__(self, store: Store, refusals: Refusals) -> None:
        self._store = store
        self._refusals = refusals

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
        outcomes: tuple[Outcome, ...] = ()
        asked = refusals.ask(plan.checks)
        try:
            outcomes = self._store.run(plan)
            return outcomes
        finally:
            refusals.learn(plan, outcomes, asked)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Pass on, and drop the refusals on these budgets: there is more now."""
        try:
            self._store.refund(plan, outcomes)
        finally:
            self._refusals.changed(plan)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Pass on, and drop the refusals on these budgets: what is held is held for longer now."""
        try:
            return self._store.renew(plan, outcomes)
        finally:
            self._refusals.changed(plan)

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop a budget in the store inside, and the refusals on it."""
        try:
            self._store.forget(rule_id, identity)
        finally:
            self._refusals.drop(rule_id, identity)

    def close(self) -> None:
        """Close the store inside."""
        self._store.close()


class AsyncDenyCache:
    """The same for asynchronous code."""

    def __init__(self, store: AsyncStore, refusals: Refusals) -> None:
        self._store = store
        self._refusals = refusals

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
        outcomes: tuple[Outcome, ...] = ()
        asked = refusals.ask(plan.checks)
        try:
            outcomes = await self._store.run(plan)
            return outcomes
        finally:
            refusals.learn(plan, outcomes, asked)

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Pass on, and drop the refusals on these budgets: there is more now."""
        try:
            await self._store.refund(plan, outcomes)
        finally:
            self._refusals.changed(plan)

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Pass on, and drop the refusals on these budgets: what is held is held for longer now."""
        try:
            return await self._store.renew(plan, outcomes)
        finally:
            self._refusals.changed(plan)

    async def forget(self, rule_id: str, identity: str) -> None:
        """Drop a budget in the store inside, and the refusals on it."""
        try:
            await self._store.forget(rule_id, identity)
        finally:
            self._refusals.drop(rule_id, identity)

    async def close(self) -> None:
        """Close the store inside."""
        await self._store.close()
