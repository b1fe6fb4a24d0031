"""The CPU of `import sluicegate`, in a new process, minus that of the interpreter's own start."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from bench.figures import Figure
from bench.race import Contender, Course, Turn

MODULES = {
    "sluicegate": "sluicegate",
    "limits": "limits",
    "throttled-py": "throttled",
    "pyrate-limiter": "pyrate_limiter",
}
TOPIC = "import"
NOTHING = "nothing"


def measure(course: Course) -> list[Figure]:
    """Run processes in turns: each imports one library, and one imports nothing."""
    with tempfile.TemporaryDirectory() as cache:  # every module is compiled once, in the round that warms up
        contenders = [
            Contender(TOPIC, NOTHING, "floor", _turn("pass", cache)),
            *[
                Contender(
                    TOPIC, name, "sluicegate" if name == "sluicegate" else "peer", _turn(f"import {module}", cache)
                )
                for name, module in MODULES.items()
            ],
        ]
        figures = course.race(contenders)
    (start,) = (each for each in figures if each.contender == NOTHING)
    return [
        each._replace(samples=tuple(it - base for it, base in zip(each.samples, start.samples, strict=True)))
        for each in figures
        if each is not start
    ]


def _turn(code: str, cache: str) -> Turn:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ["PYTHONPYCACHEPREFIX"] = cache

    def turn(number: int) -> dict[str, float]:
        before = _cpu_of_children()
        subprocess.run([sys.executable, "-c", code], check=True, env=environ)
        return {"start": (_cpu_of_children() - before) * 1e3}

    return turn


def _cpu_of_children() -> float:
    """Seconds of CPU of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
