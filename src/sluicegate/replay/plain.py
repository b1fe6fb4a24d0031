"""One identity under one plain rule: all its requests in order of time, decided by a loop with nothing else in it.

The state stays between calls, so that the requests may come in pieces. `Steps` asks the algorithm itself. `Strict`
knows what a sliding window is: a request is refused exactly while the one that was admitted so many requests before it
still counts. Tests prove that both agree with a Limiter event by event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from sluicegate.algorithms import KEPT, sliding_log, sliding_window
from sluicegate.clock import MICROSECOND
from sluicegate.plan import Terms
from sluicegate.quota import Quota

Run = tuple[int, int, int | None, int]
"""Refused requests: the first, the one after the last, until when they are refused (None: always), and by which rule.
"""

PATIENCE: Final = 20
"""Refusals of one request, after which its client gives up: waiting does not help."""

_STRICT: Final = {*sliding_log.NAMES, *sliding_window.NAMES}


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
    """The steps of any algorithm. `costs` are those of the requests, or the one that all have."""

    def __init__(self, terms: Terms) -> None:
        algorithm, self._params = KEPT[terms.algorithm], terms.params
        self._hit, self._check, self._charge = algorithm.hit, algorithm.check, algorithm.charge
        self.state: Any = None
        self._now = 0

    def refused(self, times: Sequence[int], costs: Sequence[int] | int) -> list[Run]:
        """Ask the requests at their times. Return those that are refused."""
        params, hit, check, charge = self._params, self._hit, self._check, self._charge
        runs: list[Run] = []
        at, end, same = 0, len(times), isinstance(costs, int)
        while at < end:
            now, cost = times[at], costs if isinstance(costs, int) else costs[at]
            if hit(self, now, cost, params) is not None:
                at += 1
                continue
            outcome = check(self.state, now, cost, params)
            if outcome.allowed:
                if cost:
                    self.state = charge(self.state, now, cost, params)
                at += 1
                continue
            wait = outcome.retry_after
            until = None if wait is None else now + wait
            # A refusal changes nothing, and its retry_after is exact: all requests of this cost before it are refused.
            after = at + 1 if not same else end if until is None else bisect_left(times, until, at + 1)
            runs.append((at, after, until, 0))
            at = after
        return runs

    def wait(self, times: Sequence[int], costs: Sequence[int] | int, met: Met) -> None:
        """Ask the requests one after the other, and wait as long as each refusal says."""
        params, hit, check, charge = self._params, self._hit, self._check, self._charge
        now = self._now
        for at, logged in enumerate(times):
            cost = costs if isinstance(costs, int) else costs[at]
            now = max(now, logged)
            wait: int | None = 0
            while hit(self, now, cost, params) is None:
                outcome = check(self.state, now, cost, params)
                if outcome.allowed and cost:
                    self.state = charge(self.state, now, cost, params)
                wait = outcome.retry_after
                if outcome.allowed or wait is None:
                    break
                met.retries += 1
                now += wait
            met.end(logged, None if wait is None else now)
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


def steps_of(terms: Terms, cost: int | None) -> Steps | Strict:
    """Return the loop for requests of this cost (None: they differ)."""
    return Strict(terms, cost) if cost and terms.algorithm in _STRICT else Steps(terms)


def with_limit(terms: Terms, limit: int) -> Terms:
    """Return the terms of the same rule with another limit. Raises AlgorithmError if its algorithm cannot have it."""
    quota = Quota(limit, Fraction(terms.quota.period_us, MICROSECOND), burst=terms.quota.burst)
    algorithm = KEPT[terms.algorithm]
    params = algorithm.params(quota)
    return terms._replace(quota=quota, params=params, window_us=algorithm.window_us(params))


def reach(terms: Terms, cost: int | None) -> int:
    """Return a time: no request is refused unless `limit` units came before it and less than this time ago.

    A refusal changes nothing, so this holds of logged requests too. It is two windows because of the counter of two
    windows, and what the law "after reset_after" allows at most.
    """
    return sum(_window(terms)) if cost and terms.algorithm in _STRICT else 2 * terms.window_us + 1


def _window(terms: Terms) -> tuple[int, int]:
    """Return the window, and the grain of the times in it."""
    _, window, *grain = terms.params
    return window, grain[0] if grain else 1
