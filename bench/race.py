"""A race: contenders take turns. Every round runs each of them once; each round starts with another one.

So a slow machine slows all contenders. Garbage is collected between rounds and not during a turn. The first round warms
up and is dropped. A contender that raises is excluded, and its error is added to the troubles.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from bench.figures import Figure, Role

FEWEST = 3  # the least number of rounds, even if they take too long

Result = TypeVar("Result")
Turn = Callable[[int], Mapping[str, float]]
"""One turn of a contender: from the number of the round (0 warms up) to its measurements."""


class Effort(NamedTuple):
    """How much to measure: rounds, checks in one turn, and the seconds after which no further round begins."""

    rounds: int
    checks: int
    seconds: float
    turn: float = 0.0  # seconds of load in one turn, for parts that load a server


class Contender(NamedTuple):
    topic: str
    name: str
    role: Role
    turn: Turn


class Course:
    """The arguments of a part of the benchmark: the effort, and the function that reports errors."""

    def __init__(self, effort: Effort, say: Callable[[str], None]) -> None:
        self.effort = effort
        self.say = say
        self.troubles: list[str] = []

    def race(self, contenders: Sequence[Contender]) -> list[Figure]:
        """Run all rounds of these contenders."""
        running = list(contenders)
        samples: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        roles = {(each.topic, each.name): each.role for each in contenders}
        began = time.monotonic()
        for number in range(self.effort.rounds + 1):
            if number > FEWEST and time.monotonic() - began > self.effort.seconds:
                break
            gc.collect()
            gc.freeze()  # so a collection does not scan the objects of other contenders
            first = number % len(running) if running else 0
            for contender in [*running[first:], *running[:first]]:
                found = self.attempt(f"{contender.topic}: {contender.name}", partial(contender.turn, number))
                if found is None:
                    running.remove(contender)
                elif number > 0:
                    for measure, value in found.items():
                        samples[contender.topic, measure, contender.name].append(value)
        gc.unfreeze()
        out = {(each.topic, each.name) for each in contenders} - {(each.topic, each.name) for each in running}
        return [
            Figure(topic, measure, name, roles[topic, name], tuple(values))
            for (topic, measure, name), values in samples.items()
            if (topic, name) not in out
        ]

    def attempt(self, what: str, action: Callable[[], Result]) -> Result | None:
        """The action's result, or None if it raised. It catches every error of a peer, so the others continue."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001
            self.trouble(f"{what} is out: {type(error).__name__}: {error}")
            return None

    def trouble(self, text: str) -> None:
        self.say(text)
        self.troubles.append(text)


def checks(hit: Callable[[str], object], keys: Sequence[str], *, clock: Callable[[], float]) -> float:
    """Microseconds for one check by this clock: the mean over one check of every key."""
    gc.disable()
    try:
        began = clock()
        for key in keys:
            hit(key)
        took = clock() - began
    finally:
        gc.enable()
    return took / len(keys) * 1e6
