"""An incident, as docs/operating.md tells it: a server hangs, and the operator sees it in the status, the log line, the
metric and doctor.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from sluicegate import wsgi
from sluicegate.cli.commands import sluicegate
from sluicegate.prometheus import PrometheusMetrics
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import Server, valkey_server, wait_until

ROOT = Path(__file__).parent.parent
STORY = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8").partition("## When Redis hangs")[2]
OPENED, CLOSED = "circuit open: store unavailable", "recovered: circuit closed"


class Shop:
    """An application under a limit, with its health endpoint and its metrics."""

    def __init__(self, server: Server) -> None:
        self.registry, self.store = CollectorRegistry(), f"redis://127.0.0.1:{server.port}/0"
        metrics = PrometheusMetrics(registry=self.registry)
        options: Any = {"default_limits": ["3/hour"], "on_decision": metrics, "prefix": "incident", "deadline": 1.0}
        limited = wsgi.RateLimitMiddleware(self.reply, store=server.url, **options)
        self.client, self.probe = WsgiClient(limited), WsgiClient(wsgi.health(limited))
        self.close = limited.close

    @staticmethod
    def reply(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"posted"]

    def request(self, peer: str = "198.51.100.9") -> int:
        return self.client.request("POST", "/reply", peer=peer).status

    def health(self) -> Any:
        answer = self.probe.request("GET", "/health")
        assert answer.status == 200
        return json.loads(answer.body)

    def open_circuits(self) -> float | None:
        return self.registry.get_sample_value("sluicegate_open_circuits", {"store": self.store})


def test_a_server_hangs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sluicegate")
    with valkey_server("--maxmemory", "100mb") as server:
        shop = Shop(server)
        wait_until("the first answer of the server", lambda: shop.request("192.0.2.1") and shop.health()["available"])
        assert [shop.request() for _ in range(4)] == [200, 200, 200, 429]
        wait_until("no circuit is open", lambda: shop.health()["circuits"][0]["state"] == "closed")
        caplog.clear()

        server.pause()
        assert shop.request("203.0.113.1") == 200  # after the deadline; the limit holds in this process
        assert shop.request() == 429  # what the store had counted is not forgotten
        status = shop.health()
        assert (status["available"], status["circuits"][0]["state"]) == (False, "open")
        assert status["degraded_allowed"] >= 1
        assert [OPENED in line for line in caplog.messages] == [True]
        assert shop.open_circuits() == 1
        found = CliRunner().invoke(sluicegate, ["doctor", server.url], env={"COLUMNS": "80"})
        assert found.exit_code == 1
        assert "✗  connection" in found.stdout

        server.resume()
        wait_until("the circuit closes", lambda: shop.request("203.0.113.2") and not shop.open_circuits())
        assert shop.health()["circuits"][0]["state"] == "closed"
        assert CLOSED in caplog.messages[-1]
        shop.close()


def test_the_page_tells_it() -> None:
    for text in (OPENED, CLOSED, "sluicegate_open_circuits", "sluicegate doctor", "available"):
        assert text in STORY
    alerts = (ROOT / "examples" / "observability" / "alerts.yml").read_text(encoding="utf-8")
    [alert] = re.findall(r"the alert `(\w+)`", STORY)
    assert f"alert: {alert}\n" in alerts
