"""Curves: what a candidate would have done with other limits, exactly, at about forty limits around its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import count
from typing import Final, NamedTuple

from sluicegate.clock import MICROSECOND
from sluicegate.concurrency import Concurrency
from sluicegate.errors import AlgorithmError, needs
from sluicegate.plan import Terms
from sluicegate.quota import MAX_LIMIT, Quota
from sluicegate.replay.candidates import Candidate, rules_of
from sluicegate.replay.decide import OneIdentity, Ready, by_identity, one_identity, ruled, with_costs
from sluicegate.replay.peaks import Peaks
from sluicegate.replay.plain import Strict, reach, with_limit

with needs("replay"):
    import polars as pl

STEPS: Final = 20  # on each side of the candidate's own limit
FEW: Final = 4
_FARTHEST: Final = 10  # times more, and less, than the own limit
_SMALL: Final = 20_000  # requests up to which rules of several quotas get all steps
_LARGE: Final = 500_000  # requests above which they get no curve

Points = list[list[int]]  # for each limit: refused requests, refused identities, people among them


def limits(limit: int, steps: int) -> list[int]:
    """Return limits in geometric steps around one, which is among them.

    >>> limits(5, 2)
    [1, 2, 5, 16, 50]
    """
    found = {limit}
    for step in range(1, steps + 1):
        factor = _FARTHEST ** (step / steps)
        found |= {max(1, round(limit / factor)), min(MAX_LIMIT, round(limit * factor))}
    return sorted(found)


class _Point(NamedTuple):
    """One limit of one quota."""

    limit: int
    begin: Callable[[], OneIdentity]  # returns an identity that has asked nothing yet
    kept: OneIdentity | None  # the single identity


class Scale:
    """The limits of each curve of a candidate. They depend on the number of requests, because each point is decided."""

    def __init__(self, candidate: Candidate, requests: int, *, single: bool = False) -> None:
        """`single`: the points are of one identity, whose requests come in pieces."""
        self._ready = ready = Ready(candidate)
        self._single = single
        self.candidate = candidate
        self.rules: list[tuple[int, Terms, list[int]]] = []  # the number of the rule's quota, and its limits
        steps = STEPS if ready.plain or requests <= _SMALL else FEW if requests <= _LARGE else 0
        self.note = _note(ready, steps)  # why there is no curve, or only few points
        if not ready.by_identity or not steps:
            return
        for number, terms in enumerate(ready.terms):
            rule = ready.bounds[ready.owner[number]].rule
            least = rule.cost if isinstance(rule.cost, int) else 1
            chosen = [each for each in limits(terms.quota.limit, steps) if _possible(terms, each, least)]
            self.rules.append((number, terms, chosen))

    def _ready_with(self, number: int, limit: int) -> Ready:
        """Return the candidate with another limit of one of its quotas, which all are known before any request."""
        settings, numbers = self.candidate.settings, count()

        def changed(quotas: Iterable[object]) -> list[Quota]:
            known = [each for each in quotas if isinstance(each, Quota)]
            return [_with(each, limit) if next(numbers) == number else each for each in known]

        defaults = changed(settings.default_limits)  # their numbers come before those of the rules
        rules = [
            replace(rule, quota=changed(quotas))
            for rule in rules_of(settings)
            for quotas in rule.known
            if not isinstance(quotas, Concurrency)
        ]
        return Ready(self.candidate._replace(settings=replace(settings, default_limits=defaults, rules=rules)))

    @cached_property
    def _points(self) -> list[list[_Point]]:
        """The points of each curve. Their limits rise."""
        ready, found = self._ready, list[list[_Point]]()
        for number, own, limits in self.rules:
            points = []
            for limit in limits:
                terms = with_limit(own, limit)
                if ready.plain:
                    every = [*ready.terms[:number], terms, *ready.terms[number + 1 :]]
                    begin = partial(one_identity, ready, every)
                else:
                    begin = partial(one_identity, self._ready_with(number, limit))
                points.append(_Point(terms.limit, begin, begin() if self._single else None))
            found.append(points)
        return found

    @cached_property
    def _peaks(self) -> list[Peaks]:
        """For each quota, the most requests of each identity within the longest time that matters to its limits."""
        ready, found = self._ready, []
        for number, terms, limits in self.rules:
            cost = ready.bounds[ready.owner[number]].rule.cost
            found.append(Peaks(["identity"], [max([reach(with_limit(terms, limit), cost) for limit in limits])]))
        return found

    def points(self, frame: pl.DataFrame, programs: pl.Series) -> list[Points]:
        """Return what each limit would have refused of a frame, sorted by identity and time, for each rule."""
        if not self.rules:
            return []
        rows, automated = ruled(self._ready, frame), set(programs.to_list())
        found = [[[0, 0, 0] for _ in points] for points in self._points]
        most = self._most(rows)
        rest = rows if self._single else rows.filter(pl.col("identity").is_in([*most]))
        for identity, _, times, values in by_identity(self._ready, rest):
            units = most.get(identity, {})
            over = {number for number, each in units.items() if each > self._ready.terms[number].limit}
            for number, points in enumerate(self._points):
                enough = units.get(number, 0) if over <= {number} else MAX_LIMIT
                for counted, (limit, begin, kept) in zip(found[number], points, strict=True):
                    if enough <= limit:
                        if kept is None:
                            break  # higher limits do not refuse it either
                        if isinstance(kept, Strict):
                            kept.admitted(times)
                            continue
                    if runs := (kept or begin()).refused(times, values):
                        counted[0] += sum([after - at for at, after, *_ in runs])
                        counted[1] += 1
                        counted[2] += identity not in automated
        return found

    def _most(self, rows: pl.DataFrame) -> dict[int, dict[int, float]]:
        """Return the identities that some limit might refuse, each with its most units within the reach of a quota."""
        ready, found = self._ready, dict[int, dict[int, float]]()
        for number, (at, points) in enumerate(zip(ready.owner, self._points, strict=True)):
            bound, cost = ready.bounds[at], ready.bounds[at].rule.cost
            mine = with_costs(ready, rows.filter(ready.having(number)), bound)
            if not mine.height:
                continue
            if isinstance(cost, int):
                most = self._peaks[number].add(mine).select("identity", units=pl.nth(1) * cost)
            else:  # as floats: the sum may leave int64
                most = mine.group_by("identity").agg(units=pl.col("cost").cast(pl.Float64()).sum())
            for identity, units in most.filter(pl.col("units") > points[0].limit).iter_rows():
                found.setdefault(identity, {})[number] = units
        return found


def _possible(terms: Terms, limit: int, least: int) -> bool:
    """True if the algorithm can have this limit, and a request of the least cost can pass."""
    try:
        return with_limit(terms, limit).limit >= least
    except AlgorithmError:
        return False


def _note(ready: Ready, steps: int) -> str:
    """Return why a candidate has no curve, or one of few points; empty if it has all."""
    if ready.by_identity:
        number, most = ("Only few", _SMALL) if steps else ("No", _LARGE)
        why = f"the log has more than {most:,} requests, and a ban, a charge by status or a cost by field takes long"
        how = " Give fewer requests with --since and --until."
        return "" if steps == STEPS else f"{number} other limits were replayed: {why}.{how}"
    if not ready.one_key:
        why = "its rules count by different keys"
    elif any([terms.held for terms in ready.terms]):
        why = "it limits the requests at the same time"
    else:
        why = "a list, a condition or a function makes it depend on more than the requests of one identity"
    return f"No other limits were replayed: {why}. Try them as candidates of their own."


def _with(quota: Quota, limit: int) -> Quota:
    """Return a quota with another limit."""
    return Quota(limit, Fraction(quota.period_us, MICROSECOND), burst=quota.burst)
