"""Curves: what a candidate would have done with other limits, exactly, at about forty limits around its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, cast

from sluicegate.clock import MICROSECOND
from sluicegate.errors import AlgorithmError, needs
from sluicegate.plan import Terms
from sluicegate.quota import MAX_LIMIT, Quota
from sluicegate.replay.candidates import Candidate
from sluicegate.replay.decide import OneIdentity, Ready, charged, decided, one_identity
from sluicegate.replay.peaks import Peaks
from sluicegate.replay.plain import Steps, Strict, reach, steps_of, with_limit
from sluicegate.rules.rule import Rule

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

    def ready(self, number: int, limit: int) -> Ready:
        """Return the candidate with another limit of one of its quotas."""
        settings = self.candidate.settings
        defaults: Any = settings.default_limits
        if number < len(defaults):
            changed = _changed(defaults, number, limit)
            return Ready(self.candidate._replace(settings=replace(settings, default_limits=changed)))
        at = len(defaults)
        rules = list(settings.rules)
        for place, rule in enumerate(cast("list[Rule]", rules)):
            quotas: Any = rule.quota  # of a candidate that counts each identity alone: no Concurrency, no function
            if at <= number < at + len(quotas):
                rules[place] = replace(rule, quota=_changed(quotas, number - at, limit))
            at += len(quotas)
        return Ready(self.candidate._replace(settings=replace(settings, rules=rules)))

    @cached_property
    def _tried(self) -> list[list[tuple[Ready, OneIdentity | None]]]:
        """The candidate with each limit of each rule, and the single identity under it."""
        ready = [[self.ready(number, limit) for limit in limits] for number, _, limits in self.rules]
        return [[(each, one_identity(each) if self._single else None) for each in points] for points in ready]

    @cached_property
    def _plain(self) -> list[tuple[Terms, Steps | Strict | None]]:
        """The same for the only rule, if it is a plain one."""
        ((_, terms, limits),) = self.rules
        chosen = [with_limit(terms, limit) for limit in limits]
        return [(each, steps_of(each, self._ready.cost) if self._single else None) for each in chosen]

    @cached_property
    def _fastest(self) -> Peaks:
        """The most requests of each identity within the longest time that matters to one of the limits."""
        return Peaks(["identity"], [max([reach(terms, self._ready.cost) for terms, _ in self._plain])])

    def points(self, frame: pl.DataFrame, programs: pl.Series) -> list[Points]:
        """Return what each limit would have refused of a frame, sorted by identity and time, for each rule."""
        if self._ready.alone is not None:
            return [self._alone(frame, programs) for _ in self.rules]
        return [
            [_point(frame, decided(ready, frame, kept)[1], programs) for ready, kept in each] for each in self._tried
        ]

    def _alone(self, frame: pl.DataFrame, programs: pl.Series) -> Points:
        """Return what one plain rule would have refused with each limit. They rise."""
        ready, single = self._ready, self._single
        mine = charged(ready, frame, ready.bounds[0])
        cost, points, automated = ready.cost, [[0, 0, 0] for _ in self._plain], set(programs.to_list())
        if cost == 0 or not mine.height:
            return points
        if cost is None:  # as floats: the sum may leave int64
            most = mine.group_by("identity").agg(pl.col("cost").cast(pl.Float64()).sum().alias("most"))
        else:
            most = self._fastest.add(mine).select("identity", pl.nth(1).alias("most"))
        units, columns = cost or 1, ["time", *(["cost"] if cost is None else [])]
        if not single:
            most = most.filter(pl.col("most") > self._plain[0][0].limit // units)
        groups = mine.join(most, on="identity", how="semi").group_by("identity").agg(columns).join(most, on="identity")
        for identity, highest, times, *costs in groups.select("identity", "most", *columns).iter_rows():
            for point, (terms, kept) in zip(points, self._plain, strict=True):
                if highest <= terms.limit // units:
                    if not single:
                        break
                    if isinstance(kept, Strict):
                        kept.admitted(times)
                        continue
                runs = (kept or steps_of(terms, cost)).refused(times, costs[0] if costs else units)
                if runs:
                    point[0] += sum([after - at for at, after, *_ in runs])
                    point[1] += 1
                    point[2] += identity not in automated
        return points


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


def _point(frame: pl.DataFrame, refusals: pl.DataFrame, programs: pl.Series) -> list[int]:
    who = frame.select("row", "identity").join(refusals, on="row", how="semi")["identity"].unique()
    return [refusals.height, len(who), len(who) - _among(who.to_list(), programs)]


def _among(identities: list[int], programs: pl.Series) -> int:
    return int(pl.Series(identities, dtype=programs.dtype).is_in(programs.implode()).sum())


def _changed(quotas: Sequence[Quota], at: int, limit: int) -> tuple[Quota, ...]:
    """Return quotas of which one has another limit."""
    one = quotas[at]
    return (*quotas[:at], Quota(limit, Fraction(one.period_us, MICROSECOND), burst=one.burst), *quotas[at + 1 :])
