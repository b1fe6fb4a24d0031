"""Suggested limits on generated logs whose truth is known: what they stop, and whom they refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import polars as pl
import pytest

from examples.shop_log import DAY, LOGIN, PEOPLE, Model
from sluicegate.replay import partitions
from sluicegate.replay import suggest as suggest_module
from sluicegate.replay.candidates import from_rules
from sluicegate.replay.kinds import is_asset
from sluicegate.replay.suggest import FLOORS, MARGIN, SECOND, SIGN_INS, Suggestion, Suggestions, nice, suggest
from tests.replay.decided import Given, decisions
from tests.replay.shop import frames

ATTACK = Model(visitors=150, office=40, clients=2, crawlers=1)
DISTRIBUTED = Model(visitors=150, office=40, clients=2, crawlers=1, attack=0, distributed=300)
ON = f"POST {LOGIN}"


@cache
def traffic(model: Model) -> pl.DataFrame:
    """The traffic of a log: times in whole seconds."""
    return pl.concat(frames(model)).with_columns(pl.col("time") // SECOND * SECOND)


def suggested(
    frame: pl.DataFrame, *patterns: str, key: str = "ip", share: float = 0.001, show_identities: bool = False
) -> Suggestions:
    return suggest(Given([frame]), patterns, key=key, share=share, show_identities=show_identities)


def only(frame: pl.DataFrame, share: float = 0.001) -> Suggestion:
    """The suggestion for logins."""
    (found,) = suggested(frame, ON, share=share).suggestions
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_it_stops_the_attack_and_refuses_no_person(seed: int) -> None:
    """Its own figures are those of the truth, which it does not see."""
    frame = traffic(replace(ATTACK, seed=seed))
    found = only(frame)
    assert found.quota is not None
    allowed = decisions(frame, from_rules([f"{found.quota} by ip on {ON}"]))["allowed"]
    refused = frame.filter(~allowed)
    assert refused.filter(pl.col("kind").is_in(PEOPLE)).height == 0
    attack = frame.filter(kind="attack").height
    assert refused.height >= 0.99 * attack
    assert (found.people_refused, found.stopped, found.program_requests) == (0, refused.height / attack, attack)
    assert found.verdict.startswith("Stops 99.")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_it_says_that_no_limit_stops_a_distributed_attack(seed: int) -> None:
    found = only(traffic(replace(DISTRIBUTED, seed=seed)))
    assert found.quota is None
    assert found.verdict.startswith(
        "No limit tells programs from people here: it comes from 300 identities, none of which sent more than 9"
    )
    assert (found.programs, found.program_requests) == (300, 2700)
    assert all(limit.stopped < 0.1 and limit.people == 0 for limit in found.limits)


@pytest.mark.slow
def test_it_does_not_lock_an_office_out() -> None:
    """An office whose images are not in the log still signs in, and a limit is never below what a person needs."""
    office = (pl.col("kind") == "office") & is_asset()
    frame = traffic(ATTACK).filter(~office)
    found = suggested(frame, show_identities=True)
    assert "ip:198.51.100.7" not in {each.identity for each in found.programs}
    assert "ip:185.220.101.4" in {each.identity for each in found.programs}
    allowed = decisions(frame, from_rules([f"{found.suggestions[1].quota} by ip on {ON}"]))["allowed"]
    assert frame.filter(~allowed & pl.col("kind").is_in(PEOPLE)).height == 0
    for each in found.suggestions:
        floor = FLOORS[SIGN_INS if each.name == "login" else "one route" if each.path else "every request"]
        assert all(limit.limit >= max(floor[limit.period], MARGIN * limit.exact) for limit in each.limits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "agent", "is_check"),
    [(200, None, True), (503, None, False), (503, "kube-probe/1.30", True), (404, "kube-probe/1.30", False)],
)
def test_a_health_check_is_named_where_a_rule_refuses_it(status: int, agent: str | None, *, is_check: bool) -> None:
    """All that it does is that of a program: one that answers is a monitor, or one that says so and is not guessing."""
    visits = traffic(ATTACK)
    first, last = visits["time"][0] // DAY * DAY, visits["time"][-1]
    times = pl.int_range(first, last, 10 * SECOND, eager=True).alias("time")
    asked = {"address": "10.0.0.5", "path": "/health", "method": "GET", "status": status, "agent": agent}
    checks = pl.select(times).with_columns(
        pl.lit(value, visits.schema[name]).alias(name) for name, value in asked.items()
    )
    frame = pl.concat([visits, checks], how="diagonal").sort("time", maintain_order=True)
    found = suggested(frame, "/*", show_identities=True)
    (monitor,) = [each for each in found.programs if each.identity == "ip:10.0.0.5"]
    assert (monitor.path, monitor.agent) == ("/health", agent or "")
    (limits,) = found.suggestions
    assert ("requests of ip:10.0.0.5, which look like a health check" in limits.warning) == is_check
    attacker = next(each for each in found.programs if each.path == LOGIN)
    assert attacker.agent == visits.filter(kind="attack")["agent"][0]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_partitions_change_nothing(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    whole = traffic(ATTACK)
    log = Given([*whole.iter_slices(7_000)])
    expected = [suggest(log, patterns) for patterns in ([], ["/api/*", ON])]
    monkeypatch.setattr(partitions, "PIECE", 20_000)
    monkeypatch.setattr(partitions, "PARTS", 4)
    found = [suggest(log, patterns, processes=processes) for patterns in ([], ["/api/*", ON])]
    assert found == expected


@pytest.mark.slow
def test_routes_with_many_requests_are_counted_however_many_others_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggest_module, "MOST", 50)
    frame = traffic(ATTACK).head(20_000)
    paths = [
        f"/{'abcdefghij'[at // 100 % 10]}{'klmnopqrst'[at // 10 % 10]}{'uvwxyzabcd'[at % 10]}" for at in range(20_000)
    ]
    odd = frame.with_columns(path=pl.Series(paths))
    both = pl.concat([frame, odd]).sort("time", maintain_order=True)
    names = {each.name for each in suggested(frame).suggestions}
    assert {each.name for each in suggested(both).suggestions} <= names
    assert "items" in {each.name for each in suggested(both).suggestions}


@pytest.mark.slow
def test_few_people_and_few_days_are_a_warning() -> None:
    few, many = (only(traffic(ATTACK).filter(rows)) for rows in (pl.col("actor") == "human-2", True))
    assert few.warning.startswith("Taken from only 1 person: ")
    assert many.warning == ""


@pytest.mark.slow
def test_a_limit_does_what_peaks_say() -> None:
    """Of every group and period: the exact limit refuses nobody, and the next smaller one does."""
    frame = traffic(ATTACK)
    everything = suggested(frame)
    assert [each.name for each in everything.suggestions][:2] == ["everything", "login"]
    for each in everything.suggestions:
        assert [limit.period for limit in each.limits] in (["second", "minute", "hour", "day"], [])
        for limit in each.limits:
            assert limit.limit >= limit.exact >= limit.without_shared
            assert limit.people == 0
            assert limit.low is not None
            assert limit.high is not None
            assert limit.low <= limit.high <= limit.exact
    login = everything.suggestions[1].limits[2]
    smaller = decisions(frame, from_rules([f"{login.exact - 1}/hour by ip on {ON}"]))["allowed"]
    assert frame.filter(~smaller & pl.col("kind").is_in(PEOPLE)).height > 0


@pytest.mark.slow
def test_limits_fall_as_the_share_grows() -> None:
    frame = traffic(ATTACK).filter(pl.col("kind") != "scraper")
    by_share = [only(frame, share) for share in (0, 0.001, 0.01, 0.1, 0.3, 1)]
    for less, more in pairwise(by_share):
        assert all(one.exact >= other.exact for one, other in zip(less.limits, more.limits, strict=True))
        assert more.stopped >= less.stopped
    assert by_share[-1].limits[0].exact == 1


@pytest.mark.slow
def test_a_key_by_user_does_not_know_offices() -> None:
    """The office sets the limits by address. By user, the limit is that of one person."""
    by_ip, by_user = (suggested(traffic(ATTACK), "/items/*", key=key).suggestions[0] for key in ("ip", "user"))
    assert "A key by user would tell them apart" in by_ip.verdict
    assert by_user.limits[2].without_shared < by_ip.limits[2].exact


@pytest.mark.slow
def test_one_day_gives_limits_without_confidence() -> None:
    found = suggested(traffic(ATTACK).filter(pl.col("time") < (pl.col("time").min() // DAY + 1) * DAY), ON)
    assert any(note.startswith("one day only") for note in found.notes)
    assert all((limit.low, limit.high, limit.held_out) == (None, None, None) for limit in found.suggestions[0].limits)
    assert found.suggestions[0].limits


def test_times_of_whole_seconds_are_counted_over_two() -> None:
    """Two requests in two stamps may be a millisecond apart."""
    frame = traffic(ATTACK).filter(kind="human").head(1)
    frame = pl.concat([frame.with_columns(pl.col("time") + at * SECOND) for at in (0, 1, 5)])
    assert only(frame.with_columns(method=pl.lit("POST"), path=pl.lit(LOGIN))).limits[0].exact == 2
    assert any("whole seconds" in note for note in suggested(frame).notes)


@pytest.mark.parametrize(
    ("kinds", "verdict"),
    [
        ((), "No requests."),
        (("attack",), "Only programs"),
        (("human",), "No programs here: no rule is suggested."),
        (("office",), "No programs here: no rule is suggested. An address with many"),
    ],
)
def test_logs_of_one_kind(kinds: tuple[str, ...], verdict: str) -> None:
    found = only(traffic(ATTACK).filter(pl.col("kind").is_in(kinds)))
    assert found.verdict.startswith(verdict)
    assert found.stopped == 0
    assert found.quota is None
    assert bool(found.limits) == bool(found.identities)


@pytest.mark.slow
def test_no_two_rules_count_the_same_requests_of_a_route() -> None:
    """Issue 26: the page of a login, and the login itself."""
    frame = traffic(ATTACK)
    pages = frame.filter(path=LOGIN, method="POST").with_columns(method=pl.lit("GET"))
    found = suggested(pl.concat([frame, pages]).sort("time", maintain_order=True)).suggestions
    methods = [each.methods for each in found if each.path == LOGIN]
    assert methods == [("POST",), ("GET", "HEAD")]


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "end"), [(20, 71), (23, 25)])
def test_how_long_the_log_is(begin: int, end: int) -> None:
    """Issue 26: not how many days of the calendar it touches."""
    start = pl.col("time").min() // DAY * DAY
    hour = (pl.col("time") - start) / (3600 * SECOND)
    found = suggested(traffic(ATTACK).filter(hour.is_between(begin, end)), ON)
    assert (end - begin) * 3600 - 900 < found.seconds <= (end - begin) * 3600


def test_one_identity() -> None:
    frame = traffic(ATTACK).filter(actor="human-2")
    found = suggested(frame)
    assert [(each.identities, each.people) for each in found.suggestions][:1] == [(1, 1)]


def test_a_limit_is_a_number_that_a_person_would_write() -> None:
    for limit in range(1, 3000):
        assert limit <= nice(limit) <= max(limit + 1, limit * 1.34)
        assert nice(nice(limit)) == nice(limit)
