"""`sluicegate whois`: the identity with a digest, by the server and by access logs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluicegate import Limiter
from sluicegate.cli.commands import sluicegate
from sluicegate.identity import Seal, digest, identity_text
from tests.servers import Server, ask

SECRET = "a secret of 24 letters.."
SETTINGS = """
[sluicegate]
store = "{url}"
prefix = "whois"
secret = "{secret}"
default_limits = ["10/day"]
deny = [["user", "mallory"]]
trusted_proxies = 1

[[sluicegate.rules]]
name = "login"
quota = "5/minute"
key = ["ip", "header:X-Api-Key"]
"""
LINE = '{peer} - {user} [23/Nov/2026:14:00:{second:02} +0000] "GET / HTTP/1.1" 200 12 "-" "-" "{forwarded}"\n'
FORMAT = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" '
FORMAT += '"$http_user_agent" "$http_x_forwarded_for"'


def name(*parts: object, secret: str = SECRET) -> str:
    return digest(Seal(secret).text(identity_text(parts)))


@pytest.fixture
def folder(valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The settings of an application, and a log of two files: alice, and somebody without a name, by a proxy."""
    (tmp_path / "limits.toml").write_text(SETTINGS.format(url=valkey.url, secret=SECRET), "utf-8")
    lines = [
        LINE.format(peer="10.0.0.1", user="alice" if second % 2 else "-", second=second, forwarded="203.0.113.7")
        for second in range(10)
    ]
    (tmp_path / "one.log").write_text("".join(lines), "utf-8")
    (tmp_path / "two.log.gz").write_bytes(gzip.compress("".join(lines).replace(":14:", ":15:").encode()))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    valkey.flush()


def run(*words: str) -> Result:
    given = ["whois", "--app", "limits.toml", *words]
    return CliRunner().invoke(sluicegate, given, env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("who", "words", "expected"),
    [
        (("user", "alice"), (), "user:alice: 10 requests from 2026-11-23 14:00 to 2026-11-23 15:00\n"),
        (("ip", "203.0.113.7"), (), "ip:203.0.113.7: 20 requests from 2026-11-23 14:00 to 2026-11-23 15:00\n"),
        (("user", "alice"), ("--since", "2026-11-23T15:00:03Z", "--until", "2026-11-23T15:00:06Z"), "2 requests"),
        (("ip", "10.0.0.1"), ("--trusted-proxies", "192.0.2.0/24"), "ip:10.0.0.1: 20 requests"),
        ((("ip", "203.0.113.7"), ("ip", "203.0.113.7")), (), "20 requests"),  # the header is not logged
    ],
)
def test_a_log_says_who_has_a_digest(
    folder: Path, who: tuple[object, ...], words: tuple[str, ...], expected: str
) -> None:
    done = run("--format", FORMAT, *words, "--", name(*who), "one.log", "two.log.gz")
    assert done.exit_code == 0, done.output
    assert expected in done.output
    others = {"alice", "203.0.113.7", "10.0.0.1"} - {str(part) for part in who}
    assert isinstance(who[0], tuple) or not [each for each in others if each in done.output]


def test_it_is_json_for_programs(folder: Path) -> None:
    done = run("--format", FORMAT, "--json", "--", name("user", "alice"), "one.log")
    found = {"digest": name("user", "alice"), "identity": "user:alice", "requests": 5}
    assert json.loads(done.stdout) == {**found, "first": 1795442401.0, "last": 1795442409.0}


@pytest.mark.parametrize("who", [name("user", "bob"), name("user", "alice", secret="another secret of 24")])
def test_nobody_is_named_whose_digest_is_another(folder: Path, who: str) -> None:
    done = run("--format", FORMAT, "--", who, "one.log")
    assert done.exit_code == 1
    assert "no request has this digest by user, ip + header:X-Api-Key, ip" in done.output
    assert "lacks field:header:x-api-key" in done.output
    assert not [each for each in ("alice", "203.0.113", "10.0.0") if each in done.output]


def test_a_key_that_no_log_has_is_named(folder: Path) -> None:
    text = """
from sluicegate import Settings
def payer(request): ...
rules = [dict(name="export", quota="2/hour", key=payer), dict(name="room", quota="3/hour", key="path:room")]
app = Settings(store="redis://127.0.0.1:1", rules=rules)
"""
    (folder / "payers.py").write_text(text, "utf-8")
    done = run("--app", "payers.py:app", "--format", FORMAT, "--", name("bob"), "one.log")
    assert done.exit_code == 1
    says = "by user, ip; no log has a function or a value of the path (payers.payer, path:room)"
    assert says in done.output
    assert "the digest that sluicegate show prints of an identity, such as text:bob" in done.output


def test_a_word_that_is_no_digest_is_an_error(folder: Path) -> None:
    assert "it has 22 letters" in run("short", "one.log").output


def test_without_a_log_it_shows_what_the_server_has(folder: Path, valkey: Server) -> None:
    ask(valkey, "FLUSHALL")
    settings = {"prefix": "whois", "secret": SECRET, "deadline": 5}
    with Limiter(valkey.url, **settings) as limiter:  # type: ignore[arg-type]
        limiter.hit("10/day", ("user", "alice"), action="default", cost=4)
        made = limiter.overrides.set("login", "9/minute", identities=[("user", "alice")], why="a big import")
        limiter.overrides.set("login", action="off", identities=[("user", "bob")])
        limiter.overrides.set("*", action="deny", identities=[("user", "alice")], until=0.000001)
    shown = run("--", name("user", "alice")).output
    assert "4 of 10" in shown
    assert f"Override {made.id}: under the rule login holds 9/minute. a big import" in shown
    assert "deny" not in shown
    assert "on the list 'deny'" in run("--", name("user", "mallory")).output
    (found,) = json.loads(run("--json", "--", name("user", "alice")).stdout)["limiters"]
    assert [each["id"] for each in found["overrides"]] == [made.id]
