"""Writes what became of each test into the file that SUITES_RESULTS names; as a plugin it does so for pytest."""

from __future__ import annotations

import faulthandler
import json
import os
from typing import Any, Final

import pytest

from suites.outcomes import FAILED, PASSED, SKIPPED

_FILE: Final = os.open(os.environ["SUITES_RESULTS"], os.O_WRONLY | os.O_APPEND)  # now: tests clear the environment
_LOG: Final = os.dup(2)  # pytest captures what the tests print
_SILENCE: Final = 150  # seconds without a result; then the run stops, and its log shows where


def _wait_for_next() -> None:
    faulthandler.dump_traceback_later(_SILENCE, exit=True, file=_LOG)


def write(**entry: Any) -> None:
    """One line. Written at once, because a run may end at any test."""
    _wait_for_next()
    os.write(_FILE, json.dumps(entry).encode() + b"\n")


def write_test(name: str, outcome: str, why: str = "") -> None:
    """What became of one test."""
    write(test=name, outcome=outcome, why=why)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Setup, body and teardown are reported each on its own; a setup or teardown that passes says nothing."""
    if report.outcome == "passed":
        if report.when == "call":
            write_test(report.nodeid, PASSED)
    elif report.outcome == "skipped":
        write_test(report.nodeid, SKIPPED, _why_skipped(report))
    else:
        write_test(report.nodeid, FAILED, f"{report.when}: {_why_failed(report.longreprtext)}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported."""
    if report.failed:
        write_test(report.nodeid, FAILED, _why_failed(report.longreprtext))


def pytest_sessionfinish(exitstatus: int) -> None:
    """All tests were run, unless pytest itself failed."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        write(ended=True)


def _why_skipped(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}".rstrip(": ")
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext)


def _why_failed(text: str) -> str:
    """pytest begins the lines of the error with E."""
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return next(iter(lines or text.splitlines()[-1:]), "")


_wait_for_next()
