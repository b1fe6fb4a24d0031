"""The incidents of docs/runbook.md. Each test runs the commands of its section, as the page has them, against a real
application on a real server. It compares what they print with the page, and sees what they did and that it is undone.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from docs.pages import DOCS, FENCE
from sluicegate import Settings, SluicegateWarning, wsgi
from sluicegate.cli.commands import sluicegate
from tests.adapters.wsgi_client import WsgiClient
from tests.running import ask as get
from tests.running import running
from tests.sentinels import Sentinels
from tests.servers import Server, ask, free_port, valkey_server, wait_until

PAGE: Final = (DOCS / "runbook.md").read_text("utf-8")
SECTIONS: Final = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SHOWN: Final = "redis://localhost:6379/0"  # the store in the page's settings
CUSTOMER, SCRAPER, OTHER = "203.0.113.7", "198.51.100.9", "192.0.2.1"
OPENED, CLOSED = "circuit open: store unavailable", ": circuit closed"
# What is different on each machine, and what the page has instead in each comparison.
VARYING: Final = (
    (r"\d{4}-\d\d-\d\dT[\d:]+Z", "MOMENT"),
    (r"\b\d+ (?:d|h|min|s)\b(?: \d+ (?:h|min|s)\b)?", "SPAN"),
    (r"[\d.]+ of [\d.]+ MB|[\d.]+ MB|[\d.]+ ms", "SIZE"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"valkey [\d.]+|user_script:\d+", "VERSION"),
    (r"\b[\w.-]+@[\w.-]+", "AUTHOR"),
    (r"\b[\w.-]+:\d+$", "PROCESS"),
    (r"redis\S*://\S+", "STORE"),
)
ID: Final = r"\b[0-9a-f]{8}\b"


def app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done"]


class Shop:
    """The application of the page's settings, with the URL of a real store."""

    def __init__(self, limits: Path, url: str, *, change: tuple[str, str] = ("", "")) -> None:
        self.limits, self.url = limits, url
        (settings,) = [match["text"] for match in FENCE.finditer(PAGE) if match["language"] == "toml"]
        settings = settings.replace("[sluicegate]\n", "[sluicegate]\ndeadline = 2.0\n", 1)  # the machine may be busy
        limits.write_text(settings.replace(SHOWN, url).replace(*change, 1), "utf-8")
        self.start()

    def start(self) -> None:
        self._limited = wsgi.RateLimitMiddleware(app, settings=Settings.from_toml(self.limits))
        self._client = WsgiClient(self._limited)

    def close(self) -> None:
        self._limited.close()

    def posts(self, path: str, times: int = 1, *, peer: str = CUSTOMER, client: str | None = None) -> list[int]:
        """Return the statuses of some requests. `client` is what a proxy writes."""
        headers = [] if client is None else [("X-Forwarded-For", client)]
        return [self._client.request("POST", path, peer=peer, headers=headers).status for _ in range(times)]

    def forgets_a_refusal(self, path: str) -> None:
        wait_until("the process forgets the refusal", lambda: self.posts(path) == [200])

    @property
    def held(self) -> set[str]:
        """The overrides that the application follows, after a request of somebody else."""
        self.posts("/", peer=OTHER)
        following = self._limited.gate.following
        return set() if following is None else {each.id for each in following.held}


class Story:
    """The commands of a section, each run once and in the page's order, by an operator who answers as the page says."""

    def __init__(self, title: str, limits: Path) -> None:
        self._limits, self._ids = limits, dict[str, str]()  # of the page → of this run
        text = "\n".join(
            textwrap.dedent(match["text"]) for match in FENCE.finditer(SECTIONS[title]) if match["language"] == "text"
        )
        self._steps = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n?)*)", text, re.MULTILINE)

    def next(self, run: Callable[[list[str]], object] | None = None) -> str:
        """Run the next command, and compare its output with the page. Return the command."""
        command, shown = self._steps.pop(0)
        for ours, theirs in self._ids.items():
            command = command.replace(ours, theirs)
        words = shlex.split(command)
        said = str(run(words[1:])) if run is not None else self.operate(*words[1:], answer=shown)
        self._ids.update(zip(re.findall(ID, shown), re.findall(ID, said), strict=False))
        assert re.fullmatch(_pattern(shown), _plain(said)), f"$ {command}\n{said}"
        return command

    def operate(self, *words: str, answer: str = "") -> str:
        (answered,) = re.findall(r"\[y/N\]: (\w)", answer) or ["y"]
        env = {"SLUICEGATE_APP": str(self._limits), "COLUMNS": "100"}
        return CliRunner().invoke(sluicegate, words, input=f"{answered}\n", env=env, catch_exceptions=False).output

    def followed(self, shop: Shop) -> None:
        """Wait until the application follows what holds on the server."""
        wanted = {each["id"] for each in json.loads(self.operate("override", "list", "--json"))["overrides"]}
        wait_until("the application follows", lambda: shop.held == wanted)

    def done(self) -> None:
        assert self._steps == [], "the page has more commands"


def _plain(text: str) -> str:
    """Return the words of an output, without what is different on each machine."""
    lines = [line.strip() for line in text.splitlines()]
    for pattern, word in VARYING:
        lines = [re.sub(pattern, word, line) for line in lines]
    return " ".join(re.sub(ID, "ID", " ".join(lines)).split())


def _pattern(shown: str) -> str:
    """Return what an output matches. A line with only … stands for any."""
    parts = re.split(r"^…\n", shown, flags=re.MULTILINE)
    return ".*".join([re.escape(_plain(part)) for part in parts])


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that keeps its data when it is killed."""
    with valkey_server("--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "100mb") as started:
        yield started


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOGNAME", "ann")  # the width of a table is that of the page
    monkeypatch.setattr("sluicegate.cli.overrides.gethostname", lambda: "office")
    return tmp_path / "limits.toml"


@pytest.fixture
def shop(server: Server, limits: Path) -> Iterator[Shop]:
    with closing(Shop(limits, server.url)) as made:
        made.posts("/", peer=OTHER)
        yield made


def test_a_customer_is_blocked(shop: Shop) -> None:
    story = Story("A customer is blocked", shop.limits)
    assert shop.posts("/login", 30) == [200] * 5 + [429] * 25
    story.next()
    story.next()
    story.next()
    shop.forgets_a_refusal("/login")
    story.operate("ban", f"ip:{CUSTOMER}", "--for", "1h")
    assert shop.posts("/login") == [429]
    story.done()


def test_a_limit_was_too_low(shop: Shop) -> None:
    story = Story("A limit was too low", shop.limits)
    assert shop.posts("/export", 3) == [200, 200, 429]
    story.next()
    story.followed(shop)
    assert shop.posts("/export", 9) == [200] * 8 + [429]
    assert shop.posts("/export", 3, peer=SCRAPER) == [200, 200, 429]
    story.next()
    assert "not 10/hour" in story.operate("history")
    story.followed(shop)
    assert shop.posts("/export") == [429]
    story.done()


def test_a_scraper(shop: Shop) -> None:
    story = Story("A scraper", shop.limits)
    neighbour = "198.51.100.10"
    assert shop.posts("/search", 21, peer=SCRAPER) == [200] * 20 + [429]
    story.next()
    story.next()
    story.next()
    story.followed(shop)
    assert shop.posts("/", peer=SCRAPER) == [403]
    assert shop.posts("/search", 3, peer=neighbour) == [200] * 3
    story.next()
    story.followed(shop)
    assert shop.posts("/search", peer=neighbour) == [429]
    assert shop.posts("/search", 3) == [200] * 3
    story.next()
    story.next()
    story.followed(shop)
    assert shop.posts("/", peer=SCRAPER) == shop.posts("/search", peer=neighbour) == [200]
    story.done()


def test_a_login_attack(shop: Shop) -> None:
    story = Story("A login attack", shop.limits)
    attackers = [f"198.51.100.{number}" for number in range(1, 5)]
    assert [shop.posts("/login", 2, peer=each) for each in attackers] == [[200, 200]] * 4
    story.next()
    story.followed(shop)
    assert [shop.posts("/login", 3, peer=each) for each in attackers] == [[429] * 3] * 4
    assert shop.posts("/login") == [200]
    shop.posts("/login", 7, peer=attackers[0])
    story.next()
    story.next()
    story.followed(shop)
    assert shop.posts("/login", peer=attackers[0]) == [429], "still banned"
    assert shop.posts("/login", peer=attackers[1]) == [200]
    story.next()
    wait_until("the ban has ended", lambda: shop.posts("/login", peer=attackers[0]) == [200])
    story.done()


def test_redis_is_down(shop: Shop, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sluicegate")
    story = Story("Redis is down", shop.limits)
    story.operate("override", "export", "3/hour", "--yes")
    story.followed(shop)
    assert shop.posts("/export", 2) == [200, 200]
    server.kill()
    assert shop.posts("/export", 2) == [200, 429], "the override holds, and so does what was used"
    assert OPENED in "".join(caplog.messages)
    assert OPENED in SECTIONS["Redis is down"]
    story.next()
    assert "run sluicegate doctor" in story.operate("override", "list")
    server.start()
    wait_until("the circuit closes", lambda: shop.posts("/", peer=OTHER) and CLOSED in "".join(caplog.messages))
    assert "3/hour" in story.operate("override", "list")
    story.followed(shop)
    story.done()


def test_redis_is_full(shop: Shop, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sluicegate")
    story = Story("Redis is full", shop.limits)
    command: Callable[[list[str]], object] = lambda words: ask(server, *words)  # noqa: E731
    shop.posts("/search", 4)
    ask(server, "CONFIG", "SET", "maxmemory", "1mb")
    assert shop.posts("/export", 3) == [200, 200, 429], "the process counts for itself"
    assert OPENED in "".join(caplog.messages)
    assert "OOM command not allowed" in "".join(caplog.messages)
    story.next()
    assert "OOM" in story.operate("override", "export", "3/hour", "--yes")
    story.next(command)
    wait_until("the circuit closes", lambda: shop.posts("/", peer=OTHER) and CLOSED in "".join(caplog.messages))
    story.operate("reset", "--rule", "search", "--everyone")
    assert "Nothing is used" not in story.operate("show", f"ip:{CUSTOMER}")
    ask(server, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    shop.close()
    shop.start()
    with pytest.warns(SluicegateWarning, match="SG109") as warned:
        wait_until("the store decides", lambda: shop.posts("/", peer=OTHER) and len(warned))
    assert "allkeys-lru: a full server forgets" in " ".join(story.operate("doctor").split())
    story.next(command)
    assert "allkeys" not in story.operate("doctor")
    story.done()


@pytest.mark.slow
def test_redis_fails_over(limits: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sluicegate")
    story = Story("Redis fails over", limits)
    with Sentinels() as sentinels, closing(Shop(limits, sentinels.url)) as shop:
        shop.posts("/", peer=OTHER)
        story.operate("override", "export", "3/hour", "--yes")
        story.followed(shop)
        old = sentinels.master()
        old.kill()
        assert shop.posts("/export", 4) == [200, 200, 200, 429], "the process counts for itself, as the override says"
        assert OPENED in "".join(caplog.messages)
        wait_until("recovered", lambda: shop.posts("/", peer=OTHER) and CLOSED in "".join(caplog.messages))
        sentinels.revive()
        assert "a master with 1 replica" in story.operate("doctor")
        story.followed(shop)
        said: dict[str, str] = {}

        def fail_over(words: list[str]) -> str:  # the Sentinel may not know yet that the replica can be promoted
            wait_until("a failover", lambda: said.setdefault("reply", ask(sentinels.sentinels[0], *words[2:])))
            return said["reply"]

        story.next(fail_over)
        wait_until("the old master is in charge again", lambda: sentinels.master() is old)
        wait_until("the store decides", lambda: shop.posts("/", peer=OTHER) == [200])
        story.done()


@pytest.mark.slow
def test_one_worker_behaves_differently(server: Server, limits: Path, tmp_path: Path) -> None:
    story = Story("One worker behaves differently", limits)
    behind = 'key = "ip"', 'key = "ip"\ntrusted_proxies = 1\nheaders = "x-ratelimit"'
    Shop(limits, server.url, change=behind).close()
    other = tmp_path / "other.toml"
    other.write_text(limits.read_text("utf-8").replace("[sluicegate]", '[sluicegate]\nprefix = "old"'), "utf-8")
    ports = free_port(), free_port()

    def worker(port: int, settings: Path) -> Any:
        words = f"-m gunicorn --workers 1 --bind 127.0.0.1:{port} tests.runbook_app:app"
        return running(words.split(), port, env={"LIMITS": str(settings)})

    def limit(port: int) -> str:
        return str(get(port, "POST", "/export", {"X-Forwarded-For": CUSTOMER}).headers["X-RateLimit-Limit"])

    with ExitStack() as workers:
        workers.enter_context(worker(ports[0], limits))
        with worker(ports[1], other):
            story.operate("override", "export", "10/hour", "--identity", f"ip:{CUSTOMER}", "--yes")
            wait_until("one worker follows", lambda: limit(ports[0]) == "10")
            before = limit(ports[1])
            story.next()
        workers.enter_context(worker(ports[1], limits))
        assert (before, limit(ports[1])) == ("2", "10")
        preview = "off", "export"
        wait_until("both are listed", lambda: "2 processes" in story.operate(*preview, answer="[y/N]: n"))
    assert len(json.loads(story.operate("history", "--json"))["history"]) == 1
    story.done()


def test_a_rule_must_go_to_shadow_now(shop: Shop) -> None:
    story = Story("A rule must go to shadow now", shop.limits)
    assert shop.posts("/export", 3) == [200, 200, 429]
    story.next()
    story.followed(shop)
    assert shop.posts("/export", 9) == [200] * 9
    story.next()
    story.next()
    story.followed(shop)
    assert shop.posts("/export") == [429]
    story.done()


def test_everybody_comes_from_one_address(shop: Shop) -> None:
    title = "Everybody comes from one address"
    story = Story(title, shop.limits)
    balancer, clients = "10.0.0.7", [f"203.0.113.{number}" for number in range(3)]
    with pytest.warns(SluicegateWarning, match="SG102|SG117") as warned:
        assert shop.posts("/", 1001, peer=balancer, client=clients[0])[-1] == 429
    assert "trusted_proxies" in str([each.message for each in warned if "SG117" in str(each.message)])
    story.next()
    story.next()
    story.followed(shop)
    assert [shop.posts("/", peer=balancer, client=each) for each in clients] == [[200]] * 3
    (setting,) = re.findall(r"`(trusted_proxies = .*?)`", SECTIONS[title])
    shop.limits.write_text(shop.limits.read_text("utf-8").replace("[sluicegate]", f"[sluicegate]\n{setting}"), "utf-8")
    shop.close()
    shop.start()
    story.next()
    story.followed(shop)
    assert [shop.posts("/", 2, peer=balancer, client=each) for each in clients] == [[200, 200]] * 3
    story.done()


def test_every_incident_has_its_test_and_its_parts() -> None:
    assert len(SECTIONS) == 10
    for title, text in SECTIONS.items():
        assert f"test_{title.lower().replace(' ', '_')}" in globals()
        parts = re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE)
        assert parts == ["Symptom", "Meaning", "Undo"]
