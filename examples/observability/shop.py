"""A shop that shows what it refuses: metrics for Prometheus, and a log of refusals.

    mkdir /tmp/metrics
    PROMETHEUS_MULTIPROC_DIR=/tmp/metrics gunicorn -w 4 -c examples/observability/gunicorn.conf.py \
        'examples.observability.shop:create_app()'
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from sluicegate.flask import RateLimiter, exempt, limit
from sluicegate.observe.events import DecisionEvent
from sluicegate.observe.prometheus import PrometheusMetrics
from sluicegate.observe.refusal_log import RefusalLog

Handler = Callable[[DecisionEvent], object]


def create_app(handlers: list[Handler] | None = None) -> Flask:
    """Make the application. A test gives handlers of its own."""
    logging.basicConfig(level=logging.INFO)
    app = Flask("shop")

    @app.get("/orders/<int:number>")
    @limit("3/minute", name="orders")
    def order(number: int) -> str:
        return f"order {number}"

    @app.get("/search")
    @limit("2/minute", name="search", mode="shadow")
    def search() -> str:
        return "nothing found"

    @app.get("/metrics")
    @exempt
    def metrics() -> Response:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    RateLimiter(
        app,
        store=os.environ.get("SLUICEGATE_STORE", "memory://"),
        deadline=float(os.environ.get("SLUICEGATE_DEADLINE", "0.1")),
        default_limits=["1000/hour"],
        key="header:X-Client",
        on_decision=[PrometheusMetrics(), RefusalLog()] if handlers is None else handlers,
    )
    return app
