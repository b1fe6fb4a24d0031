"""Kinds: the programs and the people of the traffic model are told apart, with reasons, and each sign has its case."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pytest

from examples.shop_log import PEOPLE, Model
from sluicegate.replay.kinds import (
    AUTOMATED,
    HUMAN,
    SHARED,
    SIGNS,
    UNCLEAR,
    Kinds,
    is_asset,
    is_program,
    kinds,
    loading,
    sees_assets,
)
from sluicegate.replay.suggest import suggest
from tests.replay.decided import Given
from tests.replay.shop import frames

SECOND = 1_000_000
HOUR = 3600 * SECOND
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def told(frame: pl.DataFrame, resolution: int = SECOND) -> Kinds:
    user = [] if "user" in frame.columns else [pl.lit(None, pl.String()).alias("user")]
    rows = frame.with_columns(*user, asset=is_asset(), program=is_program())
    seen = rows.with_columns(name=pl.when("program").then("agent"))
    return kinds(seen, sees_assets=sees_assets(*loading(rows)), resolution=resolution)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "resolution"), [(1, 1), (2, SECOND), (3, SECOND)])
def test_the_model_is_told_apart(seed: int, resolution: int) -> None:
    """Every program of the model is one here, and no person. The office is many people."""
    traffic = pl.concat(frames(Model(seed=seed, visitors=200, distributed=40))).with_columns(
        pl.col("time") // resolution * resolution, pl.col("address").alias("identity")
    )
    found = told(traffic, resolution)
    truth = traffic.group_by("identity").agg(pl.col("kind").first().alias("truth"))
    pairs = found.table.join(truth, on="identity").select("kind", "truth").unique().rows()
    assert {truth for kind, truth in pairs if kind == AUTOMATED}.isdisjoint(PEOPLE)
    assert {truth for kind, truth in pairs if kind != AUTOMATED} == PEOPLE
    assert {kind for kind, truth in pairs if truth == "office"} == {SHARED}


# time, path, status, agent
Request = tuple[float, str, int, str | None]


def browsing(agent: str = BROWSER, start: float = 0) -> list[Request]:
    """A person: pages with their images, at uneven times."""
    pages = [(start + at * at * 3, f"/items/{at}", 200, agent) for at in range(8)]
    return [*pages, *[(at + 0.5, f"/static/{number}.png", 200, agent) for number, (at, *_) in enumerate(pages)]]


CASES: dict[str, tuple[str, Iterable[Request]]] = {
    "none": (HUMAN, browsing()),
    "few": (UNCLEAR, browsing()[:3]),
    "regular": (AUTOMATED, [(30.0 * at, "/status", 200, BROWSER) for at in range(40)]),
    "sleepless": (AUTOMATED, [(900.0 * at + at * at % 700, "/items/1", 200, BROWSER) for at in range(96)]),
    "fast": (AUTOMATED, [(at / 3 + at * at % 7, f"/items/{at % 20}", 200, BROWSER) for at in range(900)]),
    "failing": (AUTOMATED, [(at * at, "/old", 404 if at % 2 else 200, BROWSER) for at in range(30)]),
    "refused": (AUTOMATED, [(at * at * 999, "/login", 401, BROWSER) for at in range(5)]),
    "bare+name": (AUTOMATED, [(at * at, f"/items/{at}", 200, "curl/8.5") for at in range(30)]),
    "checker": (AUTOMATED, [(at * at * 7, f"/{at % 2}", 200, "ELB-HealthChecker/2.0") for at in range(5)]),
    "name only": (HUMAN, [(*each[:3], "curl/8.5") for each in browsing()]),
    "shared": (SHARED, [each for number in range(6) for each in browsing(f"Firefox/{number}", number * 50)]),
    "an office without its assets": (
        UNCLEAR,
        [(at * 97 + at * at % 89, f"/items/{at % 800}", 200, f"Firefox/{at % 50}") for at in range(3000)],
    ),
    "an office, all day": (
        UNCLEAR,
        [(at * 28 + at * at % 89, f"/items/{at % 800}", 200, f"Firefox/{at % 50}") for at in range(3000)],
    ),
    "an office that only logs in": (UNCLEAR, [(at * at, "/login", 302, f"Firefox/{at}") for at in range(60)]),
    "a family": (HUMAN, [(at * 97 + at * at % 89, f"/items/{at}", 200, f"Firefox/{at % 3}") for at in range(800)]),
    "one browser of an office": (HUMAN, [(at * 33 + at * at % 89, f"/items/{at}", 200, BROWSER) for at in range(800)]),
    "no User-Agent": (HUMAN, [(at * 28 + at * at % 89, f"/items/{at}", 200, None) for at in range(3000)]),
    "many names, refused": (AUTOMATED, [(at * at, "/login", 401, f"Firefox/{at}") for at in range(60)]),
    "an office and a script": (
        UNCLEAR,
        [(at * at % 80_000, f"/{at}", 200, f"Firefox/{at % 9}" if at % 5 else "curl/8.5") for at in range(300)],
    ),
    "changes its name": (UNCLEAR, [(at * at * 9, "/items/1.png", 200, f"Firefox/{at}") for at in range(19)]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_sign(case: str) -> None:
    kind, requests = CASES[case]
    schema = {
        "identity": pl.String(),
        "time": pl.Int64(),
        "path": pl.String(),
        "status": pl.Int16(),
        "agent": pl.String(),
    }
    rows = [
        (name, int(at * SECOND), *rest)
        for name, some in (("it", requests), ("other", browsing()))
        for at, *rest in some
    ]
    found = told(pl.DataFrame(sorted(rows, key=lambda row: row[1]), schema=schema, orient="row"))
    assert found.table.row(by_predicate=pl.col("identity") == "it", named=True)["kind"] == kind, found.reasons("it")
    for name in set(case.split("+")) & set(SIGNS):
        assert found.table.filter(identity="it")[name].item(), name
        assert any(reason.split("{")[0][:8] in "".join(found.reasons("it")) for reason in [SIGNS[name].reason])


CHECKERS = (
    "kube-probe/1.30",
    "ELB-HealthChecker/2.0",
    "GoogleHC/1.0",
    "Load Balancer Agent",
    "Edge Health Probe",
    "Consul Health Check",
    "Amazon-Route53-Health-Check-Service (ref 1; report http://amzn.to/1vsZADi)",
    "Mozilla/5.0 (compatible;Cloudflare-Healthchecks/1.0;+https://www.cloudflare.com/; healthcheck-id: 1)",
    "Envoy/HC",
    "Blackbox Exporter/0.25.0",
    "check_http/v2.4.9 (monitoring-plugins 2.4.9)",
    "Pingdom.com_bot_version_1.4_(http://www.pingdom.com/)",
    "Mozilla/5.0+(compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)",
    "Uptime-Kuma/1.23.13",
    "NewRelicPinger/1.0 (370512)",
)


def test_a_health_check_is_known_by_its_name() -> None:
    """After one request, when its path and its pauses say nothing."""
    frame = pl.DataFrame({"agent": CHECKERS}).with_columns(
        identity=pl.col("agent"), time=pl.int_range(len(CHECKERS)), path=pl.lit("/"), status=pl.lit(200)
    )
    found = told(frame).table.select("identity", "kind", "check").rows()
    assert sorted(found) == sorted((agent, AUTOMATED, True) for agent in CHECKERS)


def test_users_behind_one_program_are_many_people() -> None:
    """As behind a server that asks for its users. Users of requests that failed are a list of names to try."""
    rows = [(f"/{at}.html", 200 if at % 2 else 401, at % 2 and at % 40) for at in range(900)]
    frame = pl.DataFrame(rows, schema=["path", "status", "user"], orient="row").with_columns(
        time=pl.int_range(900, dtype=pl.Int64) * 7 * SECOND + pl.int_range(900) % 11 * SECOND,
        agent=pl.lit("python-requests/2.32"),
        identity=pl.when(pl.col("status") == 200).then(pl.lit("server")).otherwise(pl.lit("list")),
    )
    found = told(frame.sort("time"))
    assert dict(found.table.select("identity", "kind").iter_rows()) == {"server": SHARED, "list": AUTOMATED}


def test_assets_say_nothing_if_most_do_not_load_them() -> None:
    """As where most people get images from elsewhere, and the pages of one part still have their own."""
    names = "abcdefgh"
    rows = [(name, *each) for number, name in enumerate(names) for each in browsing(start=number) * 2]
    frame = pl.DataFrame(rows, schema=["identity", "time", "path", "status", "agent"], orient="row")
    frame = frame.filter(pl.col("identity").is_in(["a", "b", "c"]) | ~is_asset()).with_columns(
        pl.col("time").cast(pl.Int64)
    )
    assert not sees_assets(*loading(frame.with_columns(asset=is_asset(), program=is_program())))


@pytest.mark.slow
def test_what_the_log_lacks_is_said() -> None:
    """Without statuses, agents and assets fewer signs are left, and none of them accuses a person."""
    traffic = pl.concat(frames(Model(visitors=60, office=20))).filter(~is_asset())
    bare = traffic.with_columns(
        pl.col("address").alias("identity"),
        pl.lit(None, pl.Int16()).alias("status"),
        pl.lit(None, pl.String()).alias("agent"),
    )
    found = told(bare, 1)
    notes = suggest(Given([bare]), ["/"]).notes
    assert [each[:15] for each in notes if "the log has no" in each] == 3 * ["the log has no "]
    people = bare.filter(kind="human")["identity"].unique()
    assert AUTOMATED not in found.table.filter(pl.col("identity").is_in(people.implode()))["kind"].to_list()


def test_an_empty_log_has_no_kinds() -> None:
    assert (
        told(next(frames(Model(visitors=5))).with_columns(pl.col("address").alias("identity")).clear()).table.height
        == 0
    )
