"""`sluicegate dashboard`: the page alone."""

from __future__ import annotations

from pathlib import Path

from sluicegate import Limiter
from sluicegate.dashboard import Dashboard
from sluicegate.errors import MissingExtraError
from tests.environments import Environments
from tests.running import ask, running
from tests.servers import Server, free_port
from tests.servers import ask as command


def test_it_serves_this_machine_only_and_shows_other_processes(valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    dashboard = Dashboard(valkey.url, insecure=True)
    with Limiter(valkey.url, deadline=2, on_decision=dashboard.note) as limiter:
        for _ in range(3):
            limiter.hit("1/minute", "alice", action="reply")
        dashboard.note.send()
    dashboard.close()
    port = free_port()
    words = ["-m", "sluicegate", "dashboard", "--store", valkey.url, "--port", str(port)]
    with running(words, port):
        page = ask(port, "GET", "/")
        assert page.status == 200
        assert b'<td class="n refusals">2</td>' in page.body
        assert b'action="override"' not in page.body
        assert ask(port, "GET", "/", {"Host": "evil.example"}).status == 403
        assert ask(port, "GET", "/", {"X-Forwarded-For": "203.0.113.7"}).status == 403
        assert ask(port, "POST", "/undo").status == 403


def test_it_names_its_extra(environments: Environments, tmp_path: Path) -> None:
    words = ("-m", "sluicegate", "dashboard", "--store", "memory://")
    ran = environments.run(environments.path("cli"), *words, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, f"sluicegate: {MissingExtraError('dashboard', 'jinja2')}\n")
