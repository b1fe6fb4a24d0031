"""The deny cache: it repeats a refusal without a call of the store, which would return the same.

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
from operator import is_
from typing import Final, NamedTuple

from sluicegate.clock import MICROSECOND, Clock, monotonic, reading
from sluicegate.plan import BAN, Check, Checks, Outcome, Outcomes
from sluicegate.runtime import fork

SIZE: Final = 10_000  # refusals that are remembered; the oldest is evicted first
MASK: Final = 1023  # the low bits of the hash of an identity choose one of 1,024 marks


class CachedRefusal(NamedTuple):
    """The outcomes that a store returned for a refused plan, and the time for which the cache may return them again."""

    outcomes: Outcomes
    answered_at: int
    until: int
    stale_at: float  # on the process's monotonic clock


class Refusals:
    """The refusals that still hold. `staleness` is in seconds: 0 remembers none. `size` bounds how many there are.

    A change of a budget first sets a new mark for its identity, then looks in the index for refusals to drop.
    `remember` first adds a refusal to the index, then compares the marks with those from before the call of the store,
    and publishes the refusal only if they are the same. So one of the two always sees the other, and a charge that
    passes takes the lock only if there is a refusal to drop. Identities share the marks by their hashes: after a change
    of one identity the refusal of another identity may not be remembered once.
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
        self._lock = threading.RLock()
        self.kept.clear()  # in place: compiled Runs refer to it
        self.index.clear()

    def repeat(self, checks: Checks) -> Outcomes | None:
        """Return a remembered refusal as the store would return it now; None if there is none any more."""
        known = self.kept.get(checks)
        now = self.read() // self._unit  # after the look-up: another thread may have remembered it just before
        if known is None:
            return None
        if not known.answered_at <= now < known.until or monotonic() >= known.stale_at:
            with self._lock:
                self._drop(checks)
            return None
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
        )  # fmt: skip

    def marks_of(self, checks: Checks) -> list[object]:
        """Return the marks of the identities of these checks."""
        marks, found = self.marks, []
        for _, identity, _ in checks:
            found.append(marks[hash(identity) & MASK])
        return found

    def changed(self, checks: Checks) -> None:
        """Drop the refusals on all budgets that these checks charge or refund."""
        marks, known = self.marks, self.index
        for terms, identity, cost in checks:
            if cost or terms.algorithm == BAN:
                marks[hash(identity) & MASK] = []  # a new object
                if known and (terms.rule_id, identity) in known:
                    self.drop(terms.rule_id, identity)

    def drop(self, rule_id: str, identity: str) -> None:
        """Drop the refusals on one budget."""
        self.marks[hash(identity) & MASK] = object()  # first, before the index is read: the class says why
        with self._lock:
            for checks in list(self.index.get((rule_id, identity), ())):
                self._drop(checks)

    def rule_ids(self, identity: str) -> set[str]:
        """Return the ids of the rules whose budgets of an identity a refusal is about."""
        with self._lock:
            return {rule_id for rule_id, refused in self.index if refused == identity}

    def remember(self, checks: Checks, outcomes: Outcomes, read: int, marks: list[object]) -> None:
        """Drop the refusals that refused checks have changed all the same, and remember their own if that holds.

        `read` and `marks` are from before the call of the store.
        """
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
            marks = self.marks_of(checks)
        if not (holds and self._staleness):
            return
        with self._lock:
            self._drop(checks)  # so that this refusal is the newest: the oldest is evicted first
            for check in checks:  # first the index, then the marks: the class says why
                self.index.setdefault((check.terms.rule_id, check.identity), set()).add(checks)
            if self._has(marks, checks):
                self.kept[checks] = refusal
                if len(self.kept) > self._size:
                    self._drop(next(iter(self.kept)))
            else:
                self._drop(checks)

    def _has(self, marks: list[object], checks: Checks) -> bool:
        return all(map(is_, self.marks_of(checks), marks))

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
