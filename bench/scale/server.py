"""The capacity of one server core: checks a second when it is full, and its reported CPU for each check."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import NamedTuple

from bench.figures import Figure
from bench.race import Contender, Course, Turn
from bench.scale.model import ALGORITHMS, DEFAULT, DEPTHS, HOT, OLDEST, Point
from bench.scale.stream import Stream, Words, account, stream
from tests.servers import Server, redis_server, valkey_server

QUOTAS = ("10/hour", "100/day", "1000/week")  # no budget refills during the measurement
PLENTY = "1000000000/hour"
OPEN = 64  # checks on their way at any time, over all connections


class Case(NamedTuple):
    """What to measure. `point.refused`: the identities have used up their ten hits; `one`: all checks use one key."""

    point: Point
    one: bool = False

    @property
    def quota(self) -> str:
        return PLENTY if self.one else "; ".join(QUOTAS[: self.point.rules])


def cases() -> list[Case]:
    """Every algorithm with one to three rules and many checks at once; the default also with few, and one at once."""
    found = [Point(name, rules, refused=no) for name in ALGORITHMS for rules in (1, 2, 3) for no in (False, True)]
    found += [Point(DEFAULT, 1, depth=depth) for depth in DEPTHS if depth != found[0].depth]
    found += [Point(DEFAULT, 3, depth=1), Point(DEFAULT, 3, depth=1, refused=True)]
    return [*[Case(point) for point in found], Case(Point(DEFAULT, 1), one=True), Case(Point("gcra", 1), one=True)]


def measure(course: Course) -> list[Figure]:
    """Measure all cases on Valkey, and the default on the oldest Redis too."""
    with valkey_server() as server, redis_server() as oldest:
        contenders = [_contender(course, server, case, number=number) for number, case in enumerate(cases())]
        old = [Case(Point(DEFAULT, 1)), Case(Point(DEFAULT, 1, depth=1))]
        contenders += [
            _contender(course, oldest, case, number=number)._replace(topic=case.point.topic + OLDEST)
            for number, case in enumerate(old)
        ]
        return course.race(contenders)


def _contender(course: Course, server: Server, case: Case, *, number: int) -> Contender:
    words = Words(case.quota, case.point.algorithm, scope=f"scale{number}")
    words.load(server)
    topic = HOT if case.one else case.point.topic
    turn = _refused if case.point.refused else _one if case.one else _allowed
    return Contender(topic, case.point.name, "sluicegate", turn(course, server, words, case.point))


def _allowed(course: Course, server: Server, words: Words, point: Point) -> Turn:
    """New identities in each round, in the middle of their windows: four of ten hits are done, four more are timed."""

    def turn(number: int) -> dict[str, float]:
        frames = [words.frame(f"user:{number}.{each}") for each in range(course.effort.checks // 4)]
        stream(server, words, chain.from_iterable(repeat(frames, 4)), depth=OPEN)
        return _full(server, words, frames * 4, point=point, allowed=True)

    return turn


def _refused(course: Course, server: Server, words: Words, point: Point) -> Turn:
    """Identities that have used up their limit."""
    frames = [words.frame(f"user:{each}") for each in range(max(1, course.effort.checks // 20))]

    def turn(number: int) -> dict[str, float]:
        if number == 0:
            stream(server, words, chain.from_iterable(repeat(frames, 10)), depth=OPEN)
        return _full(server, words, frames * 20, point=point, allowed=False)

    return turn


def _one(course: Course, server: Server, words: Words, point: Point) -> Turn:
    frames = [words.frame("all")] * course.effort.checks
    return lambda number: _full(server, words, frames, point=point, allowed=True)


def _full(server: Server, words: Words, frames: Sequence[bytes], *, point: Point, allowed: bool) -> dict[str, float]:
    """Checks a second, the server's microseconds for each, and the per cent of a core that it used."""
    with Stream(server, words, connections=max(4, OPEN // point.depth)) as opened:
        opened.send(
            frames[: len(frames) // 10], depth=point.depth
        )  # after this the server has accepted all connections
        before = account(server)
        found = opened.send(frames, depth=point.depth)
        cpu = account(server).since(before).cpu
    if found.allowed != (found.checks if allowed else 0):
        raise RuntimeError(f"{found.allowed} of {found.checks} were allowed")
    rate, us = found.checks / found.seconds, cpu / found.checks * 1e6
    return {"rate": rate, "server": us, "busy": rate * us / 1e4}
