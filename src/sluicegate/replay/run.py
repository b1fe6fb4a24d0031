"""`replay`: a log and candidates become a result, in one pass over the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count
from operator import sub
from pathlib import Path
from typing import Final

from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.concurrency import Concurrency
from sluicegate.errors import LogError, SettingsError, needs
from sluicegate.plan import Terms
from sluicegate.replay import result as results
from sluicegate.replay import words
from sluicegate.replay.candidates import Candidate, as_if_enforced, enforced
from sluicegate.replay.curves import Scale
from sluicegate.replay.decide import FORBIDDEN_RULE, Decider, Ready, mapped
from sluicegate.replay.hints import Hints
from sluicegate.replay.kinds import KINDS, SEEN, WANTED, seen
from sluicegate.replay.log import Counts, Log
from sluicegate.replay.partitions import Partitions, spool
from sluicegate.replay.result import Result, Traffic
from sluicegate.replay.routes import Routes
from sluicegate.replay.tally import Common, Grid, Tally, line, quantile
from sluicegate.replay.work import Work, applies_to, total
from sluicegate.rules.rule import Rule

with needs("replay"):
    import polars as pl

_WORST: Final = 5
_SHOWN: Final = 30  # routes
_TOO_MANY: Final = 429
_SECOND: Final = MICROSECOND
_TOLD: Final = ("name", "quota", "key", "algorithm", "methods", "path", "mode", "enforce_percent")


class Group:
    """The candidates whose identities come from the same key, and the partitions of these identities."""

    def __init__(self, members: Sequence[Ready], partitions: Partitions) -> None:
        self.members = members
        self.partitions = partitions
        self._kept = {"time", "route", "duration"}.union(*[each.counted for each in members if each.plain])
        self._deciders = {number: Decider(each) for number, each in enumerate(members) if not each.plain}

    def add(self, frame: pl.DataFrame) -> None:
        """Add a frame. A candidate whose rules are not plain decides about it at once."""
        identities, found = self.members[0].identify(frame).alias("identity"), list[pl.Series]()
        for number, decider in self._deciders.items():
            decided = decider.feed(frame)
            rows = frame.select("row").join(decided, on="row", how="left", maintain_order="left")
            # As `in_order` reads them. A row without a rule had none that applied.
            found += [rows["until"].alias(f"until {number}"), rows["rule"].alias(f"rule {number}")]
        rows = seen(frame, self._kept)
        kept = [name for name in rows.columns if name in self._kept or name in SEEN]
        self.partitions.add(rows.select(*kept, *found), identities)


def replay(
    log: Log,
    candidates: Sequence[Candidate],
    *,
    show_identities: bool = False,
    since: int | None = None,
    until: int | None = None,
    curves: bool = True,
    processes: int = 1,
    progress: Callable[[Log], object] = lambda _: None,
    deciding: Callable[[int, int], object] = lambda _done, _of: None,
    clock: Clock | None = None,
) -> Result:
    """Run the traffic of a log through each candidate, and say what each would have done.

    Requests before `since`, and from `until` on, are left out; both are microseconds since 1970. `curves` are what
    takes the longest. A long log is decided in several `processes`, which import the main module of the program.
    `progress` is called with the log after each of its frames; `deciding` before the first partition and after each,
    with the numbers of those done and of all.
    """
    clock = SystemClock() if clock is None else clock
    began = clock.now_us()
    if not candidates:
        raise SettingsError("candidates", candidates, problem="there is none", expected="give --rule or --rules")
    names = words.told_apart([each.name for each in candidates], "{} ({})")
    given = [each._replace(name=name) for each, name in zip(candidates, names, strict=True)]
    ready = [Ready(as_if_enforced(candidate)) for candidate in given]
    wanted = {"time", "method", "path", "status", "agent", "duration"}.union(*[each.wanted for each in ready])
    routes, hints, refused = Routes(), Hints(ready), 0
    with spool() as folder:
        groups = _grouped(ready, folder)
        for frame in hints.watch(log, wanted | {*WANTED}, since=since, until=until):
            refused += int((frame["status"] == _TOO_MANY).sum()) if "status" in frame.columns else 0
            numbered = frame.with_columns(
                pl.int_range(hints.requests - frame.height, hints.requests, dtype=pl.Int64, eager=True).alias("row"),
                mapped(frame, ["method", "path"], routes.number, kind=pl.UInt16()).alias("route"),
            )
            for group in groups:
                group.add(numbered)
            progress(log)
        read = log.read
        _check_durations(read, ready)
        grid = Grid.over(hints.first, hints.last)
        answers: dict[str, Answer] = {}
        parts = [group.partitions.all() for group in groups]
        of, done = sum(map(len, parts)), count()
        deciding(next(done), of)
        for group, mine in zip(groups, parts, strict=True):
            work = Work(
                candidates=tuple([each.candidate for each in group.members]),
                resolution=round(read.resolution * _SECOND),
                grid=grid,
                curves=curves,
                show=show_identities,
            )
            shared, tallies = total(work, mine, processes, step=lambda: deciding(next(done), of))
            for each, tally in zip(group.members, tallies, strict=True):
                answers[each.name] = Answer(each, tally, shared, work=work, names=routes.names)
    traffic = Traffic(
        files=read.formats,
        lines=read.lines,
        unreadable=read.unreadable,
        late=read.late,
        first=None if hints.first is None else hints.first / _SECOND,
        last=None if hints.last is None else hints.last / _SECOND,
        resolution=read.resolution,
        requests=hints.requests,
        identities=answers[ready[0].name].shared.identities,
        refused=refused,
        missing=tuple(sorted(wanted & set(read.missing))),
        warnings=(*_keys(ready), *hints.found(log.fields)),
        late_at=read.late_at,
        late_by=read.late_by,
    )
    return Result(
        traffic,
        candidates=tuple([answers[each.name].candidate(each) for each in given]),
        rates=_rates([answers[group.members[0].name] for group in groups]),
        seconds=(clock.now_us() - began) / MICROSECOND,
    )


def _keys(ready: Sequence[Ready]) -> tuple[str, ...]:
    """Return what to say if not all candidates count by the same key."""
    keys = dict.fromkeys([words.key_text(each.gate.key_of(bound)) for each in ready for bound in each.bounds])
    if len(keys) < 2 or len({each.key for each in ready}) < 2:
        return ()
    warning = (
        f"The candidates count by different keys ({', '.join(keys)}): their numbers of identities are not comparable. "
        "Without a key, --rule counts by ip, and a file by user, as an application does."
    )
    return (warning,)


def _rates(answers: Iterable[Answer]) -> tuple[results.Rates, ...]:
    """Return the identities of each key by the most requests in each period, from one answer of each group."""
    found = []
    for answer in answers:
        key = words.key_text(answer.ready.key)
        bins: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for (period, to, peak), number in sorted(answer.shared.rates.items()):
            bins.setdefault((period, to), []).append((peak, number))
        found += [results.Rates(period / _SECOND, key, to, bins=tuple(each)) for (period, to), each in bins.items()]
    return tuple(found)


def _check_durations(read: Counts, ready: Sequence[Ready]) -> None:
    """Raise LogError if requests at the same time shall be counted, and the log does not say how long they took."""
    for terms in [each for one in ready for each in one.terms if each.held and "duration" in read.missing]:
        problem = "the log has no durations, which say how many requests ran at once"
        raise LogError("rule", _quota(terms), problem=problem, expected="log them, or give the field with --field")


def _grouped(ready: Sequence[Ready], folder: Path) -> list[Group]:
    found: dict[object, list[Ready]] = {}
    for each in ready:
        settings = each.settings
        same = each.key, settings.trust, settings.ipv4_prefix, settings.ipv6_prefix
        found.setdefault(same, []).append(each)
    return [Group(members, Partitions(folder / str(at))) for at, members in enumerate(found.values())]


@dataclass(frozen=True)
class Answer:
    """What one candidate would have done, from what was counted."""

    ready: Ready
    tally: Tally
    shared: Common
    work: Work
    names: Sequence[str]  # of the routes

    def candidate(self, given: Candidate) -> results.Candidate:
        """Return the whole answer about a candidate as it was given."""
        tally, shared = self.tally, self.shared
        scale = Scale(self.ready) if self.work.curves else None
        return results.Candidate(
            name=self.ready.name,
            rules=_rules(self.ready, tally, given),
            decided=tally.decided,
            refused=tally.refused,
            identities=tally.identities,
            refused_identities=tally.refused_identities,
            blocked=tally.blocked / _SECOND,
            routes=tuple([self._route(number) for number in self._most_refused_routes()]),
            worst=self._worst(),
            kinds=tuple(
                [
                    results.Kind(kind, tally.kinds[kind], of=shared.kinds[kind], requests=tally.kind_requests[kind])
                    for kind in KINDS
                ]
            ),
            closed_loop=self._closed_loop(),
            load=self._load(),
            most_refused=tuple([each for _, each in tally.most]),
            curves=self._curves(scale) if scale else (),
            curves_note=scale.note if scale else "",
        )

    def _closed_loop(self) -> results.ClosedLoop:
        waits, people = self.tally.waits, self.tally.people_waits
        if not self.ready.plain:
            return results.ClosedLoop.unknown("it depends on more than the times of the requests of one identity")
        return results.ClosedLoop(
            delayed=waits.delays.total(),
            never=waits.never,
            retries=waits.retries,
            median=quantile(waits.delays, 0.5) / 1000,
            p95=quantile(waits.delays, 0.95) / 1000,
            longest=waits.longest / _SECOND,
            people_delayed=people.delays.total(),
            people_median=quantile(people.delays, 0.5) / 1000,
            people_longest=people.longest / _SECOND,
            not_computed="",
        )

    def _curves(self, scale: Scale) -> tuple[results.Curve, ...]:
        found = []
        for own, limits, counted in zip(self.ready.terms, scale.rules, self.tally.curves, strict=False):
            points = [results.Point(terms.quota.limit, *each) for terms, each in zip(limits, counted, strict=True)]
            found.append(results.Curve(own.name, own.quota.period, own.quota.limit, points=tuple(points)))
        return tuple(found)

    def _load(self) -> results.Load:
        grid, shared, tally = self.work.grid, self.shared, self.tally
        logged, refused = line(shared.buckets, grid.buckets), line(tally.buckets, grid.buckets)
        busy, idle = (line(shared.busy, grid.buckets), line(tally.busy, grid.buckets)) if shared.timed else ([], [])
        return results.Load(
            start=grid.start / _SECOND,
            bucket=grid.width / _SECOND,
            logged=tuple(logged),
            passed=tuple(map(sub, logged, refused)),
            busy_logged=tuple([each / _SECOND for each in busy]),
            busy_passed=tuple([each / _SECOND for each in map(sub, busy, idle)]),
        )

    def _worst(self) -> tuple[results.Moment, ...]:
        grid, tally = self.work.grid, self.tally
        worst = sorted(tally.buckets.items(), key=lambda each: (-each[1], each[0]))[:_WORST]
        return tuple(
            [
                results.Moment(
                    start=(grid.start + bucket * grid.width) / _SECOND,
                    seconds=grid.width / _SECOND,
                    requests=self.shared.buckets[bucket],
                    refused=refused,
                    identities=tally.bucket_identities[bucket],
                )
                for bucket, refused in worst
            ]
        )

    def _route(self, number: int) -> results.Route:
        tally, shared = self.tally, self.shared
        return results.Route(
            route=self.names[number],
            requests=shared.routes[number],
            refused=tally.routes[number],
            identities=shared.route_identities[number],
            refused_identities=tally.route_identities[number],
        )

    def _most_refused_routes(self) -> list[int]:
        """Return the numbers of the routes with the most refusals, then those with the most requests."""
        refused, asked = self.tally.routes, self.shared.routes
        return sorted(asked, key=lambda number: (-refused[number], -asked[number], number))[:_SHOWN]


def _rules(ready: Ready, tally: Tally, given: Candidate) -> tuple[results.RuleText, ...]:
    """Return the rules of a candidate as text, with their refusals."""
    found, number = [], 0
    for bound in ready.bounds:
        for terms in bound.terms or ():
            found.append(
                results.RuleText(
                    name=terms.name,
                    quota=_quota(terms),
                    key=words.key_text(ready.gate.key_of(bound)),
                    algorithm="slots" if terms.held else terms.algorithm,
                    applies_to=applies_to(bound),
                    refused=tally.rules[number],
                    identities=tally.rule_identities[number],
                    enforced=enforced(given, bound.rule.name),
                    rule=bound.rule.name,
                    options=tuple(_options(bound.rule)),
                )
            )
            number += 1
    others = [(ban.name, f"after {ban.quota.limit} refusals in {ban.quota.span}", "ban") for ban in ready.bans]
    others += [(FORBIDDEN_RULE, "", "")] if tally.rules[number + len(others)] else []
    for at, (name, quota, algorithm) in enumerate(others, number):
        text = results.RuleText(name, quota, key="", algorithm=algorithm, applies_to="", refused=0, identities=0)
        found.append(text._replace(refused=tally.rules[at], identities=tally.rule_identities[at]))
    return tuple(found)


def _options(rule: Rule) -> Iterator[tuple[str, int | str | None]]:
    """Yield the options of a rule that no other value of its text has."""
    for each in fields(Rule):
        value = getattr(rule, each.name)
        if value != each.default and each.name not in _TOLD:
            yield each.name, value if isinstance(value, int | str) else None


def _quota(terms: Terms) -> str:
    return str(Concurrency(terms.quota.limit, terms.quota.period)) if terms.held else str(terms.quota)
