"""`sluicegate watch`: decisions per second by rule, refusals and the store's latency, live in a terminal.

It reads the application's Prometheus metrics at one URL or more, and adds them up. So it sees all processes, and the
application does nothing more for it. What is shown is the growth between two readings.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from http.client import HTTPException
from math import inf, isfinite
from threading import Event
from typing import Final, NamedTuple
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import click
from rich.console import Group, RenderableType
from rich.live import Live

from sluicegate.cli.commands import Failure
from sluicegate.cli.output import Listing, console, option_every, plain
from sluicegate.clock import monotonic
from sluicegate.runtime.hidden import shown_url

PATIENCE: Final = 5.0  # seconds for one reading
DEGRADED: Final = ("local", "policy")
RESULTS: Final = ("allowed", "refused", "shadow", "banned")
NEEDED: Final = {
    "sluicegate_outcomes_total": {"application", "rule", "result", "source"},
    "sluicegate_decisions_total": {"result"},
    "sluicegate_store_seconds_bucket": {"le"},
}
"""The labels without which a series says nothing."""
_LINE: Final = re.compile(r"(sluicegate_\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)",?')
_ESCAPED: Final = re.compile(r"\\(.)")

Labels = frozenset[tuple[str, str]]
Series = Mapping[tuple[str, Labels], float]


class Reading(NamedTuple):
    """The metrics of all processes at a moment."""

    at: float
    series: Series


class RuleRates(NamedTuple):
    """One rule, per second."""

    rule: str
    by_result: Mapping[str, float]
    cached: float  # refusals from the deny cache
    degraded: float  # without the store

    @property
    def total(self) -> float:
        return sum(self.by_result.values())


class Rates(NamedTuple):
    """What has happened between two readings, per second."""

    rules: tuple[RuleRates, ...]  # the most refusals first
    allowed: float  # decisions
    refused: float
    store: tuple[float, float] | None  # seconds: the median and the 99th percentile; None without a call
    open_circuits: float


class UnreadableError(Failure):
    """The metrics cannot be read."""


@click.command()
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@option_every("The time between two readings.")
@click.option("--once", is_flag=True, help="Print one frame, after two readings, and exit.")
def watch(urls: tuple[str, ...], every: float, *, once: bool) -> None:
    """Show decisions per second by rule, from the Prometheus metrics of the application at URL."""
    out = console()
    before = _read(urls)
    if once:
        Event().wait(every)
        out.print(frame(rates(before, _read(urls)), rows=None))
        return
    try:
        with ExitStack() as stack:
            show: Callable[[RenderableType], object] = out.print  # a file, or a terminal that cannot move its cursor
            if out.is_interactive:
                live = stack.enter_context(Live(plain("reading…"), console=out, auto_refresh=False))
                show = partial(live.update, refresh=True)
            while not Event().wait(every):
                try:
                    after = _read(urls)
                except UnreadableError as error:
                    show(plain(error.format_message(), "red"))
                else:
                    show(frame(rates(before, after), rows=max(1, out.height - 5)))
                    before = after
    except KeyboardInterrupt:
        out.print()


def _read(urls: Sequence[str]) -> Reading:
    found: dict[tuple[str, Labels], float] = {}
    for url in urls:
        try:
            with urlopen(_request(url), timeout=PATIENCE) as reply:  # noqa: S310  # the scheme was checked
                text = reply.read().decode("utf-8", "replace")
            for name, labels, value in parse(text):
                found[name, labels] = found.get((name, labels), 0) + value
        except (OSError, ValueError, HTTPException) as error:
            problem = str(error) or type(error).__name__
            problem = problem if problem.isprintable() else ascii(problem)  # a server may have sent it
            expected = "give the URL of the application's metrics"
            if isinstance(error, URLError) and isinstance(error.reason, ConnectionRefusedError):
                problem, expected = "nothing listens there", f"start the application, or {expected}"
            raise UnreadableError(f"{shown_url(url) or repr(url)}: {problem}; {expected}") from error
    if not found:
        problem = "no metrics of sluicegate there; give PrometheusMetrics() as on_decision, and let it serve metrics"
        raise UnreadableError(f"{', '.join(map(shown_url, urls))}: {problem}")
    return Reading(monotonic(), found)


def _request(url: str) -> Request:
    """Return the request of a URL. A user and a password in it become basic authentication, for this server only.
    Raises ValueError, with nothing of the URL in it.
    """
    problem = "not an http:// or https:// URL, or its password is not percent-encoded"
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # its text may have a part of the password
        raise ValueError(problem) from None
    if not known:
        raise ValueError(problem)
    user, at, host = parts.netloc.rpartition("@")
    request = Request(parts._replace(netloc=host, fragment="").geturl())  # noqa: S310  # the scheme was checked
    if at:
        # a redirect to another server does not get it
        request.add_unredirected_header("Authorization", f"Basic {b64encode(unquote(user).encode()).decode()}")
    return request


def parse(text: str) -> Iterator[tuple[str, Labels, float]]:
    r"""Yield the series of sluicegate in Prometheus' text format. Raises ValueError for one that says nothing.

    >>> list(parse('sluicegate_entries{store="a\\"b"} 4.0\nother 1'))
    [('sluicegate_entries', frozenset({('store', 'a"b')}), 4.0)]
    """
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels, value = match[1], dict(_labels(match[2] or "")), float(match[3])
        missing = NEEDED.get(name, set()) - labels.keys()
        if missing:
            raise ValueError(f"{name} without the label {min(missing)}")
        if not isfinite(value) or float(labels.get("le", 0)) < 0:
            raise ValueError(f"{name} with the value {match[3]}")
        yield name, frozenset(labels.items()), value


def _labels(text: str) -> Iterator[tuple[str, str]]:
    label = _LABEL.match(text)
    while label is not None:
        yield label[1], _ESCAPED.sub(r"\1", label[2])
        label = _LABEL.match(text, label.end())


def rates(before: Reading, after: Reading) -> Rates:
    """Return the growth per second."""
    seconds = max(after.at - before.at, 1e-9)
    grown: dict[str, list[tuple[dict[str, str], float]]] = {}
    for (name, labels), value in after.series.items():
        then = before.series.get((name, labels), 0)
        growth = value - then if value >= then else value  # a process has started again
        grown.setdefault(name, []).append((dict(labels), growth / seconds))
    outcomes, decisions = grown.get("sluicegate_outcomes_total", []), grown.get("sluicegate_decisions_total", [])
    several = len({of.get("application") for of, _ in outcomes}) > 1
    rules: dict[str, RuleRates] = {}
    for of, rate in outcomes:
        name = f"{of['application']}/{of['rule']}" if several else of["rule"]
        known = rules.get(name) or RuleRates(name, dict.fromkeys(RESULTS, 0.0), cached=0.0, degraded=0.0)
        result, source = of["result"], of["source"]
        rules[name] = known._replace(
            by_result={**known.by_result, result: known.by_result.get(result, 0.0) + rate},
            cached=known.cached + (rate if source == "cache" else 0),
            degraded=known.degraded + (rate if source in DEGRADED else 0),
        )
    allowed = sum([rate for each, rate in decisions if each["result"] == "allowed"])
    return Rates(
        rules=tuple(sorted(rules.values(), key=lambda rule: (rule.by_result["allowed"] - rule.total, -rule.total))),
        allowed=allowed,
        refused=sum([rate for _, rate in decisions]) - allowed,
        store=quantiles(grown.get("sluicegate_store_seconds_bucket", [])),
        open_circuits=sum([value for (name, _), value in after.series.items() if name == "sluicegate_open_circuits"]),
    )


def quantiles(buckets: Sequence[tuple[dict[str, str], float]]) -> tuple[float, float] | None:
    """Return the upper bounds of the buckets of the median and the 99th percentile: more is not known."""
    counts: dict[float, float] = {}
    for labels, count in buckets:
        counts[float(labels["le"])] = counts.get(float(labels["le"]), 0) + count
    total = counts.get(inf, 0)
    if total <= 0:
        return None
    median, most = (min([le for le, count in counts.items() if count >= part * total]) for part in (0.5, 0.99))
    return median, most


def frame(found: Rates, *, rows: int | None) -> Group:
    """Return what is shown: a line about all decisions, one about the store, and a row for each rule."""
    total = found.allowed + found.refused
    part = f" ({100 * found.refused / total:.1f} %)" if total else ""
    head = f"{total:.1f} decisions/s, {found.refused:.1f} refused{part}"
    store = f"store: {_latency(found.store)}"
    if found.open_circuits:
        store += f"; {found.open_circuits:.0f} circuit{'' if found.open_circuits == 1 else 's'} open"
    columns = tuple([result.capitalize() for result in (*RESULTS, "cached", "no store")])
    cells = list[tuple[str, ...]]()
    for rule in found.rules[:rows]:
        figures = [rule.by_result[result] for result in RESULTS]
        cells.append((rule.rule, *map(_figure, (*figures, rule.cached, rule.degraded))))
    shown = Listing(cells, "Per second", *columns, right=columns)
    return Group(plain(head), plain(store, "red" if found.open_circuits else ""), shown)


def _latency(store: tuple[float, float] | None) -> str:
    if store is None:
        return "not called"
    median, most = ["more" if each == inf else f"{each * 1000:g} ms" for each in store]
    return f"half within {median}, 99 % within {most}"


def _figure(rate: float) -> str:
    return f"{rate:,.1f}" if rate else "-"
