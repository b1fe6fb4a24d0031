"""The replay of an access log: lines parsed and grouped by address, beside GoAccess on the same file; and replayed."""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import polars as pl

from bench.budgets import GOACCESS, LOG, REPLAYED
from bench.figures import Figure
from bench.race import Contender, Course, Turn
from examples.shop_log import Model, write
from sluicegate.replay.log import Log

_BYTES: Final = 170  # of one line


def measure(course: Course) -> list[Figure]:
    """Run processes in turns, each over one log of a simulated shop."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "access.log"
        lines = write(Model(), log, size=course.effort.checks * _BYTES)
        ours = [sys.executable, "-m", "bench.replay", str(log)]
        contenders = [Contender(LOG, "sluicegate", "sluicegate", _turn(ours, lines))]
        for topic, (count, curves) in REPLAYED.items():
            contenders.append(Contender(topic, "sluicegate", "sluicegate", _turn(replayed(log, count, curves), lines)))
        if program := shutil.which("goaccess"):
            out = str(Path(folder) / "out.json")
            theirs = [program, str(log), "--log-format=COMBINED", "--no-progress", "-o", out]
            contenders.append(Contender(LOG, GOACCESS, "peer", _turn(theirs, lines)))
        else:
            course.say("goaccess is not installed: scripts/programs installs it")
        return course.race(contenders)


def _turn(command: list[str], lines: int) -> Turn:
    def turn(number: int) -> dict[str, float]:
        before, began = _cpu_of_children(), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        spent = time.perf_counter() - began
        return {"line": (_cpu_of_children() - before) / lines * 1e6, "lines": lines / spent}

    return turn


def _cpu_of_children() -> float:
    """Seconds of CPU of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def grouped(path: str) -> pl.DataFrame:
    """Return the requests and the bytes of each address, its first and its last time."""
    found = [
        frame.group_by("address").agg(
            pl.len().alias("requests"), pl.col("bytes").sum(), first=pl.col("time").min(), last=pl.col("time").max()
        )
        for frame in Log([path]).frames(("address", "method", "path", "query", "status", "bytes", "agent"))
    ]
    sums = (pl.col("requests").sum(), pl.col("bytes").sum(), pl.col("first").min(), pl.col("last").max())
    return pl.concat(found).group_by("address").agg(sums)


def replayed(log: Path, count: int, curves: bool) -> list[str]:
    """Return the command that replays a log with so many candidates of one rule each. JSON has curves."""
    rules = [text for number in range(count) for text in ("--rule", f"{10 + number}/minute by ip")]
    return [sys.executable, "-m", "sluicegate", "replay", str(log), *rules, *(["--json"] if curves else [])]


def measured(log: Path, lines: int, count: int, curves: bool) -> str:
    """Replay a log. Return the speed, and the most memory that all processes had at one time."""
    began, before, most = time.perf_counter(), _cpu_of_children(), 0
    with subprocess.Popen(replayed(log, count, curves), stdout=subprocess.DEVNULL) as running:
        while running.poll() is None:
            most = max(most, sum(map(_memory, _tree(running.pid))))
            time.sleep(0.1)
    if running.returncode:
        raise SystemExit(running.returncode)
    spent, cpu = time.perf_counter() - began, _cpu_of_children() - before
    what = f"{count} candidates{', curves' if curves else ''}"
    speed = f"{lines / spent:,.0f} lines/s, {lines / cpu:,.0f} lines per CPU second"
    return f"{what}: {lines:,} lines, {spent:.1f} s, {speed}, at most {most / 1e6:,.0f} MB (PSS of all processes)"


def _tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *[each for child in children for each in _tree(int(child))]]


def _memory(pid: int) -> int:
    """Return the bytes of a process, its part of shared ones. 0 if it has ended."""
    try:
        found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("log", nargs="?", help="parse and group this log, and print the result")
    parser.add_argument("--size", help='replay a generated log of this size, as "5GB", and print speed and memory')
    parser.add_argument("--only", choices=[str(place) for place in range(len(REPLAYED))], help="one of the replays")
    given = parser.parse_args()
    if given.size is None:
        print(grouped(given.log))
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "access.log"
        lines = write(Model(), log, size=round(float(given.size.removesuffix("GB")) * 1e9))
        for place, (count, curves) in enumerate(REPLAYED.values()):
            if given.only in (None, str(place)):
                print(measured(log, lines, count, curves), flush=True)


if __name__ == "__main__":
    _main()
