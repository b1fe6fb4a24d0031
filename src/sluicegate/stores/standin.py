"""What answers in a store's place: for each check the policy of its rule, and for "local" a memory store.

"local" is the same algorithm in this process, with every limit divided by the number of processes, at least 1. Each
answer of the store is noted, one for each identity, so that an outage is no refill: where a note is still true, an
identity begins with its share of what the store had left it. Notes are dropped in the order in which they came. Of
requests in flight they say nothing: most of those that the store counted have ended since.
This module knows values, algorithms and the memory store; it asks no other.
"""

from __future__ import annotations

import threading
from fractions import Fraction
from functools import lru_cache
from typing import Final

from sluicegate.algorithms import ALGORITHMS, KEPT
from sluicegate.algorithms.ban import lasting
from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.errors import AlgorithmError, QuotaError, StoreError
from sluicegate.plan import BAN, Check, Outcome, Plan, Terms, strikers
from sluicegate.quota import Quota
from sluicegate.stores.breaker import LONGEST_US
from sluicegate.stores.entries import Network
from sluicegate.stores.memory import MemoryStore

NOTES: Final = 5_000  # the newest are kept, and up to as many again

Note = tuple[int, tuple[Check, ...], tuple[Outcome, ...]]  # when, and what was answered to which


class Standin:
    """Answers while the store does not. Nothing here waits, so it serves both colours."""

    def __init__(self, *, policy: str, replicas: int = 1, clock: Clock | None = None) -> None:
        self._policy = policy
        self._replicas = replicas
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self._moment = _Moment()
        self._memory = MemoryStore(clock=self._moment)
        self._lock = threading.Lock()  # the moment is set for one plan at a time
        self._fresh: dict[str, Note] = {}
        self._older: dict[str, Note] = {}

    def note(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Remember what the store answered. On the path of every request: as little as can be."""
        if outcomes:
            fresh = self._fresh
            fresh[plan.checks[-1].identity] = (self._now_us(), plan.checks, outcomes)
            if len(fresh) >= NOTES:
                self._older, self._fresh = fresh, {}

    def answer(self, plan: Plan, error: StoreError) -> tuple[Outcome, ...]:
        """What the policies make of the plan; the error itself where one of them is "raise"."""
        default = self._policy
        policies = [_policy(terms, default) for terms, _, _ in plan.checks]
        for place, check in enumerate(plan.checks):
            if check.terms.algorithm == BAN:  # goes with the rules that name it
                named = {policies[i] for i, strikes in enumerate(strikers(plan.checks, check)) if strikes}
                policies[place] = "local" if "local" in named else "allow"
        if "raise" in policies:
            raise error
        charge = plan.charge and (plan.forced or "deny" not in policies)
        counted = [check for check, policy in zip(plan.checks, policies, strict=True) if policy == "local"]
        told = iter(self._count(plan._replace(checks=tuple(counted), charge=charge)))
        return tuple(
            [
                next(told) if policy == "local" else _uncounted(check.terms, allowed=policy == "allow")
                for check, policy in zip(plan.checks, policies, strict=True)
            ]
        )

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give back what was counted here."""
        if any([outcome.source == "local" for outcome in outcomes]):
            # Without the lock, which a finalizer must not wait for. The last plan's moment is near enough.
            self._memory.refund(self._shares(plan), _as_told(outcomes))

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Charge again as of now what was counted here."""
        if not any([outcome.source == "local" for outcome in outcomes]):
            return outcomes
        with self._lock:
            self._moment.us = self._now_us()
            renewed = self._memory.renew(self._shares(plan), _as_told(outcomes))
        return tuple([outcome._replace(at=new.at) for outcome, new in zip(outcomes, renewed, strict=True)])

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop what is known of one identity: its budget here, and what the store said of it."""
        self._fresh.pop(identity, None)
        self._older.pop(identity, None)
        self._memory.forget(rule_id, identity)

    def close(self) -> None:
        """Forget everything."""
        self._fresh, self._older = {}, {}
        self._memory.close()

    def _count(self, plan: Plan) -> list[Outcome]:
        if not plan.checks:
            return []
        with self._lock:
            now = self._now_us()
            for identity in {check.identity for check in plan.checks}:
                self._recall(identity, now, plan.network)
            outcomes = self._run(self._shares(plan), now)
        return [outcome._replace(source="local") for outcome in outcomes]

    def _recall(self, identity: str, now: int, network: Network) -> None:
        """Charge what an identity had used by its last note, once, as far as that is not free again."""
        note = self._fresh.pop(identity, None) or self._older.pop(identity, None)
        if note is not None:
            noted_at, checks, outcomes = note
            for check, outcome in zip(checks, outcomes, strict=True):
                free_at = noted_at + outcome.reset_after
                if check.terms.algorithm == BAN and not outcome.allowed:
                    self._ban(check, left=noted_at + outcome.next_after - now, now=now)
                elif free_at > now and not check.terms.held:
                    used = Plan((self._share(check),), network=network)
                    self._charge_used(used, outcome, now=now, free_at=free_at)

    def _ban(self, check: Check, *, left: int, now: int) -> None:
        """Let a ban hold until the store's would end."""
        if left > 0:
            self._run(Plan((check._replace(terms=lasting(check.terms, left), cost=check.terms.params[0]),)), now)

    def _charge_used(self, plan: Plan, outcome: Outcome, *, now: int, free_at: int) -> None:
        """Leave a budget with no more than its share of what the store had left, until the store's would be whole."""
        [share] = plan.checks
        terms = share.terms
        limit = terms.params[0]
        [here] = self._run(plan._replace(checks=(share._replace(cost=0),)), now)
        used = here.remaining - outcome.remaining * limit // max(1, outcome.limit)
        if used > 0:
            if here.remaining == limit:  # as if charged at the moment that makes it free when the store's would be
                algorithm = KEPT[terms.algorithm]
                state = algorithm.charge(None, now, used, terms.params)
                now = min(now, free_at - algorithm.check(state, now, 0, terms.params).reset_after)
            self._run(plan._replace(checks=(share._replace(cost=used),)), now)

    def _run(self, plan: Plan, now: int) -> tuple[Outcome, ...]:
        self._moment.us = now
        return self._memory.run(plan)

    def _shares(self, plan: Plan) -> Plan:
        return plan._replace(checks=tuple([self._share(check) for check in plan.checks]))

    def _share(self, check: Check) -> Check:
        """The check against this process's share; what passes the whole limit only takes all of the share."""
        terms = check.terms
        share = _divided(terms, self._replicas)
        limit = share.params[0]
        cost = limit if limit < check.cost <= terms.params[0] else check.cost
        return Check(share, check.identity, cost)


class _Moment:
    """A clock that tells what it was told: some of what is counted here happened a moment ago."""

    us = 0

    def now_us(self) -> int:
        return self.us


def _as_told(outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
    """The outcomes of what was counted here as the memory store told them; the others were charged nowhere."""
    return tuple([each._replace(source="store" if each.source == "local" else "policy") for each in outcomes])


def _policy(terms: Terms, default: str) -> str:
    """The policy of a rule; a shadow rule refuses nobody, and raises nothing."""
    policy = default if terms.on_store_failure is None else terms.on_store_failure
    return "allow" if terms.shadow and policy != "local" else policy


def _uncounted(terms: Terms, *, allowed: bool) -> Outcome:
    """The outcome of a policy that knows no budget. Who is refused comes back when the store has been asked again."""
    limit, wait = terms.params[0], 0 if allowed else LONGEST_US
    return Outcome(allowed, limit, limit if allowed else 0, wait, wait, wait, source="policy")


@lru_cache(maxsize=4096)
def _divided(terms: Terms, replicas: int) -> Terms:
    """The terms of one of so many processes, under the same name and key."""
    if replicas == 1 or terms.algorithm == BAN:
        return terms
    algorithm, period = ALGORITHMS[terms.algorithm], Fraction(terms.quota.period_us, MICROSECOND)
    least, capacity = max(1, terms.quota.limit // replicas), max(1, terms.params[0] // replicas)
    for limit, times, burst in (
        (terms.quota.limit, replicas, capacity),  # a bucket's rate is divided exactly by a longer period
        (least, 1, None),  # a window has no burst, and its limit is divided
        (1, 1, 1),  # numbers that would not be exact, or a period above a hundred years: as strict as can be
    ):
        try:
            quota = Quota(limit, period * times, burst=burst)
            params = algorithm.params(quota)
        except (AlgorithmError, QuotaError):
            continue
        return terms._replace(quota=quota, params=params, window_us=algorithm.window_us(params))
    return terms
