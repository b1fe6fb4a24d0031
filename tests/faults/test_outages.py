"""Tests of outages: the store is down, hangs, is full or unreachable. No error, no hang, a bounded delay and a quick
recovery."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.faults.apps import BODY
from tests.faults.site import (
    ADAPTERS,
    LIMITED,
    SAMPLED,
    SHORTLY,
    Site,
    assert_bounded,
    assert_charged,
    assert_circuit_open,
    on_sites,
    retry_if_slow,
    serving,
)
from tests.servers import wait_until

PAUSE = 2400  # milliseconds: longer than an outage in these tests


class Outage(NamedTuple):
    """How an outage begins and how it ends."""

    begin: Callable[[Site], object]
    repair: Callable[[Site], object]


def wait_for_reply(site: Site) -> None:
    """Wait until the server replies again."""
    wait_until("the server to answer", lambda: site.server.command("PING") == "PONG")


OUTAGES = {
    "kill -9": Outage(lambda site: site.server.kill(), lambda site: site.server.start()),
    "SIGSTOP": Outage(lambda site: site.server.pause(), lambda site: site.server.resume()),
    "CLIENT PAUSE": Outage(lambda site: site.server.command(f"CLIENT PAUSE {PAUSE} ALL"), wait_for_reply),
    "full": Outage(
        lambda site: site.server.command("CONFIG SET maxmemory 1"),
        lambda site: site.server.command("CONFIG SET maxmemory 0"),
    ),
    "black hole": Outage(lambda site: site.proxy.black_hole(), lambda site: site.proxy.heal()),
    "refused": Outage(lambda site: site.proxy.refuse(), lambda site: site.proxy.heal()),
}


@on_sites("outage", OUTAGES)
def test_an_outage_delays_little_and_recovers(site: Site, outage: str) -> None:
    begin, repair = OUTAGES[outage]

    def attempt() -> None:
        site.restore()
        with site.healthy_load() as load:
            load.run(SHORTLY)
            load.phase("fault")
            charged_before = site.charged("before")
            begin(site)
            load.run(1.0)
            assert_circuit_open(load)
            load.phase("back")
            repair(site)
            site.await_recovery(load, "back")
            load.phase("after")
            load.run(SHORTLY)
        assert_charged(site, load, "before", charged_before)
        assert_charged(site, load, "after", site.charged("after"))
        assert site.charged("fault") <= load.summary("fault", LIMITED).requests
        assert site.charged("open 0") == 0  # else the store was not down
        assert_bounded(load, "before", "fault", "back", "after")

    retry_if_slow(attempt)


@pytest.mark.parametrize(
    "adapter", [pytest.param(each, marks=() if each in SAMPLED else pytest.mark.matrix) for each in ADAPTERS]
)
def test_a_site_starts_while_its_server_is_down(adapter: str) -> None:
    def attempt() -> None:
        with serving(adapter, server_is_up=False) as site:
            first = site.ask("first")
            assert (first.status, first.body) == (200, BODY)
            assert first.headers["RateLimit"] == '"pages";r=9999;t=86400'  # of the limit, counted in this process
            with site.load(phase="before") as load:
                load.run(SHORTLY)
                load.phase("back")
                site.server.start()
                site.await_recovery(load, "back")
                load.phase("after")
                load.run(SHORTLY)
            assert_charged(site, load, "after", site.charged("after"))
            assert_bounded(load, "before", "back", "after")

    retry_if_slow(attempt)
