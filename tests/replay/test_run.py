"""A whole replay: the same answers in one piece and in partitions, exact curves, the closed loop, bounded memory."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import re
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from examples.shop_log import PEOPLE, Model
from sluicegate import ManualClock, Quota, Settings
from sluicegate.errors import ReplayError
from sluicegate.replay import curves, partitions, paste, words
from sluicegate.replay import run as run_module
from sluicegate.replay.candidates import Candidate, from_file, from_rules, rules_of
from sluicegate.replay.result import Result
from sluicegate.replay.routes import Routes, route_of
from sluicegate.replay.run import replay
from sluicegate.replay.suggest import suggest
from sluicegate.replay.traffic import COLUMNS
from sluicegate.replay.work import Work
from sluicegate.rules.rule import Rule
from tests.replay.decided import Given, decisions
from tests.replay.shop import frames

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
TEXTS = (
    ["login: 5/minute by ip on POST /login"],
    ["3 per 10 seconds; 40/hour"],
    ["4/minute with gcra cost bytes/10"],
    ["9/minute by path:2", "20/minute"],
    ["2 at once"],
    ["2/minute when 401"],
    ["20/hour on /login", "2/minute on /"],  # a wait of the one ends long after those of the other
    ["150/minute cost 40"],  # above 100 units a sliding window rounds times up
)


def traffic(count: int = 3000) -> pl.DataFrame:
    draw, now, rows = random.Random(7), START, []
    for number in range(count):
        now += draw.randrange(0, SECOND // 2)
        path = draw.choice(["/", "/login", f"/items/{number}"])
        address = f"198.51.100.{min(250, int(draw.paretovariate(0.7)))}"
        row = now, address, draw.choice(["GET", "POST"]), path, draw.choice([200, 401]), draw.randrange(30)
        rows.append((*row, draw.randrange(3 * SECOND)))
    names = ("time", "address", "method", "path", "status", "bytes", "duration")
    return pl.DataFrame(rows, schema={name: COLUMNS[name] for name in names}, orient="row")


def run(given: list[pl.DataFrame], **options: Any) -> Result:
    candidates = [from_rules(each) for each in TEXTS]
    return replay(Given(given), candidates, clock=ManualClock(), **options)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_partitions_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processes: int) -> None:
    """Not even the files that they leave: there are none. The number of partitions follows the log."""
    ties = pl.DataFrame({"time": START, "address": [f"192.0.2.{each % 200}" for each in range(600)]})
    whole = pl.concat([ties, traffic()], how="diagonal")  # more than are listed are refused as often
    expected = run([whole])
    monkeypatch.setattr(partitions, "PIECE", 700)
    monkeypatch.setattr(partitions, "PARTS", 2)
    monkeypatch.setattr(partitions, "ROWS", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    steps: list[tuple[int, int]] = []
    found = run(
        [whole[at : at + 331] for at in range(0, whole.height, 331)],
        processes=processes,
        deciding=lambda *done: steps.append(done),
    )
    assert found == expected
    assert steps == [(done, len(steps) - 1) for done in range(len(steps))]
    assert len(steps) == 1 + 4  # two partitions until 2,000 rows are written
    assert not [*tmp_path.iterdir()]


def test_the_rows_in_memory_do_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither those that wait to be written, nor those of a partition."""
    monkeypatch.setattr(partitions, "PIECE", 1_000)
    monkeypatch.setattr(partitions, "PARTS", 2)
    monkeypatch.setattr(partitions, "ROWS", 200)
    for pieces in (2, 12):
        made = partitions.Partitions(tmp_path / str(pieces))
        rows = pl.DataFrame({"time": range(500)})
        for at in range(2 * pieces):
            made.add(rows, pl.Series([f"s{at % 8 * 500 + each}" for each in range(500)]))
        parts = [part for part in made.all() if isinstance(part, partitions.Written)]
        loaded = [part.load() for part in parts]
        assert sum(each.frame.height for each in loaded) == pieces * 1_000
        assert {len(each.blocks) for each in parts} == {pieces}  # 1,000 rows are written at a time
        assert 100 <= max(each.frame.height for each in loaded) < 400
        assert sum(each.texts.height for each in loaded) == sum(each.frame["identity"].n_unique() for each in loaded)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Faulty(Work):
    """Work on which a process dies."""

    def count(self, part: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "fault", "message"),
    [
        (partitions, "_bytes", full, "temporary files in .*: No space left on device; set TMPDIR"),
        (Path, "open", full, "No space left on device"),
        (tempfile, "mkdtemp", full, "No space left on device"),
        (run_module, "Work", Faulty, "a process of 'replay': it was killed"),
    ],
)
def test_a_replay_that_cannot_go_on_says_so_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Any, name: str, fault: Any, message: str
) -> None:
    monkeypatch.setattr(partitions, "PIECE", 700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(target, name, fault)
    with pytest.raises(ReplayError, match=message):
        run([traffic()], processes=2)
    assert not [*tmp_path.iterdir()]
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_the_numbers_are_those_of_the_decisions() -> None:
    whole = traffic()
    result = run([whole])
    for found, texts in zip(result.candidates, TEXTS, strict=True):
        decided = decisions(whole, from_rules(texts))
        refused = whole.with_columns(decided).filter(~pl.col("allowed"))
        assert found.refused == refused.height > 0
        assert found.refused == sum(found.load.logged) - sum(found.load.passed)
        assert found.refused == sum(each.refused for each in found.rules) == sum(each.refused for each in found.routes)
        assert result.traffic.requests == sum(each.requests for each in found.routes)
        rules = refused["rule"].value_counts().rows()
        assert {each.name: each.refused for each in found.rules if each.refused} == dict(rules)


@pytest.mark.slow
@pytest.mark.parametrize(
    "texts",
    [
        *(TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[6], TEXTS[7]),
        ["3 per 10 seconds; 9/minute; 100/hour with gcra"],
        ["9/minute burst 4; 90/hour burst 30 with token-bucket"],
        ["9/minute with fixed-window", "60/hour with sliding-counter", "3/minute on POST /login"],
    ],
)
def test_each_point_of_a_curve_is_a_replay_with_that_limit(texts: list[str]) -> None:
    whole, candidate = traffic(800), from_rules(texts)
    (found,) = replay(Given([whole]), [candidate]).candidates
    rules = [(rule, at) for rule in rules_of(candidate.settings) for at in range(len(rule.names))]
    for (rule, at), curve in zip(rules, found.curves, strict=True):
        assert any((point.limit, point.refused) == (curve.limit, found.refused) for point in curve.points)
        own: Any = rule.quota
        for point in curve.points[::9]:
            limits = [point.limit if at == place else each.limit for place, each in enumerate(own)]
            quotas = [Quota(limit, each.period, burst=each.burst) for limit, each in zip(limits, own, strict=True)]
            others = [replace(each, quota=quotas) if each is rule else each for each in rules_of(candidate.settings)]
            changed = Candidate("changed", replace(candidate.settings, rules=others))
            refused = whole.filter(~decisions(whole, changed)["allowed"])
            assert (point.refused, point.identities) == (refused.height, refused["address"].n_unique())


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("5000/minute with sliding-log", 501, 10_000), ("4 per 2 seconds burst 5 with gcra cost 5", 1, 40)],
)
def test_a_curve_has_the_limits_that_the_algorithm_can_have(text: str, least: int, most: int) -> None:
    """Its own is one of them, also below the cost of a request: then the burst lets it pass."""
    (found,) = replay(Given([traffic(100)]), [from_rules([text])]).candidates
    limits = [point.limit for point in found.curves[0].points]
    assert found.curves[0].limit in limits
    assert (limits[0], most // 2 < limits[-1] <= most) == (least, True)


def test_candidates_that_share_points_have_the_curves_of_each_alone() -> None:
    texts = ("4/minute", "9/minute", "9/minute on /login", "9/minute with gcra", "9/minute cost 2", "9/hour; 4/minute")
    log, candidates = Given([traffic(800)]), [from_rules([text]) for text in texts]
    together = replay(log, candidates).candidates
    assert [each.curves for each in together] == [replay(log, [one]).candidates[0].curves for one in candidates]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["4/minute"], ""),
        (["4/minute when 401"], "it depends on more than the times of the requests of one identity"),
        (["9/minute by path:2", "20/minute"], "its rules count by different keys"),
        (["2 at once"], "it limits the requests at the same time"),
    ],
)
def test_a_candidate_without_curves_says_why(texts: list[str], why: str) -> None:
    log = Given([traffic(800)])
    (found,) = replay(log, [from_rules(texts)]).candidates
    assert [len(each.points) for each in found.curves] == ([] if why else [len(curves.limits(4))])
    assert why in found.curves_note
    assert bool(found.curves_note) is bool(why)
    assert not replay(log, [from_rules(texts)], curves=False).candidates[0].curves_note


def test_a_client_that_waits_meets_each_limit_once() -> None:
    """Eleven requests at once, five a minute: the sixth waits for a minute and four go with it, the last for two."""
    rows = [(START, "203.0.113.7", "POST", "/login")] * 11
    names = ("time", "address", "method", "path")
    whole = pl.DataFrame(rows, schema={name: COLUMNS[name] for name in names}, orient="row")
    for texts in (["5/minute"], ["5/minute; 100/hour"]):
        (found,) = replay(Given([whole]), [from_rules(texts)]).candidates
        loop = found.closed_loop
        assert (found.refused, loop.delayed, loop.never, loop.retries) == (6, 6, 0, 2), texts
        assert (loop.median, loop.longest) == (60, 120)
    (found,) = replay(Given([whole.with_columns(bytes=pl.lit(9))]), [from_rules(["5/minute cost bytes"])]).candidates
    assert (found.refused, found.closed_loop.never, found.blocked) == (11, 11, 0)


@pytest.mark.parametrize("texts", [["5/minute", "100/minute by path:1"], ["5/minute when 401"], ["2 at once"]])
def test_only_plain_rules_have_a_closed_loop(texts: list[str]) -> None:
    (candidate,) = replay(Given([traffic(40)]), [from_rules(texts)]).candidates
    *values, reason = candidate.closed_loop
    assert values == [None] * 9
    assert words.closed_loop(candidate.closed_loop).endswith(f"not computed: {reason}.")
    assert ("Median wait", "not computed") in words.facts(candidate)


def test_whose_waits_these_are_is_said() -> None:
    """A program asks thrice a second and waits for hours; a person waits for seconds."""
    slow = [(START + number * number % 97 * SECOND * 3, "192.0.2.1", "Firefox") for number in range(30)]
    fast = [(START + number * SECOND // 3, "192.0.2.2", "curl/8.5") for number in range(2000)]
    names = ("time", "address", "agent")
    whole = pl.DataFrame(sorted(slow + fast), schema={name: COLUMNS[name] for name in names}, orient="row")
    for texts in (["5/minute"], ["5/minute; 1000/hour"]):
        (found,) = replay(Given([whole]), [from_rules(texts)]).candidates
        loop = found.closed_loop
        assert loop.median is not None
        assert loop.people_median is not None
        assert loop.people_longest is not None
        assert loop.median > 3600 > loop.people_longest >= loop.people_median > 0
        assert f" {loop.people_delayed} of these are of people" in words.closed_loop(loop)
    people = whole.filter(pl.col("address") == "192.0.2.2")
    (found,) = replay(Given([people]), [from_rules(["5/minute"])]).candidates
    assert "None of these is of people." in words.closed_loop(found.closed_loop)


def pasted_toml(texts: dict[str, str], folder: Path) -> Candidate:
    path = folder / "limits.toml"
    path.write_text(f"[sluicegate]\nkey = 'ip'\n{texts['toml']}")
    return from_file(path)


def pasted_decorators(texts: dict[str, str], _: Path) -> Candidate:
    """The views that a comment names have the path."""
    rules, views = list[Rule](), re.findall(r"^# The views of (.*) share", texts["decorator"], re.MULTILINE)

    def limit(quota: str, **options: Any) -> Any:
        path = views[len(rules)].partition("/")
        rules.append(Rule(quota=quota, path="".join(path[1:]) or None, **options))
        return lambda view: view

    exec(f"{texts['decorator']}def view(): ...", {"limit": limit})
    return Candidate("pasted", Settings(key="ip", rules=rules))


@pytest.mark.slow
@pytest.mark.parametrize("pasted", [pasted_toml, pasted_decorators])
@pytest.mark.parametrize(
    "texts",
    [
        ["6/minute; 30/hour"],
        ["login: 5/minute; 9/hour by ip on POST /login", "20/minute with gcra", "pages: 8/minute on GET /"],
        ["4/minute on /login", "9/hour on /login", "150/minute cost 40"],
    ],
)
def test_what_is_copied_is_the_whole_candidate(texts: list[str], pasted: Any, tmp_path: Path) -> None:
    """Issue 26: all rules with all quotas, and the limit of the line in the place of its own."""
    log = Given([traffic(800)])
    (found,) = replay(log, [from_rules(texts)]).candidates
    for number, curve in enumerate(found.curves):
        cut = paste.candidate(found.rules, curve.rule)
        point = curve.points[3]
        candidate = pasted({form: str(point.limit).join(parts or ()) for form, parts in cut.items()}, tmp_path)
        (again,) = replay(log, [candidate], curves=False).candidates
        assert (again.refused, again.refused_identities) == (point.refused, point.identities), number
        assert {each.enforced for each in again.rules} == {0}


def test_what_cannot_be_copied_is_named() -> None:
    (found,) = replay(Given([traffic(100)]), [from_rules(["4/minute by path:2 cost bytes/10"])]).candidates
    for parts in paste.candidate(found.rules, found.curves[0].rule).values():
        text = "".join(parts or ())
        assert "# Not copied: cost.\n" in text
        assert "# The log's key is path:2: give the key of your application" in text


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_the_refused_are_called_what_suggest_calls_them(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """Issue 26: a slow scraper is a program, and an office is people, however fast each of them is."""
    monkeypatch.setattr(partitions, "PIECE", 20_000)
    whole = pl.concat(frames(Model(visitors=40, office=20, clients=2, crawlers=1)))
    log, prefix = Given([whole]), {"ipv6_prefix": 128}
    candidates = [from_rules(["10/minute"], **prefix)]
    result = replay(log, candidates, show_identities=True, curves=False, processes=processes)
    (found,) = result.candidates
    kinds = sorted([(each.kind, each.of) for each in found.kinds if each.of])
    assert kinds == [tuple(each) for each in suggest(log, ["/*"], options=prefix).kinds]
    truth = dict(whole.group_by("address").agg(pl.col("kind").first()).iter_rows())
    refused = {each.identity.removeprefix("ip:").removesuffix("/128"): each.kind for each in found.most_refused}
    assert all((kind == "automated") == (truth[who] not in PEOPLE) for who, kind in refused.items())
    assert {kind for who, kind in refused.items() if truth[who] == "office"} == {"shared"}
    assert sum([each.identities for each in found.kinds]) == found.refused_identities
    assert sum([each.requests for each in found.kinds]) == found.refused
    assert f" identities: {words.count(found.kinds[0].identities, 'person', 'people')}, 1 shared address, " in (
        words.headline(result._replace(candidates=(found,)))
    )


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/", "/"),
        ("/login", "/login"),
        ("/users/17/orders/9f1b3c2d", "/users/*/orders/*"),
        ("/static/app.min.js", "/static/app.min.js"),
        ("/img/376.jpg", "/img/*"),
        ("/u/0b5c1d2e-1111-4222-8333-444455556666", "/u/*"),
        ("/a/b/c/d/e/f/g/h", "/a/b/c/d/e/f/*"),
        ("/" + "x" * 5000, "/*"),
    ],
)
def test_routes(path: str, route: str) -> None:
    assert route_of(path) == route
    routes, at = Routes(), {"method": 0, "path": 1}
    written = {"GET": f"GET {route}", "HEAD": f"GET {route}", "POST": f"POST {route}", "x y": f"* {route}", None: route}
    for method, name in written.items():
        assert routes.names[routes.number((method, path), at)] == name
    assert routes.names[routes.number((path,), {"path": 0})] == route
