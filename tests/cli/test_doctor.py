"""`sluicegate doctor` on real servers: a healthy one, and each kind of a sick one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from click.testing import CliRunner, Result

from docs import monitoring
from sluicegate import Limiter
from sluicegate.cli.commands import sluicegate
from tests.cluster import Cluster
from tests.sentinels import Sentinels
from tests.servers import HOST, Server, ask, free_port, valkey_server, wait_until

ROOT = Path(__file__).parent.parent.parent
ALL = {"server", "round trip", "scripts", "topology", "memory", "persistence", "clock", "permissions"}
MEMORY = ("--maxmemory", "100mb")


def doctor(*words: str) -> Result:
    return CliRunner().invoke(sluicegate, ["doctor", *words], env={"COLUMNS": "80"})


def report(*words: str) -> tuple[int, list[Any]]:
    """The exit status, and what was found on each server."""
    found = doctor(*words, "--json")
    assert found.exit_code in (0, 1), found.output
    answer = json.loads(found.stdout)
    assert answer["good"] is (found.exit_code == 0)
    assert "secret" not in found.output
    return found.exit_code, answer["stores"][0]["servers"]


def bad(server: Any) -> dict[str, str]:
    """What is wrong with a server, with the advice."""
    return {
        each["about"]: f"{each['says']} → {each['advice']}" for each in server["findings"] if each["state"] == "bad"
    }


def test_a_healthy_server() -> None:
    with valkey_server(*MEMORY) as server:
        with Limiter(server.url, deadline=10) as limiter:
            for number in range(250):
                limiter.hit("5/minute; 100/day", number, action="reply")
        keys = ask(server, "DBSIZE")
        status, [found] = report(server.url)
        assert (status, bad(found)) == (0, {})
        assert {each["about"] for each in found["findings"]} == ALL
        assert ask(server, "DBSIZE") == keys  # it leaves nothing


def test_what_is_printed(valkey: Server) -> None:
    found = doctor(valkey.url)
    assert re.search(
        "!  memory .* without a maxmemory", found.stdout
    )  # a default server: a warning, which is not wrong
    assert "→ set maxmemory" in found.stdout
    assert "!  persistence  no append-only file" in found.stdout
    assert "→ CONFIG SET appendonly yes" in found.stdout
    assert found.stdout.endswith("nothing wrong\n")
    assert found.exit_code == 0
    assert max(map(len, found.stdout.splitlines())) <= 80


def test_the_advice_for_a_server_that_sluicegate_starts_is_one_that_can_be_followed() -> None:
    """Nobody configures it, and it never writes to disk."""
    _, [found] = report(f"embedded://doctor-{token_hex(4)}?linger=0")
    assert "CONFIG" not in " ".join([each["advice"] for each in found["findings"]])
    assert [each["advice"] for each in found["findings"] if each["state"] != "good"] == [
        "embedded:// never writes one: use redis://, if budgets and bans are to outlive a restart"
    ]


def test_the_page_shows_what_is_printed() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\$ .*sluicegate doctor redis.*\n((?:.*\n)*?)```$", page, re.MULTILINE)
    with valkey_server(*MEMORY, "--appendonly", "yes") as server:
        with Limiter(server.url) as limiter:
            for number in range(50):
                limiter.hit("5/minute; 100/day", number, action="reply")
        server.command("CONFIG SET maxmemory-policy allkeys-lru")
        printed = doctor(server.url).stdout.replace(f"{HOST}:{server.port}", "localhost:6379")
    assert words(printed) == words(shown)
    assert max(map(len, shown.splitlines())) <= 80


def test_the_pictures_show_the_page() -> None:
    """`python -m docs.monitoring` draws them again."""
    assert monitoring.pictures() == {path: path.read_text("utf-8") for path in monitoring.pictures()}


def words(text: str) -> list[str]:
    """The words in alphabetical order, without figures: these differ, and the lines break elsewhere."""
    return sorted(re.sub(r"[\d,.]+", "1", text).split())


def test_the_server_of_an_application(valkey: Server, tmp_path: Path) -> None:
    settings = tmp_path / "limits.toml"
    settings.write_text(f'[sluicegate]\nstore = "{valkey.url}"\nprefix = "shop"\ndefault_limits = ["5/minute"]\n')
    assert f"{valkey.url} (single, prefix shop)" in doctor("--app", str(settings)).stdout
    settings.write_text('[sluicegate]\ndefault_limits = ["5/minute"]\n')
    assert doctor("--app", str(settings)).exit_code == 0  # in memory


@pytest.mark.parametrize(
    ("flags", "about", "says"),
    [
        ((*MEMORY, "--maxmemory-policy", "allkeys-lru"), "memory", "noeviction"),
        (
            (*MEMORY, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"),
            "topology",
            "redis+cluster://",
        ),
        (("--maxmemory", "1"), "scripts", "maxmemory"),
        ((*MEMORY, "--min-replicas-to-write", "1"), "scripts", "min-replicas-to-write"),
    ],
)
def test_a_sick_server(flags: tuple[str, ...], about: str, says: str) -> None:
    with valkey_server(*flags) as server:
        status, [found] = report(server.url)
        assert status == 1
        assert says in bad(found)[about]


def test_a_replica(valkey: Server) -> None:
    with valkey_server(*MEMORY, "--replicaof", f"{HOST} {valkey.port}") as replica:
        wait_until("the replica is in step", lambda: "master_link_status:up" in replica.command("INFO replication"))
        status, [found] = report(replica.url)
        assert status == 1
        assert set(bad(found)) == {"scripts", "topology"}
        assert "redis+sentinel://" in bad(found)["topology"]


@pytest.mark.parametrize(
    ("rights", "wrong", "unknown"),
    [
        ("+@all", set[str](), set[str]()),
        ("+@all -evalsha", {"scripts", "permissions"}, set[str]()),
        ("+@all -rpush", {"scripts", "permissions"}, set[str]()),
        ("+@all -time", {"scripts", "clock", "permissions"}, set[str]()),
        ("+@all -scan", set[str](), {"permissions"}),
        ("+@all -info -ping", set[str](), {"server", "topology", "memory", "persistence"}),
    ],
)
def test_a_user(rights: str, wrong: set[str], unknown: set[str]) -> None:
    with valkey_server(*MEMORY) as server:
        server.command(f"ACL SETUSER doctor on >secret ~sg:* {rights}")
        _, [found] = report(f"redis://doctor:secret@{HOST}:{server.port}/0")
        assert set(bad(found)) == wrong
        assert {each["about"] for each in found["findings"] if each["state"] == "unknown"} == unknown
        assert all("Permissions" in text for text in bad(found).values())


def test_no_server_answers() -> None:
    status, [found] = report(f"redis://{HOST}:{free_port()}/0")
    assert (status, set(bad(found))) == (1, {"connection"})
    with valkey_server() as server:
        server.pause()
        status, [found] = report(server.url)
        assert (status, set(bad(found))) == (1, {"connection"})
        assert "answers PING" in bad(found)["connection"]
        server.resume()
        wrong = f"redis://:secret@{HOST}:{server.port}/0"
        assert "password" in bad(report(wrong)[1][0])["connection"]
        _, [far] = report(f"redis://{HOST}:{server.port}/99")
        assert "give a database in the URL" in bad(far)["connection"]


def test_a_cluster(cluster: Cluster) -> None:
    status, servers = report(cluster.url)
    assert {each["address"] for each in servers} == {f"{HOST}:{node.port}" for node in cluster.masters}
    assert status == 1
    assert all(set(bad(each)) == {"topology"} for each in servers)  # no replicas


def test_sentinels(sentinels: Sentinels) -> None:
    status, [found] = report(sentinels.url)
    assert found["address"] in [sentinels.name_of(server) for server in sentinels.servers]
    assert (status, bad(found)) == (0, {})
