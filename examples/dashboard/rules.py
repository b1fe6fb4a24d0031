"""What the four shops share: the store, the rules, and the sign-in page."""

from __future__ import annotations

import os
from hmac import compare_digest

from sluicegate import Rule
from sluicegate.rules.ban import Ban

STORE = os.environ.get("SLUICEGATE_STORE", "memory://")
PASSWORD = "opensesame"
RULES = [
    Rule(
        name="export",
        quota="5/minute",
        key="header:X-API-Key",
        path="/export",
        ban=Ban(name="greedy", after=50, within="1 minute", duration="10 minutes"),
    )
]
SIGN_IN = """<!doctype html><html lang="en"><title>Sign in</title><link rel="icon" href="data:,">
<form method="post"><label>Password <input type="password" name="password" autocomplete="current-password"></label>
<button>Sign in</button></form>
</html>"""


def is_right(password: str) -> bool:
    """True for the password of the staff."""
    return compare_digest(password.encode(), PASSWORD.encode())
