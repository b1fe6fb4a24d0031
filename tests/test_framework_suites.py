"""`suites`: the comparison of two runs of a framework's tests."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from suites.outcomes import FAILED, PASSED, SKIPPED, Result, Run, compare, read
from suites.sources import NoTestsError, unpack


def run(text: str, *, ended: bool = True, requests: int = 1) -> Run:
    """A run from "name outcome, name outcome"."""
    pairs = [part.split() for part in text.split(",") if part]
    return Run({name: Result(outcome) for name, outcome in pairs}, ended=ended, requests=requests)


@pytest.mark.parametrize(
    ("plain", "inserted", "regressions"),
    [
        ("a passed, b passed", "a passed, b passed", {}),
        ("a passed, b passed", "a passed, b failed", {"b": ""}),
        ("a passed, b passed", "a passed, b skipped", {"b": ""}),
        ("a passed, b passed", "a passed", {"b": "did not run"}),
        ("a failed, b skipped", "a failed, b failed", {}),
        ("a failed", "a passed, b failed", {}),
    ],
)
def test_a_regression_passes_plain_and_not_with_sluicegate(plain: str, inserted: str, regressions: dict) -> None:
    assert compare(run(plain), run(inserted), {}).regressions == regressions


@pytest.mark.parametrize(
    ("inserted", "regressions", "excused", "unneeded"),
    [
        ("a[x] failed, a[y] failed", [], ["a[x]", "a[y]"], ()),
        ("a[x] failed, a[y] passed", [], ["a[x]"], ()),
        ("a[x] passed, a[y] passed", [], [], ("a",)),
        ("a[x] passed, a[y] passed, b failed", ["b"], [], ("a",)),
    ],
)
def test_an_excuse_holds_for_all_parameters(inserted: str, regressions: list, excused: list, unneeded: tuple) -> None:
    plain = run("a[x] passed, a[y] passed, b passed")
    found = compare(plain, run(f"b passed, {inserted}"), {"a": "why", "c": "not among these tests"})
    assert ([*found.regressions], [*found.excused], found.unneeded) == (regressions, excused, unneeded)


@pytest.mark.parametrize(
    ("plain", "inserted", "fault"),
    [
        (run("a passed"), run("a passed"), None),
        (run("a passed"), run("a failed"), "regression: a: "),
        (run("a[x] passed, a[y] passed"), run(""), "regression: a[2 parameters]: did not run"),
        (run("a[x] passed"), run(""), "regression: a[x]: did not run"),
        (run(""), run(""), "no test was run"),
        (run("a skipped"), run("a skipped"), "no test was run"),
        (run("a passed, b failed"), run("a passed, b failed"), "1 of 2 tests fail without sluicegate too"),
        (run("a passed"), run("a passed", requests=0), "sluicegate decided no request"),
        (run("a passed", ended=False), run("a passed"), "the run without sluicegate stopped after 1 tests"),
        (run("a passed"), run("a passed", ended=False), "the run with sluicegate stopped after 1 tests"),
        (run("a passed, b passed"), run("a passed", ended=False), "the run with sluicegate stopped after 1 tests"),
        (run("a passed"), run("a passed", ended=False, requests=0), "the run with sluicegate stopped after 1 tests"),
    ],
)
def test_a_run_that_proves_nothing_is_a_fault(plain: Run, inserted: Run, fault: str | None) -> None:
    assert compare(plain, inserted, {}).faults == ([] if fault is None else [fault])


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ([PASSED], PASSED),
        ([PASSED, FAILED], FAILED),  # a teardown
        ([FAILED, PASSED], FAILED),  # a subtest
        ([SKIPPED, PASSED], SKIPPED),
    ],
)
def test_the_worst_line_of_a_test_counts(outcomes: list[str], worst: str) -> None:
    lines = [json.dumps({"test": "a", "outcome": outcome, "why": "so"}) for outcome in outcomes]
    assert read(lines) == Run({"a": Result(worst, "so")}, ended=False, requests=0)
    assert read([*lines, '{"ended": true}', '{"requests": 2}', '{"requests": 3}'])[1:] == (True, 5)


@pytest.mark.parametrize(
    ("files", "unpacked"),
    [
        (["tests/__init__.py", "tests/deep/test_a.py", "pyproject.toml", "src/code.py"], 3),
        (["pyproject.toml", "src/code.py", "tests/data.txt"], None),
    ],
)
def test_only_tests_are_unpacked(files: list[str], unpacked: int | None, tmp_path) -> None:
    archive = tmp_path / "framework-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in files:
            tar.addfile(tarfile.TarInfo(f"framework-1.0/{name}"), io.BytesIO())
    if unpacked is None:
        with pytest.raises(NoTestsError, match=r"framework-1\.0\.tar\.gz has no tests"):
            unpack(archive, tmp_path / "out")
    else:
        unpack(archive, tmp_path / "out")
        found = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        assert len(found) == unpacked
        assert all(path.relative_to(tmp_path / "out").parts[0] != "src" for path in found)
