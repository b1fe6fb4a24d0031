"""The survey of one partition for `suggest`: the kinds of its identities, and for each group of requests the peaks of
people and what limits would refuse. Several processes share the partitions, and what they return is added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sluicegate.errors import needs
from sluicegate.replay.candidates import Candidate
from sluicegate.replay.decide import Ready, decided, one_identity, ruled
from sluicegate.replay.kinds import AUTOMATED, MANY, Figures
from sluicegate.replay.partitions import Part, Single
from sluicegate.replay.peaks import PEAK, Peaks
from sluicegate.rules.rule import Rule
from sluicegate.web.settings import Settings

with needs("replay"):
    import polars as pl

LISTED: Final = 10  # identities that are named
_COMMON: Final = 10_000  # paths and User-Agents of one of them that are counted from piece to piece
DAY: Final = 86_400_000_000
ALL, ONE_DAY, HIGHEST, GONE, INSTEAD = "all", "one day", "highest", "gone", "instead"
"""What a peak is counted of: all requests of an identity; those of one day; the highest of its days. A limit is tried
on each day with the peaks of the other days: there the highest is gone if it was of this day, and the next counts
instead.
"""


@dataclass
class Group:
    """What is counted of one group of requests."""

    requests: int = 0
    identities: int = 0  # of people
    people: int = 0
    programs: Counter[int] = field(default_factory=Counter)  # by their requests
    peaks: Counter[tuple[str, int, int, int]] = field(default_factory=Counter)
    """The people, by kind of peak, window, peak and day. Of ALL, the day is 1 for an address of many people, else 0."""

    @property
    def program_requests(self) -> int:
        return sum([size * number for size, number in self.programs.items()])


@dataclass
class Effect:
    """What limits refuse. A limit is one bit: 1, 2, 4 and so on. `programs`: the requests of programs that exactly
    these limits refuse. `people`: the identities of people that one limit refuses.
    """

    programs: Counter[int] = field(default_factory=Counter)
    people: Counter[int] = field(default_factory=Counter)
    checks: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Refused requests of programs that look like a health check, by identity and limit."""


class Named(NamedTuple):
    """A program that is named."""

    requests: int  # negated, so that those with most are first
    text: str
    reasons: tuple[str, ...]
    identity: int
    is_check: bool  # whether it looks like a health check
    path: str | None  # with its User-Agent the commonest
    agent: int | None  # its hash


class Surveyed(NamedTuple):
    """One partition."""

    kinds: Counter[str]
    automated: pl.Series  # identities
    programs: list[Named]  # with most requests, of all and of those that look like a health check
    groups: list[Group]


@dataclass(frozen=True)
class Survey:
    """What is asked of each partition."""

    rules: tuple[Rule, ...]  # a group of requests each
    windows: tuple[int, ...]
    resolution: int
    sees_assets: bool = False
    checks: tuple[int, ...] = ()  # identities that look like a health check

    def count(self, part: Part) -> Surveyed:
        """Return the kinds of the identities, with the counts of each group."""
        held, figures, texts = part.load(), Figures(), list[pl.DataFrame]()
        for piece in held.pieces():
            figures.add(piece.frame)
            texts = [pl.concat([*texts, piece.texts]).unique("identity")]
        kinds = figures.kinds(sees_assets=self.sees_assets, resolution=self.resolution)
        is_program = pl.col("kind") == AUTOMATED
        programs = kinds.table.filter(is_program).select("requests", "check", "identity")
        most = programs.join(texts[0], on="identity").sort("requests", "text", descending=[True, False])
        named = pl.concat([most.head(LISTED), most.filter("check").head(LISTED)]).unique("identity")
        common = list[pl.DataFrame]()
        people = kinds.table.filter(~is_program).select("people", "identity")
        groups = [_Peaks(self.windows) for _ in self.rules]
        for piece in held.pieces():
            theirs = piece.frame.filter(pl.col("identity").is_in(named["identity"].implode()))
            common = [_common([*common, theirs.select("identity", "path", "agent", number=1)])]
            for group, rows in zip(groups, self._rows(piece.frame), strict=True):
                group.add(rows, people["identity"])
        asked = common[0].group_by("identity", maintain_order=True).first().drop("number")
        return Surveyed(
            kinds=Counter(dict(kinds.table.group_by("kind").len().iter_rows())),
            automated=programs["identity"],
            programs=[
                Named(-requests, text, kinds.reasons(who), identity=who, is_check=check, path=path, agent=agent)
                for requests, check, who, text, path, agent in named.join(asked, on="identity").iter_rows()
            ],
            groups=[group.counted(people) for group in groups],
        )

    def effects(self, part: Part, automated: pl.Series, quotas: Sequence[Sequence[str]]) -> list[Effect]:
        """Return what the engine refuses of each group with each of its quotas."""
        found, single = [Effect() for _ in self.rules], isinstance(part, Single)
        ready = [[Ready(_limit(quota)) for quota in each] for each in quotas]
        limits = [[(one, one_identity(one) if single else None) for one in each] for each in ready]
        is_program = pl.col("identity").is_in(automated.implode())
        for piece in part.load().pieces():
            for number, rows in enumerate(self._rows(piece.frame)):
                refused = [decided(one, rows, kept).refusals for one, kept in limits[number]]
                named = [each.select("row", limit=pl.lit(2**at, pl.Int64)) for at, each in enumerate(refused)]
                if named:
                    hits = rows.select("row", "identity").join(pl.concat(named), on="row")
                    sums = hits.filter(is_program).group_by("row").agg(pl.col("limit").sum())["limit"]
                    found[number].programs.update(dict(sums.value_counts().iter_rows()))
                    people = hits.filter(~is_program).group_by("limit").agg(pl.col("identity").n_unique())
                    found[number].people |= Counter(dict(people.iter_rows()))
                    checked = hits.filter(pl.col("identity").is_in(self.checks)).group_by("identity", "limit").len()
                    found[number].checks.update({(who, limit): times for who, limit, times in checked.iter_rows()})
        return found

    def _rows(self, frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield the rows of each group."""
        ready = Ready(Candidate("groups", Settings(rules=self.rules)))
        rows = ruled(ready, frame).select("identity", "row", "time", "set", day=pl.col("time") // DAY)
        for group in range(len(self.rules)):
            yield rows.filter(ready.having(group)).drop("set")


def _common(counted: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the commonest pairs of a path and a User-Agent of each identity, and how often they came."""
    pairs = pl.concat(counted).group_by("identity", "path", "agent").agg(pl.col("number").sum())
    pairs = pairs.sort("number", "path", "agent", descending=[True, False, False])
    return pairs.group_by("identity", maintain_order=True).head(_COMMON)


def _limit(quota: str) -> Candidate:
    return Candidate("limit", Settings(rules=[Rule(name="limit", quota=quota, key="ip")]))


class _Peaks:
    """The requests of one group, piece by piece."""

    def __init__(self, windows: Sequence[int]) -> None:
        self._windows = windows
        self._whole = Peaks(["identity"], windows)
        self._days = Peaks(["identity", "day"], windows)
        self._programs: Counter[int] = Counter()
        self._requests = 0

    def add(self, rows: pl.DataFrame, people: pl.Series) -> None:
        """Add requests."""
        theirs = rows["identity"].is_in(people.implode())
        self._requests += rows.height
        self._programs.update(dict(rows.filter(~theirs)["identity"].value_counts().iter_rows()))
        if theirs.any():
            self._whole.add(rows.filter(theirs))
            self._days.add(rows.filter(theirs))

    def counted(self, people: pl.DataFrame) -> Group:
        """Return what was counted. `people` has the identities of people, and how many people each counts for."""
        found = Group(self._requests, programs=Counter(self._programs.values()))
        if not len(self._whole.found):
            return found
        whole = self._whole.found.join(people, on="identity").with_columns(
            many=(pl.col("people") >= MANY).cast(pl.Int8)
        )
        days = self._days.found.join(people, on="identity")
        once = pl.len().over("identity") == 1
        others = days.filter(~once)
        days_of_one = days.filter(once).with_columns(second=pl.lit(None, pl.Int64))
        found.identities, found.people = whole.height, int(whole["people"].sum())
        for window in self._windows:
            peak = pl.col(f"{PEAK}{window}")
            order = others.sort(peak, descending=True).group_by("identity", maintain_order=True)
            tops = order.agg(pl.col("people", "day").first(), peak=peak.first(), second=peak.shift(-1).first())
            tops = pl.concat(
                [tops, days_of_one.select("identity", "people", "day", "second", peak=peak)], how="diagonal"
            )
            for what, frame, high, day in (
                (ALL, whole, peak, pl.col("many")),
                (ONE_DAY, days, peak, pl.col("day")),
                (HIGHEST, tops, pl.col("peak"), pl.lit(0)),
                (GONE, tops, pl.col("peak"), pl.col("day")),
                (INSTEAD, tops.drop_nulls("second"), pl.col("second"), pl.col("day")),
            ):
                counted = frame.group_by(high=high, at=day).agg(pl.col("people").sum())
                found.peaks.update({(what, window, high, at): number for high, at, number in counted.iter_rows()})
        return found
