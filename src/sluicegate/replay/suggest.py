"""Suggested limits: the smallest that would have refused at most a stated share of the people in a log.

For each group of requests, and for each period, the limit is the smallest one that refuses at most that share of the
identities that are not programs. A margin is added, it is raised to what one person needs there (FLOORS), and rounded
up to a number that a person would write. Then the real engine replays
the log with it: the figures of a suggestion are those of the replay. How far to trust a limit is said by days: the
limit that all other days give is tried on the day that was left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from itertools import chain, count, islice, repeat
from math import ceil, floor
from typing import Final, NamedTuple, TypeVar

from sluicegate.errors import RuleError, needs
from sluicegate.identity import digest
from sluicegate.replay.candidates import Candidate, parse_key, parse_requests
from sluicegate.replay.decide import Ready
from sluicegate.replay.hints import Hints
from sluicegate.replay.kinds import SEEN, WANTED, seen, unseen
from sluicegate.replay.log import Counts, Log
from sluicegate.replay.partitions import Partitions, spool
from sluicegate.replay.routes import name_of, route_of
from sluicegate.replay.survey import ALL, DAY, GONE, HIGHEST, INSTEAD, LISTED, ONE_DAY, Effect, Group, Named, Survey
from sluicegate.replay.tally import add, readable
from sluicegate.replay.words import count as count_of
from sluicegate.replay.words import late, told_apart, unread
from sluicegate.replay.words import share as share_of
from sluicegate.replay.work import Each, Returned, loading, with_assets, workers
from sluicegate.rules.rule import Rule
from sluicegate.web.settings import Settings

with needs("replay"):
    import polars as pl

SECOND: Final = 1_000_000
PERIODS: Final = {"second": SECOND, "minute": 60 * SECOND, "hour": 3600 * SECOND, "day": 86_400 * SECOND}
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
MOST: Final = 10_000  # routes that are counted
_STEPS: Final = 5
_LOGIN: Final = re.compile(r"(?i)log-?in|sign-?(?:in|up)|auth|token|session|passw|register|otp|verify|reset")
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SHOWN: Final = 60  # characters of a User-Agent, and of a route that no rule can have
_route: Final = lru_cache(maxsize=20_000)(route_of)
_Each = TypeVar("_Each", bound=Hashable)
_REPLAYED: Final = 3  # rules, each with two neighbours: more are no page that somebody reads
_TIMES: Final = {"": 1, " at half": 0.5, " at twice": 2}
_GROUPS: Final = 8  # that are found, beside those for logins
_SEPARATES: Final = 0.9  # of the requests of programs: so much must a limit stop to be called one that separates
_NOTHING: Final = 0.1
_MORE: Final = 0.01
_SMALL: Final = (1, 2, 3, 4, 5, 6, 8)
_NICE: Final = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)


class Limit(NamedTuple):
    """The limit for one period, and what it does."""

    period: str  # a unit of quotas
    exact: int  # the smallest limit that keeps to the share
    limit: int  # with the margin, at least the floor, and rounded up
    low: int | None  # the smallest and the largest exact limit with one day left out; None: there is one day only
    high: int | None
    held_out: float | None  # the largest share of people refused on a day that the limit was not taken from
    without_shared: int  # the exact limit if nobody shared an address
    people: int = 0  # identities of people that the replay refused
    stopped: float = 0.0  # the share of the programs' requests that the replay refused

    @property
    def quota(self) -> str:
        """The limit as a quota."""
        return f"{self.limit}/{self.period}"


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
    warning: str  # why not to trust the limits, and which health checks they refuse; "" if there is no reason

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
    path: str  # its commonest, as a route; "" if the log has none
    agent: str  # its commonest User-Agent there, shortened; "" if the log has none


class Suggestions(NamedTuple):
    """The suggestions for a log."""

    key: str
    share: float
    days: int  # of the calendar, in UTC
    requests: int
    resolution: float
    kinds: tuple[Kind, ...]
    notes: tuple[str, ...]
    programs: tuple[Program, ...]  # those with most requests
    suggestions: tuple[Suggestion, ...]
    uncounted: int = 0  # requests without the key
    seconds: float = 0  # from the first request to the last


def suggest(
    log: Log,
    patterns: Sequence[str] = (),
    *,
    key: str = "ip",
    share: float = 0.001,
    options: Mapping[str, object] | None = None,
    since: int | None = None,
    until: int | None = None,
    show_identities: bool = False,
    processes: int = 1,
    progress: Callable[[], object] = lambda: None,
    counting: Callable[[int, int], object] = lambda _done, _of: None,
) -> Suggestions:
    """Suggest limits for groups of requests: those of the patterns, as "/api/*" or "POST /login", or those that are
    found. Identities are shown as digests.

    The log is read once, from `since` to before `until`. `key` is written as in `--rule "… by KEY"`; `options` are
    settings, such as `trusted_proxies`. A long log is counted in several `processes`, which import the main module of
    the program. `progress` is called after each frame; `counting` after each of its parts, with the number of those
    that are done and of all. The parts are counted several times.
    """
    rules = [_read(pattern) for pattern in patterns]
    rule = {"name": "--by", "quota": "1/second", "key": parse_key(key)}
    ready = Ready(Candidate(key, _settings(rule, options)))
    counted, hints = _Seen(), Hints([ready])
    with spool() as folder, ExitStack() as stack:
        partitions = Partitions(folder / "0")
        for frame in hints.watch(log, {*WANTED, *ready.wanted}, since=since, until=until):
            progress()
            identities = ready.identify(frame)
            known = identities.is_not_null()
            named = frame.filter(known)
            rows = seen(named, ("path",)).select("time", "method", *SEEN)
            counted.add(rows, named)
            partitions.add(rows, identities.filter(known))
        parts = partitions.all()
        each = stack.enter_context(workers(processes if len(parts) > 1 else 1))

        def every(function: Callable[..., Returned], *arguments: Iterable[object]) -> Iterator[Returned]:
            """Call a function with each part."""
            for done, found in enumerate(each(function, parts, *arguments), 1):
                yield found
                counting(done, len(parts))

        read = log.read
        said = [each.removesuffix(".") for each in hints.found(log.fields)] + what_was_read(read)
        suggester = _Suggester(counted, every, share=share, resolution=round(read.resolution * SECOND))
        found = suggester.all(rules, said, key=key, show=show_identities)
        found = found._replace(uncounted=hints.requests - counted.requests)
        return _without_rules(found, hints.absent) if counted.requests else found


def candidates(found: Suggestions, options: Mapping[str, object] | None = None) -> list[Candidate]:
    """Return the first suggested rules as candidates of a replay: each as suggested, at half and at twice its limit."""
    made = []
    for each in [each for each in found.suggestions if each.quota][:_REPLAYED]:
        chosen = [limit for limit in each.limits if limit.quota in (each.quota or "").split("; ")]
        for name, times in _TIMES.items():
            quota = "; ".join([limit._replace(limit=nice(ceil(limit.limit * times))).quota for limit in chosen])
            rule = {"name": each.name, "quota": quota, "key": parse_key(found.key), "path": each.path}
            rule["methods"] = each.methods or None
            made.append(Candidate(f"{each.name}{name}: {quota}", _settings(rule, options)))
    return made


def _settings(rule: Mapping[str, object], options: Mapping[str, object] | None) -> Settings:
    return Settings.from_mapping({"key": "ip", "rules": [rule], **(options or {})}, source="--by")


def _without_rules(found: Suggestions, absent: Sequence[str]) -> Suggestions:
    """Return suggestions without rules if they count by address, because no line of the log has what the key reads."""
    if not absent:
        return found
    whose = "users" if absent == ["user"] else " or ".join(absent)
    verdict = (
        f"The log names no {whose}: these figures are of addresses, and no rule by {found.key} follows from them. If "
        f"the log has it under another name, give --field {absent[0].lower()}=NAME. Otherwise log it, or count by "
        "address with --by ip."
    )
    return found._replace(
        suggestions=tuple([each._replace(quota=None, verdict=verdict, warning="") for each in found.suggestions])
    )


class _Seen:
    """What is counted of a log while it is read."""

    def __init__(self) -> None:
        self.requests = 0
        self.first = self.last = 0
        self.days: set[int] = set()
        self.agents = self.statuses = 0
        self.routes: Counter[tuple[str | None, str, bool]] = Counter()  # by method, and whether it is an asset
        self.names: Counter[tuple[int, str]] = Counter()  # of User-Agents: their hashes and how they begin

    def add(self, rows: pl.DataFrame, frame: pl.DataFrame) -> None:
        """Count a frame, of which `rows` are kept. Clients choose paths, methods and User-Agents, so only those with
        most requests are kept. The number of one is too low by at most one of MOST parts of all requests.
        """
        if not rows.height:
            return
        self.first, self.last = self.first if self.requests else rows["time"][0], rows["time"][-1]
        self.requests += rows.height
        self.days.update((rows["time"] // DAY).unique())
        self.agents += rows["agent"].count()
        self.statuses += rows["status"].count()
        for method, path, asset, number in rows.group_by("method", "path", "asset").agg(pl.len()).iter_rows():
            self.routes[method, _route(path or "/"), asset] += number
        if "agent" in frame.columns:
            names = frame.select(rows["agent"], text=pl.col("agent").str.slice(0, _SHOWN)).drop_nulls()
            counted = names.group_by("agent", "text").len()
            self.names.update({(agent, text): number for agent, text, number in counted.iter_rows()})
        self.routes, self.names = _bounded(self.routes), _bounded(self.names)


def _bounded(counted: Counter[_Each]) -> Counter[_Each]:
    """Return a count without the rarest, if there are too many."""
    if len(counted) <= 2 * MOST:
        return counted
    least = counted.most_common(MOST + 1)[-1][1]
    return Counter({each: number - least for each, number in counted.items() if number > least})


class _Suggester:
    """Finds limits in the parts of a log."""

    def __init__(self, seen: _Seen, every: Each, *, share: float, resolution: int) -> None:
        """`resolution` is that of the times, in microseconds. `every` calls a function with each part."""
        self._seen = seen
        self._every = every
        self.share = share
        self.resolution = resolution
        length = seen.last - seen.first + resolution
        units = [unit for unit, period in PERIODS.items() if period <= length] or ["second"]
        self._windows = {unit: max(PERIODS[unit], 2 * resolution) for unit in units}  # a second may be in two stamps

    def all(self, given: Sequence[Rule], read: Sequence[str], *, key: str, show: bool) -> Suggestions:
        """Suggest limits for these groups of requests, or for those that are found."""
        left_out: list[str] = []
        seen, asked = self._seen, given or self._groups(left_out)
        names = told_apart([rule.name for rule in asked], "{}-{}")
        rules = tuple([replace(rule, name=name) for rule, name in zip(asked, names, strict=True)])
        survey = Survey(rules, tuple(self._windows.values()), self.resolution)
        assets = with_assets(self._every(loading))
        survey = replace(survey, sees_assets=assets)
        kinds, programs, automated = Counter[str](), list[Named](), list[pl.Series]()
        groups = [Group() for _ in rules]
        for part in self._every(survey.count):
            kinds += part.kinds
            programs += part.programs
            automated.append(part.automated)
            groups = [*map(add, groups, part.groups)]
        programs.sort()
        checks = [each for each in programs if each.is_check][:LISTED]
        limits = [self._limits(group, _floor(rule)) for group, rule in zip(groups, rules, strict=True)]
        survey = replace(survey, checks=tuple([each.identity for each in checks]))
        effects = self._effects(survey, automated, [[limit.quota for limit in each] for each in limits])
        limits = [_with_effects(*each) for each in zip(limits, effects, groups, strict=True)]
        chosen = [_together(*each) for each in zip(limits, effects, groups, strict=True)]
        joined = [["; ".join([limit.quota for limit in each])] if len(each) > 1 else [] for each in chosen]
        both = self._effects(survey, automated, joined) if any(joined) else effects
        found = []
        for number, (rule, group) in enumerate(zip(rules, groups, strict=True)):
            only = chosen[number][0] if len(chosen[number]) == 1 else None
            effect, bit = (effects[number], 2 ** limits[number].index(only)) if only else (both[number], 1)
            known = _effect(effect, group, bit)
            one = self._suggestion(rule, group, limits=limits[number], chosen=chosen[number], effect=known)
            if one.quota:
                harmed = [_checked(each, effect.checks[each.identity, bit], show=show) for each in checks]
                one = one._replace(warning=" ".join(filter(None, [one.warning, *harmed])))
            found.append(one)
        lacks = unseen(assets=assets, agents=seen.agents > 0, statuses=seen.statuses > 0) if seen.requests else ()
        agents: dict[int | None, str] = dict([*seen.names])
        return Suggestions(
            key=key,
            share=self.share,
            days=len(seen.days),
            requests=seen.requests,
            resolution=self.resolution / SECOND,
            kinds=tuple([Kind(*each) for each in sorted(kinds.items())]),
            notes=(*self._notes((*read, *lacks)), *_left_out(left_out)),
            programs=tuple([_program(each, agents, show=show) for each in programs[:LISTED]]),
            suggestions=tuple(found),
            seconds=(seen.last - seen.first) / SECOND,
        )

    def _effects(
        self, survey: Survey, automated: Sequence[pl.Series], quotas: Sequence[Sequence[str]]
    ) -> Sequence[Effect]:
        found = [Effect() for _ in quotas]
        for part in self._every(survey.effects, automated, repeat(quotas)):
            found = [*map(add, found, part)]
        return found

    def _groups(self, left_out: list[str]) -> list[Rule]:
        """Return a rule for all requests, then one for each login, then for the routes that have most requests. At the
        path of a login these have the method too, so that no two rules are for the same requests. Clients choose paths
        and methods: those that no rule can have are added to `left_out`.
        """
        routes: dict[tuple[str | None, str], int] = {}
        logins: dict[tuple[str | None, str], int] = {}
        for (method, route, asset), number in self._seen.routes.items():
            if method is not None and _what((method,), route) == SIGN_INS:
                logins[method, route] = logins.get((method, route), 0) + number
            elif not asset:
                of = ("GET" if method == "HEAD" else method) if _LOGIN.search(route) else None
                routes[of, route] = routes.get((of, route), 0) + number
        often = {route: number for route, number in routes.items() if number * 100 > self._seen.requests}
        rules = [_rule(None, None)]
        for numbers in (logins, often):
            most = sorted(numbers, key=lambda each: (-numbers[each], each[0] or "", each[1]))
            rules += islice(_possible(most, left_out), _GROUPS)
        return rules

    def _notes(self, read: Sequence[str]) -> tuple[str, ...]:
        quotas = {what: [f"{limit}/{unit}" for unit, limit in floor.items()] for what, floor in FLOORS.items()}
        floors = [f"{'; '.join(each)} for {what}" for what, each in quotas.items()]
        notes = [
            *read,
            f"the exact limit refuses at most {100 * self.share:.4g} % of the people; each limit is at least "
            f"{100 * (MARGIN - 1):.0f} % above it, and at least what a person needs: " + ", ".join(floors),
        ]
        if len(self._seen.days) < 2:
            notes.append("one day only: nothing says how the limits would do on another day")
        if self.resolution >= SECOND and self._seen.requests:
            notes.append(
                "the times are whole seconds: the most requests within a second are counted over two of them, which is "
                "at least as many"
            )
        return tuple(notes)

    def _suggestion(
        self, rule: Rule, group: Group, *, limits: Sequence[Limit], chosen: Sequence[Limit], effect: tuple[int, float]
    ) -> Suggestion:
        people, stopped = effect
        verdict, separates = self._no_requests(), False
        if group.requests:
            verdict, separates = _verdict(group, limits, stopped, floor=_floor(rule))
        return Suggestion(
            name=rule.name,
            methods=tuple(sorted(rule.methods or ())),
            path=rule.path,
            requests=group.requests,
            identities=group.identities,
            people=group.people,
            programs=group.programs.total(),
            program_requests=group.program_requests,
            limits=tuple(limits),
            quota="; ".join([limit.quota for limit in chosen]) if separates and chosen else None,
            people_refused=people,
            stopped=stopped,
            verdict=verdict,
            warning=self._warning(group.people) if limits else "",
        )

    def _no_requests(self) -> str:
        """Return the routes that the log has, for a group that has no request."""
        routes = Counter[str]()
        for (_, route, asset), number in self._seen.routes.items():
            routes[route] += 0 if asset else number
        most = sorted(+routes, key=lambda each: (-routes[each], each))[:LISTED]
        return f"No requests. The routes with most requests: {', '.join(most)}." if most else "No requests."

    def _warning(self, people: int) -> str:
        """Return why limits that are taken from so many people should not be trusted."""
        few = [count_of(people, "person", "people")] if people < _FEW_PEOPLE else []
        few += [count_of(len(self._seen.days), "calendar day")] if len(self._seen.days) < _FEW_DAYS else []
        return f"Taken from only {' and '.join(few)}: try these limits on more traffic first." if few else ""

    def _limits(self, group: Group, floor: Mapping[str, int]) -> list[Limit]:
        """Return the limit for each period that the log is long enough for. What it refuses is not known yet."""
        found = []
        for unit, window in self._windows.items() if group.identities else ():
            counted: dict[str, dict[int, Counter[int]]] = {}  # people by what, day and peak
            for (what, of, peak, day), people in group.peaks.items():
                if of == window:
                    counted.setdefault(what, {}).setdefault(day, Counter())[peak] += people
            alone = counted[ALL].get(0, Counter())
            exact = self._smallest(alone + counted[ALL].get(1, Counter()))
            days = self._by_days(counted, floor=floor[unit])
            limit = _raised(exact, floor[unit], days.steps)
            found.append(Limit(unit, exact, limit, *days[:3], without_shared=self._smallest(alone)))
        return found

    def _smallest(self, people: Counter[int]) -> int:
        """Return the smallest limit that refuses at most the share of people. `people` counts browsers by peak."""
        allowed, refused = floor(self.share * people.total()), 0
        for peak in sorted(people, reverse=True):
            refused += people[peak]
            if refused > allowed:
                return peak
        return 1

    def _by_days(self, counted: Mapping[str, Mapping[int, Counter[int]]], *, floor: int) -> _Days:
        """Try the limit of all other days on each day. Round up by as many steps as it takes to keep to the share."""
        if len(self._seen.days) < 2:
            return _Days()
        tried = []
        for day, here in sorted(counted[ONE_DAY].items()):
            gone, instead = [counted.get(what, {}).get(day, Counter[int]()) for what in (GONE, INSTEAD)]
            if others := counted[HIGHEST][0] - gone + instead:
                tried.append((self._smallest(others), here))
        if not tried:
            return _Days()
        limits = [limit for limit, _ in tried]
        found = _Days(low=min(limits), high=max(limits))
        for steps in range(_STEPS):
            refused = []
            for limit, here in tried:
                most = _raised(limit, floor, steps)
                refused.append(sum([people for peak, people in here.items() if peak > most]) / here.total())
            found = found._replace(held_out=max(refused), steps=steps)
            if max(refused) <= self.share:
                break
        return found


def _shown(who: str, show: bool) -> str:
    return readable(who) if show else digest(who)


def _program(named: Named, agents: Mapping[int | None, str], *, show: bool) -> Program:
    path = "" if named.path is None else route_of(named.path)
    agent = agents.get(named.agent, "")
    return Program(_shown(named.text, show), -named.requests, named.reasons, path=path, agent=agent)


def _checked(named: Named, refused: int, *, show: bool) -> str:
    """Return a warning if a rule refuses requests of a health check."""
    if not refused:
        return ""
    return (
        f"It would refuse {refused:,} of {-named.requests:,} requests of {_shown(named.text, show)}, which look like a "
        f"health check of {route_of(named.path or '/')}: {'; '.join(named.reasons)}."
    )


class _Days(NamedTuple):
    """What trying limits on the days left out says."""

    low: int | None = None
    high: int | None = None
    held_out: float | None = None
    steps: int = 0


def _effect(effect: Effect, group: Group, limits: int) -> tuple[int, float]:
    """Return how many identities of people a limit refuses, and which share of the requests of programs. `limits` has a
    bit for each limit, as in `Effect`. With several limits only the share has a meaning. It is a little too high,
    because the limits were tried one by one, and together they refuse less.
    """
    stopped = sum([number for refused, number in effect.programs.items() if refused & limits])
    return effect.people[limits], stopped / group.program_requests if group.programs else 0.0


def _with_effects(limits: Sequence[Limit], effect: Effect, group: Group) -> list[Limit]:
    """Return the limits with what they refuse."""
    known = [_effect(effect, group, 2**at) for at in range(len(limits))]
    return [limit._replace(people=each[0], stopped=each[1]) for limit, each in zip(limits, known, strict=True)]


def _together(limits: Sequence[Limit], effect: Effect, group: Group) -> list[Limit]:
    """Return the limits that do most together: the one that stops most, and each other one that stops more."""
    chosen: list[Limit] = []
    before, refusing = 0.0, 0
    for limit in sorted(limits, key=lambda limit: -limit.stopped):
        more = refusing | 2 ** limits.index(limit)
        _, stopped = _effect(effect, group, more)
        if not chosen or stopped >= before + _MORE:
            refusing, before = more, stopped
            chosen.append(limit)
    return sorted(chosen, key=limits.index)


def _verdict(group: Group, limits: Sequence[Limit], stopped: float, *, floor: Mapping[str, int]) -> tuple[str, bool]:
    """Return in sentences how well limits tell programs from people here, and whether one is suggested."""
    if not limits:
        return (
            "Only programs ask here: the log cannot say how much they should. Agree on a limit with their owners.",
            False,
        )
    by_shared = max(limits, key=lambda limit: limit.exact / limit.without_shared)
    shared = ""
    alone = _raised(by_shared.without_shared, floor[by_shared.period], 0)
    if by_shared.exact >= 2 * by_shared.without_shared and alone < by_shared.limit:
        shared = (
            f" An address with many people behind it sets the limits: without it {alone}/{by_shared.period} would do "
            f"instead of {by_shared.quota}. A key by user would tell them apart."
        )
    if not group.programs:
        return f"No programs here: no rule is suggested.{shared}", False
    if stopped >= _SEPARATES:
        return f"Stops {share_of(stopped, 1)} of what programs sent.{shared}", True
    number, most = group.programs.total(), max(group.programs)
    spread = number >= 10 and most * 10 <= group.program_requests
    what = f"it comes from {number} identities, none of which sent more than {most} requests"
    slow = "the rest is" if stopped > _NOTHING else "these programs are"
    what = what if spread else f"{slow} as slow as people are"
    instead = (
        "If they do harm, count failures by user, ask for a proof (a challenge, a second factor), or deny by a list."
    )
    if stopped > _NOTHING:
        return f"Stops {share_of(stopped, 1)} of what programs sent: {what}. {instead}{shared}", True
    return f"No limit tells programs from people here: {what}. {instead}{shared}", False


def what_was_read(read: Counts) -> list[str]:
    """Return what a reader must know about the lines of a log."""
    said = unread(read.unreadable.lines, read.lines)
    examples = [f"{said}, as {file}:{number}: {line}" for file, number, line in read.unreadable.examples[:1]]
    return [*examples, late(read.late, read.late_at, read.late_by)] if read.late else examples


def _what(methods: Collection[str], path: str | None) -> str:
    """Return which of FLOORS is the one of a group of requests."""
    if methods and _READS.isdisjoint(methods) and _LOGIN.search(path or ""):
        return SIGN_INS
    return "every request" if path in {None, "/*"} else "one route"


def _floor(rule: Rule) -> Mapping[str, int]:
    """Return what one person needs of a group of requests."""
    return FLOORS[_what([*(rule.methods or ())], rule.path)]


def _raised(exact: int, floor: int, steps: int) -> int:
    """Return the limit that is suggested for an exact one."""
    return max(floor, nice(ceil(exact * MARGIN), steps))


def _rule(method: str | None, path: str | None) -> Rule:
    """Return a rule for these requests; None for all. Its quota does not matter."""
    return Rule(name=name_of(path), quota="1/second", key="ip", methods=method and [method], path=path)


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


def nice(limit: int, steps: int = 0) -> int:
    """Return the next limit that a person would write, and so many steps more.

    >>> [nice(limit) for limit in (1, 7, 9, 11, 13, 61, 101, 1999)], nice(5, 1), nice(80, 2)
    ([1, 8, 10, 12, 15, 80, 120, 2000], 6, 120)
    """
    written = chain(_SMALL, (number * 10**power for power in count() for number in _NICE))
    higher: Iterator[int] = islice((each for each in written if each >= limit), steps, None)
    return next(higher)
