"""`sluicegate dashboard`: the page alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sluicegate import Limiter
from sluicegate.cli.commands import sluicegate
from sluicegate.dashboard import Dashboard
from sluicegate.errors import MissingExtraError
from sluicegate.identity import Seal, digest, identity_text
from tests.environments import Environments
from tests.running import ask, running
from tests.servers import Server, free_port
from tests.servers import ask as command

SECRET = "a secret of 24 letters.."


def test_it_serves_this_machine_only_and_shows_other_processes(valkey: Server, tmp_path: Path) -> None:
    command(valkey, "FLUSHALL")
    limits = tmp_path / "limits.toml"
    limits.write_text(f'[sluicegate]\nstore = "{valkey.url}"\nprefix = "shop"\nsecret = "{SECRET}"\n', "utf-8")
    given: dict[str, Any] = {"prefix": "shop", "secret": SECRET}
    dashboard = Dashboard(valkey.url, insecure=True, **given)
    with Limiter(valkey.url, deadline=2, on_decision=dashboard.note, **given) as limiter:
        for _ in range(3):
            limiter.hit("1/minute", "alice", action="reply")
        dashboard.note.send()
    dashboard.close()
    port = free_port()
    words = ["-m", "sluicegate", "dashboard", "--app", str(limits), "--port", str(port)]
    with running(words, port):
        page = ask(port, "GET", "/")
        assert page.status == 200
        assert b'<td class="n refusals">2</td>' in page.body
        assert b'action="override"' not in page.body
        assert ask(port, "GET", "/", {"Host": "evil.example"}).status == 403
        assert ask(port, "GET", "/", {"X-Forwarded-For": "203.0.113.7"}).status == 403
        assert ask(port, "POST", "/undo").status == 403
        form = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/x-www-form-urlencoded"}
        found = ask(port, "POST", "/identity", form, "identity=text:alice")
        assert found.headers["location"] == f"identity?who={digest(Seal(SECRET).text(identity_text('alice')))}"


WRONG = {  # the words of a command, and what it says before it listens
    "": "no application; give --app module:app",
    "--app memory.toml": "keeps its budgets in its own memory",
    "--app two.py": "use several stores; give the TOML file of one",
    "--app none.toml": "none.toml",
}


@pytest.mark.parametrize("words", WRONG)
def test_it_finds_its_application_as_the_other_commands_do(
    words: str, valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("memory.toml").write_text('[sluicegate]\nstore = "memory://"\n', "utf-8")
    Path("two.py").write_text(TWO.format(url=valkey.url), "utf-8")
    done = CliRunner().invoke(sluicegate, ["dashboard", *words.split()])
    assert (done.exit_code, WRONG[words] in done.output) == (2, True), done.output


TWO = """
from flask import Flask
from sluicegate.flask import RateLimiter

app = Flask("shop")
for prefix in ("one", "two"):
    RateLimiter(app, store="{url}", prefix=prefix)
"""


def test_it_names_its_extra(environments: Environments, tmp_path: Path) -> None:
    words = ("-m", "sluicegate", "dashboard", "--app", "shop:app")
    ran = environments.run(environments.path("cli"), *words, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, f"sluicegate: {MissingExtraError('dashboard', 'jinja2')}\n")
