"""Logs that clients wrote: what one request or one line of an attacker may do to a report."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pytest

from sluicegate import Settings
from sluicegate.replay.paste import FRAMEWORKS, as_decorators, as_toml
from sluicegate.replay.routes import route_of
from sluicegate.replay.run import Given
from sluicegate.replay.suggest import SECOND, Suggester, Suggestions, gather

START = 1_700_000_000 * SECOND


def suggested(method: str, path: str) -> Suggestions:
    """What is suggested for an ordinary log in which two requests are hostile."""
    rows = [(START + at * SECOND, f"192.0.2.{at % 200}", "GET", "/page", 200) for at in range(150)]
    rows += [(START + at * SECOND, "203.0.113.9", method, path, 200) for at in (150, 151)]
    frame = pl.DataFrame(rows, schema=["time", "address", "method", "path", "status"], orient="row")
    return Suggester(gather(Given([frame]), key="ip")).all()


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/login", "/login"),
        ("POST", "/login x", "/login x"),
        *[("POST", f"/login {words}", f"/login {words}") for words in ("when 401", "with gcra", "cost bytes", "by ip")],
        ("POST", "//login", "/login"),
        ("POST", "login", "/login"),
        ("POST", "/login/caf\u00e9/\U0001f600", "/login/caf\u00e9/\U0001f600"),
        ("POST", "/login/\"'\\", "/login/\"'\\"),
        ("POST", '/a\n\x00"""\'/login', "/*/login"),
        ("POST", "/\x7f\x1b[31m/login\u202e\u2028\r/login\n", "/*/*/login"),
        ("POST", "/login/" + "\n" + 1500 * "a", "/login/*"),
        ("POST", "/login/" + "/".join(["a" * 47] * 30), None),
        ("POST", "/a*b/login", "/*/login"),
        ("POST", "/[a-z]/a?/login", "/*/*/login"),
        ("POST", "/login/{id}", None),
        ("POST", "/login/<int:id>", "/login/*"),
        ("POST", "/login#x", None),
        ("POST", "/login ", None),
        ("P'|~", "/login", None),
        (300 * "METHOD", "/login", None),
        ("POST,GET", "/login", None),
        ("GET", "/my files/x", "/my files/x"),
        ("GET", "/{id}", None),
    ],
)
def test_no_request_stops_or_changes_a_suggestion(method: str, path: str, expected: str | None, tmp_path: Path) -> None:
    """A route becomes a rule as it is, or it is left out and a note says so. What is printed can be loaded."""
    found = suggested(method, path)
    assert all(note.isprintable() for note in found.notes)
    theirs = [each for each in found.suggestions if each.path not in (None, "/page")]
    if "a" * 47 in path:
        assert len(theirs[0].path or "") < 400
    elif expected is None:
        assert any(note.startswith("no rule can be written for 1 route, as ") for note in found.notes)
        assert theirs == []
    else:
        ((shown, methods, requests),) = [(each.path, each.methods, each.requests) for each in theirs]
        assert (shown, requests) == (expected, 2)
        assert methods == (("POST",) if method == "POST" else ())
    toml = tmp_path / "limits.toml"
    toml.write_text(as_toml(found), encoding="utf-8")
    assert "".join(toml.read_text().split("\n")).isprintable()
    assert tomllib.loads(toml.read_text())
    rules = [rule for rule in Settings.from_toml(toml).rules if rule.path not in (None, "/page")]  # type: ignore[union-attr]
    assert [rule.path for rule in rules] == [each.path for each in theirs if each.quota]  # type: ignore[union-attr]
    for framework in FRAMEWORKS:
        ast.parse(as_decorators(found, framework))


@pytest.mark.parametrize(
    ("part", "is_shown"),
    [
        *[
            (part, True)
            for part in ("login", "v1", "getUserById", "UserService", "password_reset_confirmation", "a.css")
        ],
        *[(part, False) for part in ("kJhGfDsAqWeRtYuIoPzXcVbNm", "q" * 38, "AKIAIOSFODNN7EXAMPLE")],
        *[(part, False) for part in ("eyJhbGciOi.JIUzI1NiJ9", "192.0.2.1", "+49-170-1234567", "2026-10-10", "~bob")],
        *[(part, False) for part in ("2001:db8::1", "alice@example.com", "QXlkZGVyTWFu", "aB3dE5fG", "\x1b[2J", "17")],
    ],
)
def test_a_route_has_no_identity(part: str, *, is_shown: bool) -> None:
    assert route_of(f"/x/{part}/y") == (f"/x/{part}/y" if is_shown else "/x/*/y")
    assert route_of(f"/x/{quote(part)}") in {f"/x/{part}", f"/x/{quote(part)}", "/x/*"}
