"""An incident: a customer is blocked, the server hangs, and a new limit is introduced.
The operator has the commands, the status, the log and the metrics, and everything runs on a real server.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, Metric, start_http_server

from sluicegate import Settings, wsgi
from sluicegate.cli.commands import sluicegate
from sluicegate.observe.prometheus import PrometheusMetrics
from sluicegate.observe.refusal_log import RefusalLog
from sluicegate.plan import Handler
from sluicegate.runtime.hidden import shown_url
from tests.adapters.wsgi_client import WsgiClient
from tests.observability.alerts import Samples, alerts, holds, samples
from tests.servers import valkey_server, wait_until

ROOT = Path(__file__).parent.parent
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
OPENED, CLOSED = "circuit open: store unavailable", "recovered: circuit closed"
WOULD_REFUSE, REFUSED = "rule 'search' would have refused", "rule 'search' refused"
CUSTOMER, BOT = "203.0.113.7", "198.51.100.9"
LIMITS = """
    [sluicegate]
    store = "{store}"
    application = "shop"
    prefix = "incident"
    key = "ip"
    deadline = 1.0

    [[sluicegate.rules]]
    name = "reply"
    quota = "3/hour"
    path = "/reply"
"""
SEARCH = """
    [[sluicegate.rules]]
    name = "search"
    quota = "2/hour"
    path = "/search"
"""
SHADOW = '    mode = "shadow"\n'


class Shop:
    """The application of a settings file, its health endpoint, its metrics, and the operator's commands for it."""

    def __init__(self, limits: Path) -> None:
        self.limits, self.registry = limits, CollectorRegistry()
        handlers: list[Handler] = [PrometheusMetrics(registry=self.registry), RefusalLog()]
        settings = replace(Settings.from_toml(limits), on_decision=handlers)
        self.store = shown_url(str(settings.store))
        limited = wsgi.RateLimitMiddleware(self.reply, settings=settings)
        self.client, self.probe = WsgiClient(limited), WsgiClient(wsgi.health(limited))
        self.close = limited.close

    @staticmethod
    def reply(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"posted"]

    def request(self, peer: str, path: str = "/reply") -> int:
        return self.client.request("POST", path, peer=peer).status

    def health(self) -> Any:
        answer = self.probe.request("GET", "/health")
        assert answer.status == 200
        return json.loads(answer.body)

    def scrape(self) -> Samples:
        return samples(self.registry, self.store)

    def operator(self, *words: str, status: int = 0) -> str:
        found = CliRunner().invoke(sluicegate, words, env={"SLUICEGATE_APP": str(self.limits), "COLUMNS": "80"})
        assert found.exit_code == status, found.output
        return found.stdout


class Crowd:
    """A client that searches whenever somebody reads the metrics."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    def collect(self) -> Iterator[Metric]:
        for _ in range(5):
            self.shop.request(BOT, "/search")
        return iter(())


def watched(shop: Shop) -> str:
    """What `sluicegate watch` shows of a shop while a client searches."""
    shop.registry.register(Crowd(shop))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=shop.registry)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        return shop.operator("watch", url, "--once", "--every", "0.1")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_incident(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, logger="sluicegate")
    limits = tmp_path / "limits.toml"
    with valkey_server("--maxmemory", "100mb") as server:
        limits.write_text(LIMITS.format(store=server.url), "utf-8")
        shop = Shop(limits)
        wait_until("the server's first answer", lambda: shop.request("192.0.2.1") and shop.health()["available"])
        wait_until("no circuit is open", lambda: shop.health()["circuits"][0]["state"] == "closed")

        # A customer is blocked: show, reset, and the next request passes.
        assert [shop.request(CUSTOMER) for _ in range(4)] == [200, 200, 200, 429]
        assert re.search(r"^reply +█+ +3 of 3 +0 .* refused for ", shop.operator("show", f"ip:{CUSTOMER}"), re.M)
        assert "1 budget" in shop.operator("reset", f"ip:{CUSTOMER}", "--yes")
        assert "Nothing is used under this identity" in shop.operator("show", f"ip:{CUSTOMER}")
        wait_until("the process has forgotten the refusal", lambda: shop.request(CUSTOMER) == 200)

        # The server hangs: the log, the metrics, the alerts, the status and doctor say so.
        assert [shop.request(BOT) for _ in range(4)] == [200, 200, 200, 429]
        caplog.clear()
        healthy = shop.scrape()
        server.pause()
        assert shop.request("192.0.2.2") == 200  # after the deadline; the limit holds in this process
        assert shop.request(BOT) == 429  # what the store had counted is not forgotten
        assert [OPENED in line for line in caplog.messages if "circuit" in line] == [True]
        hanging = shop.scrape()
        assert [name for name in alerts() if holds(alerts()[name], healthy, hanging)] == [
            "RateLimitStoreUnavailable",
            "RateLimitDegraded",
        ]
        status = shop.health()
        assert (status["available"], status["circuits"][0]["state"]) == (False, "open")
        assert status["degraded_allowed"] >= 1
        said = " ".join(shop.operator("doctor", server.url, status=1).split())
        assert "✗ connection TimeoutError: no connection within the deadline → check that the server runs" in said

        server.resume()
        closed = ("closed", True)
        state = lambda: (shop.health()["circuits"][0]["state"], shop.health()["available"])  # noqa: E731
        wait_until("the circuit closes", lambda: shop.request("192.0.2.3") and state() == closed)
        assert CLOSED in [line for line in caplog.messages if "circuit" in line][-1]
        assert not holds(alerts()["RateLimitStoreUnavailable"], hanging, shop.scrape())
        shop.close()

        # A new limit is watched in shadow, and then enforced.
        limits.write_text((LIMITS + SEARCH + SHADOW).format(store=server.url), "utf-8")
        shop = Shop(limits)
        caplog.clear()
        wait_until("the store decides", lambda: shop.request("192.0.2.4") and state() == closed)
        assert [shop.request(BOT, "/search") for _ in range(4)] == [200] * 4
        assert [WOULD_REFUSE in line for line in caplog.messages if "search" in line] == [True]
        assert shop.scrape()["sluicegate_outcomes_total", "search", "shadow"] == 2
        assert re.search(r"^search +- +- +[1-9][\d.]* ", watched(shop), re.M)
        assert "would refuse" in shop.operator("show", f"ip:{BOT}")
        shop.close()

        limits.write_text((LIMITS + SEARCH).format(store=server.url), "utf-8")
        shop = Shop(limits)
        caplog.clear()
        wait_until("the store decides", lambda: shop.request("192.0.2.5") and state() == closed)
        assert [shop.request(BOT, "/search") for _ in range(4)] == [200, 200, 429, 429]
        assert [REFUSED in line for line in caplog.messages if "search" in line] == [True]
        assert shop.request(CUSTOMER, "/search") == 200
        assert re.search(r"^search +- +[1-9][\d.]* ", watched(shop), re.M)
        shop.close()


def test_the_runbook_names_the_alerts() -> None:
    told = re.findall(r"`(RateLimit\w+)`", RUNBOOK)
    assert told
    assert set(told) <= set(alerts())
