"""A busy event loop is no dead server: the deadline counts from the write, and what has come in meanwhile is read."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import NamedTuple

from tests.faults.site import retry_if_slow
from tests.networks.cases import matrix
from tests.networks.laws import all_by_store, examined
from tests.networks.links import Link
from tests.servers import PATIENCE

DEADLINE = 0.3


class Busy(NamedTuple):
    """How many turns after the requests have begun the loop is busy, and for how many deadlines."""

    turns: int
    deadlines: float = 1.5


BUSY = {f"{turns} turns later": Busy(turns) for turns in range(6)} | {"for long": Busy(1, 4.0)}


def decides_late(case: Busy, link: Link, mode: str) -> None:
    """Each request is decided by the store, and each charge is told."""
    with examined(mode, link, deadline=DEADLINE, exact=True) as running:
        running.run_until_whole(patience=PATIENCE)
        since = monotonic()
        for _ in range(3):
            running.hog(case.turns, case.deadlines * DEADLINE)
            running.run_until("the loop to be free", lambda: not running.hogs, patience=PATIENCE)
            running.run_until_whole(patience=PATIENCE)
        all_by_store(running, DEADLINE, since=since)


@matrix(BUSY, "0 turns later plain async", "2 turns later tls async", modes=["async"])
def test_a_busy_loop_degrades_nothing(case: str, link: Link, mode: str) -> None:
    retry_if_slow(partial(decides_late, BUSY[case], link, mode))
