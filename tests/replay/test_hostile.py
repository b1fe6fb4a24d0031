"""Logs that clients wrote: what one request or one line of an attacker may do to a report."""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pytest
from click.testing import CliRunner

from sluicegate import Settings
from sluicegate.cli.commands import sluicegate
from sluicegate.replay.candidates import from_rules
from sluicegate.replay.log import Log
from sluicegate.replay.paste import FRAMEWORKS, as_decorators, as_toml
from sluicegate.replay.routes import route_of
from sluicegate.replay.run import replay
from sluicegate.replay.suggest import SECOND, Suggestions, suggest
from tests.replay.decided import Given, decisions

START = 1_700_000_000 * SECOND


def suggested(method: str, path: str) -> Suggestions:
    """What is suggested for an ordinary log in which two requests are hostile."""
    rows = [(START + at * SECOND, f"192.0.2.{at % 200}", "GET", "/page", 200) for at in range(150)]
    rows += [(START + at * SECOND, "203.0.113.9", method, path, 200) for at in (150, 151)]
    frame = pl.DataFrame(rows, schema=["time", "address", "method", "path", "status"], orient="row")
    return suggest(Given([frame]))


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


@pytest.mark.parametrize(
    ("costs", "passed"),
    [
        ([2**62, 2**62, 5], [False, False, True]),
        ([2**63 - 1, 1, 1], [False, True, True]),
        ([5, 2**63 - 1, 5, 1], [True, False, True, False]),
        ([10**15] * 10_000, [False] * 10_000),
        ([-(2**63), 10, 1], [True, True, False]),
    ],
)
def test_a_huge_cost_is_refused(costs: list[int], passed: list[bool]) -> None:
    frame = pl.DataFrame({"bytes": costs}).with_columns(time=START, address=pl.lit("192.0.2.1"))
    candidate = from_rules(["10/minute by ip cost bytes"])
    assert decisions(frame, candidate)["allowed"].to_list() == passed
    assert replay(Given([frame]), [candidate]).candidates[0].refused == passed.count(False)


@pytest.mark.parametrize(("cost", "is_refused"), [(30 * "9", True), (5000 * "9", False), ("-" + 30 * "9", False)])
def test_a_cost_of_any_length_is_no_error(cost: str, *, is_refused: bool) -> None:
    frame = pl.DataFrame({"field:n": [cost, cost]}).with_columns(time=START, address=pl.lit("192.0.2.1"))
    assert decisions(frame, from_rules(["10/minute by ip cost n"]))["allowed"].to_list() == [not is_refused] * 2


HUGE = (
    "9e21",
    "1e300",
    "-1",
    "-9e18",
    "253402300801000000000",
    '"-1000-01-01T00:00:00Z"',
    "null",
    "true",
)


@pytest.mark.parametrize("time", HUGE)
def test_a_time_of_no_calendar_is_an_unreadable_line(time: str, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    good = '{"time": "2026-10-10T00:00:00Z", "ip": "192.0.2.1", "status": 200}\n'
    path.write_text(good + f'{{"time": {time}, "ip": "192.0.2.1", "status": 200}}\n' + good)
    log = Log([path])
    found = replay(log, [from_rules(["1/minute by ip"])])
    assert (found.traffic.unreadable.lines, found.candidates[0].refused) == (1, 1)


@pytest.mark.parametrize("duration", [9.2e12, 1e300, -5, -9.2e12, 5])
def test_a_wild_duration_is_none(duration: float, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"end": "2026-10-10T00:00:10Z", "ip": "192.0.2.1", "took": duration}) + "\n")
    log = Log([path], fields={"end": "end", "duration_s": "took"})
    found = replay(log, [from_rules(["1/minute by ip"])]).traffic
    assert found.first == 1_791_590_410 - (5 if duration == 5 else 0)


def test_no_time_is_before_1970(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('{"end": "1970-01-01T00:00:10Z", "ip": "192.0.2.1", "took": 60}\n')
    found = replay(Log([path], fields={"end": "end", "duration_s": "took"}), [from_rules(["1/minute by ip"])])
    assert found.traffic.first == 0


HIDDEN = ("--hide-identities",)
SECRET = "alice@example.com 9.8.7.6 hunter t\u00f6ken"
GOOD = '192.0.2.1 - - [10/Oct/2026:13:00:00 +0000] "GET / HTTP/1.1" 200 5\n'
UVICORN = 'INFO:     9.8.7.6:5000 - "GET /alice HTTP/1.1" 200 OK\n'


@pytest.mark.slow
@pytest.mark.parametrize("text", [GOOD + SECRET, SECRET, UVICORN], ids=["a line", "no line fits", "no time"])
@pytest.mark.parametrize("options", [(), ("--strict",)], ids=["", "strict"])
@pytest.mark.parametrize("command", ["replay", "suggest"])
def test_a_line_that_cannot_be_read_is_shown_by_its_shape(
    command: str, options: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    """On the terminal, as JSON, on the page, and in errors, if the clients are hidden."""
    path, page = tmp_path / "access.log", tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    only = ("--rule", "1/minute", "--html", str(page)) if command == "replay" else ()
    runs = [[command, str(path), *options, *only, *shown] for shown in ([], HIDDEN, [*HIDDEN, "--json"])]
    clear, *outputs = [CliRunner().invoke(sluicegate, words, env={"COLUMNS": "300"}).output for words in runs]
    outputs += [page.read_text(encoding="utf-8")] if page.exists() else []
    for output in outputs:
        assert not [word for word in ("alice", "example.com", "9.8.7.6", "hunter", "t\u00f6ken") if word in output]
    if text != UVICORN:
        assert "hunter" in clear
        assert all("9.9.9.9" in output for output in outputs)


def test_a_page_replaces_pages_only(tmp_path: Path) -> None:
    """Not the log itself, and no other file. What cannot be written is an error in one sentence."""
    path, page = tmp_path / "access.log", tmp_path / "page.html"
    path.write_text(GOOD)
    words = ["replay", str(path), "--rule", "1/minute", "--html"]
    done = CliRunner().invoke(sluicegate, [*words, str(path)])
    assert (done.exit_code, path.read_text()) == (2, GOOD)
    assert "it would be lost" in " ".join(done.output.split())
    assert [CliRunner().invoke(sluicegate, [*words, str(page)]).exit_code for _ in range(2)] == [0, 0]
    if Path("/dev/full").exists():
        done = CliRunner().invoke(sluicegate, [*words, "/dev/full"])
        assert (done.exit_code, "No space left" in done.output) == (2, True)


@pytest.mark.parametrize("before", ["\ufeff", "\0" * 5_000, "\0" * (9 << 20)], ids=["mark", "hole", "long hole"])
def test_what_stands_before_a_line_is_no_client(before: str, tmp_path: Path) -> None:
    """A mark of Windows in the middle, and the hole where a file was cut while its server went on writing."""
    path = tmp_path / "access.log"
    path.write_text(GOOD + before + GOOD, encoding="utf-8")
    found = replay(Log([path]), [from_rules(["1/minute by ip"])]).traffic
    assert (found.identities, found.requests) == (1, 2)
