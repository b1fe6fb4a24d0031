"""`1 at once` under gunicorn with two workers that die: no two views of one identity run at the same time.

Requests that are sent together may all be answered 200: short views run one after the other. So the views say when they
ran. `SLUICEGATE_ROUNDS=10000` runs it longer (with `--timeout 0`). `SLUICEGATE_DEADLINE=0.1` sets the default deadline.
On a busy machine some requests are then decided locally, by each worker for itself. Their views are counted apart.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from sluicegate.clock import MICROSECOND
from tests.running import PATIENCE, ask, running
from tests.servers import Server, free_port, wait_until

ROUNDS = int(os.environ.get("SLUICEGATE_ROUNDS", "200"))
DEADLINE = float(os.environ.get("SLUICEGATE_DEADLINE", "30"))
TOGETHER = 4  # requests in a round
LEASE_US = MICROSECOND  # 1 second: a view takes at most 10 ms unless its worker is killed
KILLS = 40  # in one of so many rounds a worker is killed
GUNICORN = "-m gunicorn --worker-class gthread --workers 2 --threads 4 --bind 127.0.0.1:{port} {app}"
APP = "tests.concurrency.overlapping:app"
NO_ANSWER = 0


class View(NamedTuple):
    """One run of the view. `taken` is when it got its slot, in microseconds of the Redis server's clock."""

    identity: str
    process: int
    degraded: bool
    taken: int
    began: int
    ended: int | None  # None if its worker was killed


def views_in(record: Path) -> list[View]:
    """All views, in the order in which they began."""
    begun: dict[str, dict[str, Any]] = {}
    ended: dict[str, int] = {}
    for line in record.read_text().splitlines():
        facts = json.loads(line)
        if "identity" in facts:
            begun[facts["view"]] = facts
        else:
            ended[facts["view"]] = facts["now"]
    return [
        View(each["identity"], each["process"], each["degraded"], each["taken"], each["now"], ended.get(view))
        for view, each in begun.items()
    ]


def overlaps(views: list[View]) -> list[tuple[View, View]]:
    """The pairs of views of which the second began before the first ended, by itself or with its lease.

    A killed worker's slot is taken until its lease ends. A view that runs longer than its lease is counted no more.
    """
    return [
        (one, other)
        for one, other in pairwise(sorted(views, key=lambda view: view.began))
        if (one.ended is None or other.began < one.ended) and other.taken < one.taken + LEASE_US
    ]


def grouped(views: list[View], by: Callable[[View], object]) -> list[list[View]]:
    groups: defaultdict[object, list[View]] = defaultdict(list)
    for view in views:
        groups[by(view)].append(view)
    return list(groups.values())


def test_views_of_one_identity_never_overlap(valkey: Server, tmp_path: Path) -> None:
    record, port = tmp_path / "record", free_port()
    record.touch()
    rules = [{"name": "one", "quota": "1 at once for 1 second", "key": "header:X-Identity"}]
    options = {"store": valkey.url, "deadline": DEADLINE, "rules": rules}
    chance = random.Random(ROUNDS)

    def send(identity: str, seconds: float) -> int:
        headers = {"X-Identity": identity, "X-Seconds": str(seconds)}
        try:
            return ask(port, "GET", "/", headers).status
        except (OSError, HTTPException):
            return NO_ANSWER

    def kill(identity: str) -> None:
        """Kill the worker whose view runs, so that its slot stays taken."""
        wait_until("a view", lambda: f'"{identity}"' in record.read_text())
        view = next(line for line in record.read_text().splitlines() if f'"{identity}"' in line)
        os.kill(json.loads(view)["process"], signal.SIGKILL)

    environment = {"OPTIONS": json.dumps(options), "RECORD": str(record)}
    statuses: list[Counter[int]] = []
    with (
        running(GUNICORN.format(port=port, app=APP).split(), port, env=environment),
        ThreadPoolExecutor(TOGETHER) as threads,
    ):
        for number in range(ROUNDS):
            identity, dies = f"round {number}", number % KILLS == KILLS - 1
            seconds = 1.0 if dies else chance.uniform(0, 0.01)
            answers = [threads.submit(send, identity, seconds) for _ in range(TOGETHER)]
            if dies:
                kill(identity)
            statuses.append(Counter(answer.result() for answer in answers))
            until = monotonic() + PATIENCE
            while dies and send(identity, 0) != 200:  # the slot is free when its lease has ended
                assert monotonic() < until, "the slot of a killed worker is never free"

    views = views_in(record)
    counted = [view for view in views if not view.degraded]
    local = [view for view in views if view.degraded]
    several = sum(count[200] > 1 for count in statuses)
    print(
        f"{ROUNDS} rounds, {len(views)} views, {len(local)} of them decided locally, "
        f"{sum(view.ended is None for view in views)} killed; {several} rounds answered 200 more than once, "
        f"most {max(count[200] for count in statuses)}; "
        f"{sum(bool(overlaps(group)) for group in grouped(views, lambda view: view.identity))} identities with views "
        "at the same time"
    )
    broken = [pair for group in grouped(counted, lambda view: view.identity) for pair in overlaps(group)]
    assert not broken, broken
    broken = [pair for group in grouped(local, lambda view: (view.identity, view.process)) for pair in overlaps(group)]
    assert not broken, f"in one process: {broken}"
    assert len(counted) >= ROUNDS or local, "every round lets one request pass"
    assert local == [] or DEADLINE < PATIENCE
    assert sum(view.ended is None for view in views) >= ROUNDS // KILLS
