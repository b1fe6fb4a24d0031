"""Tallies: what is counted of each candidate, part by part of the identities, and added up to a result.

The size of a tally does not depend on the length of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, NamedTuple, TypeVar

from sluicegate.clock import MICROSECOND
from sluicegate.errors import needs
from sluicegate.replay.closed_loop import Waits
from sluicegate.replay.decide import ALLOWED
from sluicegate.replay.kinds import UNCLEAR
from sluicegate.replay.result import Refused

with needs("replay"):
    import polars as pl

Counted = TypeVar("Counted")
BUCKETS: Final = 360  # of the load, at most
MOST_REFUSED: Final = 25  # identities that are listed
_WIDTHS: Final = (  # seconds of a bucket: the smallest of which BUCKETS suffice
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400),
    *(2 * 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400),
)


class Grid(NamedTuple):
    """The buckets of the load."""

    start: int  # microseconds
    width: int
    buckets: int

    @classmethod
    def over(cls, first: int | None, last: int | None) -> Grid:
        """Return the buckets from the first request to the last. They begin at a multiple of their width."""
        if first is None or last is None:
            return cls(0, MICROSECOND, 0)
        for seconds in _WIDTHS:
            width = seconds * MICROSECOND
            start = first // width * width
            if (last - start) // width < BUCKETS:
                return cls(start, width, (last - start) // width + 1)
        width = (last - first) // (BUCKETS - 1) + 1
        return cls(first, width, (last - first) // width + 1)

    @property
    def of(self) -> pl.Expr:
        """The bucket of a row."""
        return ((pl.col("time") - self.start) // self.width).cast(pl.Int32).alias("bucket")


def add(one: Any, other: Any) -> Any:
    """Add two tallies, or two of their parts: numbers, lists item by item, and counts by their keys."""
    if isinstance(one, list):
        longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
        return [*map(add, longer, shorter), *longer[len(shorter) :]]
    if is_dataclass(one) and not isinstance(one, Waits):
        kind: Any = type(one)
        return kind(**{each.name: add(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)})
    if isinstance(one, Top):
        return one.with_others(other)
    return one + other


class Top(tuple[tuple[int, Refused], ...]):
    """The most refused identities, with their numbers: these order equal ones in the same way in each run."""

    __slots__ = ()

    def with_others(self, others: Iterable[tuple[int, Refused]]) -> Top:
        return Top(sorted([*self, *others], key=lambda each: (-each[1].refused, each[0]))[:MOST_REFUSED])


@dataclass
class Common:
    """What is counted of the requests under one key, whatever is decided about them."""

    routes: Counter[int] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    busy: Counter[int] = field(default_factory=Counter)  # microseconds of work, by bucket
    timed: int = 0  # requests whose duration is known
    rates: Counter[tuple[int, str, int]] = field(default_factory=Counter)  # identities by period, requests and peak
    identities: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # identities
    route_identities: Counter[int] = field(default_factory=Counter)


@dataclass
class Tally:
    """What is counted of the decisions of one candidate."""

    decided: int = 0
    refused: int = 0
    identities: int = 0
    refused_identities: int = 0
    blocked: int = 0  # microseconds
    kinds: Counter[str] = field(default_factory=Counter)  # refused identities
    kind_requests: Counter[str] = field(default_factory=Counter)  # theirs that were refused
    rules: Counter[int] = field(default_factory=Counter)
    rule_identities: Counter[int] = field(default_factory=Counter)
    routes: Counter[int] = field(default_factory=Counter)
    route_identities: Counter[int] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    bucket_identities: Counter[int] = field(default_factory=Counter)
    busy: Counter[int] = field(default_factory=Counter)  # microseconds of work that was refused, by bucket
    most: Top = field(default_factory=Top)
    waits: Waits = field(default_factory=Waits)
    people_waits: Waits = field(default_factory=Waits)
    curves: list[list[list[int]]] = field(default_factory=list)  # by rule and point: refused, identities, people


Name = Callable[[int], str]
"""What the report calls the identity with a number."""


def readable(text: str) -> str:
    """Return an identity as a person writes it.

    >>> readable("t3:sip10:s192.0.2.1"), readable("salice")
    ('ip:192.0.2.1', 'alice')
    """
    if text[:1] != "t":
        return text[1:] if text[:1] == "s" else text
    parts, rest = [], text[1:]
    while rest:
        length, _, rest = rest.partition(":")
        parts.append(readable(rest[: int(length)]))
        rest = rest[int(length) :]
    return ":".join(parts)


def counts(frame: pl.DataFrame, *columns: str) -> Counter[Any]:
    """Count the rows by their values in these columns."""
    rows = frame.group_by(columns).agg(pl.len()).iter_rows()
    return Counter({row[0] if len(columns) == 1 else row[:-1]: row[-1] for row in rows})


def different(frame: pl.DataFrame, column: str) -> Counter[Any]:
    """Count the identities by the values of a column."""
    return counts(frame.select("identity", column).unique(), column)


def in_order(frame: pl.DataFrame, number: int) -> tuple[pl.DataFrame, pl.Series]:
    """Return what was decided while the log was read: the refusals, and the rows that a rule applied to."""
    decided = frame.select("row", until=f"until {number}", rule=f"rule {number}").drop_nulls("rule")
    return decided.filter(pl.col("rule") != ALLOWED), decided["row"]


def common(frame: pl.DataFrame, *, grid: Grid) -> Common:
    """Count the requests of some identities, all requests of each. The frame is sorted by identity and time."""
    placed = frame.with_columns(grid.of)
    known = frame.filter(pl.col("identity").is_not_null())
    found = Common(
        routes=counts(placed, "route"),
        buckets=counts(placed, "bucket"),
        identities=known["identity"].n_unique(),
        route_identities=different(known, "route"),
    )
    if "duration" in placed.columns:
        found.timed = placed.height - placed["duration"].null_count()
    found.busy = _busy(placed)
    return found


def _busy(placed: pl.DataFrame) -> Counter[int]:
    """Return the microseconds of work in each bucket, if durations are known."""
    if "duration" not in placed.columns:
        return Counter()
    return Counter(dict(placed.group_by("bucket").agg(pl.col("duration").sum()).iter_rows()))


def rounded(number: int) -> int:
    """Return a number with two digits, rounded down, so that there are few different ones."""
    scale: int = 10 ** max(0, len(str(number)) - 2)
    return number // scale * scale


def tally(
    frame: pl.DataFrame,
    refusals: pl.DataFrame,
    *,
    decided: pl.Series,
    kinds: pl.DataFrame,
    grid: Grid,
    name: Name,
) -> Tally:
    """Count what was decided about the requests of some identities. The frame is sorted by identity and time. `kinds`
    has the kind of each.
    """
    found = Tally(decided=len(decided))
    if len(decided):
        places = decided if len(decided) < frame.height else None
        mine = frame if places is None else frame.join(decided.to_frame("row"), on="row", how="semi")
        found.identities = mine["identity"].n_unique()
    if refusals.height == 0:
        return found
    columns = ["row", "identity", "time", "route", *(["duration"] if "duration" in frame.columns else [])]
    hits = frame.select(columns).join(refusals, on="row", how="inner", maintain_order="left").with_columns(grid.of)
    found.refused = hits.height
    found.rules, found.rule_identities = counts(hits, "rule"), different(hits, "rule")
    found.routes, found.route_identities = counts(hits, "route"), different(hits, "route")
    found.buckets, found.bucket_identities = counts(hits, "bucket"), different(hits, "bucket")
    found.busy = _busy(hits)
    # Blocked from a refusal until its wait is over; the parts of one identity that overlap count once.
    known = pl.col("until").fill_null(pl.col("time"))
    before = pl.max_horizontal("time", known.cum_max().shift(1).over("identity"))
    hits = hits.with_columns((known - before).clip(lower_bound=0).alias("blocked"))
    time = pl.col("time")
    who = hits.group_by("identity").agg(pl.col("blocked").sum(), refused=pl.len(), first=time.first(), last=time.last())
    who = who.join(kinds, on="identity", how="left").with_columns(pl.col("kind").fill_null(UNCLEAR))
    found.refused_identities, found.blocked = who.height, int(who["blocked"].sum())
    found.kinds = Counter(who["kind"])
    found.kind_requests = Counter(dict(who.group_by("kind").agg(pl.col("refused").sum()).iter_rows()))
    listed = who.sort(["refused", "identity"], descending=[True, False]).head(MOST_REFUSED)
    found.most = _most(frame, hits, listed, grid=grid, name=name)
    return found


def _most(frame: pl.DataFrame, hits: pl.DataFrame, who: pl.DataFrame, *, grid: Grid, name: Name) -> Top:
    """Return the most refused identities with their counts in each bucket."""
    listed = who["identity"].implode()
    asked = _by_bucket(frame.filter(pl.col("identity").is_in(listed)).with_columns(grid.of), grid)
    refused = _by_bucket(hits.filter(pl.col("identity").is_in(listed)), grid)
    rows = []
    for row in who.iter_rows(named=True):
        identity = row["identity"]
        requests = asked[identity]
        found = Refused(
            name(identity),
            requests=sum(requests),
            refused=row["refused"],
            seconds=row["blocked"] / MICROSECOND,
            first=row["first"] / MICROSECOND,
            last=row["last"] / MICROSECOND,
            kind=row["kind"],
            counts=tuple(requests),
            refusals=tuple(refused[identity]),
        )
        rows.append((identity, found))
    return Top(rows)


def _by_bucket(frame: pl.DataFrame, grid: Grid) -> dict[int, list[int]]:
    """Count the rows of each identity in each bucket."""
    found: dict[int, list[int]] = {}
    for identity, bucket, number in frame.group_by("identity", "bucket").agg(pl.len()).iter_rows():
        found.setdefault(identity, [0] * grid.buckets)[bucket] = number
    return found


def line(counted: Counter[int], length: int) -> list[int]:
    """Return counts by number as a list."""
    return [counted.get(number, 0) for number in range(length)]


def quantile(counted: Counter[int], share: float) -> int:
    """Return the value that this share of the counted values does not pass; 0 if there is none."""
    rest = share * sum(counted.values())
    for value in sorted(counted):
        rest -= counted[value]
        if rest <= 0:
            return value
    return 0
