"""Results of a replay, for tests of the reports: `generated()` is one of drawn traffic with a plain sliding log.

The totals are sums of the parts, and a point of a curve is what the same loop says with that limit. Only the times of
waiting (`blocked`, the closed loop) are rough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b
from random import Random
from statistics import median
from typing import NamedTuple

from sluicegate.quota import Quota
from sluicegate.replay.result import (
    Candidate,
    ClosedLoop,
    Curve,
    Example,
    File,
    Kind,
    Load,
    Moment,
    Point,
    Rates,
    Refused,
    Result,
    Route,
    RuleText,
    Traffic,
    Unreadable,
)

START = 1_795_392_000.0  # 2026-11-23 00:00 UTC
DAYS = 2
BUCKET = 900.0
KINDS = {"person": "human", "office": "shared", "crawler": "automated", "attacker": "automated", "scraper": "automated"}
ROUTES = ("GET /", "GET /products/*", "GET /search", "GET /api/stock/*", "POST /cart", "POST /login")


class Request(NamedTuple):
    time: float
    who: str
    route: str
    work: float  # seconds


class Asked(NamedTuple):
    """One rule: a limit per period, on one route or on all."""

    name: str
    limit: int
    period: float
    route: str = ""


@cache
def traffic() -> tuple[Request, ...]:
    """Two days: people, three offices behind one address each, crawlers, a login attack and a scraper."""
    draw, found = Random(16), []

    def visit(who: str, start: float) -> None:
        time = start
        for _ in range(1 + int(draw.expovariate(1 / 9))):
            found.append((time, who, draw.choices(ROUTES, (20, 40, 15, 10, 10, 3))[0]))
            time += 0.4 + draw.expovariate(1 / 9)

    def daytime() -> float:
        return draw.randrange(DAYS) * 86_400 + min(86_000, max(0, draw.gauss(14, 4) * 3_600))

    for person in range(700):
        for _ in range(1 + person % 3):
            visit(f"person {person}", daytime())
    for office in range(3):
        for _ in range(260):
            visit(f"office {office}", draw.randrange(DAYS) * 86_400 + draw.gauss(11, 0.6) * 3_600)
    for crawler in range(4):
        found += [(step * 120 + draw.random() * 20, f"crawler {crawler}", ROUTES[step % 3]) for step in range(1_200)]
    for attacker in range(12):
        times = [step * (1 + attacker / 30) + draw.random() for step in range(320)]
        found += [(86_400 + 7_200 + time, f"attacker {attacker}", ROUTES[5]) for time in times]
    found += [(126_000 + step / 6, "scraper", ROUTES[1 + step % 3]) for step in range(3_600)]
    end = DAYS * 86_400
    return tuple(
        Request(START + time, who, route, 0.02 + draw.random() / 9) for time, who, route in sorted(found) if time < end
    )


def digest(who: str) -> str:
    return blake2b(who.encode(), digest_size=8).hexdigest()


def kind_of(who: str) -> str:
    return KINDS[who.partition(" ")[0]]


def most(times: Sequence[float], period: float) -> int:
    """Return the most of these in any period."""
    return max([i + 1 - bisect_left(times, time - period) for i, time in enumerate(times)], default=0)


def refused(requests: Sequence[Request], rules: Iterable[Asked]) -> dict[int, Asked]:
    """Return the refused requests by their places, and the rule of each."""
    admitted: defaultdict[tuple[str, str], deque[float]] = defaultdict(deque)
    found: dict[int, Asked] = {}
    for place, request in enumerate(requests):
        applied = [(rule, admitted[rule.name, request.who]) for rule in rules if rule.route in ("", request.route)]
        for rule, times in applied:
            while times and times[0] <= request.time - rule.period:
                times.popleft()
        full = [rule for rule, times in applied if len(times) >= rule.limit]
        if full:
            found[place] = full[0]
        else:
            for _, times in applied:
                times.append(request.time)
    return found


def by_identity(requests: Iterable[Request]) -> dict[str, list[float]]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for request in requests:
        found[request.who].append(request.time)
    return found


def buckets(requests: Iterable[Request]) -> tuple[int, ...]:
    counts = Counter(int((request.time - START) // BUCKET) for request in requests)
    return tuple(counts[each] for each in range(int(DAYS * 86_400 / BUCKET)))


def work(requests: Iterable[Request]) -> tuple[float, ...]:
    sums: defaultdict[int, float] = defaultdict(float)
    for request in requests:
        sums[int((request.time - START) // BUCKET)] += request.work
    return tuple(round(sums[each], 3) for each in range(int(DAYS * 86_400 / BUCKET)))


@cache
def candidate(name: str, *rules: Asked) -> Candidate:
    requests = traffic()
    found = refused(requests, rules)
    out = [requests[place] for place in found]
    passed = [request for place, request in enumerate(requests) if place not in found]
    everybody, blocked = by_identity(requests), by_identity(out)
    people = {who for who in everybody if kind_of(who) != "automated"}
    seconds = {
        who: sum([min(60.0, later - time) for time, later in zip(times, [*times[1:], times[-1] + 30], strict=True)])
        for who, times in blocked.items()
    }
    decided = [request for request in requests if any(rule.route in ("", request.route) for rule in rules)]
    worst = sorted(Counter(int(request.time // 300) for request in out).items(), key=lambda pair: -pair[1])[:5]
    delays = sorted(seconds[who] / len(times) for who, times in blocked.items() for _ in times)
    return Candidate(
        name=name,
        rules=tuple(
            RuleText(
                name=rule.name,
                quota=str(Quota(rule.limit, rule.period)),
                key="ip",
                algorithm="sliding-window",
                applies_to=rule.route,
                refused=sum(each is rule for each in found.values()),
                identities=len({requests[place].who for place, each in found.items() if each is rule}),
                rule=rule.name,
            )
            for rule in rules
        ),
        decided=len(decided),
        refused=len(out),
        identities=len({request.who for request in decided}),
        refused_identities=len(blocked),
        blocked=round(sum(seconds.values()), 1),
        routes=tuple(
            Route(
                route,
                sum(request.route == route for request in requests),
                sum(request.route == route for request in out),
                len({request.who for request in requests if request.route == route}),
                len({request.who for request in out if request.route == route}),
            )
            for route in ROUTES
        ),
        worst=tuple(
            Moment(
                slot * 300.0,
                300,
                sum(slot * 300 <= request.time < slot * 300 + 300 for request in requests),
                count,
                len({request.who for request in out if slot * 300 <= request.time < slot * 300 + 300}),
            )
            for slot, count in worst
        ),
        kinds=tuple(
            Kind(
                kind,
                sum(kind_of(who) == kind for who in blocked),
                sum(kind_of(who) == kind for who in everybody),
                sum(kind_of(request.who) == kind for request in out),
            )
            for kind in ("human", "shared", "unclear", "automated")
        ),
        closed_loop=ClosedLoop(
            delayed=len(out),
            never=0,
            retries=len(out) + len(out) // 3,
            median=round(median(delays), 1) if delays else 0.0,
            p95=round(delays[int(0.95 * len(delays))], 1) if delays else 0.0,
            longest=round(delays[-1], 1) if delays else 0.0,
            people_delayed=sum(request.who in people for request in out),
            people_median=1.5,
            people_longest=60.0,
            not_computed="",
        ),
        load=Load(START, BUCKET, buckets(requests), buckets(passed), work(requests), work(passed)),
        most_refused=tuple(
            Refused(
                digest(who),
                len(everybody[who]),
                len(times),
                round(seconds[who], 1),
                times[0],
                times[-1],
                kind_of(who),
                buckets([request for request in requests if request.who == who]),
                buckets([request for request in out if request.who == who]),
            )
            for who, times in sorted(blocked.items(), key=lambda pair: -len(pair[1]))[:12]
        ),
        curves=tuple(curve(rule, rules, people) for rule in rules),
        curves_note="",
    )


def curve(rule: Asked, rules: tuple[Asked, ...], people: set[str]) -> Curve:
    """Return what every limit around a rule's own would have done."""
    requests = traffic()
    limits = sorted({max(1, round(rule.limit * 2 ** (step / 3))) for step in range(-7, 8)})
    points = []
    for limit in limits:
        changed = tuple(each._replace(limit=limit) if each is rule else each for each in rules)
        out = [requests[place].who for place in refused(requests, changed)]
        points.append(Point(limit, len(out), len(set(out)), len(people & set(out))))
    return Curve(rule.name, rule.period, rule.limit, tuple(points))


def rates(rule: Asked) -> Rates:
    """Return the distribution that the line of a rule stands in, in bins that grow by a fifth."""
    asked = by_identity([request for request in traffic() if rule.route in ("", request.route)])
    edges = sorted({round(1.2**step) for step in range(50)})
    bins = Counter(edges[bisect_right(edges, most(times, rule.period)) - 1] for times in asked.values())
    return Rates(rule.period, "ip", rule.route, tuple(sorted(bins.items())))


LOGIN = Asked("login", 5, 60, "POST /login")
PAGES = Asked("pages", 60, 60)
HOURLY = Asked("hourly", 600, 3_600)


@cache
def generated() -> Result:
    """Return the result with three candidates: a rule for one route, one for all requests, and three rules."""
    requests = traffic()
    return Result(
        Traffic(
            files=(File("access.log.1.gz", "nginx combined"), File("access.log", "nginx combined")),
            lines=len(requests) + 3,
            unreadable=Unreadable(3, (Example("access.log", 812, "\x16\x03\x01\x02 - - <script>alert(1)</script>"),)),
            late=17,
            first=requests[0].time,
            last=requests[-1].time,
            resolution=1.0,
            requests=len(requests),
            identities=len(by_identity(requests)),
            refused=0,
            missing=("duration",),
            late_at=requests[100].time,
            late_by=3600.0,
        ),
        (
            candidate("login", LOGIN),
            candidate("pages", PAGES),
            candidate("limits.toml", LOGIN, PAGES._replace(limit=90), HOURLY),
        ),
        (rates(LOGIN), rates(PAGES), rates(HOURLY)),
        seconds=1.7,
    )


def empty() -> Result:
    """Return the result of a log without a request, and no candidate."""
    traffic = Traffic((File("empty.log", "nginx combined"),), 0, Unreadable(0, ()), 0, None, None, 1.0, 0, 0, 0, ())
    return Result(traffic, (), (), 0.0)


NO_CURVES = "No other limits were replayed: its rules count by different keys."


def crowded() -> Result:
    """Return the result with ten candidates, of long names and with large numbers."""
    found = (
        generated().candidates[0]._replace(refused=123_456_789, decided=987_654_321, curves=(), curves_note=NO_CURVES)
    )
    names = [f"a_candidate_with_a_name_that_is_long_{number}.toml" for number in range(10)]
    return generated()._replace(candidates=tuple(found._replace(name=name) for name in names))


def nothing_refused() -> Result:
    """Return a result whose candidate refuses nothing."""
    return generated()._replace(candidates=(candidate("high", Asked("high", 1_000_000, 60)),))


HOSTILE = (
    "</script><script>document.title = 'taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "[bold]\"quotes' & \\ back\u2028\u202eright to left\u0591 zero\u200bwidth\U000e0041 \x1b[31m\x00 🦀 {{data}}",
    "/" + "a" * 10_240,
)


def hostile() -> Result:
    """Return a result whose every text is what an attacker may write into a log, or a user into a name."""
    first, image, signs, long = HOSTILE
    result = generated()
    found = result.candidates[0]
    return result._replace(
        traffic=result.traffic._replace(
            files=(File(f"/var/log/\udcff{first}", signs),),
            unreadable=Unreadable(2, (Example(image, 1, signs), Example(signs, 2, long))),
            missing=(image,),
        ),
        candidates=(
            found._replace(
                name=signs,
                rules=(found.rules[0]._replace(name=image, key=first, applies_to=f"POST {signs}"),),
                routes=tuple(each._replace(route=text) for each, text in zip(found.routes, HOSTILE, strict=False)),
                most_refused=tuple(
                    each._replace(identity=text) for each, text in zip(found.most_refused, HOSTILE, strict=False)
                ),
                curves=(found.curves[0]._replace(rule=image),),
                closed_loop=ClosedLoop.unknown(image),
            ),
        ),
        rates=(
            result.rates[0]._replace(key=first, applies_to=f"POST {signs}"),
            result.rates[1]._replace(key=signs, applies_to=image),
        ),
    )
