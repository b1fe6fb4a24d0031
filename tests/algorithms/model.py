"""The exact rational model: each algorithm by its definition only, every outcome found by search.

A model knows how much is used at a moment, and how to add a hit. All the rest (retry_after, next_after, reset_after)
is the least whole microsecond at which something holds, found by bisection: no formula of the code is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor
from typing import Protocol

from sluicegate.clock import MICROSECOND, Clock
from sluicegate.plan import NEVER, Outcome, Plan, Terms, charged


class Budget(Protocol):
    """One identity under one rule."""

    def used(self, at: int, terms: Terms) -> Fraction: ...

    def add(self, at: int, units: int, terms: Terms) -> None: ...

    def take(self, at: int, units: int, terms: Terms, *, now: int) -> None: ...


class Log:
    """Every hit as (stamp, units); a stamp counts until it is a window old.

    Stamps are rounded up to a grain, and never fall: a hit after a limit with a coarser grain takes the last stamp.
    """

    def __init__(self) -> None:
        self.hits: list[tuple[int, int]] = []

    def used(self, at: int, terms: Terms) -> Fraction:
        return Fraction(sum(units for stamp, units in self.hits if stamp + terms.window_us > at))

    def add(self, at: int, units: int, terms: Terms) -> None:
        grain = terms.params[2] if len(terms.params) > 2 else 1
        self.hits = [hit for hit in self.hits if hit[0] + terms.window_us > at]
        stamp = ceil(Fraction(at, grain)) * grain
        self.hits.append((max([stamp, *(earlier for earlier, _ in self.hits)]), units))
        surplus = sum(units for _, units in self.hits) - terms.params[0]
        while surplus > 0:  # a refusal that is counted pushes the oldest units out
            stamp, units = self.hits.pop(0)
            if units > surplus:
                self.hits.insert(0, (stamp, units - surplus))
            surplus -= units

    def take(self, at: int, units: int, terms: Terms, *, now: int) -> None:
        grain = terms.params[2] if len(terms.params) > 2 else 1
        self.hits = [hit for hit in self.hits if hit[0] + terms.window_us > now]
        stamp = min([stamp for stamp, _ in self.hits if stamp >= at], default=at)
        if stamp <= ceil(Fraction(at, grain)) * grain:
            there = sum(count for other, count in self.hits if other == stamp)
            kept = [(stamp, there - units)] if there > units else []
            self.hits = sorted([hit for hit in self.hits if hit[0] != stamp] + kept)


class Window:
    """The hits of the window that began with the first of them."""

    def __init__(self) -> None:
        self.hits: list[tuple[int, int]] = []

    def used(self, at: int, terms: Terms) -> Fraction:
        over = not self.hits or at >= self.hits[0][0] + terms.window_us
        return Fraction(0 if over else sum(units for _, units in self.hits))

    def add(self, at: int, units: int, terms: Terms) -> None:
        used = int(self.used(at, terms))
        if not used:
            self.hits = []
        self.hits.append((at, max(0, min(units, terms.params[0] - used))))

    def take(self, at: int, units: int, terms: Terms, *, now: int) -> None:
        used = int(self.used(now, terms))
        if used and self.hits[0][0] <= at:
            self.hits.append((at, -min(units, used)))


class Dated:
    """Hits by the end of their window. Windows before and after the two that the terms know are as long as these."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def _end(self, at: int, terms: Terms) -> int:
        length, following = (seconds * MICROSECOND for seconds in divmod(terms.params[2], 2**25))
        edge = terms.params[1] + length
        length = length if at < edge else following
        return edge - (edge - 1 - at) // length * length

    def used(self, at: int, terms: Terms) -> Fraction:
        return Fraction(self.counts.get(self._end(at, terms), 0))

    def add(self, at: int, units: int, terms: Terms) -> None:
        used = int(self.used(at, terms))
        self.counts = {self._end(at, terms): min(used + units, max(used, terms.params[0]))}

    def take(self, at: int, units: int, terms: Terms, *, now: int) -> None:
        end = self._end(now, terms)
        if self._end(at, terms) == end:
            self.counts[end] = max(0, self.counts.get(end, 0) - units)


class TwoWindows:
    """Hits by the number of their window, counted from the first hit; the last window weighs what is in sight of it."""

    def __init__(self) -> None:
        self.start = 0
        self.counts: dict[int, int] = {}

    def _place(self, at: int, terms: Terms) -> tuple[int, Fraction]:
        tick = terms.params[2]
        number, into = divmod(at // tick - self.start, Fraction(terms.window_us, tick))
        return int(number), into * tick / terms.window_us

    def used(self, at: int, terms: Terms) -> Fraction:
        number, into = self._place(at, terms)
        return self.counts.get(number - 1, 0) * (1 - into) + self.counts.get(number, 0)

    def add(self, at: int, units: int, terms: Terms) -> None:
        if not self.used(at, terms):
            self.start, self.counts = at // terms.params[2], {}
        number, _ = self._place(at, terms)
        count = self.counts.get(number, 0)
        self.counts[number] = min(count + units, max(count, terms.params[0]))

    def take(self, at: int, units: int, terms: Terms, *, now: int) -> None:
        number, _ = self._place(at, terms)
        self.counts[number] = max(0, self.counts.get(number, 0) - units)


class Meter:
    """A level that hits raise and time lowers at the quota's rate."""

    def __init__(self) -> None:
        self.level = Fraction(0)
        self.time = 0

    def used(self, at: int, terms: Terms) -> Fraction:
        _, unit, leak = terms.params
        return max(Fraction(0), self.level - (at - self.time) * Fraction(leak, unit))

    def add(self, at: int, units: int, terms: Terms) -> None:
        level = self.used(at, terms)
        self.level, self.time = min(level + units, max(level, Fraction(terms.params[0]))), at

    def take(self, at: int, units: int, terms: Terms, *, now: int) -> None:
        _, unit, leak = terms.params
        sure = max(Fraction(0), units - (now - at) * Fraction(leak, unit))
        self.level, self.time = max(Fraction(0), self.used(now, terms) - sure), now


KINDS: dict[str, Callable[[], Budget]] = {
    "sliding-window": Log,
    "sliding-log": Log,
    "sliding-counter": TwoWindows,
    "fixed-window": Window,
    "calendar": Dated,
    "gcra": Meter,
}


def least(holds: Callable[[int], bool]) -> int:
    """Return the least d ≥ 0 for which a condition is true, if it stays true for every larger d."""
    if holds(0):
        return 0
    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class ModelStore:
    """The plan's semantics over the models: all or nothing, refusals counted where the terms say so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._budgets: dict[tuple[str, str], Budget] = {}

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        now = self._clock.now_us()
        budgets = [self._budget(check.terms, check.identity) for check in plan.checks]
        pairs = list(zip(budgets, plan.checks, strict=True))
        allowed = [check.cost == 0 or _fits(budget, check.cost, now, check.terms) for budget, check in pairs]
        refused = {check.group for fits, (_, check) in zip(allowed, pairs, strict=True) if not fits}
        passing = all(shadow for shadow, _, _ in refused) and not (plan.charge and plan.forced)
        outcomes = []
        for (budget, check), fits in zip(pairs, allowed, strict=True):
            taken = passing and check.group not in refused
            counted = (check.terms.count_denied or plan.forced) and check.cost <= check.terms.params[0]
            if plan.charge and check.cost and (taken or counted):
                budget.add(now, check.cost, check.terms)
            outcome = _outcome(budget, now, check.terms, 0 if taken else check.cost)
            if check.terms.shadow:
                outcome = outcome._replace(retry_after=0 if fits else outcome.retry_after)
            outcomes.append(outcome._replace(allowed=fits or check.terms.shadow))
        return tuple(outcomes)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        now = self._clock.now_us()
        for check, outcome in charged(plan, outcomes):
            self._budget(check.terms, check.identity).take(outcome.at, check.cost, check.terms, now=now)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        now = self._clock.now_us()
        self.refund(plan, outcomes)
        pairs = charged(plan, outcomes)
        for check, _ in pairs:
            self._budget(check.terms, check.identity).add(now, check.cost, check.terms)
        return tuple(outcome._replace(at=now) for outcome in outcomes) if pairs else outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        self._budgets.pop((rule_id, identity), None)

    def close(self) -> None:
        self._budgets.clear()

    def _budget(self, terms: Terms, identity: str) -> Budget:
        return self._budgets.setdefault((terms.rule_id, identity), KINDS[terms.algorithm]())


def _fits(budget: Budget, cost: int, at: int, terms: Terms) -> bool:
    return budget.used(at, terms) + cost <= terms.params[0]


def _remaining(budget: Budget, at: int, terms: Terms) -> int:
    return max(0, floor(terms.params[0] - budget.used(at, terms)))


def _outcome(budget: Budget, now: int, terms: Terms, wanted: int) -> Outcome:
    """Return the outcome of a budget now, and when `wanted` would pass (0 for a request that has passed)."""
    limit = terms.params[0]
    remaining = _remaining(budget, now, terms)
    retry: int | None = NEVER
    if wanted <= limit:
        retry = least(lambda wait: wanted == 0 or _fits(budget, wanted, now + wait, terms))
    reset = least(lambda wait: not budget.used(now + wait, terms))
    following = least(lambda wait: reset == 0 or _remaining(budget, now + wait, terms) > remaining)
    return Outcome(True, limit, remaining, retry, reset, following, now)
