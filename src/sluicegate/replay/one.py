"""One identity with a large share of the log: its requests come in pieces, and its state stays between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluicegate.extras import needs
from sluicegate.replay.closed_loop import Client
from sluicegate.replay.curves import Scale
from sluicegate.replay.decide import Pieces, Ready, Suspected
from sluicegate.replay.peaks import PEAK, Peaks
from sluicegate.replay.plain import Strict, reach, steps_of, with_limit
from sluicegate.replay.tally import Grid, Name, Tally, in_order, tally
from sluicegate.web.bound import Bound

with needs("replay"):
    import polars as pl

NOBODY: Final = pl.Series("identity", [], dtype=pl.UInt64())


class One:
    """What one candidate decides about the identity."""

    def __init__(self, ready: Ready, number: int, *, curves: Scale | None) -> None:
        self._number = number
        self._pieces = Pieces(ready) if ready.by_identity else None
        self._client = Client(ready.fresh()) if ready.by_identity else None
        rules = [] if curves is None or ready.alone is not None else [(curves.ready, *each) for each in curves.rules]
        self._curves = [[Pieces(ready_with(at, limit)) for limit in limits] for ready_with, at, _, limits in rules]
        self._plain = PlainCurve(ready.alone, curves) if curves is not None and ready.alone is not None else None
        self._until = 0

    def tally(self, rows: pl.DataFrame, grid: Grid, name: Name) -> Tally:
        """Count what is decided about the next piece."""
        if self._pieces is None or self._client is None:
            refusals, decided = in_order(rows, self._number)
            found = tally(rows, refusals, decided=decided, insane=NOBODY, grid=grid, name=name, until=self._until)
        else:
            some, refusals = self._pieces.decide(rows)
            found = tally(rows, refusals, decided=some.decided, insane=NOBODY, grid=grid, name=name, until=self._until)
            found.waits = self._client.feed(some)
            found.curves = [[[each.decide(rows)[1].height, 0, 0] for each in limits] for limits in self._curves]
            if self._plain is not None:
                found.curves = [[[refused, 0, 0] for refused in self._plain.feed(some)]]
        until = refusals["until"].max()
        self._until = max(self._until, until if isinstance(until, int) else 0)
        return found


class PlainCurve:
    """The curve of a candidate with one plain rule."""

    def __init__(self, rule: Bound, curves: Scale) -> None:
        ((_, terms, limits),) = curves.rules
        cost = rule.rule.cost if isinstance(rule.rule.cost, int) else None
        chosen = [with_limit(terms, limit) for limit in limits]
        self._units = cost or 1
        self._points = [(each.limit, steps_of(each, cost)) for each in chosen]
        self._fastest = Fastest([max([reach(each, cost) for each in chosen])])

    def feed(self, found: Suspected) -> list[int]:
        """Return how many of the next requests each limit refuses."""
        (most,) = self._fastest.feed(found.rest["time"]).values()
        times = found.rest["time"].to_list()
        costs = found.rest["cost"].to_list() if found.cost is None else found.cost
        refused = []
        for limit, steps in self._points:
            if isinstance(steps, Strict) and most <= limit // self._units:
                steps.admitted(times)
                refused.append(0)
            else:
                refused.append(sum([after - at for at, after, _ in steps.refused(times, costs)]))
        return refused


class Fastest:
    """The most requests in any window of some periods. What it keeps grows with the different times in the longest."""

    def __init__(self, periods: Iterable[int]) -> None:
        self.most = dict.fromkeys(periods, 0)
        self._peaks = Peaks(["one"], self.most)

    def feed(self, times: pl.Series) -> dict[int, int]:
        """Count the next times, which rise. Return the most requests in any window that ends with one of them."""
        if not len(times) or not self.most:
            return dict.fromkeys(self.most, 0)
        found = self._peaks.add(times.alias("time").to_frame().with_columns(one=pl.lit(0)))
        latest = {period: int(found[f"{PEAK}{period}"][0]) for period in self.most}
        self.most = {period: max(most, latest[period]) for period, most in self.most.items()}
        return latest
