"""Curves: what a candidate would have done with other limits, exactly, at about forty limits around its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from math import ceil, floor, log
from typing import Final, NamedTuple

from sluicegate.errors import AlgorithmError, needs
from sluicegate.plan import Terms
from sluicegate.quota import MAX_LIMIT
from sluicegate.replay.candidates import Candidate
from sluicegate.replay.decide import OneIdentity, Ready, by_identity, one_identity, ruled, with_costs
from sluicegate.replay.peaks import Peaks
from sluicegate.replay.plain import Strict, reach, with_limit

with needs("replay"):
    import polars as pl

STEPS: Final = 20  # on each side of the candidate's own limit
_FARTHEST: Final = 10  # times more, and less, than the own limit

Known = dict[tuple[object, ...], list[int]]
"""What points have counted of one frame. A point of a rule that is alone is the same for all candidates with it."""
Points = list[list[int]]  # for each limit: refused requests, refused identities, people among them


def limits(limit: int, steps: int = STEPS) -> list[int]:
    """Return limits in geometric steps around one, which is among them. Other limits have the same steps: what one
    candidate has counted at a step, others need not count again.

    >>> limits(5, 2), limits(20, 2)
    ([1, 3, 5, 10, 32], [3, 10, 20, 32, 100])
    """
    own = steps * log(limit, _FARTHEST)
    around = [round(_FARTHEST ** (step / steps)) for step in range(ceil(own) - steps, floor(own) + steps + 1)]
    return sorted({limit, *[max(1, min(MAX_LIMIT, each)) for each in around]})


class _Point(NamedTuple):
    """One limit of one quota."""

    limit: int
    begin: Callable[[], OneIdentity]  # returns an identity that has asked nothing yet
    kept: OneIdentity | None  # the single identity


class Scale:
    """The limits of each curve of a candidate. Only one with plain rules has curves: each point is decided, and the
    gate would take too long for forty of them.
    """

    def __init__(self, candidate: Candidate, *, single: bool = False) -> None:
        """`single`: the points are of one identity, whose requests come in pieces."""
        self._ready = ready = Ready(candidate)
        self._single = single
        self.rules: list[tuple[int, Terms, list[int]]] = []  # the number of the rule's quota, and its limits
        self.note = "" if ready.plain else _note(ready)  # why there is no curve
        for number, terms in enumerate(ready.terms if ready.plain else ()):
            rule = ready.bounds[ready.owner[number]].rule
            least = rule.cost if isinstance(rule.cost, int) else 1
            chosen = [each for each in limits(terms.quota.limit) if _possible(terms, each, least)]
            self.rules.append((number, terms, chosen))

    @cached_property
    def _points(self) -> list[list[_Point]]:
        """The points of each curve. Their limits rise."""
        ready, found = self._ready, list[list[_Point]]()
        for number, own, limits in self.rules:
            points = []
            for limit in limits:
                terms = with_limit(own, limit)
                begin = partial(one_identity, ready, [*ready.terms[:number], terms, *ready.terms[number + 1 :]])
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

    def points(self, frame: pl.DataFrame, programs: pl.Series, known: Known) -> list[Points]:
        """Return what each limit would have refused of a frame, sorted by identity and time, for each rule."""
        if not self.rules:
            return []
        rows, automated = ruled(self._ready, frame), set(programs.to_list())
        found, left = list[Points](), list[list[tuple[list[int], _Point]]]()
        for number, points in enumerate(self._points):
            names = [self._name(number, each.limit) for each in points]
            new = [each for each in zip(names, points, strict=True) if each[0] not in known]
            left.append([(known.setdefault(name, [0, 0, 0]), point) for name, point in new])
            found.append([known[name] for name in names])
        most = self._most(rows)
        rest = rows if self._single else rows.filter(pl.col("identity").is_in([*most]))
        for identity, _, asked in by_identity(self._ready, rest):
            units = most.get(identity, {})
            over = {number for number, each in units.items() if each > self._ready.terms[number].limit}
            for number, uncounted in enumerate(left):
                enough = units.get(number, 0) if over <= {number} else MAX_LIMIT
                for counted, (limit, begin, kept) in uncounted:
                    if enough <= limit:
                        if kept is None:
                            break  # higher limits do not refuse it either
                        if isinstance(kept, Strict):
                            kept.admitted(asked)
                            continue
                    if runs := (kept or begin()).refused(asked):
                        counted[0] += sum([after - at for at, after, *_ in runs])
                        counted[1] += 1
                        counted[2] += identity not in automated
        return found

    def _name(self, number: int, limit: int) -> tuple[object, ...]:
        """Return what a point depends on, beside the frame."""
        ready, own = self._ready, self._ready.terms[number]
        if ready.alone is None or ready.cost is None or self._single:  # a single identity keeps its budgets
            return id(self), number, limit
        rule = ready.alone.rule
        return own.algorithm, own.quota.period_us, own.quota.burst, ready.cost, ready.alone.methods, rule.path, limit

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


def _note(ready: Ready) -> str:
    """Return why a candidate has no curve."""
    if not ready.one_key:
        why = "its rules count by different keys"
    elif any([terms.held for terms in ready.terms]):
        why = "it limits the requests at the same time"
    else:
        why = "it depends on more than the times of the requests of one identity"
    return f"No other limits were replayed: {why}. Try them as candidates of their own."
