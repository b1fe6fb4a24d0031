"""Soak test: real applications under load for minutes, with new clients all the time, while their store fails and
recovers.

It is not part of the suite; `scripts/soak` runs it. Every few seconds it measures the memory and the file descriptors
of each process and counts the server's keys. It compares the middle of the run with its end: a leak grows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.faults.apps import VARIABLE
from tests.faults.site import ADAPTERS, FIELD, LIMITED
from tests.load import Load
from tests.running import running
from tests.servers import Server, free_port, valkey_server

SITES = {  # by name: the command that starts it
    **{name: ADAPTERS[name].format(port="{port}", name=name) for name in ("starlette", "flask", "django_asgi")},
    "flask on gevent": "-m gunicorn --bind 127.0.0.1:{port} --worker-class gevent tests.faults.apps:flask()",
}
RATE = 150  # requests a second to each application: 50 clients, so bounded tables are full after five minutes
STEP = 5.0  # seconds between two measurements
GROWTH = 1.08  # memory at the end / memory in the middle: the allocator itself varies
FEW = 4  # descriptors: connections open and close


class Look(NamedTuple):
    """One measurement."""

    kilobytes: dict[str, int]
    descriptors: dict[str, int]
    keys: int


class Site(NamedTuple):
    name: str
    port: int
    pid: int
    load: Load


def family(pid: int) -> list[int]:
    """The ids of a process and of all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *itertools.chain.from_iterable([family(int(child)) for child in children])]


def kilobytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def look(sites: list[Site], server: Server) -> Look:
    pids = {site.name: family(site.pid) for site in sites}
    return Look(
        {name: sum([kilobytes(pid) for pid in group]) for name, group in pids.items()},
        {name: sum([len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in group]) for name, group in pids.items()},
        int(server.command("DBSIZE")),
    )


def newcomers(site: str) -> Callable[[str], Mapping[str, str]]:
    """Return the headers of new clients: each sends three requests, one of which is refused, and then no more."""
    numbers = itertools.count()
    return lambda phase: {FIELD: f"{site} {next(numbers) // 3}"}


def open_sites(stack: ExitStack, server: Server) -> Iterator[Site]:
    rules = [
        {"name": "pages", "quota": "2 per 3 seconds; 1000 per 20 seconds", "path": LIMITED, "key": f"header:{FIELD}"}
    ]
    options = {"store": server.url, "rules": rules}
    for name, command_line in SITES.items():
        port = free_port()
        command = command_line.format(port=port).split()
        process = stack.enter_context(running(command, port, env={VARIABLE: json.dumps(options)}))
        load = Load(port, LIMITED, rate=RATE, connections=4, limit=10**7, headers=newcomers(name))
        yield Site(name, port, process.pid, stack.enter_context(load))


def trouble(server: Server) -> Iterator[str]:
    """Cause the store's failures, one at each step, repeated without end."""
    while True:
        yield from ["calm"] * 3
        server.pause()
        yield "hung"
        server.resume()
        yield from ["calm"] * 2
        server.kill()
        server.start()
        yield "killed and started again"
        yield from ["calm"] * 2
        server.command("SCRIPT FLUSH")
        yield "scripts flushed"


def soak(minutes: float) -> list[str]:
    """Run the applications; return the faults, an empty list if there are none."""
    looks: list[Look] = []
    with ExitStack() as stack:
        server = stack.enter_context(valkey_server())
        sites = list(open_sites(stack, server))
        for step, state in zip(range(int(minutes * 60 / STEP)), trouble(server), strict=False):
            sites[0].load.run(STEP)
            if state == "calm":
                looks.append(look(sites, server))
                print(f"{step * STEP:4.0f} s  {looks[-1]}", flush=True)
        server.resume()
        for site in sites:
            site.load.stop()
        return [*faults(looks), *itertools.chain.from_iterable([unanswered(site) for site in sites])]


def unanswered(site: Site) -> list[str]:
    summary = site.load.summary("before")
    print(f"{site.name}: {summary}")
    other = sum([number for status, number in summary.statuses.items() if status not in (200, 429)])
    return [f"{site.name}: {other} answers were neither 200 nor 429"] if other else []


def faults(looks: list[Look]) -> list[str]:
    """What grew between the middle third of the measurements and the last third."""
    third = len(looks) // 3
    if third < 2:
        return ["the run is too short to compare; use --minutes 2 or more"]
    middle, end = looks[third : 2 * third], looks[-third:]
    found = []
    for name in SITES:
        before, after = (median([seen.kilobytes[name] for seen in part]) for part in (middle, end))
        if after > before * GROWTH:
            found.append(f"{name}: memory grew from {before:.0f} to {after:.0f} kB")
        before, after = (median([seen.descriptors[name] for seen in part]) for part in (middle, end))
        if after > before + FEW:
            found.append(f"{name}: descriptors grew from {before:.0f} to {after:.0f}")
    before, after = (median([seen.keys for seen in part]) for part in (middle, end))
    if after > before * 1.5 + 100:  # a server that was killed starts with no keys
        found.append(f"the server's keys grew from {before:.0f} to {after:.0f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    wrong = soak(parser.parse_args().minutes)
    print("\n".join(wrong) if wrong else "flat")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
