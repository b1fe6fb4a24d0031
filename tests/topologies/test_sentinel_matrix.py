"""A master and two replicas under Sentinels and under load, with every disturbance."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from threading import Event
from uuid import uuid4

import pytest
import redis

from tests.sentinels import Sentinels
from tests.servers import Server, ask, wait_until
from tests.topologies.load import BACK, Load

SAMPLE = ("kill",)  # what a run without --matrix does


def promoted(sentinels: Sentinels, old: Server) -> None:
    """Wait until the Sentinels agree on another master than the old one."""
    for sentinel in sentinels.sentinels:
        wait_until(
            "another master",
            lambda sentinel=sentinel: (
                not sentinel.up or int(ask(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME", "front")[1]) != old.port
            ),
        )


def kill(sentinels: Sentinels) -> None:
    sentinels.crash()


def hang(sentinels: Sentinels) -> None:
    old = sentinels.master()
    old.pause()
    promoted(sentinels, old)


def hang_and_return_as_a_replica(sentinels: Sentinels) -> None:
    old = sentinels.master()
    old.pause()
    promoted(sentinels, old)
    sentinels.revive()


def planned(sentinels: Sentinels) -> None:
    sentinels.failover()


def sentinel_hangs(sentinels: Sentinels) -> None:
    """One that is asked first, and then the master dies: two Sentinels are left, which need each other."""
    sentinels.sentinels[1].pause()
    sentinels.crash()


def password(sentinels: Sentinels) -> None:
    """The master demands a password that the URL does not have."""
    master = sentinels.master()
    ask(master, "CONFIG", "SET", "requirepass", "secret")
    with closing(redis.Redis(unix_socket_path=master.socket, password="secret")) as admin:
        admin.execute_command("CLIENT KILL TYPE normal SKIPME yes")
        Event().wait(0.2)  # shorter than a Sentinel takes to see it
        admin.config_set("requirepass", "")


DISTURBANCES: list[Callable[[Sentinels], None]] = [
    kill,
    hang,
    hang_and_return_as_a_replica,
    planned,
    sentinel_hangs,
    password,
]


@pytest.mark.parametrize("how", ["threads", "tasks"])
@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(each, id=each.__name__, marks=() if each.__name__ in SAMPLE else pytest.mark.matrix)
        for each in DISTURBANCES
    ],
)
def test_the_master_is_found_again(disturb: Callable[[Sentinels], None], how: str) -> None:
    people = {uuid4().hex for _ in range(12)}
    with Sentinels(replicas=2) as sentinels:
        with Load(sentinels.url, how, people) as load:
            load.run_for(0.3)
            disturb(sentinels)
            back_at = load.run_for(0) + BACK
            load.run_for(BACK + 0.7)
        load.check(
            disturbed=people, names={f"127.0.0.1:{server.port}" for server in sentinels.servers}, back_at=back_at
        )
