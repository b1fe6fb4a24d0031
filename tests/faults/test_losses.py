"""Tests of losses: the store loses its scripts, its keys, its process for a moment, or a reply. No request is charged
twice."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.apps import BODY
from tests.faults.site import (
    LIMITED,
    SHORTLY,
    Site,
    assert_bounded,
    assert_charged,
    assert_unless_slow,
    on_sites,
    retry_if_slow,
)


def restart(site: Site) -> None:
    site.server.kill()
    site.server.start()


LOSSES: dict[str, Callable[[Site], object]] = {
    "SCRIPT FLUSH": lambda site: site.server.command("SCRIPT FLUSH"),
    "FLUSHALL": lambda site: site.server.flush(),
    "restart": restart,
    "cut": lambda site: site.proxy.cut(),
    "a reply": lambda site: site.proxy.lose(to="EVALSHA"),
    "a reply and its connection": lambda site: site.proxy.lose(to="EVALSHA", close=True),
    "half a reply": lambda site: site.proxy.truncate(to="EVALSHA"),
}
HARMLESS = ("SCRIPT FLUSH",)  # every request is still charged in the server


@on_sites("loss", LOSSES)
def test_no_loss_charges_twice(site: Site, loss: str) -> None:
    def attempt() -> None:
        site.restore()
        with site.healthy_load() as load:
            load.run(SHORTLY)
            load.phase("fault")
            charged_before = site.charged("before")
            LOSSES[loss](site)
            load.run(2 * SHORTLY)
            load.phase("back")
            site.await_recovery(load, "back")
            load.phase("after")
            load.run(SHORTLY)
        assert_unless_slow(site, "fault", site.proxy.waiting == 0, "no reply was lost")
        assert_charged(site, load, "before", charged_before)
        assert_charged(site, load, "after", site.charged("after"))
        assert site.charged("fault") <= load.summary("fault", LIMITED).requests
        if loss in HARMLESS:
            assert_charged(site, load, "fault", site.charged("fault"))
        assert_bounded(load, "before", "fault", "back", "after")

    retry_if_slow(attempt)


@on_sites("loss", ["a reply", "a reply and its connection", "half a reply"])
def test_a_charge_with_a_lost_reply_is_not_repeated(site: Site, loss: str) -> None:
    def attempt() -> None:
        site.restore()
        with site.healthy_load() as load:
            load.stop()
        assert site.ask("known").status == 200  # now the server knows the script
        LOSSES[loss](site)
        answer = site.ask("lost")
        assert (answer.status, answer.body) == (200, BODY)
        assert_unless_slow(site, "before", site.proxy.waiting == 0, "no reply was lost")
        charges = site.charged("lost")
        assert charges <= 1
        assert_unless_slow(site, "before", charges == 1, "the charge did not reach the server")

    retry_if_slow(attempt)


def test_a_forgotten_script_is_charged_once(site: Site) -> None:
    def attempt() -> None:
        with site.healthy_load() as load:
            load.stop()
        site.server.command("SCRIPT FLUSH")
        assert [site.ask("forgotten").status for _ in range(3)] == [200] * 3
        charges = site.charged("forgotten")
        assert charges <= 3
        assert_unless_slow(site, "before", charges == 3, f"{charges} charges")

    retry_if_slow(attempt)
