"""The results of a run, and the comparison of two runs.

The recorders in `inside` write a run to a file, line by line. A test may have several lines (its body, its teardown,
its subtests); the worst counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
_WORST_LAST = (PASSED, SKIPPED, FAILED)

MOST = 0.95  # of the tests that ran; a suite that fails more often without sluicegate proves nothing


class Result(NamedTuple):
    """The outcome of one test, and the first line of its reason."""

    outcome: str
    why: str = ""


MISSING = Result(FAILED, "did not run")


class Run(NamedTuple):
    """The results of one run by test name, whether it finished, and how many requests sluicegate decided."""

    tests: Mapping[str, Result]
    ended: bool = True
    requests: int = 0

    def names(self, outcome: str) -> list[str]:
        """The tests with this outcome, in the order in which they ran."""
        return [name for name, result in self.tests.items() if result.outcome == outcome]

    @property
    def reasons(self) -> Counter[str]:
        """Why tests were skipped, and how many for each reason."""
        return Counter([result.why for result in self.tests.values() if result.outcome == SKIPPED])


@dataclass(frozen=True)
class Comparison:
    """The runs of one suite, plain and with sluicegate, and their differences."""

    plain: Run
    inserted: Run
    regressions: Mapping[str, str]  # test name → the reason of its failure
    excused: Mapping[str, str]  # test name → the reason why it may fail
    unneeded: tuple[str, ...]  # excuses of tests that passed

    @property
    def faults(self) -> list[str]:
        """The faults, one line each; empty if there are none."""
        found = [f"regression: {name}: {why}" for name, why in _by_function(self.regressions).items()]
        for name, run in (("without", self.plain), ("with", self.inserted)):
            if not run.ended:
                found.append(f"the run {name} sluicegate stopped after {len(run.tests)} tests")
                return found
        ran = [*self.plain.names(PASSED), *self.plain.names(FAILED)]
        if not ran:
            found.append("no test was run")
        elif len(self.plain.names(PASSED)) < MOST * len(ran):
            found.append(f"{len(self.plain.names(FAILED))} of {len(ran)} tests fail without sluicegate too")
        if not self.inserted.requests:
            found.append("sluicegate decided no request")
        return found


def read(lines: Iterable[str]) -> Run:
    """Parse the lines of a run's file."""
    tests: dict[str, Result] = {}
    ended, requests = False, 0
    for line in lines:
        entry: dict[str, Any] = json.loads(line)
        ended = ended or entry.get("ended", False)
        requests += entry.get("requests", 0)
        if "test" in entry:
            result = Result(entry["outcome"], entry["why"])
            known = tests.get(entry["test"], result)
            tests[entry["test"]] = max(known, result, key=_severity)
    return Run(tests, ended, requests)


def compare(plain: Run, inserted: Run, excuses: Mapping[str, str]) -> Comparison:
    """Find the tests that pass plain and not with sluicegate. An excuse applies to all parameters of a test.

    If a run stopped early, only the tests that it ran are compared.
    """
    passed = [name for name in plain.names(PASSED) if inserted.ended or name in inserted.tests]
    lost = {name: inserted.tests.get(name, MISSING) for name in passed}
    lost = {name: result for name, result in lost.items() if result.outcome != PASSED}
    excused = {name: excuses[_function(name)] for name in lost if _function(name) in excuses}
    needed = {_function(name) for name in excused}
    return Comparison(
        plain,
        inserted,
        regressions={name: result.why for name, result in lost.items() if name not in excused},
        excused=excused,
        unneeded=tuple(sorted({_function(name) for name in passed} & set(excuses) - needed)),
    )


def _by_function(regressions: Mapping[str, str]) -> dict[str, str]:
    """One entry for all parameters of a test, with the first reason."""
    names: dict[str, list[str]] = {}
    for name in regressions:
        names.setdefault(_function(name), []).append(name)
    return {
        few[0] if len(few) == 1 else f"{function}[{len(few)} parameters]": regressions[few[0]]
        for function, few in names.items()
    }


def _severity(result: Result) -> int:
    return _WORST_LAST.index(result.outcome)


def _function(name: str) -> str:
    """The name of a test without its parameters."""
    return name.partition("[")[0]
