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
from sluicegate.replay.decide import Ready, decided, ruled
from sluicegate.replay.kinds import AUTOMATED, MANY, kinds
from sluicegate.replay.partitions import Part
from sluicegate.replay.peaks import PEAK, peaks
from sluicegate.replay.tally import counts
from sluicegate.rules.rule import Rule
from sluicegate.web.settings import Settings

with needs("replay"):
    import polars as pl

LISTED: Final = 10  # identities that are named
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
        frame, texts = part.load()
        found = kinds(frame, sees_assets=self.sees_assets, resolution=self.resolution)
        is_program = pl.col("kind") == AUTOMATED
        programs = found.table.filter(is_program).select("requests", "check", "identity")
        most = programs.join(texts, on="identity").sort("requests", "text", descending=[True, False])
        named = pl.concat([most.head(LISTED), most.filter("check").head(LISTED)]).unique("identity")
        asked = frame.filter(pl.col("identity").is_in(named["identity"].implode()))
        asked = asked.group_by("identity", "path", "agent").len()
        asked = asked.sort("len", "path", "agent", descending=[True, False, False]).drop("len")
        asked = asked.unique("identity", keep="first", maintain_order=True)
        people = found.table.filter(~is_program).select("people", "identity")
        return Surveyed(
            kinds=Counter(dict(found.table.group_by("kind").len().iter_rows())),
            automated=programs["identity"],
            programs=[
                Named(-requests, text, found.reasons(who), identity=who, is_check=check, path=path, agent=agent)
                for requests, check, who, text, path, agent in named.join(asked, on="identity").iter_rows()
            ],
            groups=[_counted(rows, people, self.windows) for rows in self._rows(frame)],
        )

    def effects(self, part: Part, automated: pl.Series, quotas: Sequence[Sequence[str]]) -> list[Effect]:
        """Return what the engine refuses of each group with each of its quotas."""
        found = []
        is_program = pl.col("identity").is_in(automated.implode())
        for rows, limits in zip(self._rows(part.load().frame), quotas, strict=True):
            refused = [decided(Ready(_limit(quota)), rows).refusals for quota in limits]
            named = [each.select("row", limit=pl.lit(2**at, pl.Int64)) for at, each in enumerate(refused)]
            if not named:
                found.append(Effect())
                continue
            hits = rows.select("row", "identity").join(pl.concat(named), on="row")
            sums = hits.filter(is_program).group_by("row").agg(pl.col("limit").sum())["limit"]
            people = hits.filter(~is_program).group_by("limit").agg(pl.col("identity").n_unique())
            checked = hits.filter(pl.col("identity").is_in(self.checks))
            found.append(
                Effect(
                    Counter(dict(sums.value_counts().iter_rows())),
                    people=Counter(dict(people.iter_rows())),
                    checks=counts(checked, "identity", "limit"),
                )
            )
        return found

    def _rows(self, frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield the rows of each group."""
        ready = Ready(Candidate("groups", Settings(rules=self.rules)))
        rows = ruled(ready, frame).select("identity", "row", "time", "set", day=pl.col("time") // DAY)
        for group in range(len(self.rules)):
            yield rows.filter(ready.having(group)).drop("set")


def _limit(quota: str) -> Candidate:
    return Candidate("limit", Settings(rules=[Rule(name="limit", quota=quota, key="ip")]))


def _counted(rows: pl.DataFrame, people: pl.DataFrame, windows: Sequence[int]) -> Group:
    """Count the requests of one group. `people` has the identities of people, and how many people each counts for."""
    theirs = rows["identity"].is_in(people["identity"].implode())
    found = Group(rows.height, programs=Counter(rows.filter(~theirs)["identity"].value_counts()["count"].to_list()))
    mine = rows.filter(theirs)
    whole = peaks(mine, ["identity"], windows).join(people, on="identity")
    whole = whole.with_columns(many=(pl.col("people") >= MANY).cast(pl.Int8))
    days = peaks(mine, ["identity", "day"], windows).join(people, on="identity")
    found.identities, found.people = whole.height, int(whole["people"].sum())
    for window in windows:
        peak = pl.col(f"{PEAK}{window}")
        order = days.sort(peak, descending=True).group_by("identity", maintain_order=True)
        tops = order.agg(pl.col("people", "day").first(), peak=peak.first(), second=peak.shift(-1).first())
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
