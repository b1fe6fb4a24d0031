"""The tables and sentences of docs/scale.md, from a run. Pure.

A measured rate is from the rounds in which the core was full. If the machine was too busy with other work for that, the
rate is the inverse of the CPU, and is in square brackets.
"""

from __future__ import annotations

from math import ceil, floor, log10
from typing import Any, Final

from bench.figures import Figure, from_json
from bench.plots import machine
from bench.report import Rows, markdown
from bench.scale.model import (
    ALGORITHMS,
    CLUSTER,
    DEEP,
    DEFAULT,
    DEPTHS,
    HOT,
    KINDS,
    OLDEST,
    PASSES,
    PROCESSES,
    REFUSED,
    SINGLE,
    SIZES,
    STALENESS,
    Known,
    Point,
    core,
    predictions,
    worst,
)

SHARE: Final = 0.6  # of a core, in the busiest second
HUNDRED_MILLION: Final = 100_000_000


class Run:
    """A parsed run: its figures, the CPU of whole applications, and the model's constants."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.raw = run
        self.known = Known(from_json(run["figures"]))
        self.cores: int = run["cores"]
        self.apps: dict[str, dict[str, float]] = run["apps"]["cpu"]
        self.core = core(self.known)

    def worker(self) -> tuple[str, float]:
        """The fastest whole application, or else a worker that only checks; and its CPU for each request."""
        whole = [(each["sluicegate Redis"], name) for name, each in self.apps.items() if "sluicegate Redis" in each]
        if whole:
            us, name = min(whole)
            return f"{name} that answers two bytes", us
        kind = KINDS[-1].name
        return kind, self.known.of(PROCESSES.format(1), kind, "worker")


def plain(number: float) -> str:
    """A number rounded to three significant digits.

    >>> plain(45231.7), plain(0.04567), plain(213.5)
    ('45,200', '0.0457', '214')
    """
    if number == 0:
        return "0"
    digits = 2 - floor(log10(abs(number)))
    return f"{round(number, digits):,.{max(0, digits)}f}"


def cell(figure: Figure | None, digits: int | None = None) -> str:
    """The median. The JSON has the quartiles."""
    if figure is None:
        return "–"
    return plain(figure.middle) if digits is None else f"{figure.middle:,.{digits}f}"


def full(run: Run, topic: str, name: str) -> str:
    """Checks a second of a full core; in brackets the inverse of the CPU if the core never was full."""
    found = run.known.full(topic, name)
    return cell(found) if found is not None else f"[{plain(1e6 / run.known.of(topic, name, 'server'))}]"


def servers(run: Run) -> str:
    rows: Rows = [["", "1 rule", "3 rules", "refused"]]
    for name in ALGORITHMS:
        points = [Point(name, rules) for rules in (1, 3)] + [Point(name, 1, refused=True)]
        rows.append([f"`{name}`", *[full(run, each.topic, name) for each in points]])
    rows.append([f"`{DEFAULT}`, all of one identity", full(run, HOT, DEFAULT), *["–"] * 2])
    table = markdown(rows)
    if "[" not in table:
        return table
    return (
        f"{table}\n\nIn square brackets: 10⁶ / CPU. The machine was busy with other work, and the core was never full."
    )


def depths(run: Run) -> str:
    rows: Rows = [["on each connection", "checks/s", "CPU, µs"]]
    wanted = [(depth, "") for depth in DEPTHS] + [(depth, OLDEST) for depth in (1, DEEP)]
    for depth, where in wanted:
        topic = Point(DEFAULT, 1, depth=depth).topic + where
        cpu = run.known.figure(topic, DEFAULT, "server")
        label = "one at a time" if depth == 1 else f"{depth} at once"
        rows.append([label + where, full(run, topic, DEFAULT), cell(cpu, 1)])
    return markdown(rows)


def constants(run: Run) -> str:
    """The constants of the model, in a sentence."""
    found = {name: core(run.known, name) for name in ALGORITHMS}
    scripts = ", ".join(f"`{name}` {each.script:.1f} and {each.further:.1f}" for name, each in found.items())
    wire = found[DEFAULT].wire
    return f"Here reading and answering take {wire:.1f} µs; the script and each further rule: {scripts}."


def checked(run: Run) -> str:
    """How wrong the model is, in a sentence."""
    found = [each for each in predictions(run.known, cores=run.cores) if each.error is not None]
    errors = worst(found)
    if errors is None:
        return "The machine was busy with other work: nothing could be compared."
    largest = sorted(found, key=lambda each: abs(each.error or 0), reverse=True)[:2]
    named = " and ".join(f"{percent(each.error)} ({each.what})" for each in largest)
    return f"Half of the {len(found)} errors are at most {errors[0]:.0%}. The largest are {named}."


def percent(error: float | None) -> str:
    """A relative error in per cent.

    >>> percent(0.123), percent(-0.001), percent(None)
    ('+12%', '+0%', '–')
    """
    return "–" if error is None else f"{round(error, 2) + 0:+.0%}"


def workers(run: Run) -> str:
    rows: Rows = [["", "CPU, µs", "a core's worth", "server's CPU, µs"]]
    one = PROCESSES.format(1)
    for kind in KINDS:
        cpu, server = (run.known.figure(one, kind.name, measure) for measure in ("worker", "server"))
        worth = plain(1e6 / run.known.of(one, kind.name, "worker"))
        rows.append([kind.name, cell(cpu, 1), worth, cell(server, 1)])
    return markdown(rows)


def applications(run: Run) -> str:
    own = 5_000  # µs
    rows: Rows = [["", "CPU, µs", "requests/s", "workers for a core", "with 5 ms of their own"]]
    carried = SHARE * run.core.rate()
    for name, cpu in run.apps.items():
        ours = cpu["sluicegate Redis"]
        needed = [f"{ceil(carried * us / 1e6)}" for us in (ours, ours + own)]
        rows.append([name, plain(ours), plain(1e6 / ours), *needed])
    return markdown(rows) if run.apps else "Not measured."


def clusters(run: Run) -> str:
    rows: Rows = [["", "runs", "worker's CPU, µs", "on a cluster", "servers' CPU, µs", "on a cluster"]]
    for kind in (KINDS[0], KINDS[-1]):
        for identities in ("one identity", "two identities"):
            name = f"{kind.name}, {identities}"
            runs = " → ".join(f"{run.known.of(topic, name, 'trips') / 1000:.0f}" for topic in (SINGLE, CLUSTER))
            figures = [
                run.known.figure(topic, name, each) for each in ("worker", "server") for topic in (SINGLE, CLUSTER)
            ]
            rows.append([name, runs, *[cell(each, 0) for each in figures]])
    return markdown(rows)


def hot(run: Run) -> str:
    topics = {"allowed": PASSES, **{f"refused, `deny_cache={age}`": REFUSED.format(age) for age in STALENESS}}
    rows: Rows = [["one worker", "trips for 1,000 requests", "requests/s", "worker's CPU, µs", "server's CPU, µs"]]
    for kind in (KINDS[0], KINDS[-1]):
        for label, topic in topics.items():
            trips, rate, worker, server = (
                run.known.figure(topic, kind.name, measure) for measure in ("trips", "rate", "worker", "server")
            )
            rows.append([f"{kind.name}, {label}", cell(trips), cell(rate), cell(worker, 1), cell(server, 2)])
    return markdown(rows)


def sizes(run: Run) -> str:
    rows: Rows = [["10/minute", "bytes each", "a hundred million"]]
    for size in SIZES:
        (_, each) = run.known.steps(size)[-1]
        rows.append([f"{size.name}, {size.server}", f"{each:.0f}", _bytes(HUNDRED_MILLION * each)])
    return markdown(rows)


def live(run: Run) -> str:
    (_, each) = run.known.steps(SIZES[0])[-1]
    rows: Rows = [["new identities a second", "10/second", "10/minute", "10/hour", "10/day"]]
    for arrivals in (10, 1_000, 100_000):
        found = [arrivals * period for period in (1, 60, 3_600, 86_400)]
        rows.append([f"{arrivals:,}", *[f"{count:,}: {_bytes(count * each)}" for count in found]])
    return markdown(rows)


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{plain(count / size)} {unit}"
    return f"{count:.0f} B"


def thumb(run: Run) -> str:
    """The rule of thumb, in numbers."""
    us, deep = run.core, run.core.rate(depth=DEEP)
    _, worker = run.worker()
    most = SHARE * us.rate()
    return (
        f"One core carries **{plain(us.rate())}** checks a second when every worker asks for one at a time, and "
        f"{plain(deep)} when {DEEP} arrive together. {SHARE:.0%} of the first are **{plain(most)}**: as many as "
        f"{ceil(most * worker / 1e6)} workers of the quickest framework send. Below that, stay with one server."
    )


SECTIONS: Final = {
    "machine": lambda run: f"{machine(run.raw)} Whole applications: {run.raw['apps']['of']}.",
    "servers": servers,
    "depths": depths,
    "constants": constants,
    "checked": checked,
    "workers": workers,
    "applications": applications,
    "clusters": clusters,
    "hot": hot,
    "sizes": sizes,
    "live": live,
    "thumb": thumb,
}
