"""The store is gone, hangs, is full or is hidden: no error, no hang, a bounded delay, and a quick return."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.faults.apps import BODY
from tests.faults.site import (
    ADAPTERS,
    LIMITED,
    SHORTLY,
    Site,
    assert_bounded,
    assert_charged,
    assert_left_alone,
    standing,
    steadily,
)
from tests.servers import wait_until

PAUSE = 2400  # milliseconds: longer than an outage lasts here


class Outage(NamedTuple):
    """How it begins, and how it ends."""

    strike: Callable[[Site], object]
    mend: Callable[[Site], object]


def answers(site: Site) -> None:
    """Wait until it does by itself."""
    wait_until("the server to answer", lambda: site.server.command("PING") == "PONG")


OUTAGES = {
    "kill -9": Outage(lambda site: site.server.kill(), lambda site: site.server.start()),
    "SIGSTOP": Outage(lambda site: site.server.pause(), lambda site: site.server.resume()),
    "CLIENT PAUSE": Outage(lambda site: site.server.command(f"CLIENT PAUSE {PAUSE} ALL"), answers),
    "full": Outage(
        lambda site: site.server.command("CONFIG SET maxmemory 1"),
        lambda site: site.server.command("CONFIG SET maxmemory 0"),
    ),
    "black hole": Outage(lambda site: site.proxy.black_hole(), lambda site: site.proxy.heal()),
    "refused": Outage(lambda site: site.proxy.refuse(), lambda site: site.proxy.heal()),
}


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
def test_an_outage(site: Site, outage: Outage) -> None:
    def story() -> None:
        site.restore()
        with site.healthy_load() as load:
            load.run(SHORTLY)
            load.phase("fault")
            charged_before = site.charged("before")
            outage.strike(site)
            load.run(1.0)
            assert_left_alone(load)
            load.phase("back")
            outage.mend(site)
            site.await_recovery(load, "back")
            load.phase("after")
            load.run(SHORTLY)
        assert_charged(load, "before", charged_before)
        assert_charged(load, "after", site.charged("after"))
        assert site.charged("fault") <= load.summary("fault", LIMITED).requests
        assert site.charged("open 0") == 0  # or nothing was out
        assert_bounded(load, "before", "fault", "back", "after")

    steadily(story)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_server_that_is_not_there_at_the_start(adapter: str) -> None:
    def story() -> None:
        with standing(adapter, server_is_up=False) as site:
            first = site.ask("first")
            assert (first.status, first.body) == (200, BODY)
            assert first.headers["RateLimit"] == '"pages";r=9999;t=86400'  # of the limit, counted in the process
            with site.load(phase="before") as load:
                load.run(SHORTLY)
                load.phase("back")
                site.server.start()
                site.await_recovery(load, "back")
                load.phase("after")
                load.run(SHORTLY)
            assert_charged(load, "after", site.charged("after"))
            assert_bounded(load, "before", "back", "after")

    steadily(story)
