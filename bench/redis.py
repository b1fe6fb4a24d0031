"""Sync checks on a server: the client and the server on one CPU, so nothing overlaps and nothing waits for a wake-up.

One turn gives four figures of the same checks. "client" is the CPU of this process, "server" that of the server, and
"time" both together: on an otherwise idle machine that is the time of the round trip, and other processes do not count.
"script" is the time that the server itself reports for the commands of a check, by INFO commandstats.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import redis

from bench.budgets import FIXED_STATS, GCRA_SCRIPT, HALF_FULL, NOTHING, ONE_RULE, OURS, THREE_RULES, TWO_RULES
from bench.clocks import cpu, on_one_cpu, process_of
from bench.figures import Figure
from bench.memory import role_of
from bench.peers import LIMITS, PROOF, SLUICEGATE, Gate, Limit, Maker, ours, prove, redis_makers, with_stats
from bench.race import Contender, Course, Turn, checks
from tests.servers import Server, valkey_server

RULES = (Limit(10_000, "day"), Limit(5_000, "hour"), Limit(1_000, "minute"))  # so high that no check is refused
SEVERAL = (
    *[ours(algorithm) for algorithm in SLUICEGATE],
    "limits fixed-window",
    "limits sliding-counter",
    "throttled-py fixed-window",
    "pyrate-limiter log",
)
HALF = (OURS, *[ours(each) for each in ("fixed-window", "gcra")], *[f"limits {each}" for each in LIMITS], FIXED_STATS)
SCRIPTS = ("evalsha", "eval", "fcall")
SENT = {FIXED_STATS: ("evalsha", "get", "ttl")}
"""The commands that a check sends, if they are not only a script. A script's own commands are in its time already."""
_PING = b"*1\r\n$4\r\nPING\r\n"
_GCRA = Path(__file__).with_name("gcra.lua").read_text("utf-8")


class Case(NamedTuple):
    """The rules, and the hits on each new identity: some `before` the measurement, then `hits`. All are allowed."""

    topic: str
    rules: tuple[Limit, ...]
    before: int = 0
    hits: int = 5


CASES = tuple(Case(topic, RULES[: at + 1]) for at, topic in enumerate((ONE_RULE, TWO_RULES, THREE_RULES)))
HALF_CASE = Case(HALF_FULL, (Limit(100, "hour"),), before=20, hits=20)  # a log of a hundred moments, not yet full


def measure(course: Course) -> list[Figure]:
    """Measure every contender in one race, so that two rules can be compared with one."""
    with valkey_server() as server, on_one_cpu(server), redis.Redis(port=server.port) as client:
        return course.race(
            [
                Contender(
                    case.topic, name, role_of(name), _turn(course, server, client, case=case, gate=gate, name=name)
                )
                for case, name, gate in _gates(server, client)
            ]
        )


def _gates(server: Server, client: redis.Redis) -> Iterator[tuple[Case, str, Gate]]:
    """Every contender with its case."""
    for name, hit in _round_trips(server):
        yield CASES[0], name, Gate(hit)
    makers: dict[str, Maker] = {**redis_makers(server.url), **with_stats(server.url)}
    makers[GCRA_SCRIPT] = partial(_bare_gcra, redis.Connection(port=server.port), str(client.script_load(_GCRA)))
    for name, maker in makers.items():
        prove(maker(PROOF), name)
        for case in CASES if name in SEVERAL else CASES[:1]:
            yield case, name, maker(case.rules)
        if name in HALF or name == GCRA_SCRIPT:
            yield HALF_CASE, name, maker(HALF_CASE.rules)


def _round_trips(server: Server) -> list[tuple[str, Callable[[str], object]]]:
    """Round trips without a limiter: a bare socket, redis-py, and a script that does nothing."""
    bare = socket.create_connection(("127.0.0.1", server.port))
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client = redis.Redis(port=server.port)
    nothing = str(client.script_load("return 1"))

    def ping(key: str) -> bytes:
        bare.sendall(_PING)
        return bare.recv(64)

    return [
        ("PING on a bare socket", ping),
        ("redis-py PING", lambda key: client.ping()),
        (NOTHING, partial(client.evalsha, nothing, 1)),
    ]


def _bare_gcra(connection: redis.Connection, script: str, wanted: Sequence[Limit]) -> Gate:
    """The floor of a limiter: a script for one limit, and a connection of redis-py's without its client."""
    (limit,) = wanted
    interval = limit.seconds * 1_000_000 // limit.count
    burst = interval * limit.count

    def hit(key: str) -> Any:
        command = connection.pack_command("EVALSHA", script, 1, f"gcra:{limit.text}:{key}", interval, burst)
        connection.send_packed_command(command)
        return connection.read_response()

    return Gate(hit, lambda answer: answer[0] == 1)


def _turn(course: Course, server: Server, client: redis.Redis, *, case: Case, gate: Gate, name: str) -> Turn:
    process, sent = process_of(server), SENT.get(name, SCRIPTS)

    def turn(number: int) -> dict[str, float]:
        # Another limit an hour has the same key, and what it has left there would be counted under this one.
        new = [f"user:{case.before}.{number}.{each}" for each in range(max(1, course.effort.checks // case.hits))]
        for key in new * case.before:
            gate.hit(key)
        client.config_resetstat()
        before = cpu(process)
        ours = checks(gate.hit, new * case.hits, clock=time.process_time)
        theirs = (cpu(process) - before) / (len(new) * case.hits) * 1e6
        stats = client.info("commandstats")
        script = sum(stats[f"cmdstat_{each}"]["usec"] for each in sent if f"cmdstat_{each}" in stats)
        if not gate.allowed(gate.hit(new[0])):
            course.trouble(f"{name} refuses, or answers without the server, in round {number}")
        found = {"time": ours + theirs, "client": ours, "server": theirs}
        return {**found, "script": script / (len(new) * case.hits)} if script else found

    return turn
