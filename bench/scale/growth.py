"""Checks a second with one and two worker processes, and the cost that a cluster adds to each check. For two cores."""

from __future__ import annotations

from bench.figures import Figure
from bench.race import Contender, Course
from bench.scale.model import CLUSTER, KINDS, PROCESSES, SINGLE, Kind
from bench.scale.workers import MOST, Fleet, Load
from tests.cluster import Cluster
from tests.servers import valkey_server

ONE, TWO = "1000000/hour", "1000000/hour; 10000000/day"


def measure(course: Course) -> list[Figure]:
    """Measure one and two processes of each kind on one server; then two rules on that server and on a cluster."""
    seconds = course.effort.turn
    with valkey_server() as server, Cluster() as cluster, Fleet() as fleet:
        contenders = []
        for kind in KINDS:
            load = _load(server.url, ONE, kind)
            for processes in range(1, MOST + 1):
                turn = fleet.turn(load, [server], seconds=seconds, processes=processes)
                contenders.append(Contender(PROCESSES.format(processes), kind.name, "sluicegate", turn))
        for topic, url, servers in ((SINGLE, server.url, [server]), (CLUSTER, cluster.url, list(cluster.masters))):
            for kind in (KINDS[0], KINDS[-1]):
                for apart in (False, True):
                    load = _load(url, TWO, kind)._replace(apart=apart)
                    name = f"{kind.name}, {'two identities' if apart else 'one identity'}"
                    contenders.append(Contender(topic, name, "sluicegate", fleet.turn(load, servers, seconds=seconds)))
        return course.race(contenders)


def _load(url: str, quota: str, kind: Kind) -> Load:
    return Load(url, quota, tasks=kind.tasks, threads=kind.threads)
