"""A file of rules, followed by the adapters that know their rules before a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from sluicegate import ManualClock
from sluicegate.flask import RateLimiter, limit
from sluicegate.wsgi import RateLimitMiddleware

RULE = '[[rules]]\nname = "a"\nquota = "{}/hour"\nkey = "ip"\n'


def _plain(**options: Any) -> Callable[[str], str]:
    def served(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b""]

    return _asked(RateLimitMiddleware(served, **options))


def _flask(**options: Any) -> Callable[[str], str]:
    app = Flask(__name__)
    app.get("/", endpoint="plain")(lambda: "")
    app.get("/limited", endpoint="limited")(limit("100/hour")(lambda: ""))
    RateLimiter(app, **options)
    return _asked(app)


def _asked(app: Any) -> Callable[[str], str]:
    def ask(path: str) -> str:
        seen: list[str] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "REMOTE_ADDR": "203.0.113.5", "SERVER_NAME": "a"}
        environ |= {"SERVER_PORT": "80", "wsgi.url_scheme": "http"}
        chunks = app(environ, lambda status, *_: seen.append(status[:3]))
        b"".join(chunks)
        getattr(chunks, "close", list)()
        return seen[0]

    return ask


@pytest.mark.parametrize(
    ("make", "path"), [(_plain, "/"), (_flask, "/"), (_flask, "/limited"), (_flask, "/static/a.css"), (_flask, "/none")]
)
def test_the_rules_of_a_file_are_followed(make: Callable[..., Callable[[str], str]], path: str, tmp_path: Path) -> None:
    file, clock = tmp_path / "limits.toml", ManualClock()
    more = 'path = "/static/*"\n' if "static" in path else ""
    file.write_text(RULE.format(1) + more, "utf-8")
    ask = make(rules=str(file), store="memory://", clock=clock, overrides=False)
    assert [ask(path) == "429" for _ in range(2)] == [False, True]
    for text, refused in ((RULE.format(3) + more, [False, False, True]), ("rules = []\n", [False, False, False])):
        file.write_text(text, "utf-8")
        clock.advance(2)
        assert [ask(path) == "429" for _ in range(3)] == refused
