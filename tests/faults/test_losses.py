"""What the store loses: its scripts, its keys, itself for a moment, or a reply on the way. Nobody is charged twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.apps import BODY
from tests.faults.site import LIMITED, SHORTLY, Site, assert_bounded, assert_charged, steadily
from tests.proxies import Proxy


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
UNHURT = ("SCRIPT FLUSH",)  # no request has to do without the server


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss(site: Site, loss: str) -> None:
    def story() -> None:
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
        assert site.proxy.waiting == 0  # what was meant to be lost was
        assert_charged(load, "before", charged_before)
        assert_charged(load, "after", site.charged("after"))
        assert site.charged("fault") <= load.summary("fault", LIMITED).requests
        if loss in UNHURT:
            assert_charged(load, "fault", site.charged("fault"))
        assert_bounded(load, "before", "fault", "back", "after")

    steadily(story)


@pytest.mark.parametrize(
    "lose",
    [
        lambda proxy: proxy.lose(to="EVALSHA"),
        lambda proxy: proxy.lose(to="EVALSHA", close=True),
        lambda proxy: proxy.truncate(to="EVALSHA"),
    ],
    ids=["silent", "closed", "half"],
)
def test_a_charge_whose_reply_is_lost_is_not_made_again(site: Site, lose: Callable[[Proxy], None]) -> None:
    with site.healthy_load() as load:
        load.stop()
    assert site.ask("known").status == 200  # so the script is known to the server
    lose(site.proxy)
    answer = site.ask("lost")
    assert (answer.status, answer.body) == (200, BODY)
    assert site.proxy.waiting == 0
    assert site.charged("lost") == 1


def test_a_script_that_the_server_forgot_is_one_charge(site: Site) -> None:
    with site.healthy_load() as load:
        load.stop()
    site.server.command("SCRIPT FLUSH")
    assert [site.ask("forgotten").status for _ in range(3)] == [200] * 3
    assert site.charged("forgotten") == 3
