"""The command `python -m suites`: run the suites, whole or a sample, and report.

python -m suites [--sample] [--only Starlette,Flask,Django,DRF,Ninja]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version

from suites.excused import EXCUSED
from suites.outcomes import FAILED, PASSED, Run, compare
from suites.runs import HOME, PLAIN, SUITES, Job, Suite
from suites.sources import NoTestsError, unpacked

AT_ONCE = min(4, os.cpu_count() or 1)
FEW = 40  # up to this many failures, they run a second time


def main() -> int:
    """Run, compare and print; 1 if anything regressed."""
    parser = argparse.ArgumentParser(prog="scripts/framework-suites", description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", action="store_true", help="omit tests that are slow and make no requests")
    parser.add_argument("--only", default=",".join(suite.framework for suite in SUITES), help="the frameworks")
    options = parser.parse_args()
    wanted = [suite for suite in SUITES if suite.framework.lower() in options.only.lower().split(",")]
    if not wanted:
        parser.error(f"--only {options.only}: give one or more of {', '.join(suite.framework for suite in SUITES)}")
    try:
        wanted_jobs = [(suite, list(_jobs(suite, sample=options.sample))) for suite in wanted]
    except NoTestsError as error:
        print(error, file=sys.stderr)
        return 1
    began, faults = time.monotonic(), 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [(suite, [(job, pool.submit(job.run)) for job in jobs]) for suite, jobs in wanted_jobs]
        for suite, (plain, *inserted) in running:
            faults += _report(suite, plain[1].result(), inserted)
    print(f"{time.monotonic() - began:.0f} s, {faults} faults; the logs are in {HOME.name}/runs")
    return 1 if faults else 0


def _jobs(suite: Suite, *, sample: bool) -> Iterable[Job]:
    """The runs of one suite, the plain one first."""
    source = unpacked(suite.distribution, HOME / "sources", release=suite.release)
    tests = suite.sample if sample else suite.whole
    for insertion in (PLAIN, *(suite.sampled if sample else suite.insertions)):
        yield Job(suite, insertion, source, tests, f"{suite.framework}-{insertion}".lower())


def _report(suite: Suite, plain: Run, running: Iterable[tuple[Job, Future[Run]]]) -> int:
    """Print the results of one framework; return the number of faults."""
    passed, failed = plain.names(PASSED), plain.names(FAILED)
    ran = len(passed) + len(failed)
    print(f"\n{suite.framework} {version(suite.distribution)}: {ran} tests run, {len(passed)} pass plain")
    for name in failed:
        print(f"  fails plain: {name}: {plain.tests[name].why}")
    for reason, count in plain.reasons.most_common():
        print(f"  skipped: {count} × {reason}")
    return sum([_report_insertion(job, plain, future.result()) for job, future in running])


def _report_insertion(job: Job, plain: Run, inserted: Run) -> int:
    """Print the results of one insertion; return the number of faults."""
    excuses = EXCUSED.get(job.insertion, {})
    found, passed_again = compare(plain, inserted, excuses), list[str]()
    if inserted.ended and 0 < len(found.regressions) <= FEW:  # again: some tests fail on a busy machine
        again = job._replace(tests=tuple(found.regressions), name=f"{job.name}-again").run()
        passed_again = again.names(PASSED)
        found = compare(plain, inserted._replace(tests={**inserted.tests, **again.tests}), excuses)
    passed = len(found.inserted.names(PASSED))
    print(f"  with {job.insertion}: {passed} pass, {found.inserted.requests} requests decided")
    for name, reason in found.excused.items():
        print(f"    excused: {name}: {reason}")
    for name in found.unneeded:
        print(f"    excused, but passed: {name}")
    for name in passed_again:
        print(f"    failed once, passed the second time: {name}")
    for fault in found.faults:
        print(f"    {fault}")
    if not inserted.ended:
        print(_log_tail(job.log.read_text()))
    sys.stdout.flush()
    return len(found.faults)


def _log_tail(text: str) -> str:
    """The traceback of a run that hung; else the end of its log."""
    _, timeout, stack = text.rpartition("Timeout (")
    return f"{timeout}{stack[:2000]}" if timeout else text[-2000:]


if __name__ == "__main__":
    sys.exit(main())
