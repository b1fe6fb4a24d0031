"""Curves: what a candidate would have done with other limits, exactly, at about forty limits around its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, cast

from sluicegate.clock import MICROSECOND
from sluicegate.extras import needs
from sluicegate.plan import Terms
from sluicegate.quota import MAX_LIMIT, Quota
from sluicegate.replay.candidates import Candidate
from sluicegate.replay.decide import Ready, Suspected, refusals_of, refusals_of_one, suspected
from sluicegate.rules.rule import Rule

with needs("replay"):
    import polars as pl

STEPS: Final = 20  # on each side of the candidate's own limit
FEW: Final = 4
_FARTHEST: Final = 10  # times more, and less, than the own limit
_SMALL: Final = 20_000  # requests up to which rules of several quotas get all steps
_LARGE: Final = 500_000  # requests above which they get no curve

Points = list[list[int]]  # for each limit: refused requests, refused identities, innocent ones


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

    def __init__(self, candidate: Candidate, requests: int) -> None:
        ready = Ready(candidate)
        self.candidate = candidate
        self.rules: list[tuple[int, Terms, list[int]]] = []  # the number of the rule's quota, and its limits
        steps = STEPS if ready.plain or requests <= _SMALL else FEW if requests <= _LARGE else 0
        if not ready.by_identity or not steps:
            return
        for number, terms in enumerate(ready.terms):
            rule = ready.bounds[ready.owner[number]].rule
            least = rule.cost if isinstance(rule.cost, int) else 1
            chosen = [each for each in limits(terms.quota.limit, steps) if each >= least]
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

    def points(self, frame: pl.DataFrame, insane: pl.Series) -> list[Points]:
        """Return what each limit would have refused of a frame, sorted by identity and time, for each rule.

        The limits rise, so an identity that one of them cannot refuse needs not be looked at again.
        """
        found = []
        for number, _, chosen in self.rules:
            points, rest = [], frame
            for limit in chosen:
                ready = self.ready(number, limit)
                some = suspected(ready, rest)
                if ready.alone is not None:
                    points.append(_point_alone(ready, some, insane))
                    rest = rest.filter(pl.col("identity").is_in(some.rest["identity"].unique().implode()))
                else:
                    points.append(_point(rest, refusals_of(ready, some), insane))
            found.append(points)
        return found


def _point_alone(ready: Ready, found: Suspected, insane: pl.Series) -> list[int]:
    """Return what one plain rule would have refused."""
    terms, columns = ready.terms[0], ["time", *(["cost"] if found.cost is None else [])]
    refused, who = 0, []
    groups = found.rest.group_by("identity", maintain_order=True).agg(columns)
    for identity, times, *costs in groups.select("identity", *columns).iter_rows():
        places, _ = refusals_of_one(times, costs[0] if costs else found.cost or 0, terms)
        if places:
            refused += len(places)
            who.append(identity)
    return [refused, len(who), len(who) - _among(who, insane)]


def _point(frame: pl.DataFrame, refusals: pl.DataFrame, insane: pl.Series) -> list[int]:
    who = frame.select("row", "identity").join(refusals, on="row", how="semi")["identity"].unique()
    return [refusals.height, len(who), len(who) - _among(who.to_list(), insane)]


def _among(identities: list[int], insane: pl.Series) -> int:
    return int(pl.Series(identities, dtype=insane.dtype).is_in(insane.implode()).sum())


def _changed(quotas: Sequence[Quota], at: int, limit: int) -> tuple[Quota, ...]:
    """Return quotas of which one has another limit."""
    one = quotas[at]
    return (*quotas[:at], Quota(limit, Fraction(one.period_us, MICROSECOND), burst=one.burst), *quotas[at + 1 :])
