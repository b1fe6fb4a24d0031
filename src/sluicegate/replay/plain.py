"""One identity under plain rules: all its requests in order of time, decided by a loop with nothing else in it.

A wait is exact and a refusal changes nothing. So all that the loop needs of an algorithm is from when the next request
passes, and only a charge changes that. `Budget` asks any algorithm by its own steps. Those in QUICK are told once more,
as generators that keep nothing else: they are ten times as fast, and a page replays forty limits of each quota. Tests
prove that both agree with a Limiter event by event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

from sluicegate.algorithms import KEPT, fixed_window, gcra, sliding_log, sliding_window
from sluicegate.clock import MICROSECOND
from sluicegate.plan import Terms
from sluicegate.quota import Quota

Run = tuple[int, int, int | None, int]
"""Refused requests: the first, the one after the last, until when they are refused (None: always), and by which rule.
"""
Charge = Callable[[int], int]
"""Charges a request at this time, and returns from when the next one passes; 0 if that is any time."""

_NEVER: Final = 2**63


class Asked(NamedTuple):
    """The requests of one identity in order of time."""

    times: Sequence[int]
    chosen: Sequence[int]  # of each the number of the set of quotas that apply to it; or its cost, if costs differ


@dataclass(slots=True)
class Met:
    """What clients that wait have met. It is filled while they wait."""

    delays: list[int] = field(default_factory=list)  # microseconds, of the requests that passed later than logged
    retries: int = 0
    never: int = 0  # requests that no wait lets through


class Budget:
    """The budget of one quota, kept by its algorithm, whatever that is and whatever a request costs."""

    def __init__(self, terms: Terms) -> None:
        self._decide, self._params = KEPT[terms.algorithm].decide, terms.params
        self._state: Any = None
        self._left = terms.limit  # units that pass at any later time: time takes none of them away

    def due(self, cost: int, now: int) -> int:
        """Return from when a request of this cost passes."""
        if cost <= self._left:
            return 0
        wait = self._decide(self._state, now, cost, self._params)[0].retry_after
        return _NEVER if wait is None else now + wait

    def charge(self, cost: int, now: int) -> int:
        """Charge a request, and return from when the next one of this cost passes."""
        outcome, self._state = self._decide(self._state, now, cost, self._params)
        self._left = outcome.remaining
        return self.due(cost, now)


Quick = Generator[int, int, None]
"""A budget of requests of one cost. It is sent the time of each charge, and yields what a Charge returns."""


def _log(terms: Terms, cost: int) -> Quick:
    limit, window, grain = (*terms.params, 1)[:3]
    free = limit // cost  # requests that pass before the first must end
    ends = deque[int](maxlen=free)  # until when each of the last requests counts
    now = yield 0
    while True:
        ends.append(now + window if grain == 1 else window - -now // grain * grain)
        free = free and free - 1
        now = yield 0 if free else ends[0]


def _window(terms: Terms, cost: int) -> Quick:
    limit, window = terms.params
    most, end, left = limit // cost, 0, 0
    now = yield 0
    while True:
        if now >= end:
            end, left = now + window, most
        left -= 1
        now = yield 0 if left else end


def _bucket(terms: Terms, cost: int) -> Quick:
    burst, unit, leak = terms.params
    added, level, last = cost * unit, 0, 0
    full = burst * unit - added  # up to this level a request passes
    now = yield 0
    while True:
        level -= (now - last) * leak
        level = added if level < 0 else level + added
        last = now
        now = yield now - (full - level) // leak if level > full else 0


QUICK: Final[Mapping[str, Callable[[Terms, int], Quick]]] = {
    **dict.fromkeys((*sliding_log.NAMES, *sliding_window.NAMES), _log),
    **dict.fromkeys(fixed_window.NAMES, _window),
    **dict.fromkeys(gcra.NAMES, _bucket),
}


def _charge(terms: Terms, cost: int) -> Charge:
    if terms.algorithm not in QUICK:
        return partial(Budget(terms).charge, cost)
    budget = QUICK[terms.algorithm](terms, cost)
    next(budget)
    return budget.send


class OneIdentity:
    """One identity with its budgets."""

    def __init__(self, terms: Mapping[int, Terms], costs: Sequence[int], sets: Sequence[Collection[int]]) -> None:
        """`terms`: the quotas that are asked, by number. `costs`: of each quota; without them each request has its own
        under the only quota. `sets`: which quotas apply to a request; it may grow.
        """
        self._charges = {
            number: _charge(each, costs[number]) for number, each in terms.items() if costs and costs[number]
        }
        self._dues = dict.fromkeys(self._charges, 0)
        self._own = None if costs else Budget(terms[0])
        self._sets = sets

    def _ask(self, chosen: int, now: int) -> tuple[int, int, list[tuple[int, Charge]]]:
        """Return from when such a request passes, which quota says so, and what is charged then."""
        if self._own is not None:
            return self._own.due(chosen, now), 0, [(0, partial(self._own.charge, chosen))]
        charges = [(number, self._charges[number]) for number in self._sets[chosen] if number in self._charges]
        until, rule = max([(self._dues[number], -number) for number, _ in charges], default=(0, 0))
        return until, -rule, charges

    def refused(self, asked: Asked) -> list[Run]:
        """Ask the requests at their times. Return those that are refused."""
        times, dues, runs, at = asked.times, self._dues, list[Run](), 0
        for which, alike in groupby(asked.chosen):
            end = at + len([*alike])
            until, rule, charges = self._ask(which, times[at])
            while at < end:
                now = times[at]
                if now < until:
                    first, at = at, bisect_left(times, until, at + 1, hi=end)
                    runs.append((first, at, None if until == _NEVER else until, rule))
                    continue
                until = 0
                for number, charge in charges:
                    due = dues[number] = charge(now)
                    if due > until:
                        until, rule = due, number
                at += 1
        return runs

    def wait(self, asked: Asked, met: Met) -> None:
        """Ask the requests one after the other, and wait as long as each refusal says."""
        now = 0
        for logged, which in zip(*asked, strict=True):
            now = max(now, logged)
            until, _, charges = self._ask(which, now)
            if until == _NEVER:
                met.never += 1
                continue
            if until > now:
                met.retries += 1
                now = until
            for number, charge in charges:
                self._dues[number] = charge(now)
            if now > logged:
                met.delays.append(now - logged)


def with_limit(terms: Terms, limit: int) -> Terms:
    """Return the terms of the same rule with another limit. Raises AlgorithmError if its algorithm cannot have it."""
    quota = Quota(limit, Fraction(terms.quota.period_us, MICROSECOND), burst=terms.quota.burst)
    algorithm = KEPT[terms.algorithm]
    params = algorithm.params(quota)
    return terms._replace(quota=quota, params=params, window_us=algorithm.window_us(params))


def reach(terms: Terms, cost: object) -> int:
    """Return a time: no request is refused unless `limit` units came before it and less than this time ago.

    A refusal changes nothing, so this holds of logged requests too. It is two windows because of the counter of two
    windows, and what the law "after reset_after" allows at most.
    """
    if cost and QUICK.get(terms.algorithm) is _log:
        _, window, grain = (*terms.params, 1)[:3]
        return window + grain
    return 2 * terms.window_us + 1
