"""The budgets: the values that sluicegate must reach, as data, and whether it reached them.

Pure, as `figures` is. A budget compares sluicegate's figure with the best figure of `against`. If `of` names several
figures, the worst of them counts. Without `against`, the bound is in the unit of the measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from bench.figures import MEASURES, Figure, Spread, by_merit, ratio

OURS: Final = "sluicegate"
NOTHING: Final = "redis-py EVALSHA of return 1"
NONE: Final = "no limiter"
DICT: Final = "dict look-up under a lock"
FLOORS: Final = (NONE, NOTHING, DICT)  # a topic is compared with the one that it has
LIMITS: Final = ("limits fixed-window", "limits moving-window", "limits sliding-counter")
LIMITS_ASYNCIO: Final = ("limits (redis-py)", "limits (coredis)")
MEMORY: Final = "memory, 1,000 identities"
ONE_RULE, TWO_RULES = "Redis, sync, 1 rule", "Redis, sync, 2 rules"
TASKS: Final = "Redis, asyncio, 64 tasks"
PROCESS: Final = "bytes in the process"
SERVERS: Final = ("bytes in valkey", "bytes in redis6")


class Budget(NamedTuple):
    """One bound on the contenders `of` in these topics. `base` is the topic of `against` if it is another one."""

    what: str
    topics: tuple[str, ...]
    measure: str
    bound: float
    of: tuple[str, ...] = (OURS,)
    against: tuple[str, ...] = ()
    base: str | None = None
    at_least: bool = False

    @property
    def words(self) -> str:
        """The bound as text."""
        sign = "≥" if self.at_least else "≤"
        if not self.against:
            return f"{sign} {self.bound:g} {MEASURES[self.measure].unit}"
        several = f"{self.against[0].split()[0]}, its best" if len(self.against) > 1 else self.against[0]
        return f"{sign} {self.bound:g} × {several if self.base is None else 'one rule'}"


def _least(what: str, topic: str, bound: float, *, against: tuple[str, ...]) -> Budget:
    return Budget(what, (topic,), "time", bound, against=against)


def _most(what: str, topic: str, measure: str, *, bound: float, against: tuple[str, ...]) -> Budget:
    return Budget(what, (topic,), measure, bound, against=against, at_least=True)


def _added(framework: str, store: str, bound: float, *, peer: str) -> Budget:
    what = f"CPU added, {framework}, {store}"
    return Budget(what, (framework,), "added", bound, of=(f"{OURS} {store}",), against=(f"{peer} {store}",))


def _flood(framework: str) -> Budget:
    return _most(f"flood of refusals, {framework}", f"flood, {framework}", "requests", bound=1, against=(NONE,))


def _bytes(what: str, bound: float, *of: str, topics: tuple[str, ...] = SERVERS) -> Budget:
    return Budget(what, topics, "bytes", bound, of=of)


BUDGETS: Final = (
    _least("memory check", MEMORY, 0.4, against=("limits fixed-window",)),
    _least("memory check", MEMORY, 3, against=(DICT,)),
    _least("Redis check", ONE_RULE, 0.75, against=(NOTHING,)),
    _least("Redis check", ONE_RULE, 0.5, against=LIMITS),
    _least("Redis check, two rules", TWO_RULES, 1.35, against=(OURS,))._replace(base=ONE_RULE),
    _most("asyncio, 64 tasks", TASKS, "rate", bound=4, against=(NOTHING,)),
    _most("asyncio, 64 tasks", TASKS, "rate", bound=5, against=LIMITS_ASYNCIO),
    _added("Starlette", "memory", 0.2, peer="slowapi"),
    _added("Starlette", "Redis", 0.15, peer="slowapi"),
    _added("Flask", "Redis", 0.25, peer="Flask-Limiter"),
    _added("Django", "Redis", 0.2, peer="django-ratelimit"),
    _flood("Starlette"),
    _flood("Flask"),
    _flood("Django"),
    _bytes("key in Redis, 10/minute", 300, "sluicegate 10/minute, full"),
    _bytes("key in Redis, any limit", 2048, *[f"sluicegate {each}/hour, full" for each in (100, 1_000, 1_000_000)]),
    _bytes("key in Redis, gcra", 110, "sluicegate gcra"),
    _bytes("key in memory, 10/minute, one hit", 400, OURS, topics=(PROCESS,)),
    Budget("import sluicegate", ("import",), "start", 30),
)


class Verdict(NamedTuple):
    """A budget and its measurement; `measured` is None if that part of the benchmark did not run."""

    budget: Budget
    measured: Spread | None

    @property
    def met(self) -> bool | None:
        """Whether the median is within the bound; None if nothing was measured."""
        if self.measured is None:
            return None
        median, bound = self.measured.middle, self.budget.bound
        return median >= bound if self.budget.at_least else median <= bound

    @property
    def words(self) -> str:
        return {True: "met", False: "NOT met", None: "not measured"}[self.met]

    def to_json(self) -> dict[str, Any]:
        measured = None if self.measured is None else self.measured._asdict()
        return {"what": self.budget.what, "bound": self.budget.words, "measured": measured, "met": self.met}


def verdicts(figures: Iterable[Figure], budgets: Sequence[Budget] = BUDGETS) -> list[Verdict]:
    """Every budget with its measurement."""
    known = {(each.topic, each.measure, each.contender): each for each in figures}
    return [Verdict(budget, _measured(budget, known)) for budget in budgets]


def _measured(budget: Budget, known: dict[tuple[str, str, str], Figure]) -> Spread | None:
    ours = [known.get((topic, budget.measure, name)) for topic in budget.topics for name in budget.of]
    base = budget.topics[0] if budget.base is None else budget.base
    others = [known[key] for name in budget.against if (key := (base, budget.measure, name)) in known]
    found = [each for each in ours if each is not None]
    if len(found) < len(ours) or len(others) < len(budget.against):
        return None
    subject = by_merit(found)[-1]
    return ratio(subject, by_merit(others)[0]) if others else subject.spread
