"""The replay of an access log: lines parsed and grouped by address, beside GoAccess on the same file; and replayed."""

from __future__ import annotations

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
from sluicegate.replay.candidates import from_rules
from sluicegate.replay.log import Log
from sluicegate.replay.model import Model, write
from sluicegate.replay.run import replay

_BYTES: Final = 170  # of one line


def measure(course: Course) -> list[Figure]:
    """Run processes in turns, each over one log of a simulated shop."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "access.log"
        lines = write(Model(), log, size=course.effort.checks * _BYTES)
        ours = [sys.executable, "-m", "bench.replay", str(log)]
        contenders = [Contender(LOG, "sluicegate", "sluicegate", _turn(ours, lines))]
        for topic, count in REPLAYED.items():
            contenders.append(Contender(topic, "sluicegate", "sluicegate", _turn([*ours, str(count)], lines)))
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


def replayed(path: str, count: int) -> str:
    """Replay a log with so many candidates of one rule each, without curves. Return what each refused."""
    candidates = [from_rules([f"{10 + number}/minute by ip"]) for number in range(count)]
    return str([candidate.refused for candidate in replay(Log([path]), candidates, curves=False).candidates])


if __name__ == "__main__":
    print(grouped(sys.argv[1]) if len(sys.argv) == 2 else replayed(sys.argv[1], int(sys.argv[2])))
