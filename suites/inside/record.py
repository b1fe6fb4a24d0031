"""Recorder: writes the result of each test to the file that SUITES_RESULTS names. It is also a pytest plugin."""

from __future__ import annotations

import faulthandler
import json
import os
from typing import Any, Final

import pytest

from suites.outcomes import FAILED, PASSED, SKIPPED

_FILE: Final = os.open(
    os.environ["SUITES_RESULTS"], os.O_WRONLY | os.O_APPEND
)  # at import: tests clear the environment
_LOG: Final = os.dup(2)  # pytest captures what the tests print
_SILENCE: Final = 150  # seconds without a result until the run stops; its log then has the traceback


def _wait_for_next() -> None:
    faulthandler.dump_traceback_later(_SILENCE, exit=True, file=_LOG)


def write(**entry: Any) -> None:
    """Write one line. It is not buffered, because a run may end at any test."""
    _wait_for_next()
    os.write(_FILE, json.dumps(entry).encode() + b"\n")


def write_test(name: str, outcome: str, why: str = "") -> None:
    """Write the result of one test."""
    write(test=name, outcome=outcome, why=why)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record one phase. pytest reports setup, call and teardown; a setup or teardown that passes is not written."""
    if report.outcome == "passed":
        if report.when == "call":
            write_test(report.nodeid, PASSED)
    elif report.outcome == "skipped":
        write_test(report.nodeid, SKIPPED, _why_skipped(report))
    else:
        write_test(report.nodeid, FAILED, f"{report.when}: {_why_failed(report.longreprtext)}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a module that cannot be imported."""
    if report.failed:
        write_test(report.nodeid, FAILED, _why_failed(report.longreprtext))


def pytest_sessionfinish(exitstatus: int) -> None:
    """Record the end of the run: all tests ran, unless pytest itself failed."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        write(ended=True)


def _why_skipped(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}".rstrip(": ")
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext)


def _why_failed(text: str) -> str:
    """The first line of the error. pytest starts the error's lines with E."""
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return next(iter(lines or text.splitlines()[-1:]), "")


_wait_for_next()
