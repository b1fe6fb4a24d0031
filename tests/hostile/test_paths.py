"""Spellings of a path under which Flask serves a view: `route` and `@limit` limit them all, a `path` pattern may not.

docs/security.md lists such spellings.
"""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from sluicegate.flask import RateLimiter, limit


def ask(*, rule: dict[str, Any] | None = None, decorated: bool = False, spelling: str = "/login/") -> list[int]:
    """The statuses of two logins in Flask: at "/login", and at this spelling."""
    app = Flask(__name__)

    def login() -> str:
        return "in"

    view = limit("1/day", key="ip")(login) if decorated else login
    app.add_url_rule("/login", "login", view, methods=["POST"], strict_slashes=False)
    RateLimiter(app, rules=[] if rule is None else [{"name": "login", "quota": "1/day", "key": "ip", **rule}])
    client = app.test_client()
    return [client.post(path).status_code for path in ("/login", spelling)]


def test_a_path_pattern_misses_a_spelling_of_a_route_without_strict_slashes() -> None:
    assert ask(rule={"path": "/login"}) == [200, 200]
    assert ask(rule={"path": "/login*"}) == [200, 429]


@pytest.mark.parametrize("spelling", ["/login", "/login/", "///login/", "/%6cogin/"])
def test_a_route_and_a_decorator_limit_every_spelling(spelling: str) -> None:
    assert ask(rule={"route": "login"}, spelling=spelling) == [200, 429]
    assert ask(decorated=True, spelling=spelling) == [200, 429]
