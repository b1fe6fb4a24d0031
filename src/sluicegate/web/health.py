"""The answer of a health endpoint: a status as JSON.

The status code is 200 also while the store is unavailable, unless `unavailable` is another one: the application still
answers, and an orchestrator that restarts all its processes would make an outage of the store worse.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from sluicegate.errors import SettingsError
from sluicegate.observe.status import Status

OK: Final = 200
# A cache would show an old status.
FIELDS: Final = (("content-type", "application/json"), ("cache-control", "no-store"))


def check_code(unavailable: object) -> None:
    """Raise SettingsError for a value that is no status code of a response."""
    if unavailable not in set(HTTPStatus) or isinstance(unavailable, bool):
        problem, expected = "not a status code", "give 503, or leave it out for 200"
        raise SettingsError("health: unavailable", unavailable, problem=problem, expected=expected)


def answer(status: Status, *, unavailable: int) -> tuple[int, bytes]:
    """Return the status code and the body. `unavailable` is the code while the store is unavailable."""
    return OK if status.available else unavailable, json.dumps(status.as_dict(), separators=(",", ":")).encode()
