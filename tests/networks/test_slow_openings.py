"""An opening that takes longer than a request's deadline: it goes on behind the request, and is kept.

TCP, TLS, AUTH, the name, the version and SELECT take up to eight round trips; a request takes one. With latency below
the deadline's half the store decides each request once the first connection is open.
"""

from __future__ import annotations

from functools import partial

from tests.faults.site import retry_if_slow
from tests.networks.cases import matrix
from tests.networks.laws import examined, since_open
from tests.networks.links import Link
from tests.networks.test_networks import Slow, decides_as_ever
from tests.servers import PATIENCE

SLOW = {
    "40 ms": Slow(latency=0.04, deadline=0.4),
    "100 ms": Slow(latency=0.1, deadline=0.5),
    "200 ms": Slow(latency=0.2, deadline=1.0),
    "60 ms and jitter": Slow(latency=0.06, jitter=0.06, deadline=0.8),
}


@matrix(SLOW, "40 ms auth async", "40 ms tls sync", "100 ms plain sync")
def test_a_far_server_is_used(case: str, link: Link, mode: str) -> None:
    retry_if_slow(partial(decides_as_ever, SLOW[case], link, mode))


def opens_in_spite_of(link: Link, mode: str) -> None:
    """The first connection is accepted after two deadlines."""
    link.wire.accept_late(1.0)
    with examined(mode, link, deadline=0.5) as running:
        since_open(mode, running, patience=PATIENCE)


@matrix(["accepted late"], "accepted late plain async")
def test_a_server_that_accepts_late_is_used(case: str, link: Link, mode: str) -> None:
    retry_if_slow(partial(opens_in_spite_of, link, mode))
