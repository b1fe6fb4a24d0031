"""Figure: the measurements of one contender, one for each round; and ratios and differences of figures.

Pure: no clock, no peer, no sluicegate. A ratio pairs the rounds of two figures, because contenders take turns: if the
machine is slow for a while, both are slow, and the ratio stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median, quantiles
from typing import Any, Final, Literal, NamedTuple

Role = Literal["sluicegate", "peer", "floor"]


class Measure(NamedTuple):
    """A kind of measurement: its title, its unit, the digits to print, and whether more is better."""

    title: str
    unit: str
    digits: int
    more_is_better: bool = False


MEASURES: Final = {
    "time": Measure("time for one check", "µs", 2),
    "rate": Measure("checks a second", "/s", 0, more_is_better=True),
    "pace": Measure("checks for one second of the client's CPU", "/s", 0, more_is_better=True),
    "requests": Measure("requests a second", "/s", 0, more_is_better=True),
    "p50": Measure("median latency", "ms", 2),
    "p99": Measure("99 % of latencies", "ms", 2),
    "cpu": Measure("CPU of the worker for one request", "µs", 1),
    "capacity": Measure("requests for one second of the worker's CPU", "/s", 0, more_is_better=True),
    "added": Measure("CPU added to one request", "µs", 1),
    "least": Measure("CPU added to one request, the least of all rounds", "µs", 1),
    "both": Measure("CPU of the application and of the server for one request", "µs", 1),
    "events": Measure("CPU added to one request by events or metrics", "µs", 1),
    "p50 added": Measure("CPU added to the median request", "µs", 2),
    "p99 added": Measure("CPU added to the request at 99 %", "µs", 2),
    "calls": Measure("function calls for one request", "", 0),
    "client": Measure("CPU of the client for one check", "µs", 2),
    "server": Measure("CPU of the server for one check", "µs", 2),
    "script": Measure("of that, inside the script", "µs", 2),
    "worst": Measure("the slowest of many checks", "ms", 3),
    "bytes": Measure("bytes for one key", "B", 0),
    "line": Measure("CPU for one line of a log", "µs", 2),
    "lines": Measure("lines of a log a second", "/s", 0, more_is_better=True),
    "start": Measure("beyond the interpreter's own start", "ms", 1),
}


class Spread(NamedTuple):
    """A median, and the quartiles around it."""

    low: float
    middle: float
    high: float


class Figure(NamedTuple):
    """One measure of one contender under one topic; a sample for each round."""

    topic: str
    measure: str
    contender: str
    role: Role
    samples: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        return spread(self.samples)

    @property
    def middle(self) -> float:
        return median(self.samples)


def spread(samples: Sequence[float]) -> Spread:
    """The quartiles; a single sample is all three.

    >>> spread([4, 1, 3, 2, 5])
    Spread(low=2.0, middle=3.0, high=4.0)
    """
    if len(samples) == 1:
        return Spread(samples[0], samples[0], samples[0])
    low, middle, high = quantiles(samples, n=4, method="inclusive")
    return Spread(low, middle, high)


def ratio(figure: Figure, base: Figure) -> Spread:
    """The figure divided by `base`: round by round if both have the same rounds, else by the median of `base`.

    The measure "added" is a small difference of two large numbers, so a quotient of single rounds means nothing. It is
    also divided by the median.
    """
    if len(figure.samples) == len(base.samples) and figure.measure != "added":
        return spread([each / other for each, other in zip(figure.samples, base.samples, strict=True)])
    return spread([each / base.middle for each in figure.samples])


def added(figure: Figure, base: Figure) -> Figure:
    """The figure minus `base`, round by round."""
    rounds = zip(figure.samples, base.samples, strict=True)
    return figure._replace(measure="added", samples=tuple(each - other for each, other in rounds))


def by_merit(figures: Sequence[Figure]) -> list[Figure]:
    """From best to worst, by their medians; all of one measure."""
    more = bool(figures) and MEASURES[figures[0].measure].more_is_better
    return sorted(figures, key=lambda each: each.middle, reverse=more)


def to_json(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """Figures for JSON, rounded to four digits; the measurements are not more precise."""
    return [{**each._asdict(), "samples": [float(f"{sample:.4g}") for sample in each.samples]} for each in figures]


def from_json(found: Iterable[dict[str, Any]]) -> list[Figure]:
    """The figures from the output of `to_json`."""
    return [Figure(**{**each, "samples": tuple(each["samples"])}) for each in found]
