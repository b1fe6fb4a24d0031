"""A Flask application that records when its views run: `gunicorn tests.concurrency.overlapping:app`.

Each view writes one line when it begins and one when it ends. The times are those of CLOCK_MONOTONIC, which all
processes share. A line is one write to a file that is opened for appending, so lines never mix.
"""

from __future__ import annotations

import json
import os
from threading import Event
from time import CLOCK_MONOTONIC, clock_gettime_ns
from typing import Any

from flask import Flask, request

from sluicegate.flask import RateLimiter, decision

app = Flask(__name__)
RateLimiter(app, **json.loads(os.environ["OPTIONS"]))
_record = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_APPEND)


def _write(**facts: Any) -> None:
    facts |= {"process": os.getpid(), "now": clock_gettime_ns(CLOCK_MONOTONIC)}
    os.write(_record, json.dumps(facts).encode() + b"\n")


@app.get("/")
def page() -> str:
    found = decision()
    assert found is not None
    who, view = request.headers["X-Identity"], os.urandom(8).hex()
    _write(view=view, identity=who, taken=found.outcomes[0].at, degraded=found.degraded)
    Event().wait(float(request.headers["X-Seconds"]))
    _write(view=view)
    return who
