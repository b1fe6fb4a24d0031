"""One identity that every request counts: how often it passes, and what the deny cache saves while it is refused."""

from __future__ import annotations

from bench.figures import Figure
from bench.race import Contender, Course
from bench.scale.model import DEFAULT, KINDS, PASSES, REFUSED, STALENESS
from bench.scale.server import PLENTY
from bench.scale.stream import Words, stream
from bench.scale.workers import Fleet, Load
from tests.servers import valkey_server

SPENT = "10/day"


def measure(course: Course) -> list[Figure]:
    """Measure one thread and many tasks. Of many tasks, more find a round trip already on its way."""
    with valkey_server() as server, Fleet() as fleet:
        words = Words(SPENT, DEFAULT)
        words.load(server)
        stream(server, words, [words.frame("user:0")] * 10)
        contenders = []
        for kind in (KINDS[0], KINDS[-1]):
            load = Load(server.url, PLENTY, tasks=kind.tasks, threads=kind.threads, identities=1)
            refused = load._replace(quota=SPENT, allowed=False)
            caches = {REFUSED.format(age): refused._replace(deny_cache=float(age)) for age in STALENESS}
            loads = {PASSES: load, **caches}
            contenders += [
                Contender(topic, kind.name, "sluicegate", fleet.turn(each, [server], seconds=course.effort.turn))
                for topic, each in loads.items()
            ]
        return course.race(contenders)
