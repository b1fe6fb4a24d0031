"""A master and two replicas under Sentinels and under load, with every disturbance."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from threading import Event
from time import monotonic
from uuid import uuid4

import pytest
import redis

from sluicegate import Limiter
from tests.sentinels import SERVICE, Sentinels
from tests.servers import MAKERS, Server, ask, is_master, wait_until
from tests.topologies.load import RUNS, Load, check_counts, check_lines, retried, run_on

USER = "limiter"


def promoted(sentinels: Sentinels, old: Server) -> None:
    """Wait until the Sentinels agree on another master than the old one."""
    for sentinel in sentinels.sentinels:
        wait_until(
            "another master",
            lambda sentinel=sentinel: (
                not sentinel.up
                or int(ask(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)[1]) != sentinels.port_of(old)
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


def password_changed(sentinels: Sentinels) -> None:
    """On all servers, the user of the URL gets another password for a while."""
    for server in sentinels.servers:
        ask(server, "ACL", "SETUSER", USER, "resetpass", ">two")
    for server in sentinels.servers:
        ask(server, "CLIENT", "KILL", "USER", USER)
    Event().wait(0.8)
    for server in sentinels.servers:
        ask(server, "ACL", "SETUSER", USER, "resetpass", ">one")


def cut_off(sentinels: Sentinels) -> None:
    """The master, from all others."""
    old = sentinels.master()
    sentinels.cut_off(old)
    promoted(sentinels, old)


def cut_off_from_clients(sentinels: Sentinels) -> None:
    """The Sentinels reach the master, so it stays the master."""
    sentinels.cut_off(sentinels.master(), sentinels=False)
    Event().wait(1.5)
    sentinels.heal()


def cut_off_from_sentinels(sentinels: Sentinels) -> float:
    """The clients reach the master, and use it until the Sentinels reach it again and make it a replica. Returns the
    time of that: no earlier request is degraded.
    """
    old = sentinels.master()
    sentinels.cut_off(old, clients=False)
    promoted(sentinels, old)
    Event().wait(0.5)
    healed = monotonic()
    sentinels.heal()
    wait_until("the old master to be a replica", lambda: not is_master(old))
    return healed


PARTITIONS = {cut_off, cut_off_from_clients, cut_off_from_sentinels}
WITH_USER = {password_changed}
KEEP = {cut_off_from_clients, password, password_changed}  # no data is lost
SAMPLE = {kill}  # what a run without --matrix does
DISTURBANCES: list[Callable[[Sentinels], float | None]] = [
    kill,
    hang,
    hang_and_return_as_a_replica,
    planned,
    sentinel_hangs,
    password,
    password_changed,
    cut_off,
    cut_off_from_clients,
    cut_off_from_sentinels,
]


@pytest.mark.parametrize(
    ("kind", "how", "disturb"),
    [
        pytest.param(
            kind,
            how,
            disturb,
            id=f"{kind}-{disturb.__name__}-{how}",
            marks=() if kind == "valkey" and disturb in SAMPLE else pytest.mark.matrix,
        )
        for kind, how in RUNS
        for disturb in DISTURBANCES
    ],
)
@retried
def test_the_master_is_found_again(
    kind: str, how: str, disturb: Callable[[Sentinels], float | None], caplog: pytest.LogCaptureFixture
) -> None:
    """The Sentinels are Valkey's, because those of 6.2 take many seconds to promote a replica."""
    caplog.set_level(logging.INFO, "sluicegate")
    people = {uuid4().hex for _ in range(12)}
    scarce = sorted(people)[:2]
    with Sentinels(MAKERS[kind], replicas=2, wired=disturb in PARTITIONS) as sentinels:
        url = sentinels.url
        if disturb in WITH_USER:
            for server in sentinels.servers:
                ask(server, "ACL", "SETUSER", USER, "reset", "on", ">one", "~*", "&*", "+@all")
            url = url.replace("://", f"://{USER}:one@") + "?sentinel_username=default&sentinel_password="
        with ExitStack() as running:
            loads = [running.enter_context(Load(url, each, people, scarce=scarce)) for each in how.split("+")]
            loads[0].run_for(0.3)
            calm_until = disturb(sentinels)
            back_at = run_on(loads, people)
        names = {sentinels.name_of(server) for server in sentinels.servers}
        for load in loads:
            load.check(disturbed=people, names=names, back_at=back_at)
            load.law(not load.degraded(until=calm_until or 0.0), "degraded before the disturbance")
        check_lines(loads, caplog.messages, names)
        if disturb in KEEP:
            with Limiter(sentinels.url, deadline=5) as limiter:
                check_counts(
                    loads,
                    lambda quota, who: limiter.peek(quota, who, cost=0).outcomes[0].remaining,
                    people,
                )
