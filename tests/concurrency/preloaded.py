"""A WSGI application whose limiter was used before its workers were forked: `gunicorn --preload`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from sluicegate import Limiter

limiter = Limiter(os.environ["STORE"], deadline=5)
before = [limiter.hit("1000/day", f"before {n}") for n in range(3)]  # connections that every worker inherits


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Hit for the identity in the query string. The body: what remains, whether it is degraded, the process id."""
    decision = limiter.hit("1000/day", environ["QUERY_STRING"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{decision.remaining} {decision.degraded} {os.getpid()}".encode()]
