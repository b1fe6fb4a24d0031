"""The traffic model: the same everywhere, sorted, and with a truth that does not depend on who else is there."""

from __future__ import annotations

from hashlib import sha256
from itertools import islice
from pathlib import Path

import polars as pl
import pytest

from examples.shop_log import DAY, LOGIN, PEOPLE, Model, days, write
from sluicegate.replay.traffic import COLUMNS
from tests.replay.shop import frames

SMALL = Model(visitors=40, office=10)


@pytest.mark.slow
def test_the_same_model_gives_the_same_log(tmp_path: Path) -> None:
    """Documentation shows figures of it."""
    lines = write(SMALL, tmp_path / "access.log")
    text = (tmp_path / "access.log").read_bytes()
    assert lines == text.count(b"\n") == sum(map(len, islice(days(SMALL), SMALL.days)))
    assert sha256(text).hexdigest()[:16] == "6d2ce757e9437622"


@pytest.mark.slow
def test_a_log_has_the_size_that_was_asked_for(tmp_path: Path) -> None:
    write(SMALL, tmp_path / "access.log", size=3_000_000)
    assert 3_000_000 <= (tmp_path / "access.log").stat().st_size < 3_001_000


@pytest.mark.slow
def test_frames_are_sorted_whole_days_of_the_columns_and_the_truth() -> None:
    found = list(frames(SMALL))
    start = int(SMALL.start.timestamp()) * 1_000_000
    for day, frame in enumerate(found):
        assert frame["time"].is_sorted()
        assert frame["time"].is_between(start + day * DAY, start + (day + 1) * DAY, closed="left").all()
        assert dict(frame.schema) == {**COLUMNS, "kind": pl.String(), "actor": pl.String()}
    assert set(pl.concat(found)["kind"]) == {"human", "office", "client", "storm", "crawler", "scraper", "attack"}


@pytest.mark.slow
@pytest.mark.parametrize("other", [Model(visitors=40, office=10, attack=9, distributed=50, storm=False), SMALL])
def test_people_do_the_same_whoever_else_is_there(other: Model) -> None:
    people, same = (
        pl.concat(frames(model)).filter(pl.col("kind").is_in(PEOPLE)).sort("time", "actor", "path")
        for model in (SMALL, other)
    )
    assert people.equals(same)
    assert people["time"].min() != people["time"].max()


@pytest.mark.slow
def test_passwords_are_tried_only_by_those_who_attack() -> None:
    """People mistype as well, but seldom."""
    failed = pl.concat(frames(Model(distributed=30))).filter(path=LOGIN, status=401)
    by = dict(failed.group_by("kind").len().iter_rows())
    assert set(by) == {"human", "office", "attack", "distributed"}
    assert by["attack"] > 20 * (by["human"] + by["office"])
    assert by["distributed"] == 30 * 3 * 3
