"""Curves: what a candidate would have done with other limits, exactly, at about forty limits around its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, compress
from math import ceil, floor, log
from typing import Final

from sluicegate.errors import AlgorithmError, needs
from sluicegate.plan import Terms
from sluicegate.quota import MAX_LIMIT
from sluicegate.replay.decide import Ready, by_identity, one_identity, ruled
from sluicegate.replay.peaks import peaks
from sluicegate.replay.plain import Asked, Run, reach, with_limit

with needs("replay"):
    import polars as pl

STEPS: Final = 20  # on each side of the candidate's own limit
_FARTHEST: Final = 10  # times more, and less, than the own limit

Known = dict[tuple[int, frozenset[tuple[object, ...]]], int]
"""How many requests of an identity some quotas refuse. It is the same in all points and candidates that ask these."""
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


class Scale:
    """The limits of each curve of a candidate. Only one with plain rules has curves: each point is decided, and the
    gate would take too long for forty of them.
    """

    def __init__(self, ready: Ready) -> None:
        self._ready = ready
        self.note = "" if ready.plain else _note(ready)  # why there is no curve
        self.rules: list[list[Terms]] = []  # of each quota its terms with each limit; these rise
        self._reach: list[int] = []  # of each quota the longest time that matters to its limits
        for owner, terms in zip(ready.owner, ready.terms, strict=True) if ready.plain else ():
            cost = ready.bounds[owner].rule.cost
            self.rules.append([*_possible(terms, cost if isinstance(cost, int) else 1)])
            self._reach.append(max([reach(each, cost) for each in self.rules[-1]]))

    def points(self, frame: pl.DataFrame, programs: pl.Series, known: Known) -> list[Points]:
        """Return what each limit would have refused of a frame, sorted by identity and time, for each rule."""
        if not self.rules:
            return []
        rows, automated = ruled(self._ready, frame), set(programs.to_list())
        found: list[Points] = [[[0, 0, 0] for _ in points] for points in self.rules]
        most = self._most(rows)
        for identity, _, asked in by_identity(self._ready, rows.filter(pl.col("identity").is_in([*most]))):
            counts = self._refused(identity, asked, most[identity], known=known)
            for counted, refused in zip(chain(*found), chain(*counts), strict=True):
                if refused:
                    counted[0] += refused
                    counted[1] += 1
                    counted[2] += identity not in automated
        return found

    def _refused(self, identity: int, asked: Asked, units: dict[int, float], *, known: Known) -> Iterator[list[int]]:
        """Yield for each quota how many requests of an identity each of its limits refuses.

        `units` has the most units within the reach of a quota. A quota refuses nothing, and is not asked, if its limit
        is not below them; nor if it is not below the most of the units that the other quotas let through.
        """
        ready = self._ready
        own = {number: terms for number, terms in enumerate(ready.terms) if units.get(number, 0) > terms.limit}
        for number, points in enumerate(self.rules):
            others = {at: terms for at, terms in own.items() if at != number}
            least, enough = 0, units.get(number, 0)
            if others:
                runs = one_identity(ready, others).refused(asked)
                least, passed = _number(runs), bytearray(b"") * len(asked.times)
                for at, after, *_ in runs:
                    passed[at:after] = bytes(after - at)
                pairs = compress(zip(*asked, strict=True), passed)
                times = [time for time, which in pairs if number in ready.sets[which]]
                enough = min(enough, _peak(times, self._reach[number]) * ready.costs[number])
            counts = list[int]()
            for terms in points:
                if terms.limit >= enough:
                    counts.append(least)
                    continue
                those = others | {number: terms}
                name = identity, frozenset([self._name(*each) for each in those.items()])
                if name not in known:
                    known[name] = _number(one_identity(ready, those).refused(asked))
                counts.append(known[name])
            yield counts

    def _name(self, number: int, terms: Terms) -> tuple[object, ...]:
        """Return what a quota is for the requests of an identity, in whichever candidate."""
        bound = self._ready.bounds[self._ready.owner[number]]
        return terms.algorithm, terms.params, bound.rule.cost, bound.methods, bound.rule.path

    def _most(self, rows: pl.DataFrame) -> dict[int, dict[int, float]]:
        """Return the identities that some limit might refuse, each with its most units within the reach of a quota."""
        ready, found = self._ready, dict[int, dict[int, float]]()
        for number, points in enumerate(self.rules):
            mine = rows.filter(ready.having(number))
            if not mine.height:
                continue
            if ready.costs:
                most = peaks(mine, ["identity"], [self._reach[number]])
                most = most.select("identity", units=pl.nth(1) * ready.costs[number])
            else:  # as floats: the sum may leave int64
                most = mine.group_by("identity").agg(units=pl.col("cost").cast(pl.Float64()).sum())
            for identity, units in most.filter(pl.col("units") > points[0].limit).iter_rows():
                found.setdefault(identity, {})[number] = units
        return found


def _number(runs: list[Run]) -> int:
    """Return how many requests are refused."""
    return sum([after - at for at, after, *_ in runs])


def _peak(times: list[int], reach: int) -> int:
    """Return the most of these times within a reach."""
    most = first = 0
    for count, time in enumerate(times, 1):
        while times[first] <= time - reach:
            first += 1
        most = max(most, count - first)
    return most


def _possible(terms: Terms, least: int) -> Iterator[Terms]:
    """Yield the terms with each limit that the algorithm can have, and that a request of the least cost can pass."""
    for limit in limits(terms.quota.limit):
        with suppress(AlgorithmError):
            if (found := with_limit(terms, limit)).limit >= least:
                yield found


def _note(ready: Ready) -> str:
    """Return why a candidate has no curve."""
    if not ready.one_key:
        why = "its rules count by different keys"
    elif any([terms.held for terms in ready.terms]):
        why = "it limits the requests at the same time"
    else:
        why = "it depends on more than the times of the requests of one identity"
    return f"No other limits were replayed: {why}. Try them as candidates of their own."
