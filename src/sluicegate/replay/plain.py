"""One identity under plain rules: all its requests in order of time, decided by a loop with nothing else in it.

The state stays between calls, so that the requests may come in pieces. `Steps` asks the algorithms themselves. `Strict`
is for one sliding window at one cost: a request is refused exactly while the one that was admitted so many requests
before it still counts. It stays because it is several times as fast, and nearly all candidates and all curves are such
windows. Tests prove that both agree with a Limiter event by event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from sluicegate.algorithms import KEPT, sliding_log, sliding_window
from sluicegate.clock import MICROSECOND
from sluicegate.plan import Terms
from sluicegate.quota import Quota

Run = tuple[int, int, int | None, int]
"""Refused requests: the first, the one after the last, until when they are refused (None: always), and by which rule.
"""

STRICT: Final = {*sliding_log.NAMES, *sliding_window.NAMES}


@dataclass(slots=True)
class Met:
    """What clients that wait have met. It is filled while they wait."""

    delays: list[int] = field(default_factory=list)  # microseconds, of the requests that passed later than logged
    retries: int = 0
    never: int = 0  # requests that no wait lets through

    def end(self, logged: int, passed: int | None) -> None:
        """Count a request that passed at this time; None: it never does."""
        if passed is None:
            self.never += 1
        elif passed > logged:
            self.delays.append(passed - logged)


class Steps:
    """Any algorithms, asked by their own steps. For each request a number says which of them are asked: that of the
    set of rules that apply, or without `sets`, the cost under the only rule.
    """

    def __init__(self, terms: Sequence[Terms], costs: Sequence[int], sets: Sequence[Collection[int]] = ()) -> None:
        kept = [KEPT[each.algorithm] for each in terms]
        self._rules = [
            (number, each.decide, each_terms.params)
            for number, (each, each_terms) in enumerate(zip(kept, terms, strict=True))
        ]
        self._costs = costs
        self._sets = sets
        self._states: list[object] = [None] * len(self._rules)
        self._now = 0

    def _ask(self, now: int, chosen: int) -> tuple[int | None, int] | None:
        """Charge the rules that this number says, or none of them. Return None, or if the request is refused how long
        to wait and the number of the rule that refuses longest.
        """
        states, refusal = self._states, None
        rules, costs = self._rules, self._costs
        if self._sets:
            rules = [rules[number] for number in self._sets[chosen]]
        else:
            costs = (chosen,)
        after = []
        for number, decide, params in rules:
            outcome, state = decide(states[number], now, costs[number], params)
            after.append((number, state))
            if not outcome.allowed:
                wait = outcome.retry_after
                if refusal is None or (refusal[0] is not None and (wait is None or wait > refusal[0])):
                    refusal = wait, number
        if refusal is None:
            for number, state in after:
                states[number] = state
        return refusal

    def refused(self, times: Sequence[int], chosen: Sequence[int]) -> list[Run]:
        """Ask the requests at their times. Return those that are refused."""
        runs: list[Run] = []
        # By number. A refusal changes nothing and its wait is exact, so it holds until its end, or until a request of
        # another number is charged.
        known: dict[int, tuple[int | None, int]] = {}
        at, end, same = 0, len(times), len(set(chosen)) == 1
        while at < end:
            now, which = times[at], chosen[at]
            refusal = known.get(which)
            if refusal is None or (refusal[0] is not None and refusal[0] <= now):
                asked = self._ask(now, which)
                if asked is None:
                    known.clear()
                    at += 1
                    continue
                wait, rule = asked
                refusal = known[which] = None if wait is None else now + wait, rule
            until, first = refusal[0], at
            last = end if until is None else bisect_left(times, until, at + 1)
            at = last if same else at + 1
            while at < last and chosen[at] == which:
                at += 1
            runs.append((first, at, *refusal))
        return runs

    def wait(self, times: Sequence[int], chosen: Sequence[int], met: Met) -> None:
        """Ask the requests one after the other, and wait as long as each refusal says."""
        now = self._now
        for logged, which in zip(times, chosen, strict=True):
            now = max(now, logged)
            while (refusal := self._ask(now, which)) is not None and refusal[0] is not None:
                met.retries += 1
                now += refusal[0]
            met.end(logged, now if refusal is None else None)
        self._now = now


class Strict:
    """A sliding window, for requests that all have the same cost."""

    def __init__(self, terms: Terms, cost: int) -> None:
        self._most = terms.limit // cost  # requests that count at one time
        self._window, self._grain = _window(terms)
        self._ends: list[int] = []  # until when each admitted request counts; the latest suffice
        self._now = 0

    def refused(self, times: Sequence[int], _: object = None) -> list[Run]:
        most, window, grain = self._most, self._window, self._grain
        ends, runs, at, end = self._ends[-most:], list[Run](), 0, len(times)
        oldest = len(ends) - most  # the place in `ends` of the request that must have ended
        while at < end:
            now = times[at]
            if oldest >= 0 and (until := ends[oldest]) > now:
                after = bisect_left(times, until, at + 1)
                runs.append((at, after, until, 0))
                at = after
            else:
                ends.append(window - -now // grain * grain)  # rounded up to the grain
                oldest += 1
                at += 1
        self._ends = ends[-most:]
        return runs

    def admitted(self, times: Sequence[int]) -> None:
        """Ask requests that are known to be admitted."""
        window, grain = self._window, self._grain
        self._ends = [*self._ends, *[window - -now // grain * grain for now in times[-self._most :]]][-self._most :]

    def wait(self, times: Sequence[int], _: object, met: Met) -> None:
        most, window, grain = self._most, self._window, self._grain
        ends, now, delays, retries = self._ends[-most:], self._now, met.delays, 0
        oldest = len(ends) - most
        for logged in times:
            now = max(now, logged)
            if oldest >= 0 and ends[oldest] > now:
                retries += 1
                now = ends[oldest]
            ends.append(window - -now // grain * grain)
            oldest += 1
            if now > logged:
                delays.append(now - logged)
        met.retries += retries
        self._ends, self._now = ends[-most:], now


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
    return sum(_window(terms)) if cost and terms.algorithm in STRICT else 2 * terms.window_us + 1


def _window(terms: Terms) -> tuple[int, int]:
    """Return the window, and the grain of the times in it."""
    _, window, *grain = terms.params
    return window, grain[0] if grain else 1
