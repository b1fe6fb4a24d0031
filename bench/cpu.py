"""The server's CPU for one check, from INFO cpu; and the part inside the script, from INFO commandstats."""

from __future__ import annotations

from collections.abc import Callable

import redis

from bench.figures import Figure
from bench.memory import role_of
from bench.peers import LIMITS, SLUICEGATE, ours, redis_makers
from bench.race import Contender, Course, Turn
from bench.redis import RULES, floors, names, ruled
from tests.servers import Server, valkey_server

TOPIC = "CPU of the server"
SCRIPTS = ("evalsha", "eval", "fcall")


def measure(course: Course) -> list[Figure]:
    """Measure on one connection, one check after the other."""
    with valkey_server() as server, redis.Redis(port=server.port) as client:
        contenders = [
            Contender(ruled(TOPIC, 1), name, "floor", _turn(course, client, hit))
            for name, hit in floors(server)
            if name != "redis-py PING"
        ]
        contenders += _contenders(course, client, server)
        return course.race(contenders)


def _contenders(course: Course, client: redis.Redis, server: Server) -> list[Contender]:
    makers = redis_makers(server.url)
    rules = {ours(algorithm): (1, 2, 3) for algorithm in SLUICEGATE} | {f"limits {name}": (1, 2, 3) for name in LIMITS}
    return [
        Contender(ruled(TOPIC, n), name, role_of(name), _turn(course, client, makers[name](RULES[:n]).hit))
        for name, counts in rules.items()
        for n in counts
    ]


def _turn(course: Course, client: redis.Redis, hit: Callable[[str], object]) -> Turn:
    def turn(number: int) -> dict[str, float]:
        wanted = names(number, course.effort.checks)
        hit(wanted[0])
        client.config_resetstat()
        before = _cpu(client)
        for key in wanted:
            hit(key)
        cpu = _cpu(client) - before
        stats = client.info("commandstats")
        script = sum(stats[f"cmdstat_{name}"]["usec"] for name in SCRIPTS if f"cmdstat_{name}" in stats)
        found = {"server": cpu / len(wanted) * 1e6}
        return {**found, "script": script / len(wanted)} if script else found

    return turn


def _cpu(client: redis.Redis) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])
