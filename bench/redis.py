"""Sync checks on a server with one, two and three rules, and the cost of a round trip without a limiter."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial

import redis

from bench.budgets import NOTHING
from bench.figures import Figure
from bench.memory import role_of
from bench.peers import PROOF, Gate, Limit, prove, redis_makers
from bench.race import Contender, Course, Turn, checks
from tests.servers import Server, valkey_server

RULES = (Limit(10_000, "day"), Limit(5_000, "hour"), Limit(1_000, "minute"))  # so high that no check is refused
SEVERAL = (
    "sluicegate",
    "limits fixed-window",
    "limits sliding-counter",
    "throttled-py fixed-window",
    "pyrate-limiter log",
)
IDENTITIES = 1_000
_PING = b"*1\r\n$4\r\nPING\r\n"


def measure(course: Course) -> list[Figure]:
    """Measure every contender in one race, so that two rules can be compared with one."""
    with valkey_server() as server:
        contenders = [
            Contender(ruled("Redis, sync", 1), name, "floor", _turn(course, Gate(hit), name))
            for name, hit in floors(server)
        ]
        for name, maker in redis_makers(server.url).items():
            prove(maker(PROOF), name)
            for rules in (1, 2, 3) if name in SEVERAL else (1,):
                gate = maker(RULES[:rules])
                topic = ruled("Redis, sync", rules)
                contenders.append(Contender(topic, name, role_of(name), _turn(course, gate, name)))
        return course.race(contenders)


def floors(server: Server) -> list[tuple[str, Callable[[str], object]]]:
    """The floors of a round trip: a bare socket, redis-py, and a script that does nothing."""
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


def ruled(topic: str, rules: int) -> str:
    """The topic for this number of rules."""
    return f"{topic}, {rules} rule{'s' * (rules > 1)}"


def names(number: int, count: int) -> list[str]:
    """The identities of one turn."""
    return [f"user:{each % IDENTITIES}" for each in range(number * count, (number + 1) * count)]


def _turn(course: Course, gate: Gate, name: str) -> Turn:
    def turn(number: int) -> dict[str, float]:
        wanted = names(number, course.effort.checks)
        gate.hit(wanted[0])
        took = checks(gate.hit, wanted, clock=time.perf_counter)
        if not gate.allowed(gate.hit(wanted[0])):
            course.trouble(f"{name} refuses, or answers without the server, in round {number}")
        return {"time": took}

    return turn
