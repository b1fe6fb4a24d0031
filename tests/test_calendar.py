"""Calendar windows: the dates, the stores around a boundary, and the ways to write them."""

from __future__ import annotations

import asyncio
import pickle
import re
import zoneinfo
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial
from inspect import iscoroutine
from itertools import pairwise
from typing import Any
from uuid import uuid4

import polars as pl
import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sluicegate import AsyncLimiter, Calendar, Concurrency, Limiter, ManualClock, Quota, Rule
from sluicegate.clock import MICROSECOND
from sluicegate.errors import ConfigurationError, QuotaError
from sluicegate.flask import RateLimiter
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.replay.candidates import from_rules, rules_of
from sluicegate.rules.ban import Ban
from sluicegate.rules.terms import make_terms, present
from sluicegate.rules.tiers import Tiers
from sluicegate.starlette import RateLimitMiddleware
from sluicegate.stores import open_store
from sluicegate.testing.scenarios import examples
from sluicegate.web.http import fields_for
from tests.replay.decided import decisions

HOUR, DAY = 3_600, 86_400
YEARS = 200


def seconds(text: str, zone: str = "UTC") -> int:
    """The moment of a local time."""
    return int(datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone)).timestamp())


WINDOWS = [  # the calendar, a moment in UTC, the local beginning and end of its window, the end of the next
    ("calendar day", "2025-06-15 12:00", "2025-06-15", "2025-06-16", "2025-06-17"),
    ("calendar day", "2025-06-15 00:00", "2025-06-15", "2025-06-16", "2025-06-17"),
    ("calendar day", "2025-06-14 23:59:59", "2025-06-14", "2025-06-15", "2025-06-16"),
    ("calendar day in Europe/Berlin", "2025-06-14 22:00", "2025-06-15", "2025-06-16", "2025-06-17"),
    ("calendar day in Europe/Berlin", "2026-03-29 12:00", "2026-03-29", "2026-03-30", "2026-03-31"),  # of 23 hours
    ("calendar day in Europe/Berlin", "2026-10-25 12:00", "2026-10-25", "2026-10-26", "2026-10-27"),  # of 25 hours
    ("calendar day in Pacific/Apia", "2011-12-30 09:00", "2011-12-29", "2011-12-31", "2012-01-01"),  # without the 30th
    ("calendar day in America/St_Johns", "2006-10-29 02:31", "2006-10-29", "2006-10-30", "2006-10-31"),  # begins twice
    ("calendar hour", "2025-06-15 12:34", "2025-06-15 12:00", "2025-06-15 13:00", "2025-06-15 14:00"),
    ("calendar hour", "2025-06-15 23:34", "2025-06-15 23:00", "2025-06-16 00:00", "2025-06-16 01:00"),
    ("calendar hour in Asia/Kolkata", "2025-06-15 12:34", "2025-06-15 18:00", "2025-06-15 19:00", "2025-06-15 20:00"),
    ("calendar week", "2025-06-15 12:00", "2025-06-09", "2025-06-16", "2025-06-23"),  # a Sunday
    ("calendar week from 2024-02-29", "2025-06-12 00:00", "2025-06-12", "2025-06-19", "2025-06-26"),  # a Thursday
    ("calendar month", "2024-02-29 23:00", "2024-02-01", "2024-03-01", "2024-04-01"),
    ("calendar month in Europe/Berlin", "2024-02-29 23:00", "2024-03-01", "2024-04-01", "2024-05-01"),
    ("calendar month from 2024-01-31", "2024-02-28 12:00", "2024-01-31", "2024-02-29", "2024-03-31"),
    ("calendar month from 2024-01-31", "2025-02-28 12:00", "2025-02-28", "2025-03-31", "2025-04-30"),
    ("calendar month from 2024-05-31", "2025-12-31 00:00", "2025-12-31", "2026-01-31", "2026-02-28"),
    ("calendar month from 2024-01-15", "2025-03-14 23:59", "2025-02-15", "2025-03-15", "2025-04-15"),
    ("calendar year", "2025-06-15 12:00", "2025-01-01", "2026-01-01", "2027-01-01"),
    ("calendar year from 2024-02-29", "2025-02-28 00:00", "2025-02-28", "2026-02-28", "2027-02-28"),
    ("calendar year from 2024-02-29", "2024-02-28 23:59", "2023-02-28", "2024-02-29", "2025-02-28"),
    ("calendar year from 2000-04-06", "2025-04-05 12:00", "2024-04-06", "2025-04-06", "2026-04-06"),  # of British taxes
]


@pytest.mark.parametrize(("text", "moment", "start", "end", "following"), WINDOWS)
def test_a_window_has_the_dates_of_the_calendar(text: str, moment: str, start: str, end: str, following: str) -> None:
    found = calendar_of(text)
    expected = [seconds(each, found.tz) * MICROSECOND for each in (start, end, following)]
    assert [*found.window(seconds(moment) * MICROSECOND)] == expected


def calendar_of(text: str) -> Calendar:
    found = Quota.parse(f"5/{text}").calendar
    assert found is not None
    return found


# The oracle. It knows no formula of the code: a window begins at the first moment whose local date is one on which
# windows begin, or later. It looks at dates one by one, and finds the moment by bisection.


def begins_on(found: Calendar, day: date) -> bool:
    """True if windows of a week, month or year begin on this day, and on any day for the others."""
    last = (day + timedelta(days=1)).day == 1
    same = day.day == found.anchor.day or (last and day.day < found.anchor.day)
    return {
        "week": day.weekday() == found.anchor.weekday(),
        "month": same,
        "year": same and day.month == found.anchor.month,
    }.get(found.unit, True)


@cache
def first_moment(day: date, zone: str) -> int:
    """The first second whose local date is this or a later one."""
    there = zoneinfo.ZoneInfo(zone)
    noon = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp())
    # Local dates go back by less than a day when clocks are changed, and only in the hours after midnight. So a coarse
    # look finds the first hour with such a date, and in it the local time only grows.
    step = next(
        at for at in range(noon - 40 * HOUR, noon + 40 * HOUR, 60) if datetime.fromtimestamp(at, there).date() >= day
    )
    return next(at for at in range(step - 60, step + 1) if datetime.fromtimestamp(at, there).date() >= day)


def oracle(found: Calendar, now: int) -> tuple[int, int, int]:
    day = datetime.fromtimestamp(now, zoneinfo.ZoneInfo(found.tz)).date() + timedelta(days=1)
    after: list[int] = []
    edge = day
    while not begins_on(found, edge) or first_moment(edge, found.tz) > now:
        edge -= timedelta(days=1)
    start = first_moment(edge, found.tz)
    while len(after) < 2:
        edge += timedelta(days=1)
        if begins_on(found, edge) and first_moment(edge, found.tz) > max([now, *after]):
            after.append(first_moment(edge, found.tz))
    if found.unit != "hour":
        return start, *after  # type: ignore[return-value]
    hours = [*range(start, after[0], HOUR), *range(after[0], after[1], HOUR), after[1]]
    place = next(number for number, hour in enumerate(hours) if hour > now)
    return hours[place - 1], hours[place], hours[place + 1]


ZONES = sorted(zoneinfo.available_timezones())
CALENDARS = st.builds(Calendar, st.sampled_from(["hour", "day"]), tz=st.sampled_from(ZONES)) | st.builds(
    Calendar,
    st.sampled_from(["week", "month", "year"]),
    tz=st.sampled_from(ZONES),
    anchor=st.dates(date(1990, 1, 1), date(2040, 1, 1)),
)
CHANGES = (0, 1, -1, 3_599, 3_600, 86_399, 86_400)


@cache
def changes(zone: str) -> list[int]:
    """The moments of 200 years, to the day, around which the clocks of a zone are changed."""
    there = zoneinfo.ZoneInfo(zone)
    days = range(0, YEARS * 365 * DAY, DAY)
    offsets = [datetime.fromtimestamp(at, there).utcoffset() for at in days]
    return [at for at, one, other in zip(days, offsets, offsets[1:], strict=False) if one != other] or [0]


def test_the_oracle_has_100_zones() -> None:
    assert len(ZONES) >= 100


@examples(300)
@given(CALENDARS, st.integers(0, YEARS * 365 * DAY), st.integers(0, 10**6), st.booleans(), st.sampled_from(CHANGES))
def test_windows_are_those_of_the_oracle(found: Calendar, now: int, number: int, near: bool, more: int) -> None:
    if near:
        known = changes(found.tz)
        now = known[number % len(known)] + now % (2 * DAY)
    start, end, following = oracle(found, now)
    for at in (now, start, end - 1, min(end - 1, start + more), max(start, end - 1 - more)):
        assert found.window(at * MICROSECOND)[:2] == tuple(each * MICROSECOND for each in oracle(found, at)[:2])
    assert found.window(now * MICROSECOND) == tuple(each * MICROSECOND for each in (start, end, following))


# Stores around a boundary. A ManualClock counts from 1970, as a server does.

BERLIN = "Europe/Berlin"
STORES = ["memory", "valkey", "redis6", "cluster"]


class Service:
    """A limiter of either kind behind plain calls, with a clock that a test moves."""

    def __init__(self, store: Any, *, asynchronous: bool, runner: asyncio.Runner) -> None:
        self.clock = ManualClock(0)
        self._runner = runner
        kind: Any = AsyncLimiter if asynchronous else Limiter
        self.limiter = kind(store, clock=self.clock, prefix=f"calendar-{uuid4().hex}", deny_cache=0, deadline=5)

    def call(self, method: Callable[..., Any], *given: Any, **options: Any) -> Any:
        found = method(*given, **options)
        return self._runner.run(found) if iscoroutine(found) else found


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else str(request.getfixturevalue(request.param).url)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def service(request: pytest.FixtureRequest, url: str) -> Iterator[Service]:
    with asyncio.Runner() as runner:
        made = Service(url, asynchronous=request.param, runner=runner)
        yield made
        made.call(made.limiter.close)


STORIES = [  # a quota, a local time in Berlin, the seconds to the end of the window, the length of the next
    ("2/calendar day in Europe/Berlin", "2026-03-29T00:00:00", 23 * HOUR, 24 * HOUR),
    ("2/calendar day in Europe/Berlin", "2026-10-25T00:00:00", 25 * HOUR, 24 * HOUR),
    ("2/calendar day in Europe/Berlin", "2026-03-28T23:59:59", 1, 23 * HOUR),
    ("2/calendar hour in Europe/Berlin", "2026-03-29T01:30:00", HOUR // 2, HOUR),
    ("2/calendar week in Europe/Berlin", "2026-03-29T12:00:00", 12 * HOUR, 7 * DAY),
    ("2/calendar month in Europe/Berlin from 2024-01-31", "2028-02-28T23:00:00", HOUR, 31 * DAY - HOUR),
    ("2/calendar year in Europe/Berlin from 2024-02-29", "2028-02-28T23:00:00", HOUR, 365 * DAY),
]


@pytest.mark.parametrize(("quota", "start", "left", "following"), STORIES)
def test_a_limit_holds_to_the_true_end_of_its_window(
    service: Service, quota: str, start: str, left: int, following: int
) -> None:
    service.clock.advance(seconds(start, BERLIN))
    hit = partial(service.call, service.limiter.limit(quota).hit, "alice")
    assert [hit().remaining, hit().remaining] == [1, 0]
    refused = hit()
    assert (refused.allowed, refused.retry_after, refused.reset_after) == (False, left, left)
    service.clock.advance_us(left * MICROSECOND - 1)
    assert hit().retry_after == 1e-6
    service.clock.advance_us(1)
    first = hit()
    assert (first.allowed, first.remaining, first.reset_after) == (True, 1, following)
    assert first.checks[0].terms.window_us == following * MICROSECOND


def test_a_refund_after_the_end_gives_nothing_back(service: Service) -> None:
    service.clock.advance(seconds("2026-03-28T23:00:00", BERLIN))
    call, limiter = service.call, service.limiter
    limit = limiter.limit("5/calendar day in Europe/Berlin")
    first, second = call(limit.hit, "alice", 2), call(limit.hit, "alice", 2)
    call(limiter.refund, first)
    assert call(limit.peek, "alice", 0).remaining == 3
    service.clock.advance(HOUR)
    assert call(limit.hit, "alice").remaining == 4
    call(limiter.refund, second)
    assert call(limit.peek, "alice", 0).remaining == 4
    reserved = call(limit.reserve, "alice", 4)
    service.clock.advance(23 * HOUR)
    call(reserved.settle, 1)
    assert call(limit.peek, "alice", 0).remaining == 5


def daily(zone: str, now: int, limit: int = 3) -> Terms:
    """The terms of a process whose clock shows `now`, and whose database has these days."""
    return present(make_terms("daily", (Quota(limit, Calendar("day", tz=zone)),), algorithm="gcra"), now, 0)[0]


WRONG = [  # by how many seconds a process's clock is wrong
    *(0, 1, -1, 60, -60, HOUR, -HOUR, 12 * HOUR, -12 * HOUR, DAY, -DAY, 26 * HOUR, -26 * HOUR, 400 * DAY, -400 * DAY),
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
def test_a_wrong_clock_gives_no_second_budget_and_no_other_end(url: str, wrong: int, first: bool) -> None:
    clock = ManualClock(seconds("2026-06-15T00:00:00"))
    store = open_store(url, prefix=f"wrong-{uuid4().hex}", clock=clock)

    def hit(off: int) -> Outcome:
        terms = daily("UTC", clock.now_us() + off * MICROSECOND)
        return store.run(Plan((Check(terms, "alice", 1),)))[0]

    passed = [0, 0, 0]
    for hour in range(0, 72, 6):
        outcomes = [hit(off) for off in ((wrong, 0) if first else (0, wrong))]
        passed[hour // 24] += sum(each.allowed for each in outcomes)
        assert {each.reset_after for each in outcomes} == {(24 - hour % 24) * HOUR * MICROSECOND}
        clock.advance(6 * HOUR)
    assert passed == [3, 3, 3]
    store.close()


@pytest.mark.parametrize(
    "zones", [("UTC", "Etc/GMT-1"), ("Etc/GMT-1", "UTC"), ("UTC", "Etc/GMT+3"), ("Etc/GMT+3", "UTC")]
)
def test_an_old_time_zone_database_gives_no_second_budget(url: str, zones: tuple[str, str]) -> None:
    """Two processes whose days begin at other times share one budget a day, which begins when one of them says so."""
    clock = ManualClock(seconds("2026-06-15T12:00:00"))
    store, begun = open_store(url, prefix=f"old-{uuid4().hex}", clock=clock), list[int]()
    for hour in range(96):
        for zone in zones:
            [outcome] = store.run(Plan((Check(daily(zone, clock.now_us()), "alice", 1),)))
            begun += [hour] if outcome.remaining == 2 else []
        clock.advance(HOUR)
    lengths = [after - before for before, after in pairwise(begun)]
    assert lengths[0] <= 15, "the budget of the noon of the first day"
    assert lengths[1:] == [24, 24, 24]
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "zones",
    [
        ("UTC", "Etc/GMT+8", "Etc/GMT-8"),
        ("UTC", "Etc/GMT-12"),
        ("UTC", "Etc/GMT+6", "Etc/GMT+12", "Etc/GMT-6"),
        ("Asia/Kolkata", "America/New_York", "Pacific/Auckland", "UTC", "Etc/GMT+12"),
    ],
)
def test_one_identity_under_several_calendars_gets_a_budget_for_half_a_window_at_most(
    url: str, zones: tuple[str, ...]
) -> None:
    """Each charge moved the end to that of its own calendar: after some of them it was so far away that nothing of it
    was believed, and everything passed.
    """
    clock = ManualClock(seconds("2026-06-15T12:00:00"))
    store, begun = open_store(url, prefix=f"several-{uuid4().hex}", clock=clock), list[int]()
    for hour in range(96):
        for zone in zones * 3:
            terms = daily(zone, clock.now_us(), 40)
            [outcome] = store.run(Plan((Check(terms, "alice", 1),)))
            begun += [hour] if outcome.remaining == 39 else []
            assert outcome.reset_after <= 36 * HOUR * MICROSECOND
        clock.advance(HOUR)
    assert min(after - before for before, after in pairwise(begun[1:])) >= 12
    store.close()


# What reads the terms: header fields, rules of any kind, the local fallback, the commands and a replay.

FIELDS = [  # the dialect, and the fields of a day of 23 hours after one hit of 5
    ("draft-11", {"RateLimit-Policy": '"default";q=5;w=82800', "RateLimit": '"default";r=4;t=82800'}),
    ("draft-7", {"RateLimit-Policy": "5;w=82800", "RateLimit": "limit=5, remaining=4, reset=82800"}),
]


@pytest.mark.parametrize(("dialect", "expected"), FIELDS)
def test_the_policy_has_the_length_of_the_present_window(dialect: str, expected: dict[str, str]) -> None:
    limiter = Limiter(clock=ManualClock(seconds("2026-03-29T00:00:00", BERLIN)))
    decision = limiter.hit("5/calendar day in Europe/Berlin", "alice")
    assert dict(fields_for(decision, dialect, status=200)) == expected


def starlette_client(**settings: Any) -> Callable[[], tuple[int, str | None]]:
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("in"))])
    app.add_middleware(RateLimitMiddleware, **settings)
    client = TestClient(app)

    def get() -> tuple[int, str | None]:
        response = client.get("/", headers=HEADERS)
        return response.status_code, response.headers.get("Retry-After")

    return get


def flask_client(**settings: Any) -> Callable[[], tuple[int, str | None]]:
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "in")
    RateLimiter(app, **settings)
    client = app.test_client()

    def get() -> tuple[int, str | None]:
        response = client.get("/", headers=HEADERS)
        return response.status_code, response.headers.get("Retry-After")

    return get


HEADERS = {"X-Key": "alice", "X-Billing": "2024-01-29"}


def by_customer(request: Any) -> Quota:
    return Quota(2, Calendar("month", anchor=request.headers["X-Billing"]))


RULES = [  # a rule, and the seconds from 2028-02-28 12:00 to the end of its window
    (Rule(name="calendar", quota="2/calendar month", key="header:X-Key"), DAY + DAY // 2),
    (Rule(name="calendar", quota=by_customer, key="header:X-Key"), DAY // 2),
    (Rule(name="calendar", quota=Tiers({"pro": "2/calendar day"}, by=lambda _: "pro"), key="header:X-Key"), DAY // 2),
    (Rule(name="calendar", quota="9/hour; 2/calendar day", key="header:X-Key", algorithm="gcra"), DAY // 2),
    (Rule(name="calendar", quota="2/calendar day", key="header:X-Key", per_method=True), DAY // 2),
    (Rule(name="calendar", quota="4/calendar day", cost=lambda _: 2, key="header:X-Key"), DAY // 2),
]


@pytest.mark.parametrize(("rule", "left"), RULES)
@pytest.mark.parametrize("make", [starlette_client, flask_client])
def test_a_rule_of_any_kind_has_calendar_windows(make: Callable[..., Any], rule: Rule, left: int) -> None:
    clock = ManualClock(seconds("2028-02-28T12:00:00"))
    get = make(rules=[rule], clock=clock)
    assert [get()[0] for _ in range(3)] == [200, 200, 429]
    assert get() == (429, str(left))
    clock.advance(left)
    assert [get()[0] for _ in range(3)] == [200, 200, 429]


def test_an_error_in_a_function_of_a_quota_names_the_rule() -> None:
    rule = Rule(name="contract", quota=lambda _: Quota(0, Calendar("month")), key="header:X-Key")
    with pytest.raises(QuotaError, match=r"rule 'contract': limit 0: less than 1"):
        starlette_client(rules=[rule])()


TEXTS = [  # a text, and the quota that it is
    ("5/calendar day from 2024-02-28", Quota(5, Calendar("day"))),
    ("5/calendar month from 2024-05-01", Quota(5, Calendar("month"))),
    ("10_000/calendar month", Quota(10_000, Calendar("month"))),
    ("100 per Calendar DAY", Quota(100, Calendar("day"))),
    ("5/calendar hour in Asia/Kolkata", Quota(5, Calendar("hour", tz="Asia/Kolkata"))),
    ("5/calendar hour", Quota(5, Calendar("hour", tz=None))),
    ("5/calendar day in Europe/Berlin", Quota(5, Calendar("day", tz=zoneinfo.ZoneInfo(BERLIN)))),
    ("5/calendar month from 2024-02-29", Quota(5, Calendar("month", anchor=datetime(2024, 2, 29, 23, tzinfo=UTC)))),
    ("5/calendar week from 2024-02-29", Quota(5, Calendar("week", anchor=date(2024, 2, 29)))),
    ("5/calendar year in Europe/Berlin from 2024-02-29", Quota(5, Calendar("year", tz=BERLIN, anchor="2000-02-29"))),
]


@pytest.mark.parametrize(("text", "quota"), TEXTS)
def test_a_text_is_read_and_written(text: str, quota: Quota) -> None:
    assert Quota.parse(text) == quota
    assert {Quota.parse(str(quota)), copy(quota), pickle.loads(pickle.dumps(quota))} == {quota}
    calendar = quota.calendar
    assert {copy(calendar), pickle.loads(pickle.dumps(calendar)), eval(repr(calendar))} == {calendar}
    assert rules_of(from_rules([f"{text} by ip"]).settings)[0].quota == (quota,)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Quota.parse("5/calendar fortnight"), "its calendar: no such window; use one of hour, day, week"),
    (lambda: Quota.parse("5/calendar day in Mars"), "its tz: no such time zone"),
    (lambda: Quota.parse("5/calendar day in europe/berlin"), 'did you mean "Europe/Berlin"'),
    (lambda: Quota.parse("5/calendar day in ../Berlin"), "no such time zone"),
    (lambda: Quota.parse("5/calendar month from 2024-02-30"), "its anchor: not a date"),
    (lambda: Quota.parse("0/calendar day"), "limit is zero"),
    (lambda: Quota.parse("5/2 calendar days"), "cannot be read"),
    (lambda: Quota.parse("5/calendar day burst 9"), "cannot be read"),
    (lambda: Calendar("fortnight"), "no such window"),
    (lambda: Calendar("day", tz=5), "no such time zone"),  # type: ignore[arg-type]
    (lambda: Calendar("month", anchor=31), "not a date"),  # type: ignore[arg-type]
    (lambda: Concurrency.parse("5 at once for calendar day"), "has a burst or a calendar"),
    (lambda: Concurrency(5, Calendar("day")), "not a length of time"),  # type: ignore[arg-type]
    (lambda: Ban(after=3, within="calendar day", duration=60), "not a length of time"),
    (lambda: Rule(name="a", quota=Quota(5, Calendar("day"), burst=9)).names, "this algorithm has no burst"),
    (lambda: Rule(name="a", quota="5/calendar day; 9/calendar day in Europe/Rome").names, "over the same period"),
    (lambda: Rule(name="a", quota="5/day", algorithm="calendar"), "not known"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "problem"), REFUSED)
def test_what_cannot_be_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        make()


def test_without_time_zones_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    assert Calendar("day").tz == "UTC"
    with pytest.raises(QuotaError, match="this system has no time zones; install the package tzdata"):
        Calendar("day", tz="Europe/Nowhere")


def test_the_local_fallback_keeps_the_calendar() -> None:
    clock = ManualClock(seconds("2026-03-29T06:00:00", BERLIN))
    limiter = Limiter("redis://127.0.0.1:1", clock=clock, replicas=2)
    hit = partial(limiter.hit, "5/calendar day in Europe/Berlin", "alice")
    assert [hit().allowed for _ in range(3)] == [True, True, False]
    assert (hit().retry_after, hit().limit, hit().degraded) == (18 * HOUR, 2, True)
    clock.advance(18 * HOUR)
    assert hit().remaining == 1


def test_a_replay_knows_the_calendar_of_its_log() -> None:
    start = seconds("2026-03-29T23:00:00")
    times = [start, start + 1, start + HOUR - 1, start + HOUR, start + HOUR + 1, start + 30 * HOUR]
    log = pl.DataFrame({"time": [at * MICROSECOND for at in times], "address": ["203.0.113.7"] * len(times)})
    found = decisions(log, from_rules(["1/calendar day by ip"]))
    assert found["allowed"].to_list() == [True, False, False, True, False, True]
    assert found["retry_after"].to_list()[1:3] == [(HOUR - 1) * MICROSECOND, MICROSECOND]


def test_the_clock_of_this_machine_is_asked_again_after_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    start = 1_790_000_000 // HOUR * HOUR + 60  # a minute of an hour: this test may run at the end of one
    monkeypatch.setattr("sluicegate.clock.time.time_ns", lambda: start * 10**9)
    hour = Limiter().limit("5/calendar hour in Europe/Berlin")
    assert hour.hit("alice").reset_after == pytest.approx(HOUR - 60, abs=2)
    monkeypatch.setattr("sluicegate.clock.time.time_ns", lambda: (start + 600) * 10**9)
    assert hour.peek("alice", 0).reset_after == pytest.approx(HOUR - 660, abs=2)
