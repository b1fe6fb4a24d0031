"""One identity under plain rules: all its requests in order of time, decided by a loop with nothing else in it.

The state stays between calls, so that the requests may come in pieces. `Steps` asks the algorithms themselves. `Strict`
is for sliding windows: a request is refused exactly while the one that was admitted so many requests before it still
counts. It stays because it is fifty times as fast, and nearly all candidates and all curves are such windows. Tests
prove that both agree with a Limiter event by event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import compress, count
from operator import gt
from typing import Final

from sluicegate.algorithms import KEPT, sliding_log, sliding_window
from sluicegate.clock import MICROSECOND
from sluicegate.plan import Terms
from sluicegate.quota import Quota

Run = tuple[int, int, int | None, int]
"""Refused requests: the first, the one after the last, until when they are refused (None: always), and by which rule.
"""

STRICT: Final = {*sliding_log.NAMES, *sliding_window.NAMES}
_PIECE: Final = 64  # requests that are compared at once, at first


class Asked:
    """The requests of one identity in order of time, asked under each limit of a curve: what no limit changes is
    computed once.
    """

    def __init__(self, times: Sequence[int], chosen: Sequence[int]) -> None:
        self.times = times
        self.chosen = chosen  # for each request what else it is decided by: the number of its rules, or its cost
        self._ends: dict[tuple[int, int], list[int]] = {}

    def ends(self, window: int, grain: int) -> list[int]:
        """Return until when each request counts in a window, if its time is rounded up to the grain."""
        found = self._ends.get((window, grain))
        if found is None:
            found = self._ends[window, grain] = [window - -now // grain * grain for now in self.times]
        return found


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

    def refused(self, asked: Asked) -> list[Run]:
        """Ask the requests at their times. Return those that are refused."""
        times, chosen, runs = asked.times, asked.chosen, list[Run]()
        # By number. A refusal changes nothing and its wait is exact, so it holds until its end, or until a request of
        # another number is charged.
        known: dict[int, tuple[int | None, int]] = {}
        at, end, same = 0, len(times), len(set(chosen)) == 1
        while at < end:
            now, which = times[at], chosen[at]
            refusal = known.get(which)
            if refusal is None or (refusal[0] is not None and refusal[0] <= now):
                answer = self._ask(now, which)
                if answer is None:
                    known.clear()
                    at += 1
                    continue
                wait, rule = answer
                refusal = known[which] = None if wait is None else now + wait, rule
            until, first = refusal[0], at
            last = end if until is None else bisect_left(times, until, at + 1)
            at = last if same else at + 1
            while at < last and chosen[at] == which:
                at += 1
            runs.append((first, at, *refusal))
        return runs

    def wait(self, asked: Asked, met: Met) -> None:
        """Ask the requests one after the other, and wait as long as each refusal says."""
        now = self._now
        for logged, which in zip(asked.times, asked.chosen, strict=True):
            now = max(now, logged)
            while (refusal := self._ask(now, which)) is not None and refusal[0] is not None:
                met.retries += 1
                now += refusal[0]
            met.end(logged, now if refusal is None else None)
        self._now = now


class Strict:
    """Sliding windows that all count each request, at costs that do not change."""

    def __init__(self, terms: Sequence[Terms], costs: Sequence[int]) -> None:
        # Of each window: the requests that count at one time, how long they count, and the grain of their times.
        self._windows = [(each.limit // cost, *_window(each)) for each, cost in zip(terms, costs, strict=True)]
        self._ends: list[list[int]] = [[] for _ in terms]  # until when each admitted request counts
        self._now = 0

    def refused(self, asked: Asked) -> list[Run]:
        """Ask the requests at their times. Return those that are refused."""
        times, runs, at, counted = asked.times, list[Run](), 0, self._counted(asked)
        while (at := self._admit(times, at, counted)) < len(times):
            until, rule = self._refusal(times[at])
            after = bisect_left(times, until, at + 1)
            runs.append((at, after, until, rule))
            at = after
        self._forget()
        return runs

    def wait(self, asked: Asked, met: Met) -> None:
        """Ask the requests one after the other, and wait as long as each refusal says."""
        times, now, at, counted = asked.times, self._now, 0, self._counted(asked)
        while at < len(times):
            if times[at] >= now and (after := self._admit(times, at, counted)) > at:
                at, now = after, times[after - 1]
                continue
            now = max(now, times[at])
            if (until := self._refusal(now)[0]) > now:
                met.retries += 1
                now = until
            for ends, (_, window, grain) in zip(self._ends, self._windows, strict=True):
                ends.append(window - -now // grain * grain)
            met.end(times[at], now)
            at += 1
        self._now = now
        self._forget()

    def admitted(self, asked: Asked) -> None:
        """Ask requests that are known to be admitted."""
        for ends, mine in zip(self._ends, self._counted(asked), strict=True):
            ends.extend(mine)
        self._forget()

    def _counted(self, asked: Asked) -> list[list[int]]:
        """Return for each window until when each of these requests would count."""
        return [asked.ends(window, grain) for _, window, grain in self._windows]

    def _admit(self, times: Sequence[int], at: int, counted: list[list[int]]) -> int:
        """Ask the requests from this one to the next that is refused. Return the place of that one.

        A piece at a time, each longer than the one before: a window admits its requests until one comes before the end
        that it needs.
        """
        size = _PIECE
        while ahead := times[at : at + size]:
            free = len(ahead)
            for (most, *_), ends, mine in zip(self._windows, self._ends, counted, strict=True):
                first = len(ends) - most  # the place of the end that the request needs
                skip = -first if first < 0 else 0  # requests that need none: fewer were admitted than the limit
                if skip < free:
                    needed = ends[first + skip : first + free]
                    needed += mine[at : at + free - most] if free > most else ()
                    free = next(compress(count(skip), map(gt, needed, ahead[skip:] if skip else ahead)), free)
            for ends, mine in zip(self._ends, counted, strict=True):
                ends.extend(mine[at : at + free])
            at += free
            if free < len(ahead):
                break
            size *= 2
        return at

    def _refusal(self, now: int) -> tuple[int, int]:
        """Return until when a request at this time is refused, and the number of the window that says so."""
        found = now, 0
        for number, ((most, *_), ends) in enumerate(zip(self._windows, self._ends, strict=True)):
            if len(ends) >= most and ends[-most] > found[0]:
                found = ends[-most], number
        return found

    def _forget(self) -> None:
        """Drop the ends that no later request needs."""
        self._ends = [ends[-most:] for (most, *_), ends in zip(self._windows, self._ends, strict=True)]


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
