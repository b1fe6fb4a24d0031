"""What the commands print where a terminal is narrow, knows only ASCII, cannot move its cursor, or goes away."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, start_http_server
from rich.console import Console

from sluicegate import Limiter
from sluicegate.cli.commands import COMMANDS, sluicegate
from sluicegate.cli.output import Listing
from sluicegate.identity import digest, identity_text
from sluicegate.observe.prometheus import PrometheusMetrics
from sluicegate.stores.redis import RedisStore
from tests.servers import Server

SETTINGS = """
[sluicegate]
store = "{url}"
prefix = "terminals"
default_limits = ["1000/day"]

[[sluicegate.rules]]
name = "login"
quota = "5/minute; 20/hour"
key = ["user", "header:X-Api-Key"]
path = "/café/login"
ban = {{ after = 10, within = "10 minutes", duration = "1 hour", name = "guessing" }}

[[sluicegate.rules]]
name = "export"
quota = "2 at once"
mode = "shadow"
"""
WHO = "user:zoë"
APP = "--app limits.toml"
RUNS = [
    "check limits.toml",
    "check limits.toml --routes",
    f"show {WHO} {APP}",
    f"top {APP}",
    f"ban user:zoë header:X-Api-Key=key --yes {APP}",
    f"bans {APP}",
    f"unban user:zoë header:X-Api-Key=key --yes {APP}",
    f"reset {WHO} --yes {APP}",
    f"override login 9/minute --for 2h --yes {APP}",
    f"shadow export --yes {APP}",
    f"enforce export --yes {APP}",
    f"off default --yes {APP}",
    f"deny add user:zoë --yes {APP}",
    f"allow add user:test-* --rule export --yes {APP}",
    f"override list {APP}",
    f"history {APP}",
    "rules check rules.toml",
    f"rules diff rules.toml {APP}",
    "observability export dashboards",
    "dashboard --help",
    f"whois {digest(identity_text(('user', 'zoë')))} {APP}",
    "doctor {url}",
    "watch --once --every 0.1 {metrics}",
    "demo --once",
    "--help",
]


@pytest.fixture
def folder(valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with settings, and budgets that an identity has used."""
    (tmp_path / "limits.toml").write_text(SETTINGS.format(url=valkey.url), "utf-8")
    (tmp_path / "rules.toml").write_text('[[rules]]\nname = "login"\nquota = "9/minute"\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    with Limiter(RedisStore.from_url(valkey.url, prefix="terminals", deadline=5)) as limiter:
        limiter.hit("1000/day", ("user", "zoë"), action="default", cost=940)
        limiter.hit("9/day", ("user", "zoë"), action="café")
    yield tmp_path
    valkey.flush()


@pytest.fixture(scope="module")
def metrics() -> Iterator[str]:
    registry = CollectorRegistry()
    with Limiter(on_decision=PrometheusMetrics(registry=registry)) as limiter:
        limiter.hit("5/minute", "alice", action="reply")
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


def test_every_command_is_run_here() -> None:
    """Those about files have tests of their own."""
    assert {words.split()[0] for words in RUNS} == {*COMMANDS, "--help"} - {"replay", "suggest", "migrate"}


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("charset", ["utf-8", "ascii"])
def test_all_is_readable(charset: str, columns: int, folder: Path, valkey: Server, metrics: str) -> None:
    """No line is longer than the terminal, nothing is cut off, and what the encoding lacks is replaced."""
    outputs = {}
    for words in RUNS:
        given = words.format(url=valkey.url, metrics=metrics).split()
        env = {"COLUMNS": str(columns), "TERM": "xterm"}
        done = CliRunner(charset=charset).invoke(sluicegate, given, env=env)
        assert done.exit_code == 0, done.output
        if charset == "utf-8" and words not in (
            "--help",
            "dashboard --help",
            "demo --once",
        ):  # click's, and lines to copy
            assert max(map(len, done.output.splitlines())) <= columns, words
        outputs[words.split()[0]] = done.output
    for name in ("check", "show", "top", "doctor", "bans", "watch"):
        assert "…" not in outputs[name]
    checked = " ".join(outputs["check"].split())
    path = "/café/login" if charset == "utf-8" else r"/caf\xe9/login"
    for fact in ("1000/day", "5/minute; 20/hour", "user + header:X-Api-Key", "sliding-window", "never refuses", path):
        assert fact in checked or columns == 80  # there a table folds
    assert (WHO if charset == "utf-8" else r"user:zo\xeb") in outputs["show"]
    assert "940 of 1000" in outputs["show"]
    assert ("█" if charset == "utf-8" else "#") * 9 in outputs["top"]
    assert ("✓" if charset == "utf-8" else "+") + "  topology" in outputs["doctor"]
    assert len(re.findall(r"(?<=\s)[\w-]{22}(?=\s)", outputs["bans"])) == 1  # a digest is in one line, to be copied


def test_a_narrow_terminal_has_a_block_for_each_endpoint(folder: Path) -> None:
    shown = CliRunner().invoke(sluicegate, ["check", "limits.toml", "--routes"], env={"COLUMNS": "40"}).output
    assert re.sub(r" +$", "", shown, flags=re.MULTILINE).partition("any request\n")[2] == BLOCKS


BLOCKS = """\
  Rule       default
  Quota      1000/day
  Key        user
  Algorithm  sliding-window
  If down    local

  Rule       login
  Quota      5/minute; 20/hour
  Key        user + header:X-Api-Key
  Algorithm  sliding-window
  If down    local
  Options    path: /café/login, ban:
             guessing, after 10 refusals
             in 10 minutes

  Rule       export
  Quota      2 at once
  Key        user
  Algorithm  slots
  If down    local
  Options    shadow: never refuses
"""


def test_no_color(folder: Path) -> None:
    env = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    for given, colors in ((None, True), ("1", False)):
        for words in (f"show {WHO} {APP}", f"top --once {APP}"):
            found = CliRunner().invoke(sluicegate, words.split(), env={**env, "NO_COLOR": given}).output
            assert (re.search(r"\x1b\[[\d;]*3[0-7]", found) is not None) is colors


def process(words: str, terminal: str = "xterm", **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sluicegate", *words.split()]
    env = {**os.environ, "TERM": terminal}
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "words", ["check limits.toml", "check limits.toml --json", f"top {APP}", f"show {WHO} {APP}", "top --help"]
)
def test_a_reader_that_goes_away(words: str, folder: Path) -> None:
    """`sluicegate top | head -1`: it ends, without a traceback."""
    read, write = os.pipe()
    os.close(read)
    with process(words, stdout=write) as started:
        os.close(write)
        _, errors = started.communicate(timeout=60)
    assert (started.returncode in (0, 1), errors) == (True, b"")


def test_no_output_at_all(folder: Path) -> None:
    """Started without a stdout, as some supervisors do."""
    command = f"{sys.executable} -m sluicegate top {APP} >&-"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=60, check=False)
    assert b"Traceback" not in done.stderr


def lines_until(terminal: int, mark: bytes) -> bytes:
    """Read from a terminal until a text was printed, or until all programs have left it."""
    found = b""
    with suppress(OSError):  # of Linux, when the last program has closed it
        while mark not in found and select.select([terminal], [], [], 60)[0] and (read := os.read(terminal, 4096)):
            found += read
    return found


@pytest.mark.parametrize("words", [f"top {APP}", "watch --every 0.1 {metrics}"])
@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_sigterm_gives_the_terminal_back(kind: str, words: str, folder: Path, metrics: str) -> None:
    """A terminal that cannot move its cursor gets lines: `top` looks once there."""
    ours, theirs = pty.openpty()
    mark = b"Used" if words.startswith("top") else b"Allowed"
    with process(words.format(metrics=metrics), kind, stdout=theirs, stdin=theirs) as started:
        os.close(theirs)
        try:
            found = lines_until(ours, mark)
            started.send_signal(signal.SIGTERM)
            found += lines_until(ours, b"nothing more")
            _, errors = started.communicate(timeout=60)
        finally:
            started.kill()
    os.close(ours)
    assert mark in found, found
    assert errors == b""
    if kind == "dumb":
        assert b"\x1b" not in found
        assert started.returncode in ({0, -signal.SIGTERM, 143} if words.startswith("top") else {143})
    else:
        assert started.returncode == 143
        assert found.rindex(b"\x1b[?25h") > found.rindex(b"\x1b[?25l")  # the cursor
        if words.startswith("top"):
            assert found.rindex(b"\x1b[?1049l") > found.rindex(b"\x1b[?1049h")  # the screen


@pytest.mark.parametrize("width", range(12, 40))
def test_nothing_is_cut_off_at_any_width(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    listing = Listing([("aaaa bbbbbb cccc", "scope: anon of shop")], "A", "B")
    Console(width=width).print(listing)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert all(word in shown for word in ("aaaa", "bbbbbb", "cccc", "scope:", "anon", "of", "shop"))
