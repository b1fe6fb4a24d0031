"""The budgets: the values that sluicegate must reach, as data, and whether it reached them.

Pure, as `figures` is. A budget compares sluicegate's figure with the figure of `against` in the same topic. Of several
topics and of several names in `of`, the worst counts. Without `against`, the bound is in the unit of the measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from bench.figures import MEASURES, Figure, Spread, added, ratio

OURS: Final = "sluicegate"
NOTHING: Final = "redis-py EVALSHA of return 1"
NONE: Final = "no limiter"
BY_HAND: Final = "GCRA and lock by hand"
GCRA_SCRIPT: Final = "bare GCRA script"
QUEUE: Final = "return 1 by a bare queue over one connection"
FLOORS: Final = (NONE, NOTHING, BY_HAND, GCRA_SCRIPT, QUEUE)  # a topic is compared with the first one that it has
FIXED, MOVING = "limits fixed-window", "limits moving-window"
FIXED_STATS: Final = "limits fixed-window + get_window_stats"
MEMORY: Final = "memory, 10,000 keys by a zipf law"
ONE_KEY: Final = "memory, one key"
NEW_KEYS: Final = "memory, a new identity"
WORST, WORST_NEW = "worst check, 100,000 live keys", "worst check, new keys in a full table"
ONE_RULE, TWO_RULES, THREE_RULES = (f"Redis on one CPU, {rules}" for rules in ("1 rule", "2 rules", "3 rules"))
HALF_FULL: Final = "Redis on one CPU, 100/hour"
TASKS: Final = "Redis, asyncio, 64 tasks"
PROCESS: Final = "bytes in the process"
SERVERS: Final = ("bytes in valkey", "bytes in redis6")
LOG: Final = "log, parsed and grouped"
REPLAYED: Final = {  # topic → candidates, and whether their curves are computed, as for a page
    "log, replayed with one rule": (1, False),
    "log, replayed with ten candidates": (10, False),
    "log, replayed with one rule and curves": (1, True),
    "log, replayed with ten candidates and curves": (10, True),
}
GOACCESS: Final = "GoAccess"
BY_FORM, BY_FORM_OVER_REDIS = "forms, {}", "forms over Redis, {}"  # topics, by framework
STRING, ADDRESS, FUNCTION = (f"{key}, default limits" for key in ("string key", "default key", "key function"))
DEFAULT_KEY, DECORATOR, ASYNC_KEY = (
    f"decorator, {key}" for key in ("default key", "key function", "async key function")
)
TWO: Final = "two decorators, key function"
OVERRIDES: Final = "overrides, {}"  # topics, by framework
OF_OTHERS, WITH_ONE_OF_CALLER = "1,000 overrides of others", "1,000 overrides, one of the caller"
NEW_CALLER, NEW_OVER_REDIS = f"{OF_OTHERS}, a new caller", f"{OF_OTHERS}, a new caller, Redis"
LAST, NONE_OF_MANY = f"{DECORATOR}, last of 200 routes", f"{NONE}, 200 routes"
MEMORY_STORE, REDIS_STORE, REFUSAL = f"{OURS} memory", f"{OURS} Redis", f"{OURS} refused"


class Budget(NamedTuple):
    """One bound on the contenders `of` in these topics. `base` is the topic of `against` if it is another one.

    With `more`, the bound is on the difference to `against`, and not on the ratio.
    """

    what: str
    topics: tuple[str, ...]
    measure: str
    bound: float
    of: tuple[str, ...] = (OURS,)
    against: str | None = None
    base: str | None = None
    at_least: bool = False
    more: bool = False

    @property
    def words(self) -> str:
        """The bound as text."""
        sign = "≥" if self.at_least else "≤"
        if self.against is None or self.more:
            than = f" more than {self.against}" if self.more else ""
            return f"{sign} {self.bound:g} {MEASURES[self.measure].unit}{than}"
        return f"{sign} {self.bound:g} × {self.against if self.base is None else 'one rule'}"


def _memory(topic: str, bound: float, *, of: str = OURS, against: str) -> Budget:
    return Budget(
        f"{topic}: {of.removeprefix(OURS).strip() or 'default'}", (topic,), "time", bound, of=(of,), against=against
    )


def _script(name: str, bound: float, *, against: str) -> Budget:
    of = OURS if name == "sliding-window" else f"{OURS} {name}"
    what = f"Redis, CPU of the server in the script: {name}"
    return Budget(what, (ONE_RULE, HALF_FULL), "script", bound, of=(of,), against=against)


def _added(framework: str, bound: float, *, of: str = MEMORY_STORE, topic: str | None = None, against: str) -> Budget:
    store = "memory" if of == OURS else of.removeprefix(f"{OURS} ")
    topics = (framework if topic is None else topic,)
    return Budget(f"CPU added, {framework}, {store}", topics, "added", bound, of=(of,), against=against)


def _form(of: str, bound: float, framework: str, *, against: str, more: bool = False) -> Budget:
    what, topics = f"CPU added, {framework}: {of}", (BY_FORM.format(framework),)
    return Budget(what, topics, "least", bound, of=(of,), against=against, more=more)


def _refusal(framework: str) -> Budget:
    what, topics = f"CPU of a refusal, {framework}", (f"request, {framework}",)
    return Budget(what, topics, "cpu", 1.15, of=(REFUSAL,), against="constant 429")


def _flood(framework: str) -> Budget:
    what, topics = f"flood against a view of 1 ms, {framework}", (f"flood, {framework}",)
    return Budget(what, topics, "capacity", 4, against=NONE, at_least=True)


def _bytes(what: str, bound: float, *of: str, topics: tuple[str, ...] = SERVERS) -> Budget:
    return Budget(what, topics, "bytes", bound, of=of)


BUDGETS: Final = (
    _form(DECORATOR, 1.5, "Starlette", against=STRING),
    *[_form(DECORATOR, 1.3, framework, against=STRING) for framework in ("Flask", "Django")],
    _form(DECORATOR, 0.35, "Starlette", against="slowapi, fields"),
    _form(DECORATOR, 0.2, "Flask", against="Flask-Limiter"),
    _form(DECORATOR, 0.5, "Django", against="django-ratelimit"),
    *[_form(TWO, 1.3, framework, against=DECORATOR) for framework in ("Starlette", "Flask", "Django")],
    *[_form(ADDRESS, 1.3, framework, against=STRING) for framework in ("Starlette", "Flask", "Django")],
    _form(ASYNC_KEY, 1.2, "Starlette", against=DECORATOR),
    _form(LAST, 10, "Starlette", against=DECORATOR, more=True),
    *[
        Budget(
            f"CPU of a request over Redis, {framework}: every form",
            (BY_FORM_OVER_REDIS.format(framework),),
            "both",
            1.15,
            of=(ADDRESS, FUNCTION, DEFAULT_KEY, DECORATOR, TWO, *([ASYNC_KEY] if framework == "Starlette" else [])),
            against=STRING,
        )
        for framework in ("Starlette", "Flask", "Django")
    ],
    *[
        Budget(
            f"requests a second, Starlette, {store}: {DECORATOR}",
            ("Starlette",),
            "requests",
            0.9,
            of=(f"{OURS}, decorator {store}",),
            against=f"{OURS} {store}",
            at_least=True,
        )
        for store in ("memory", "Redis")
    ],
    *[
        Budget(
            f"CPU added by 1,000 overrides, Starlette and Flask: {measure.removesuffix(' added')}",
            tuple([OVERRIDES.format(framework) for framework in ("Starlette", "Flask")]),
            measure,
            1,
            of=(OF_OTHERS, WITH_ONE_OF_CALLER),
        )
        for measure in ("p50 added", "p99 added")
    ],
    _memory(ONE_KEY, 0.85, against=MOVING),
    _memory(ONE_KEY, 1.0, of=f"{OURS} fixed-window", against=FIXED),
    _memory(ONE_KEY, 0.35, of=f"{OURS} fixed-window", against=FIXED_STATS),
    _memory(ONE_KEY, 2.6, against=BY_HAND),
    _memory(MEMORY, 0.9, against=MOVING),
    _memory(MEMORY, 0.9, of=f"{OURS} fixed-window", against=FIXED),
    _memory(NEW_KEYS, 0.8, against=MOVING),
    Budget("Redis, sync, one CPU: default", (ONE_RULE,), "time", 0.75, against=NOTHING),
    Budget("Redis, sync, one CPU: default", (ONE_RULE,), "time", 0.5, against=MOVING),
    _script("fixed-window", 1.3, against=FIXED),
    _script("fixed-window", 0.8, against=FIXED_STATS),
    _script("sliding-window", 0.8, against=MOVING),
    _script("gcra", 1.15, against=GCRA_SCRIPT),
    Budget("Redis, sync: CPU of the client", (ONE_RULE,), "client", 0.3, against=FIXED),
    Budget("Redis, sync, one CPU: two rules", (TWO_RULES,), "time", 1.3, against=OURS, base=ONE_RULE),
    Budget("Redis, sync, one CPU: three rules", (THREE_RULES,), "time", 1.5, against=OURS, base=ONE_RULE),
    Budget("Redis, asyncio, 64 tasks", (TASKS,), "pace", 6, against=NOTHING, at_least=True),
    Budget("Redis, asyncio, 64 tasks", (TASKS,), "pace", 5, against="limits (redis-py)", at_least=True),
    _added("Starlette", 0.8, of=OURS, topic="request, Starlette", against="limits by hand, fields"),
    _added("Starlette", 0.2, against="slowapi memory"),
    _added("Starlette", 0.15, of=REDIS_STORE, against="slowapi Redis"),
    _added("Django", 1.0, against="django-ratelimit memory"),
    _added("Django", 0.2, of=REDIS_STORE, against="django-ratelimit Redis"),
    _added("Flask", 0.2, against="Flask-Limiter memory"),
    _added("Flask", 0.25, of=REDIS_STORE, against="Flask-Limiter Redis"),
    Budget(
        "CPU added by events and metrics, Starlette, Redis",
        ("request, Starlette",),
        "events",
        5,
        of=(f"{REDIS_STORE}, Prometheus",),
    ),
    *[_refusal(framework) for framework in ("Starlette", "Flask", "Django")],
    *[_flood(framework) for framework in ("Starlette", "Flask", "Django")],
    Budget("worst single check, 100,000 live keys", (WORST,), "worst", 0.2),
    _bytes("key in Redis, 10/minute", 300, f"{OURS} 10/minute, full"),
    _bytes("key in Redis, any limit", 2048, *[f"{OURS} {each}/hour, full" for each in (100, 1_000, 1_000_000)]),
    _bytes("key in Redis, gcra", 110, f"{OURS} gcra"),
    _bytes("key in memory, 10/minute, one hit", 400, OURS, topics=(PROCESS,)),
    Budget(f"import {OURS}", ("import",), "start", 30),
    Budget("access log, parsed and grouped: CPU", (LOG,), "line", 1, against=GOACCESS),
    Budget("access log, parsed and grouped: speed", (LOG,), "lines", 1, against=GOACCESS, at_least=True),
    *[
        Budget(f"access {topic}", (topic,), "lines", bound, at_least=True)
        for topic, bound in zip(REPLAYED, (150_000, 40_000, 150_000, 40_000), strict=True)
    ],
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
    """The worst of the budget's figures; None if one of them is missing."""
    found = []
    for topic in budget.topics:
        for name in budget.of:
            figure = known.get((topic, budget.measure, name))
            if figure is None:
                return None
            if budget.against is None:
                found.append(figure.spread)
                continue
            base = known.get((budget.base or topic, budget.measure, budget.against))
            if base is None or base.middle <= 0:  # "added" may be below zero, and then a ratio means nothing
                return None
            found.append(added(figure, base).spread if budget.more else ratio(figure, base))
    worst = min if budget.at_least else max
    return worst(found, key=lambda each: each.middle)
