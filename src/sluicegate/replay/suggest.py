"""Suggested limits: the smallest that would have refused at most a stated share of the people in a log.

For each group of requests, and for each period, the limit is the smallest one that refuses at most that share of the
identities that are not programs. A margin is added, it is raised to what one person needs there (FLOORS), and rounded
up to a number that a person would write. Then the real engine replays
the log with it: the figures of a suggestion are those of the replay. How far to trust a limit is said by days: the
limit that all other days give is tried on the day that was left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil, floor
from typing import Any, Final, NamedTuple

from sluicegate.errors import RuleError
from sluicegate.extras import needs
from sluicegate.identity import digest
from sluicegate.replay.caller import LogKey
from sluicegate.replay.candidates import Candidate, parse_key, parse_requests
from sluicegate.replay.decide import Ready, decisions
from sluicegate.replay.hints import Hints
from sluicegate.replay.kinds import AUTOMATED, MANY, Kinds, is_asset, is_program, kinds_of
from sluicegate.replay.log import Counts
from sluicegate.replay.peaks import PEAK, peaks
from sluicegate.replay.routes import name_of, route_of
from sluicegate.replay.run import Frames
from sluicegate.replay.sane import nice
from sluicegate.replay.tally import readable
from sluicegate.replay.traffic import FIELD
from sluicegate.replay.words import count as count_of
from sluicegate.replay.words import share as share_of
from sluicegate.rules.rule import Rule
from sluicegate.web.settings import Settings

with needs("replay"):
    import polars as pl

SECOND: Final = 1_000_000
PERIODS: Final = {"second": SECOND, "minute": 60 * SECOND, "hour": 3600 * SECOND, "day": 86_400 * SECOND}
WANTED: Final = ("method", "path", "status", "agent", "user")
"""The columns of traffic that it reads, beside those of the key."""

SIGN_INS: Final = "sign-ins"
FLOORS: Final[Mapping[str, Mapping[str, int]]] = {
    SIGN_INS: {"second": 2, "minute": 5, "hour": 10, "day": 20},
    "one route": {"second": 2, "minute": 10, "hour": 60, "day": 200},
    "every request": {"second": 10, "minute": 60, "hour": 300, "day": 1000},
}
"""What one person needs, whatever the log shows: to mistype a password, to open some pages at once, and to load a page
with its images. No suggested limit is smaller.
"""

MARGIN: Final = 1.25
_FEW_PEOPLE: Final = 50
_FEW_DAYS: Final = 3
_DAY: Final = PERIODS["day"]
_KEY: Final = LogKey("field", "who")
_WHO: Final = f"{FIELD}who"  # the identity, as a field that a rule can have as its key
_STEPS: Final = 5
_ROUTES: Final = 10  # routes, or identities, that are named where nothing is suggested
_LOGIN: Final = re.compile(r"(?i)log-?in|sign-?(?:in|up)|auth|token|session|passw|register|otp|verify|reset")
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SHOWN: Final = 60  # characters of a route that no rule can have
_GROUPS: Final = 8  # that are found, beside those for logins
_SEPARATES: Final = 0.9  # of the requests of programs: so much must a limit stop to be called one that separates
_NOTHING: Final = 0.1
_MORE: Final = 0.01


class Limit(NamedTuple):
    """The limit for one period, and what it does."""

    period: str  # a unit of quotas
    exact: int  # the smallest limit that keeps to the share
    limit: int  # with the margin, at least the floor, and rounded up
    low: int | None  # the smallest and the largest exact limit with one day left out; None: there is one day only
    high: int | None
    held_out: float | None  # the largest share of people refused on a day that the limit was not taken from
    without_shared: int  # the exact limit if nobody shared an address
    people: int  # identities of people that the replay refused
    stopped: float  # the share of the programs' requests that the replay refused

    @property
    def quota(self) -> str:
        """The limit as a quota."""
        return f"{self.limit}/{self.period}"


class Busiest(NamedTuple):
    """The most that one identity asked for."""

    identity: str  # a digest, or the identity if the reader asked for it
    requests: int
    minute: int  # in any minute
    hour: int


class Suggestion(NamedTuple):
    """What is suggested for one group of requests."""

    name: str
    methods: tuple[str, ...]  # () for all
    path: str | None  # a pattern; None for all
    requests: int
    identities: int  # that are not programs
    people: int  # behind them
    programs: int
    program_requests: int
    limits: tuple[Limit, ...]  # by period, shortest first; empty if no people were seen here
    quota: str | None  # the limits that are suggested together; None if no limit separates
    people_refused: int  # by these together, in the replay: identities
    stopped: float  # by these together: the share of the programs' requests
    verdict: str
    warning: str  # why not to trust the limits; "" if enough people and days support them
    busiest: tuple[Busiest, ...] = ()  # where only programs ask: those with most requests

    @property
    def requests_to(self) -> str:
        """The requests of the group, as text."""
        return " ".join([",".join(self.methods), self.path or ""]).strip() or "every request"


class Kind(NamedTuple):
    """How many identities are of one kind."""

    kind: str
    identities: int


class Program(NamedTuple):
    """An identity that is taken for a program."""

    identity: str  # a digest, or the identity if the reader asked for it
    requests: int
    reasons: tuple[str, ...]


class Suggestions(NamedTuple):
    """The suggestions for a log."""

    key: str
    share: float
    days: int
    requests: int
    resolution: float
    kinds: tuple[Kind, ...]
    notes: tuple[str, ...]
    programs: tuple[Program, ...]  # those with most requests
    suggestions: tuple[Suggestion, ...]


class Gathered(NamedTuple):
    """The traffic of a log in little memory: about 34 bytes for each request."""

    rows: pl.DataFrame  # `time`, `field:who`, `method`, `path`, `status`, `agent`, `user`
    key: str
    warnings: tuple[str, ...] = ()


def gather(
    log: Frames,
    *,
    key: str = "ip",
    options: Mapping[str, Any] | None = None,
    since: int | None = None,
    until: int | None = None,
    progress: Callable[[], object] = lambda: None,
) -> Gathered:
    """Read a log, from `since` to before `until`. `key` is written as in `--rule "… by KEY"`; `options` are settings,
    such as `trusted_proxies`. `progress` is called after each frame.
    """
    rule = {"name": "everything", "quota": "1/second", "key": parse_key(key)}
    settings = Settings.from_mapping({"key": "ip", "rules": [rule], **(options or {})}, source="--by")
    ready = Ready(Candidate(key, settings))
    time = pl.col("time")
    kept: dict[str, pl.DataType] = {
        "time": pl.Int64(),
        _WHO: pl.Categorical(),
        "method": pl.Categorical(),
        "path": pl.Categorical(),
        "status": pl.Int16(),
        "agent": pl.Categorical(),
        "user": pl.Categorical(),
    }
    parts, hints = [pl.DataFrame(schema=kept)], Hints([ready])
    for whole in log.frames({*WANTED, *ready.wanted, *hints.wanted}):
        progress()
        hints.add(whole)
        frame = whole.filter(time >= (since or 0), time < (until or 2**62))
        known = [frame[name] if name in frame.columns else pl.lit(None).alias(name) for name in kept if name != _WHO]
        part = frame.select(*known, ready.identify(frame).alias(_WHO))
        parts.append(part.filter(pl.col(_WHO).is_not_null()).select(pl.col(name).cast(to) for name, to in kept.items()))
    return Gathered(pl.concat(parts), key, hints.found(getattr(log, "fields", ())))


class Suggester:
    """Finds limits in the traffic of a log."""

    def __init__(
        self, gathered: Gathered, *, share: float = 0.001, resolution: int = SECOND, read: tuple[str, ...] = ()
    ) -> None:
        """`resolution` is that of the times, in microseconds. `read` is what to say about the lines of the log."""
        self.key = gathered.key
        self.share = share
        self.resolution = resolution
        self._read = (*[each.removesuffix(".") for each in gathered.warnings], *read)
        rows = gathered.rows.with_columns(asset=is_asset(), program=is_program())
        self.kinds: Kinds = kinds_of(rows.rename({_WHO: "who"}), resolution=self.resolution)
        start = rows["time"].min()
        day = (pl.col("time") - (start if isinstance(start, int) else 0) // _DAY * _DAY) // _DAY
        known = self.kinds.table.select(pl.col("who").alias(_WHO), "kind", "people")
        self.rows = rows.with_columns(day.cast(pl.Int32).alias("day")).join(
            known, on=_WHO, how="left", maintain_order="left"
        )
        self.days = self.rows["day"].n_unique()

    def all(self, patterns: Sequence[str] = (), *, show_identities: bool = False) -> Suggestions:
        """Suggest limits for groups of requests: those of the patterns, as "/api/*" or "POST /login", or those that
        are found. Identities are shown as digests.
        """
        left_out: list[str] = []
        rules = [_read(pattern) for pattern in patterns] if patterns else self._groups(left_out)
        table = self.kinds.table
        programs = table.filter(pl.col("kind") == AUTOMATED).sort("requests", descending=True).head(10)
        named = [
            Program(_shown(who, show_identities), requests, self.kinds.reasons(who))
            for who, requests in programs.select("who", "requests").iter_rows()
        ]
        return Suggestions(
            key=self.key,
            share=self.share,
            days=self.days,
            requests=self.rows.height,
            resolution=self.resolution / SECOND,
            kinds=tuple([Kind(*each) for each in sorted(table.group_by("kind").len().iter_rows())]),
            notes=(*self._notes(), *_left_out(left_out)),
            programs=tuple(named),
            suggestions=tuple([self._suggestion(rule, show=show_identities) for rule in _told_apart(rules)]),
        )

    def _groups(self, left_out: list[str]) -> list[Rule]:
        """Return a rule for all requests, then one for each login, then for the routes that have most requests. Clients
        choose paths and methods: those that no rule can have are added to `left_out`.
        """
        found = self.rows.group_by("method", "path", "asset").agg(pl.len())
        routes: dict[tuple[str | None, str], int] = {}
        logins: dict[tuple[str | None, str], int] = {}
        for method, path, asset, number in found.iter_rows():
            route = route_of(path or "/")
            if method is not None and _what((method,), route) == SIGN_INS:
                logins[method, route] = logins.get((method, route), 0) + number
            elif not asset:
                routes[None, route] = routes.get((None, route), 0) + number
        often = {route: number for route, number in routes.items() if number * 100 > self.rows.height}
        rules = [_rule(None, None)]
        for numbers in (logins, often):
            most = sorted(numbers, key=lambda each: (-numbers[each], each[0] or "", each[1]))
            rules += islice(_possible(most, left_out), _GROUPS)
        return rules

    def _notes(self) -> tuple[str, ...]:
        floors = [f"{_quotas(floor)} for {what}" for what, floor in FLOORS.items()]
        notes = [
            *self._read,
            *self.kinds.unseen,
            f"each limit is at least {100 * (MARGIN - 1):.0f} % above the exact one, and at least what a person needs: "
            + ", ".join(floors),
        ]
        if self.days < 2:
            notes.append("one day only: nothing says how the limits would do on another day")
        if self.resolution >= SECOND and self.rows.height:
            notes.append(
                "the times are whole seconds: the most requests within a second are counted over two of them, which is "
                "at least as many"
            )
        return tuple(notes)

    def _suggestion(self, rule: Rule, *, show: bool) -> Suggestion:
        rows = self.rows
        if rule.methods or rule.path:
            ready = Ready(_candidate(rule))
            rows = rows.filter(ready.applies(rows, ready.bounds[0]))
        group = _Group(rows, rule)
        protected = rows.filter(~group.automated)
        identities = protected.unique(_WHO)
        limits = self._limits(group, protected) if protected.height else ()
        chosen = group.together(limits)
        people, stopped = group.effect("; ".join([limit.quota for limit in chosen])) if chosen else (0, 0.0)
        verdict, separates = _verdict(group, limits, stopped) if rows.height else (self._no_requests(), False)
        return Suggestion(
            name=rule.name,
            methods=tuple(sorted(rule.methods or ())),
            path=rule.path,
            requests=rows.height,
            identities=identities.height,
            people=int(identities["people"].sum()),
            programs=rows.filter(group.automated)[_WHO].n_unique(),
            program_requests=group.programs,
            limits=limits,
            quota="; ".join([limit.quota for limit in chosen]) if separates and chosen else None,
            people_refused=people,
            stopped=stopped,
            verdict=verdict,
            warning=self._warning(int(identities["people"].sum())) if limits else "",
            busiest=() if limits else _busiest(rows, show=show),
        )

    def _no_requests(self) -> str:
        """Return the routes that the log has, for a group that has no request."""
        paths = self.rows.filter(~pl.col("asset")).group_by("path").agg(pl.len())
        routes: dict[str, int] = {}
        for path, number in paths.iter_rows():
            route = route_of(path or "/")
            routes[route] = routes.get(route, 0) + number
        most = sorted(routes, key=lambda each: (-routes[each], each))[:_ROUTES]
        return f"No requests. The routes with most requests: {', '.join(most)}." if most else "No requests."

    def _warning(self, people: int) -> str:
        """Return why limits that are taken from so many people should not be trusted."""
        few = [count_of(people, "person", "people")] if people < _FEW_PEOPLE else []
        few += [count_of(self.days, "day")] if self.days < _FEW_DAYS else []
        return f"Taken from only {' and '.join(few)}: try these limits on more traffic first." if few else ""

    def _limits(self, group: _Group, protected: pl.DataFrame) -> tuple[Limit, ...]:
        """Return the limit for each period that the log is long enough for."""
        times = self.rows["time"]
        length = times[-1] - times[0] + self.resolution
        units = [unit for unit, period in PERIODS.items() if period <= length] or ["second"]
        windows = [max(PERIODS[unit], 2 * self.resolution) for unit in units]  # a second may be in two stamps
        of_all = peaks(protected, [_WHO, "people", "kind"], windows)
        of_days = peaks(protected, [_WHO, "people", "day"], windows)
        found = []
        for unit, window in zip(units, windows, strict=True):
            column = f"{PEAK}{window}"
            exact = self._smallest(of_all, column)
            days = self._by_days(of_days, column, floor=group.floor[unit])
            limit = _raised(exact, group.floor[unit], days.steps)
            people, stopped = group.effect(f"{limit}/{unit}")
            found.append(
                Limit(
                    period=unit,
                    exact=exact,
                    limit=limit,
                    low=days.low,
                    high=days.high,
                    held_out=days.held_out,
                    without_shared=self._smallest(of_all.filter(pl.col("people") < MANY), column),
                    people=people,
                    stopped=stopped,
                )
            )
        return tuple(found)

    def _smallest(self, found: pl.DataFrame, column: str) -> int:
        """Return the smallest limit that refuses at most the share of people: an identity is one for each browser."""
        allowed = floor(self.share * _people(found))
        sorted_ = found.sort(column, descending=True).select(column, refused=pl.col("people").cum_sum())
        kept = sorted_.filter(pl.col("refused") > allowed)[column]
        return int(kept[0]) if kept.len() else 1

    def _by_days(self, rows: pl.DataFrame, column: str, *, floor: int) -> _Days:
        """Try the limit of all other days on each day. Round up by as many steps as it takes to keep to the share."""
        if self.days < 2:
            return _Days()
        tried = []
        for number in sorted(rows["day"].unique()):
            here = pl.col("day") == number
            others = rows.filter(~here).group_by(_WHO, "people").agg(pl.col(column).max())
            if others.height:
                tried.append((self._smallest(others, column), rows.filter(here)))
        if not tried:
            return _Days()
        limits = [limit for limit, _ in tried]
        found = _Days(low=min(limits), high=max(limits))
        for steps in range(_STEPS):
            over = [(day, pl.col(column) > _raised(limit, floor, steps)) for limit, day in tried]
            refused = [_people(day, passes) / _people(day) for day, passes in over]
            found = found._replace(held_out=max(refused), steps=steps)
            if max(refused) <= self.share:
                break
        return found


def _busiest(rows: pl.DataFrame, *, show: bool) -> tuple[Busiest, ...]:
    """Return the identities that have most requests, with their busiest minute and hour."""
    found = peaks(rows, [_WHO], [PERIODS["minute"], PERIODS["hour"]]).join(rows.group_by(_WHO).len(), on=_WHO)
    found = found.sort("len", _WHO, descending=[True, False]).head(_ROUTES)
    return tuple([Busiest(_shown(who, show), number, *most) for who, *most, number in found.iter_rows()])


def _shown(who: str, show: bool) -> str:
    return readable(who) if show else digest(who)


def _people(rows: pl.DataFrame, *those: pl.Expr) -> int:
    return int(rows.filter(*those)["people"].sum())


class _Days(NamedTuple):
    """What trying limits on the days left out says."""

    low: int | None = None
    high: int | None = None
    held_out: float | None = None
    steps: int = 0


class _Group:
    """A group of requests, and what the engine does with limits for it."""

    def __init__(self, rows: pl.DataFrame, rule: Rule) -> None:
        self.rows = rows
        self._rule = rule
        self.automated = rows["kind"] == AUTOMATED
        self.programs = int(self.automated.sum())
        self.floor = FLOORS[_what([*(rule.methods or ())], rule.path)]
        self._refused: dict[str, pl.Series] = {}

    def refused(self, quota: str) -> pl.Series:
        """Return for each request whether the engine refuses it."""
        if quota not in self._refused:
            rows = self.rows.select("time", _WHO, "method", "path")
            self._refused[quota] = ~decisions(rows, _candidate(replace(self._rule, quota=quota)))["allowed"]
        return self._refused[quota]

    def effect(self, quota: str) -> tuple[int, float]:
        """Return how many identities of people a quota refuses, and which share of the requests of programs."""
        refused = self.refused(quota)
        return self.rows.filter(refused & ~self.automated)[_WHO].n_unique(), self._stopped(refused)

    def together(self, limits: Sequence[Limit]) -> list[Limit]:
        """Return the limits that do most together: the one that stops most, and each other one that stops more. Without
        programs, the limit for a minute.
        """
        if not self.programs:
            return [limit for limit in limits if limit.period == "minute"] or [*limits[:1]]
        chosen: list[Limit] = []
        before = 0.0
        refused = pl.repeat(value=False, n=self.rows.height, dtype=pl.Boolean(), eager=True)
        for limit in sorted(limits, key=lambda limit: -limit.stopped):
            more = refused | self.refused(limit.quota)  # about: together they refuse a little less
            if not chosen or self._stopped(more) >= before + _MORE:
                refused, before = more, self._stopped(more)
                chosen.append(limit)
        return sorted(chosen, key=limits.index)

    def _stopped(self, refused: pl.Series) -> float:
        return int((refused & self.automated).sum()) / self.programs if self.programs else 0.0


def _verdict(group: _Group, limits: Sequence[Limit], stopped: float) -> tuple[str, bool]:
    """Return in sentences how well limits tell programs from people here, and whether one is suggested."""
    if not limits:
        return (
            "Only programs ask here: the log cannot say how much they should. Agree on a limit with their owners.",
            False,
        )
    programs = group.rows.filter(group.automated)
    by_shared = max(limits, key=lambda limit: limit.exact / limit.without_shared)
    shared = ""
    alone = _raised(by_shared.without_shared, group.floor[by_shared.period], 0)
    if by_shared.exact >= 2 * by_shared.without_shared and alone < by_shared.limit:
        shared = (
            f" An address with many people behind it sets the limits: without it {alone}/{by_shared.period} would do "
            f"instead of {by_shared.quota}. A key by user would tell them apart."
        )
    if not programs.height:
        return f"No programs here: the limit is a guard that nobody has needed so far.{shared}", True
    if stopped >= _SEPARATES:
        return f"Stops {share_of(stopped, 1)} of what programs sent.{shared}", True
    each = programs.group_by(_WHO).len()["len"].to_list()
    spread = len(each) >= 10 and max(each) * 10 <= programs.height
    what = f"it comes from {len(each)} identities, none of which sent more than {max(each)} requests"
    slow = "the rest is" if stopped > _NOTHING else "these programs are"
    what = what if spread else f"{slow} as slow as people are"
    instead = (
        "If they do harm, count failures by user, ask for a proof (a challenge, a second factor), or deny by a list."
    )
    if stopped > _NOTHING:
        return f"Stops {share_of(stopped, 1)} of what programs sent: {what}. {instead}{shared}", True
    return f"No limit tells programs from people here: {what}. {instead}{shared}", False


def what_was_read(read: Counts) -> tuple[str, ...]:
    """Return what a reader must know about the lines of a log."""
    found = []
    if read.unreadable.lines:
        file, number, line = read.unreadable.examples[0]
        found.append(
            f"{count_of(read.unreadable.lines, 'line')} of {read.lines:,} unreadable, as {file}:{number}: {line}"
        )
    if read.late:
        found.append(f"{count_of(read.late, 'line')} out of order beyond the window")
    return tuple(found)


def _what(methods: Collection[str], path: str | None) -> str:
    """Return which of FLOORS is the one of a group of requests."""
    if methods and _READS.isdisjoint(methods) and _LOGIN.search(path or ""):
        return SIGN_INS
    return "every request" if path in {None, "/*"} else "one route"


def _raised(exact: int, floor: int, steps: int) -> int:
    """Return the limit that is suggested for an exact one."""
    return max(floor, nice(ceil(exact * MARGIN), steps))


def _quotas(limits: Mapping[str, int]) -> str:
    """Return limits by period as quotas."""
    return "; ".join([f"{limit}/{unit}" for unit, limit in limits.items()])


def _candidate(rule: Rule) -> Candidate:
    return Candidate(rule.name, Settings(rules=[rule]))


def _rule(method: str | None, path: str | None) -> Rule:
    """Return a rule for these requests; None for all. Its quota is replaced by those that are tried."""
    return Rule(name=name_of(path), quota="1/second", key=_KEY, methods=method and [method], path=path)


def _read(pattern: str) -> Rule:
    """Return a rule for the requests of a pattern that the user wrote."""
    options = parse_requests(pattern)
    return replace(_rule(None, options["path"]), methods=options["methods"])


def _possible(groups: Iterable[tuple[str | None, str]], left_out: list[str]) -> Iterator[Rule]:
    """Yield a rule for each method and route that a rule can have."""
    for method, route in groups:
        try:
            yield _rule(method, route)
        except RuleError:
            left_out.append(f"{method or ''} {route}".strip())


def _left_out(requests: Sequence[str]) -> tuple[str, ...]:
    if not requests:
        return ()
    return (f"no rule can be written for {count_of(len(requests), 'route')}, as {requests[0][:_SHOWN]}",)


def _told_apart(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules, each with a name of its own."""
    found: dict[str, Rule] = {}
    for rule in rules:
        name, number = rule.name, 2
        while name in found:
            name, number = f"{rule.name}-{number}", number + 1
        found[name] = replace(rule, name=name)
    return [*found.values()]
