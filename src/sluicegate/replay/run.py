"""`replay`: a log and candidates become a result, in one pass over the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.concurrency import Concurrency
from sluicegate.errors import LogError, QuotaError, SettingsError
from sluicegate.extras import needs
from sluicegate.plan import Terms
from sluicegate.quota import Quota
from sluicegate.replay import result as results
from sluicegate.replay.candidates import Candidate, told_apart
from sluicegate.replay.decide import Decider, Ready, decide_sorted, mapped
from sluicegate.replay.result import Result, Traffic, Unreadable
from sluicegate.replay.routes import Routes
from sluicegate.replay.tally import HOUR, Common, Grid, Tally, common, counts, line, passing, quantile, tally

with needs("replay"):
    import polars as pl

SANE: Final = "60/minute"
_WORST: Final = 5
_SHOWN: Final = 30  # routes
_HEAT: Final = 12  # routes of the heat map
_TOO_MANY: Final = 429
_SECOND: Final = MICROSECOND


class Frames(Protocol):
    """A log: frames of traffic in order of time. `Log` of `sluicegate.replay.reading` is one."""

    def frames(self, wanted: Collection[str]) -> Iterator[pl.DataFrame]:
        """Yield frames that have these columns, as far as the log has them."""
        ...


@dataclass(frozen=True)
class Given:
    """Frames that are in memory already."""

    given: Sequence[pl.DataFrame]

    def frames(self, wanted: Collection[str]) -> Iterator[pl.DataFrame]:
        """Yield the frames."""
        return iter(self.given)


def sane_rate(text: str) -> Quota:
    """Read the rate that no innocent identity passes."""
    quota = Quota.parse(text)
    if quota.burst is not None:
        raise QuotaError("sane", text, problem="it has a burst", expected='write it like "60/minute"')
    return quota


@dataclass
class Seen:
    """What is counted of the log itself, while it is read."""

    requests: int = 0
    first: int | None = None
    last: int | None = None
    refused: int = 0


class Group:
    """The candidates whose identities come from the same key."""

    def __init__(self, members: Sequence[Ready]) -> None:
        self.members = members
        self.frames: list[pl.DataFrame] = []

    @property
    def columns(self) -> set[str]:
        """The columns that the members need after the identity is known."""
        return set().union(*[member.wanted for member in self.members])


def replay(
    log: Frames,
    candidates: Sequence[Candidate],
    *,
    sane: str = SANE,
    show_identities: bool = False,
    since: int | None = None,
    until: int | None = None,
    progress: Callable[[Any], object] | None = None,
    clock: Clock | None = None,
) -> Result:
    """Run the traffic of a log through each candidate, and say what each would have done.

    `sane` is the rate that no innocent identity passes. Requests before `since`, and from `until` on, are left out;
    both are microseconds since 1970. `progress` is called with the log after each of its frames.
    """
    clock = SystemClock() if clock is None else clock
    began = clock.now_us()
    rate = sane_rate(sane)
    if not candidates:
        raise SettingsError("candidates", candidates, problem="there is none", expected="give --rule or --rules")
    ready = [Ready(candidate) for candidate in told_apart(candidates)]
    groups = _grouped(ready)
    wanted = {"time", "path", "status", "duration", *[name for each in ready for name in each.wanted]}
    seen, routes = Seen(), Routes()
    columns: set[str] = set()
    for read in log.frames(wanted):
        columns |= set(read.columns)
        frame = read if since is None else read.filter(pl.col("time") >= since)
        frame = frame if until is None else frame.filter(pl.col("time") < until)
        numbered = _numbered(frame, routes, seen)
        for group in groups:
            group.frames.append(_kept(numbered, group))
        if progress is not None:
            progress(log)
    grid = Grid.over(seen.first, seen.last)
    base, found = _Base(grid, routes), []
    tallies: dict[str, tuple[Tally, Common]] = {}
    for number, group in enumerate(groups):
        whole = pl.concat(group.frames) if group.frames else None
        if whole is None:
            tallies |= {member.name: (Tally(), Common()) for member in group.members}
            continue
        if number == 0:
            base.count(whole)
        tallies |= _tallies(group, whole, rate, grid=grid, show=show_identities)
    found = [_candidate(each, *tallies[each.name], base=base, rate=sane) for each in ready]
    _check_durations(log, ready, wanted - columns)
    traffic = _traffic(log, seen, identities=tallies[ready[0].name][1].identities, missing=wanted - columns)
    seconds = (clock.now_us() - began) / MICROSECOND
    return Result(traffic, tuple(found), rates=(), seconds=seconds)


def _check_durations(log: Any, ready: Sequence[Ready], absent: Collection[str]) -> None:
    """Raise LogError if requests at the same time shall be counted, and the log does not say how long they took."""
    missing = getattr(getattr(log, "read", None), "missing", absent)
    for terms in [each for one in ready for each in one.terms if each.held and "duration" in missing]:
        problem = f"no durations, which the rule {terms.name!r} needs to know how many requests ran at once"
        raise LogError("log", _quota(terms), problem=problem, expected="log them, or give the field with --field")


def _grouped(ready: Sequence[Ready]) -> list[Group]:
    found: dict[Any, list[Ready]] = {}
    for each in ready:
        found.setdefault(
            (each.key, each.settings.trust, each.settings.ipv4_prefix, each.settings.ipv6_prefix), []
        ).append(each)
    return [Group(members) for members in found.values()]


def _numbered(frame: pl.DataFrame, routes: Routes, seen: Seen) -> pl.DataFrame:
    """Return the frame with the numbers of its rows and routes. Count its requests."""
    start = seen.requests
    if frame.height:
        first, last = frame["time"][0], frame["time"][-1]
        seen.first, seen.last = first if seen.first is None else seen.first, last
        seen.requests += frame.height
    if "status" in frame.columns:
        seen.refused += int((frame["status"] == _TOO_MANY).sum())
    return frame.with_columns(
        pl.int_range(start, start + frame.height, dtype=pl.Int64, eager=True).alias("row"),
        mapped(frame, ["path"], lambda values, _: routes.number(values), kind=pl.UInt16()).alias("route"),
    )


def _kept(frame: pl.DataFrame, group: Group) -> pl.DataFrame:
    """Return the columns of a frame that a group needs, with the identities."""
    identity = group.members[0].identify(frame).alias("identity")
    kept = [name for name in frame.columns if name in group.columns or name in ("duration", "row", "route", "time")]
    return frame.select(kept).with_columns(identity)


def _tallies(
    group: Group, whole: pl.DataFrame, rate: Quota, *, grid: Grid, show: bool
) -> dict[str, tuple[Tally, Common]]:
    """Decide about the requests of some identities under each candidate of a group, and count."""
    ordered = whole.sort("identity", maintain_order=True, nulls_last=True)
    known = ordered.filter(pl.col("identity").is_not_null())
    insane = passing(known, rate)
    shared = common(known, insane)
    found = {}
    for member in group.members:
        if member.by_identity:
            refusals, decided = decide_sorted(member, ordered)
        else:
            refusals, rows = Decider(member).feed(whole, whole["row"].to_list())
            decided = pl.Series("row", rows, dtype=pl.Int64())
        found[member.name] = tally(ordered, refusals, decided=decided, insane=insane, grid=grid, show=show), shared
    return found


class _Base:
    """What is counted of all requests, whatever is decided."""

    def __init__(self, grid: Grid, routes: Routes) -> None:
        self.grid = grid
        self.routes = routes
        self.by_route: Counter[int] = Counter()
        self.by_bucket: Counter[int] = Counter()
        self.busy: Counter[int] = Counter()
        self.hours: Counter[tuple[int, int]] = Counter()
        self.has_durations = False

    def count(self, frame: pl.DataFrame) -> None:
        """Count the rows of a frame."""
        placed = frame.with_columns(self.grid.of, HOUR)
        self.by_route += counts(placed, "route")
        self.by_bucket += counts(placed, "bucket")
        self.hours += counts(placed, "route", "hour")
        if "duration" in placed.columns and placed["duration"].null_count() < placed.height:
            self.has_durations = True
            self.busy += Counter(dict(placed.group_by("bucket").agg(pl.col("duration").sum()).iter_rows()))

    def load(self, tally: Tally) -> results.Load:
        """Return the load with and without a candidate."""
        grid = self.grid
        logged, refused = line(self.by_bucket, grid.buckets), line(tally.buckets, grid.buckets)
        busy, idle = line(self.busy, grid.buckets), line(tally.busy, grid.buckets)
        return results.Load(
            start=grid.start / _SECOND,
            bucket=grid.width / _SECOND,
            logged=tuple(logged),
            passed=tuple([one - other for one, other in zip(logged, refused, strict=True)]),
            busy_logged=tuple([one / _SECOND for one in busy]) if self.has_durations else (),
            busy_passed=tuple([(one - other) / _SECOND for one, other in zip(busy, idle, strict=True)])
            if self.has_durations
            else (),
        )

    def worst(self, tally: Tally) -> tuple[results.Moment, ...]:
        """Return the buckets with the most refusals."""
        grid = self.grid
        return tuple(
            [
                results.Moment(
                    start=(grid.start + bucket * grid.width) / _SECOND,
                    seconds=grid.width / _SECOND,
                    requests=self.by_bucket[bucket],
                    refused=refused,
                    identities=tally.bucket_identities[bucket],
                )
                for bucket, refused in sorted(tally.buckets.items(), key=lambda each: (-each[1], each[0]))[:_WORST]
            ]
        )

    def shown(self, tally: Tally, most: int) -> list[int]:
        """Return the numbers of the routes with the most refusals, then those with the most requests."""
        numbers = sorted(self.by_route, key=lambda number: (-tally.routes[number], -self.by_route[number], number))
        return numbers[:most]

    def heat(self, tally: Tally) -> results.HeatMap:
        """Return requests and refusals by hour and route."""
        shown = self.shown(tally, _HEAT)
        return results.HeatMap(
            routes=tuple([self.routes.names[number] for number in shown]),
            requests=tuple([tuple([self.hours[number, hour] for hour in range(24)]) for number in shown]),
            refused=tuple([tuple([tally.hours[number, hour] for hour in range(24)]) for number in shown]),
        )


def _candidate(ready: Ready, tally: Tally, shared: Common, *, base: _Base, rate: str) -> results.Candidate:
    """Return what a candidate would have done, from its tally."""
    routes = [
        results.Route(
            route=base.routes.names[number],
            requests=base.by_route[number],
            refused=tally.routes[number],
            identities=shared.route_identities[number],
            refused_identities=tally.route_identities[number],
        )
        for number in base.shown(tally, _SHOWN)
    ]
    delays = tally.delays
    return results.Candidate(
        name=ready.name,
        rules=_rules(ready, tally),
        decided=tally.decided,
        refused=tally.refused,
        identities=tally.identities,
        refused_identities=tally.refused_identities,
        blocked=tally.blocked / _SECOND,
        routes=tuple(routes),
        worst=base.worst(tally),
        innocent=results.Innocent(rate, tally.innocent, of=shared.sane, requests=tally.innocent_requests),
        closed_loop=results.ClosedLoop(
            delayed=delays.total(),
            never=tally.never,
            retries=tally.retries,
            median=quantile(delays, 0.5) / 1000,
            p95=quantile(delays, 0.95) / 1000,
            longest=tally.longest / _SECOND,
        ),
        load=base.load(tally),
        most_refused=tuple(tally.most),
        heat=base.heat(tally),
        curves=(),
        exact=True,
        error="",
    )


def _rules(ready: Ready, tally: Tally) -> tuple[results.RuleText, ...]:
    """Return the rules of a candidate as text, with their refusals."""
    found, number = [], 0
    for bound in ready.bounds:
        rule = bound.rule
        known: frozenset[str] = bound.methods or frozenset()
        methods = ",".join(sorted(known - {"HEAD"} or known))
        for terms in bound.terms or ():
            found.append(
                results.RuleText(
                    name=terms.name,
                    quota=_quota(terms),
                    key=key_text(ready.gate.key_of(bound)),
                    algorithm="slots" if terms.held else terms.algorithm,
                    applies_to=" ".join([each for each in (methods, rule.path) if each]),
                    refused=tally.rules[number],
                    identities=tally.rule_identities[number],
                )
            )
            number += 1
    for ban in ready.bans:
        quota = f"after {ban.quota.limit} refusals in {ban.quota.span}"
        found.append(
            results.RuleText(
                ban.name,
                quota=quota,
                key="",
                algorithm="ban",
                applies_to="",
                refused=tally.rules[number],
                identities=tally.rule_identities[number],
            )
        )
        number += 1
    if tally.rules[number]:
        found.append(
            results.RuleText(
                ready.names[-1],
                quota="",
                key="",
                algorithm="",
                applies_to="",
                refused=tally.rules[number],
                identities=tally.rule_identities[number],
            )
        )
    return tuple(found)


def _quota(terms: Terms) -> str:
    return str(Concurrency(terms.quota.limit, terms.quota.period)) if terms.held else str(terms.quota)


def key_text(key: Any) -> str:
    """Return a key as text; several parts are joined by "+"."""
    if isinstance(key, tuple):
        return " + ".join(map(key_text, key))
    return (
        str(key)
        if isinstance(key, str) or hasattr(key, "columns")
        else getattr(key, "__qualname__", type(key).__name__)
    )


def _traffic(log: Any, seen: Seen, *, identities: int, missing: Collection[str]) -> Traffic:
    """Return what was read. A log that counts says so in `read`."""
    read = getattr(log, "read", None)
    return Traffic(
        files=tuple(getattr(read, "formats", ())),
        lines=getattr(read, "lines", seen.requests),
        unreadable=getattr(read, "unreadable", Unreadable(0, ())),
        late=getattr(read, "late", 0),
        first=None if seen.first is None else seen.first / _SECOND,
        last=None if seen.last is None else seen.last / _SECOND,
        resolution=getattr(read, "resolution", 1e-6),
        requests=seen.requests,
        identities=identities,
        refused=seen.refused,
        missing=tuple(sorted(getattr(read, "missing", missing))),
    )
