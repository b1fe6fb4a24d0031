"""The local fallback: it decides while the store is unavailable. The policy of a check's rule decides about the check.

The policy "local" runs the same algorithm in a memory store of this process. Every limit is divided by the number of
processes, and is at least 1. An outage must not refill a budget. So the fallback notes the last outcomes of the store
for each identity. While the note is valid, the identity starts with its share of the units that the store had left. The
oldest notes are dropped first. Notes do not count concurrency limits: most of the counted requests have ended since.
"""

from __future__ import annotations

import threading
from fractions import Fraction
from functools import lru_cache
from typing import Final

from sluicegate.algorithms import ALGORITHMS, KEPT
from sluicegate.algorithms.ban import lasting
from sluicegate.clock import MICROSECOND, Clock, SystemClock, reading
from sluicegate.errors import AlgorithmError, QuotaError, StoreError
from sluicegate.plan import BAN, Check, Checks, Network, Outcome, Outcomes, Plan, Terms, strikers
from sluicegate.quota import Quota
from sluicegate.runtime import fork
from sluicegate.stores.breaker import LONGEST_US
from sluicegate.stores.memory import MemoryStore

NOTES: Final = 5_000  # this many of the newest notes are kept, at most twice as many

_Note = tuple[int, Checks, Outcomes]  # a reading of the clock, the checks of a plan and their outcomes
_Key = tuple[str, str]  # of a budget: the rule's id, and the identity


class LocalFallback:
    """Decides while the store is unavailable. It never blocks, so sync and async code share it."""

    def __init__(self, *, policy: str, replicas: int = 1, clock: Clock | None = None) -> None:
        self._policy = policy
        self._replicas = replicas
        self._read, self._unit = reading(clock)  # for notes
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self.decisions = self.allowed = 0  # made here, for the status; peeks do not count
        self._memory = MemoryStore(clock=clock)
        # A note is charged once, before the plan that asked for it. Reentrant, as the lock of the memory store.
        self._lock = threading.RLock()
        self._fresh: dict[_Key, _Note] = {}
        self._older: dict[_Key, _Note] = {}
        fork.renew(self)

    def after_fork(self) -> None:
        """Begin without notes, as the memory store begins empty."""
        self._lock = threading.RLock()
        self._fresh, self._older = {}, {}

    def note(self, checks: Checks, outcomes: Outcomes) -> None:
        """Remember the outcomes that the store returned. Every request calls this, so it does as little as possible."""
        fresh, read = self._fresh, self._read
        note = (read(), checks, outcomes)
        for terms, identity, _ in checks:
            fresh[terms[1], identity] = note  # by the id of the rule: a number costs less than a name
        if len(fresh) >= NOTES:
            self._older, self._fresh = fresh, {}  # the oldest notes go at once: no scan, and no order to keep

    def answer(self, plan: Plan, error: StoreError) -> tuple[Outcome, ...]:
        """Decide a plan with the policies of its rules. Raise `error` if a policy is "raise"."""
        default = self._policy
        policies = [_policy(terms, default) for terms, _, _ in plan.checks]
        for at, check in enumerate(plan.checks):
            if check.terms.algorithm == BAN:  # a ban follows the rules that name it
                named = {policies[i] for i, strikes in enumerate(strikers(plan.checks, check)) if strikes}
                policies[at] = "local" if "local" in named else "allow"
        if "raise" in policies:
            raise error
        # A rule that refuses by its policy refuses the plan, so no other rule is charged.
        charge = plan.charge and (plan.forced or "deny" not in policies)
        counted = [check for check, policy in zip(plan.checks, policies, strict=True) if policy == "local"]
        local = iter(self._count(plan._replace(checks=tuple(counted), charge=charge)))
        outcomes = tuple(
            [
                next(local) if policy == "local" else _uncounted(check.terms, allowed=policy == "allow")
                for check, policy in zip(plan.checks, policies, strict=True)
            ]
        )
        if plan.charge:
            self.decisions += 1
            self.allowed += all([outcome.allowed for outcome in outcomes])
        return outcomes

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Refund what was charged here."""
        if any([outcome.source == "local" for outcome in outcomes]):
            # Without the lock, because a finalizer must not wait for it.
            self._memory.refund(self._divided_plan(plan), _as_charged(outcomes))

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Charge again, as of now, what was charged here."""
        if not any([outcome.source == "local" for outcome in outcomes]):
            return outcomes
        charged = _as_charged(outcomes)
        renewed = self._memory.renew(self._divided_plan(plan), charged)
        if renewed is charged:
            return outcomes
        return tuple([outcome._replace(at=new.at) for outcome, new in zip(outcomes, renewed, strict=True)])

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop one budget here, and its note."""
        self._fresh.pop((rule_id, identity), None)
        self._older.pop((rule_id, identity), None)
        self._memory.forget(rule_id, identity)

    def remembered(self, identity: str) -> set[str]:
        """Return the ids of the rules under which an identity has a budget or a note here."""
        notes = [*list(self._fresh), *list(self._older)]  # each is copied in one step: other threads add to them
        return self._memory.rule_ids(identity) | {rule_id for rule_id, noted in notes if noted == identity}

    def close(self) -> None:
        """Forget everything."""
        self._fresh, self._older = {}, {}
        self._memory.close()

    def _count(self, plan: Plan) -> list[Outcome]:
        if not plan.checks:
            return []
        with self._lock:
            now = self._now_us()
            for check in plan.checks:  # first: an outage must not refill a budget
                self._recall((check.terms.rule_id, check.identity), now, plan.network)
            outcomes = self._memory.run(self._divided_plan(plan))
        return [outcome._replace(source="local") for outcome in outcomes]

    def _recall(self, key: _Key, now: int, network: Network) -> None:
        """Charge once the units of a budget that were used according to its last note, except those free again."""
        fresh, older = self._fresh.pop(key, None), self._older.pop(key, None)  # both, or the older is charged later
        note = fresh or older
        if note is not None:
            read, checks, outcomes = note
            pairs = zip(checks, outcomes, strict=True)
            check, outcome = {(pair[0].terms.rule_id, pair[0].identity): pair for pair in pairs}[key]
            noted_at = read // self._unit
            free_at = noted_at + outcome.reset_after
            if check.terms.algorithm == BAN and not outcome.allowed:
                self._ban(check, left=noted_at + outcome.next_after - now)
            elif free_at > now and not check.terms.held:
                used = Plan((self._divided_check(check),), network=network)
                self._charge_used(used, outcome, now=now, free_at=free_at)

    def _ban(self, check: Check, *, left: int) -> None:
        """Start a ban in this process that ends at the same time as the ban in the store. `left` is in microseconds."""
        if left > 0:
            self._memory.run(Plan((check._replace(terms=lasting(check.terms, left), cost=check.terms.limit),)))

    def _charge_used(self, plan: Plan, outcome: Outcome, *, now: int, free_at: int) -> None:
        """Leave a budget at most its part of what the store had left, until the store's budget would be fully reset.

        What was used here and there becomes one charge. Units of an earlier outage may be free sooner than the store's,
        so they do not stand for them.
        """
        [check] = plan.checks
        terms = check.terms
        limit = terms.limit
        [here] = self._memory.run(plan._replace(checks=(check._replace(cost=0),)))
        used = limit - min(here.remaining, outcome.remaining * limit // max(1, outcome.limit))
        if used > 0:
            # As if charged at the time that frees it together with the later of the two.
            charged, _ = KEPT[terms.algorithm].decide(None, now, used, terms.params)
            at = min(now, max(free_at, now + here.reset_after) - charged.reset_after)
            self._memory.forget(terms.rule_id, check.identity)
            self._memory.charge(plan._replace(checks=(check._replace(cost=used),)), at=at)

    def _divided_plan(self, plan: Plan) -> Plan:
        return plan._replace(checks=tuple([self._divided_check(check) for check in plan.checks]))

    def _divided_check(self, check: Check) -> Check:
        """Return the check against this process's part of the limit.

        A cost above that part, but not above the whole limit, takes all of the part.
        """
        terms = check.terms
        part = _divided(terms, self._replicas)
        cost = part.limit if part.limit < check.cost <= terms.limit else check.cost
        return Check(part, check.identity, cost)


def _as_charged(outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
    """Return the outcomes as the memory store returned them: the local ones were charged there, the others nowhere."""
    return tuple([each._replace(source="store" if each.source == "local" else "policy") for each in outcomes])


def _policy(terms: Terms, default: str) -> str:
    """Return the policy of a rule. A shadow rule refuses no request and raises nothing."""
    policy = default if terms.on_store_failure is None else terms.on_store_failure
    return "allow" if terms.shadow and policy != "local" else policy


def _uncounted(terms: Terms, *, allowed: bool) -> Outcome:
    """Return the outcome of "allow" or "deny", which count nothing. The wait is until the next probe."""
    limit, wait = terms.limit, 0 if allowed else LONGEST_US
    return Outcome(allowed, limit, limit if allowed else 0, wait, wait, wait, source="policy")


@lru_cache(maxsize=4096)
def _divided(terms: Terms, replicas: int) -> Terms:
    """Return the terms of one of `replicas` processes, under the same name and key."""
    if replicas == 1 or terms.algorithm == BAN:
        return terms
    if terms.quota.calendar is not None:  # its windows stay
        return terms._replace(params=(max(1, terms.limit // replicas), *terms.params[1:]))
    algorithm, period = ALGORITHMS[terms.algorithm], Fraction(terms.quota.period_us, MICROSECOND)
    least, capacity = max(1, terms.quota.limit // replicas), max(1, terms.limit // replicas)
    for limit, times, burst in (
        (terms.quota.limit, replicas, capacity),  # for a bucket, a longer period divides the rate exactly
        (least, 1, None),  # a window has no burst, so its limit is divided
        (1, 1, 1),  # the numbers would not be exact, or the period above a hundred years: the strictest quota
    ):
        try:
            quota = Quota(limit, period * times, burst=burst)
            params = algorithm.params(quota)
        except (AlgorithmError, QuotaError):
            continue
        return terms._replace(quota=quota, params=params, window_us=algorithm.window_us(params))
    return terms
