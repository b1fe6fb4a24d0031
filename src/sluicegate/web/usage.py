"""The answer of the page of one's own usage: the caller's budgets as JSON, and the schema of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from sluicegate.errors import SettingsError
from sluicegate.observe.usage import Budget
from sluicegate.web.charge import AnyQuota, ChargedRule

LIMIT: Final = "60/minute"
MAX_AGE: Final = 5  # seconds
OPTIONS: Final[Any] = {"name": "usage", "scope": "usage"}
"""The options of the charge for the page itself: one budget, wherever it is mounted."""
_BUDGET: Final[dict[str, object]] = {
    "rule": {"type": "string"},
    "kind": {"enum": ["budget", "slots", "ban"]},
    **{name: {"type": ["string", "null"]} for name in ("tier", "unit")},
    **{name: {"type": "integer", "minimum": 0} for name in ("limit", "used", "remaining")},
    **{name: {"type": "number", "minimum": 0} for name in ("next_after", "reset_after")},
}


def _object(properties: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "required": [*properties], "properties": properties}


SCHEMA: Final = _object({"budgets": {"type": "array", "items": _object(_BUDGET)}})
"""The JSON schema of the body."""


def fields(limit: AnyQuota, max_age: object) -> dict[str, str]:
    """Return the header fields of the answer. Raises ConfigurationError for wrong arguments."""
    ChargedRule.of("usage", limit, **OPTIONS)
    if not isinstance(max_age, int) or isinstance(max_age, bool) or max_age < 0:
        expected = "give seconds, or 0"
        raise SettingsError("usage: max_age", max_age, problem="not a whole number, 0 or more", expected=expected)
    # A browser may have the page of the user before in its cache.
    about = {"Cache-Control": f"private, max-age={max_age}", "Vary": "Authorization, Cookie"}
    return {"Content-Type": "application/json", **about}


def body(budgets: Iterable[Budget]) -> bytes:
    """Return the body of the answer."""
    return json.dumps({"budgets": [each._asdict() for each in budgets]}, separators=(",", ":")).encode()
