"""The network matrix: sync and async, plain, with a user and in TLS, over every kind of bad network.

`--matrix` runs it whole; without it a sample runs. The laws are in laws.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

from tests.faults.site import retry_if_slow
from tests.networks.cases import DEADLINE, matrix
from tests.networks.laws import all_by_store, back_soon, examined, since_open
from tests.networks.links import Link
from tests.servers import PATIENCE


class Slow(NamedTuple):
    """A network that is slow and loses nothing, and a deadline that leaves it more than twice the time."""

    latency: float = 0.0
    jitter: float = 0.0
    bandwidth: float = 0.0
    deadline: float = DEADLINE

    def spread(self, link: Link) -> None:
        link.wire.slow(latency=self.latency, jitter=self.jitter, bandwidth=self.bandwidth)


# Opening a connection takes up to ten times the latency here, so it fits the deadline.
SLOW = {
    "1 ms": Slow(latency=0.001),
    "5 ms": Slow(latency=0.005, deadline=1.0),
    "20 ms": Slow(latency=0.02),
    "jitter of 20 ms": Slow(latency=0.002, jitter=0.02),
    "10 kB/s": Slow(bandwidth=10_000, deadline=1.5),
}


def decides_as_ever(case: Slow, link: Link, mode: str) -> None:
    """No request is degraded once the first connection is open, and the server counts exactly what it tells."""
    case.spread(link)
    with examined(mode, link, deadline=case.deadline, exact=True) as running:
        since = since_open(mode, running, patience=2 * PATIENCE)
        running.run(max(0.6, 3 * case.deadline if case.latency > 0.05 else 0.0))
        all_by_store(running, case.deadline, since=since)


@matrix(SLOW, "5 ms tls async", "jitter of 20 ms auth sync")
def test_a_slow_network_degrades_nothing(case: str, link: Link, mode: str) -> None:
    retry_if_slow(partial(decides_as_ever, SLOW[case], link, mode))


class Disturbance(NamedTuple):
    """How a disturbance begins, and the seconds until it ends."""

    begin: Callable[[Link], object]
    seconds: float = 1.0


def accept_late(link: Link) -> None:
    link.wire.accept_late(0.8)
    link.wire.cut()


DISTURBANCES = {
    "a reply is lost": Disturbance(lambda link: link.proxy.lose(), 0.2),
    "replies are lost and closed": Disturbance(lambda link: link.proxy.lose(5, close=True), 0.2),
    "replies are lost": Disturbance(lambda link: link.proxy.lose(1_000_000)),
    "cut": Disturbance(lambda link: link.wire.cut(), 0.0),
    "killed": Disturbance(lambda link: link.proxy.kill(3), 0.2),
    "reset": Disturbance(lambda link: link.proxy.kill(2, reset=True), 0.2),
    "refused": Disturbance(lambda link: link.wire.refuse()),
    "half-open": Disturbance(lambda link: link.wire.vanish(), 0.0),
    "partition": Disturbance(lambda link: link.wire.partition()),
    "packets dropped": Disturbance(lambda link: link.wire.fill(), 0.5),
    "held back": Disturbance(lambda link: link.wire.hold(), 0.7),
    "held back for long": Disturbance(lambda link: link.wire.hold(), 2.0),
    "black hole": Disturbance(lambda link: link.proxy.black_hole()),
    "slow accept": Disturbance(accept_late),
    "latency above the deadline": Disturbance(lambda link: link.wire.slow(latency=0.4)),
    "jitter around the deadline": Disturbance(lambda link: link.wire.slow(latency=0.1, jitter=0.3)),
    "100 bytes/s": Disturbance(lambda link: link.wire.slow(bandwidth=100)),
}


def ends_well(case: Disturbance, link: Link, mode: str) -> None:
    """The laws hold while it lasts, and the store decides again soon after it."""
    with examined(mode, link, deadline=DEADLINE) as running:
        running.run_until_whole(patience=PATIENCE)
        case.begin(link)
        running.run(case.seconds)
        link.heal()
        back_soon(running, healed=monotonic())


@matrix(DISTURBANCES, "half-open plain sync", "held back plain async", "partition auth async", "cut auth sync")
def test_a_disturbance_ends(case: str, link: Link, mode: str) -> None:
    retry_if_slow(partial(ends_well, DISTURBANCES[case], link, mode))


FRAMES = 14  # an opening with user, name, version and database, a script that is not known, and a second request


class Kill(NamedTuple):
    """How many frames pass until a connection ends, how it ends, and whether a connection is open before."""

    frames: int
    reset: bool
    opened: bool


KILLS = {
    f"{'reset' if kill.reset else 'closed'} after {kill.frames}{', open' if kill.opened else ''}": kill
    for kill in (
        *[Kill(frames, reset, opened=False) for reset in (False, True) for frames in range(FRAMES + 1)],
        *[Kill(frames, reset, opened=True) for reset in (False, True) for frames in range(1, 5)],
    )
}


def survives(case: Kill, link: Link, mode: str) -> None:
    """A connection ends between two frames, in its opening or later. The next ones work."""
    if not case.opened:
        link.proxy.kill(case.frames, reset=case.reset)
    with examined(mode, link, deadline=DEADLINE, count=1) as running:
        if case.opened:
            running.run_until_whole(patience=PATIENCE)
            link.proxy.kill(case.frames, reset=case.reset)
        running.run_until("the connection to be killed", lambda: link.proxy.frames_left is None, patience=PATIENCE)
        back_soon(running, healed=monotonic())


@matrix(KILLS, "closed after 2 auth async", "reset after 5 plain sync", "closed after 1, open tls sync")
def test_a_connection_is_killed_between_any_two_frames(case: str, link: Link, mode: str) -> None:
    retry_if_slow(partial(survives, KILLS[case], link, mode))


LEAST, MOST = 45, 90  # bytes: a reply has more than the first, and less than the second


class Cut(NamedTuple):
    """Replies to a command that end after some bytes, and then the connection closes or stays silent."""

    command: str
    lengths: Sequence[int]
    close: bool = True


CUTS = {
    "three bytes": Cut("EVALSHA", (0, 7, 30)),
} | {
    f"bytes {lengths[0]} to {lengths[-1]}{'' if close else ', silent'}": Cut("EVALSHA", lengths, close)
    for close in (True, False)
    for lengths in (range(20), range(20, 40), range(40, LEAST), range(LEAST, MOST))
}


def cut_at(at: int, case: Cut, link: Link, mode: str) -> bool:
    """Cut one reply after `at` bytes. Returns whether an asker lost it, or the next one in the silence after it."""
    with examined(mode, link, deadline=0.3, count=1) as running:
        running.run_until_whole(patience=PATIENCE, times=1)
        begun = monotonic()
        link.proxy.truncate(to=case.command, at=at, close=case.close)
        running.run_until("the reply to be cut", lambda: not link.proxy.waiting, patience=PATIENCE)
        back_soon(running, healed=monotonic())
        return not all([answer.by_store for answer in running.answers if answer.ended > begun])


def cut_each(case: Cut, link: Link, mode: str) -> None:
    """Cut replies after each of the lengths. Only a whole reply is taken for one."""
    for at in case.lengths:
        if not cut_at(at, case, link, mode):
            assert at > LEAST, f"{at} bytes were taken for a whole reply"
            return  # what is longer is whole as well
    assert not case.close or case.lengths[-1] < MOST - 1, "no reply was whole"


@matrix(CUTS, "three bytes auth sync", "three bytes plain async")
def test_a_reply_is_cut_at_any_byte(case: str, link: Link, mode: str) -> None:
    retry_if_slow(partial(cut_each, CUTS[case], link, mode))
