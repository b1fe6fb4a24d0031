"""The model of many workers and servers, and its comparison with measurements. Pure: figures in, numbers out.

A check costs CPU on its worker and on one server core. Each of them does one thing at a time:

    server, µs  = script + further × (rules - 1) + wire / depth      depth: checks that arrive in one read
    checks/s    = the least of  workers × 10⁶ / worker's µs,  nodes × 10⁶ / (runs × server's µs)

A worker that waits while the server works for it makes 10⁶ / (worker's µs + server's µs). If both run on the same
cores, cores × 10⁶ / (worker's µs + server's µs) is a bound too. The constants come from the CPU that the server
reports. The predictions are compared with checks that were counted and timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple

from bench.figures import Figure

ALGORITHMS: Final = ("sliding-window", "fixed-window", "gcra", "sliding-counter", "sliding-log")
DEFAULT: Final = ALGORITHMS[0]
DEEP: Final = 64
DEPTHS: Final = (1, 4, 16, DEEP)
HOT: Final = "server, one identity"
OLDEST: Final = ", Redis 6.2"
FULL: Final = 90.0  # per cent: the server must use this much of a core for its rate to be its capacity
QUIET: Final = (
    10.0  # per cent of all cores: other processes may use at most this much, else the rate of two workers is too low
)


class Point(NamedTuple):
    """One kind of check: the algorithm, the rules in one script, the checks at once on a connection (`depth`)."""

    algorithm: str
    rules: int
    depth: int = DEEP
    refused: bool = False

    @property
    def name(self) -> str:
        return self.algorithm

    @property
    def topic(self) -> str:
        return f"server, {self.rules} rules, depth {self.depth}, {'refused' if self.refused else 'allowed'}"


class Kind(NamedTuple):
    """How a worker process checks. `waits`: it does nothing while the server works, like tasks that wait together."""

    name: str
    tasks: int = 0
    threads: int = 1
    waits: bool = True


KINDS: Final = (
    Kind("one thread"),
    Kind("8 threads", threads=8, waits=False),
    Kind("asyncio, 64 tasks", tasks=64),
)
PROCESSES: Final = "workers, {} processes"
SINGLE: Final = "two rules, one server"
CLUSTER: Final = "two rules, cluster"
PASSES: Final = "one identity, allowed"
STALENESS: Final = ("0", "1")
REFUSED: Final = "one identity, refused, deny_cache {}"


class Size(NamedTuple):
    """A fill: `hits` of 10 per minute by each identity, for at most `most` identities."""

    name: str
    algorithm: str
    hits: int
    most: int
    server: str = "Valkey"

    @property
    def topic(self) -> str:
        return f"memory, {self.name}, {self.server}"


STEPS: Final = (0.1, 0.25, 0.5, 1)
SIZES: Final = (
    Size("`sliding-window`, one hit", DEFAULT, hits=1, most=1_000_000),
    Size("`sliding-window`, ten of ten", DEFAULT, hits=10, most=100_000),
    Size("`gcra`", "gcra", hits=1, most=250_000),
    Size("`sliding-window`, one hit", DEFAULT, hits=1, most=100_000, server="Redis 6.2"),
    Size("`gcra`", "gcra", hits=1, most=100_000, server="Redis 6.2"),
)


class Known:
    """Figures by topic, contender and measure."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._found = {(each.topic, each.contender, each.measure): each for each in figures}

    def figure(self, topic: str, contender: str, measure: str) -> Figure | None:
        return self._found.get((topic, contender, measure))

    def of(self, topic: str, contender: str, measure: str) -> float:
        """The median; KeyError if it was not measured."""
        return self._found[topic, contender, measure].middle

    def at(self, point: Point, measure: str) -> float:
        return self.of(point.topic, point.name, measure)

    def full(self, topic: str, contender: str) -> Figure | None:
        """Checks a second in the rounds in which the server's core was full; None if there were none."""
        return self._rates(topic, contender, "busy", lambda percent: percent >= FULL)

    def quiet(self, topic: str, contender: str) -> Figure | None:
        """Checks a second in the rounds in which the machine did little else; None if there were none."""
        return self._rates(topic, contender, "others", lambda percent: percent <= QUIET)

    def _rates(self, topic: str, contender: str, by: str, wanted: Callable[[float], bool]) -> Figure | None:
        rate, condition = self.figure(topic, contender, "rate"), self.figure(topic, contender, by)
        if rate is None or condition is None:
            return None
        rounds = zip(rate.samples, condition.samples, strict=True)
        samples = tuple(each for each, percent in rounds if wanted(percent))
        return rate._replace(samples=samples) if samples else None

    def steps(self, size: Size) -> list[tuple[int, float]]:
        """Bytes for one identity, for each number of identities."""
        return sorted((int(name), each.middle) for (topic, name, _), each in self._found.items() if topic == size.topic)


class Core(NamedTuple):
    """Microseconds of one server core."""

    script: float  # of a script with one rule
    further: float  # of each further rule
    wire: float  # of one read and one answer, for any number of checks

    def us(self, *, rules: int = 1, depth: int = 1) -> float:
        """CPU of one check.

        >>> Core(script=20, further=5, wire=16).us(rules=3, depth=4)
        34.0
        """
        return self.script + self.further * (rules - 1) + self.wire / depth

    def rate(self, *, rules: int = 1, depth: int = 1) -> float:
        """Checks a second that one core carries."""
        return 1e6 / self.us(rules=rules, depth=depth)


def core(known: Known, algorithm: str = DEFAULT, *, refused: bool = False) -> Core:
    """The constants from the server's reported CPU at two depths and with one and three rules.

    `wire` is the same for all algorithms.
    """
    shallow, deep = (known.at(Point(DEFAULT, 1, depth=depth), "server") for depth in (1, DEEP))
    wire = max(0.0, (shallow - deep) / (1 - 1 / DEEP))
    one, three = (known.at(Point(algorithm, rules, refused=refused), "server") for rules in (1, 3))
    return Core(script=one - wire / DEEP, further=(three - one) / 2, wire=wire)


class Reach(NamedTuple):
    """Checks a second, and what bounds them."""

    rate: float
    end: str


def reach(
    *, workers: int, worker: float, nodes: int, server: float, cores: int | None = None, waits: bool = False
) -> Reach:
    """The capacity of these workers and nodes, from the CPU that a check costs each.

    `cores`: the number of cores if all run on one machine. `waits`: a worker is idle while the server works for it.

    >>> reach(workers=4, worker=200, nodes=1, server=25)
    Reach(rate=20000.0, end='workers')
    >>> reach(workers=16, worker=200, nodes=1, server=25), reach(workers=2, worker=75, nodes=1, server=25, cores=2)
    (Reach(rate=40000.0, end='servers'), Reach(rate=20000.0, end='cores'))
    """
    busy = worker + server if waits else worker
    ends = [Reach(workers * 1e6 / busy, "workers"), Reach(nodes * 1e6 / server, "servers")]
    if cores is not None:
        ends.append(Reach(cores * 1e6 / (worker + server), "cores"))
    return min(ends)


class Prediction(NamedTuple):
    """A prediction that the model's constants do not come from; and the measurement, if the machine was idle enough."""

    what: str
    predicted: float
    measured: float | None

    @property
    def error(self) -> float | None:
        """How much too high the prediction is, as a fraction of the measurement."""
        return None if self.measured is None else self.predicted / self.measured - 1


def predictions(known: Known, *, cores: int) -> list[Prediction]:
    """All predictions, in checks a second."""
    return [*_servers(known), *_workers(known, cores=cores)]


def _servers(known: Known) -> list[Prediction]:
    """Predictions for the server. Of two rules under a non-default algorithm, only the worst prediction is kept."""
    default = core(known)
    points = [Point(DEFAULT, 1, depth=depth) for depth in DEPTHS[1:-1]] + [Point(DEFAULT, 3, depth=1)]
    found = [_served(known, default, point) for point in [*points, Point(DEFAULT, 2)]]
    others = [_served(known, core(known, name), Point(name, 2)) for name in ALGORITHMS[1:]]
    last = max(others, key=lambda each: -1.0 if each.error is None else abs(each.error))
    known_errors = sum(each.error is not None for each in others)
    return [*found, last._replace(what=f"{last.what}, the worst of {known_errors}")]


def _served(known: Known, said: Core, point: Point) -> Prediction:
    measured = known.full(point.topic, point.name)
    return Prediction(
        f"`{point.name}`, {point.rules} rule{'s' * (point.rules > 1)}, {point.depth} at once",
        said.rate(rules=point.rules, depth=point.depth),
        None if measured is None else measured.middle,
    )


def _workers(known: Known, *, cores: int) -> list[Prediction]:
    """Predictions for workers, from the CPU of one worker and of the server for a check."""
    found = []
    for kind in KINDS:
        alone = PROCESSES.format(1)
        worker, server = known.of(alone, kind.name, "worker"), known.of(alone, kind.name, "server")
        for count in (1, 2):
            said = reach(workers=count, worker=worker, nodes=1, server=server, cores=cores, waits=kind.waits)
            measured = known.quiet(PROCESSES.format(count), kind.name)
            what = f"{count} worker{'s' * (count > 1)}, {kind.name}"
            found.append(Prediction(what, said.rate, None if measured is None else measured.middle))
    return found


def predicted_sizes(known: Known) -> list[Prediction]:
    """Bytes for one identity, predicted from a tenth of the identities; omitted if the fill stopped there."""
    found = []
    for size in SIZES:
        steps = known.steps(size)
        if len(steps) > 1:
            found.append(Prediction(size.topic, steps[0][1], steps[-1][1]))
    return found


def worst(found: Sequence[Prediction]) -> tuple[float, float] | None:
    """The median and the largest absolute error; None if nothing could be compared.

    >>> worst([Prediction("a", 90, 100), Prediction("b", 120, 100), Prediction("c", 5, None)])
    (0.15, 0.2)
    """
    errors = [round(abs(each.error), 3) for each in found if each.error is not None]
    return (round(median(errors), 3), max(errors)) if errors else None
