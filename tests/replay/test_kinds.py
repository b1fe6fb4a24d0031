"""Kinds: the programs and the people of the traffic model are told apart, with reasons, and each sign has its case."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pytest

from sluicegate.replay.kinds import AUTOMATED, HUMAN, SHARED, SIGNS, UNCLEAR, Kinds, is_asset, is_program, kinds_of
from sluicegate.replay.model import PEOPLE, Model, frames

SECOND = 1_000_000
HOUR = 3600 * SECOND
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def told(frame: pl.DataFrame, resolution: int = SECOND) -> Kinds:
    return kinds_of(frame.with_columns(asset=is_asset(), program=is_program()), resolution=resolution)


@pytest.mark.parametrize(("seed", "resolution"), [(1, 1), (2, SECOND), (3, SECOND)])
def test_the_model_is_told_apart(seed: int, resolution: int) -> None:
    """Every program of the model is one here, and no person. The office is many people."""
    traffic = pl.concat(frames(Model(seed=seed, visitors=200, distributed=40))).with_columns(
        pl.col("time") // resolution * resolution, pl.col("address").alias("who")
    )
    found = told(traffic, resolution)
    truth = traffic.group_by("who").agg(pl.col("kind").first().alias("truth"))
    pairs = found.table.join(truth, on="who").select("kind", "truth").unique().rows()
    assert {truth for kind, truth in pairs if kind == AUTOMATED}.isdisjoint(PEOPLE)
    assert {truth for kind, truth in pairs if kind != AUTOMATED} == PEOPLE
    assert {kind for kind, truth in pairs if truth == "office"} == {SHARED}
    assert found.unseen == ()


# time, path, status, agent
Request = tuple[float, str, int, str]


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
    "name only": (HUMAN, [(*each[:3], "curl/8.5") for each in browsing()]),
    "shared": (SHARED, [each for number in range(6) for each in browsing(f"Firefox/{number}", number * 50)]),
    "changes its name": (HUMAN, [(at * at * 9, "/items/1.png", 200, f"Firefox/{at}") for at in range(19)]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_sign(case: str) -> None:
    kind, requests = CASES[case]
    schema = {"who": pl.String(), "time": pl.Int64(), "path": pl.String(), "status": pl.Int16(), "agent": pl.String()}
    rows = [
        (name, int(at * SECOND), *rest)
        for name, some in (("it", requests), ("other", browsing()))
        for at, *rest in some
    ]
    found = told(pl.DataFrame(sorted(rows, key=lambda row: row[1]), schema=schema, orient="row"))
    assert found.table.row(by_predicate=pl.col("who") == "it", named=True)["kind"] == kind, found.reasons("it")
    for name in set(case.split("+")) & set(SIGNS):
        assert found.table.filter(who="it")[name].item(), name
        assert any(reason.split("{")[0][:8] in "".join(found.reasons("it")) for reason in [SIGNS[name].reason])


def test_what_the_log_lacks_is_said() -> None:
    """Without statuses, agents and assets fewer signs are left, and none of them accuses a person."""
    traffic = pl.concat(frames(Model(visitors=60, office=20))).filter(~is_asset())
    bare = traffic.with_columns(
        pl.col("address").alias("who"),
        pl.lit(None, pl.Int16()).alias("status"),
        pl.lit(None, pl.String()).alias("agent"),
    )
    found = told(bare, 1)
    assert len(found.unseen) == 3
    people = bare.filter(kind="human")["who"].unique()
    assert AUTOMATED not in found.table.filter(pl.col("who").is_in(people.implode()))["kind"].to_list()


def test_an_empty_log_has_no_kinds() -> None:
    assert told(next(frames(Model(visitors=5))).with_columns(pl.col("address").alias("who")).clear()).table.height == 0
