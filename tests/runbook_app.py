"""An application for real workers: the settings of a file that the variable LIMITS names."""

from __future__ import annotations

import os
from typing import Any

from sluicegate import Settings
from sluicegate.wsgi import RateLimitMiddleware


def _page(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
    return [b"done"]


app = RateLimitMiddleware(_page, settings=Settings.from_toml(os.environ["LIMITS"]))
