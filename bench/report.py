"""The figures as tables, for a terminal and for a page.

Pure. A grid has a row for each contender and a column for each topic or measure. Its chief column is compared with the
floor and with sluicegate, round by round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bench.budgets import (
    BY_FORM,
    BY_FORM_OVER_REDIS,
    FLOORS,
    HALF_FULL,
    LOG,
    MEMORY,
    NEW_KEYS,
    ONE_KEY,
    ONE_RULE,
    OURS,
    OVERRIDES,
    PROCESS,
    REPLAYED,
    SERVERS,
    TASKS,
    THREE_RULES,
    TWO_RULES,
    WORST,
    WORST_NEW,
    Verdict,
)
from bench.figures import MEASURES, Figure, Spread, ratio

Rows = list[list[str]]


class Column(NamedTuple):
    heading: str
    topic: str
    measure: str
    on_page: bool = True  # a terminal shows every column


class Grid(NamedTuple):
    """One table. With `relative`, every cell is divided by the floor of its column."""

    name: str
    title: str
    columns: tuple[Column, ...]
    chief: int | None = 0
    relative: bool = False


def _whole(framework: str) -> Grid:
    measures = ("requests", "p50", "p99", "cpu", "added")
    headings = ("requests/s", "p50, ms", "p99, ms", "CPU, µs", "CPU added, µs")
    columns = tuple(Column(heading, framework, each) for heading, each in zip(headings, measures, strict=True))
    return Grid(framework.lower(), f"{framework}, one worker", columns, chief=4)


FRAMEWORKS: Final = ("Starlette", "FastAPI", "Flask", "Django")
WITHOUT_SERVER: Final = ("pure ASGI", "Starlette", "Flask", "Django")
GRIDS: Final = (
    Grid(
        "forms",
        "CPU added to one request by the form of the limit, memory, the least of all rounds, µs",
        tuple(Column(framework, BY_FORM.format(framework), "least") for framework in WITHOUT_SERVER[1:]),
        chief=None,
    ),
    Grid(
        "forms_over_redis",
        "CPU of one request by the form of the limit, application and server on one CPU, µs",
        tuple(Column(framework, BY_FORM_OVER_REDIS.format(framework), "both") for framework in WITHOUT_SERVER[1:]),
        chief=None,
    ),
    Grid(
        "memory",
        "one check in memory, µs",
        (
            Column("10,000 by zipf", MEMORY, "time"),
            Column("one", ONE_KEY, "time", on_page=False),
            Column("new", NEW_KEYS, "time"),
            Column("100,000", "memory, 100,000 identities", "time", on_page=False),
            Column("refused", "memory, refused", "time"),
        ),
    ),
    Grid(
        "worst",
        "the slowest of many checks with 100,000 live keys, ms",
        (Column("live keys", WORST, "worst"), Column("new keys", WORST_NEW, "worst")),
        chief=None,
    ),
    Grid(
        "redis",
        "one check on a server, sync, client and server on one CPU, µs",
        (
            Column("1 rule", ONE_RULE, "time"),
            Column("of that, the client", ONE_RULE, "client", on_page=False),
            Column("the server", ONE_RULE, "server"),
            Column("of that, the script", ONE_RULE, "script", on_page=False),
            Column("script, half full", HALF_FULL, "script", on_page=False),
            Column("2 rules", TWO_RULES, "time", on_page=False),
            Column("3 rules", THREE_RULES, "time"),
        ),
    ),
    Grid(
        "asyncio",
        "checks a second on a server, asyncio",
        (
            *[
                Column(f"{n} task{'s' * (n > 1)}", f"Redis, asyncio, {n} task{'s' * (n > 1)}", "rate", n in (1, 64))
                for n in (1, 16, 64, 256)
            ],
            Column("64 tasks, a second of CPU", TASKS, "pace", on_page=False),
        ),
        chief=4,
    ),
    *[_whole(framework) for framework in FRAMEWORKS],
    Grid(
        "added",
        "CPU added to one request, one worker, µs",
        tuple(Column(framework, framework, "added") for framework in FRAMEWORKS),
        chief=None,
    ),
    Grid(
        "requests",
        "CPU added to one request without a server, µs",
        tuple(Column(framework, f"request, {framework}", "added") for framework in WITHOUT_SERVER),
        chief=None,
    ),
    Grid(
        "refusals",
        "CPU of one request without a server, µs",
        tuple(Column(framework, f"request, {framework}", "cpu") for framework in WITHOUT_SERVER),
        chief=None,
    ),
    Grid(
        "events",
        "CPU that events and metrics add to one request without a server, µs",
        tuple(Column(framework, f"request, {framework}", "events") for framework in ("pure ASGI", "Starlette")),
        chief=None,
    ),
    Grid(
        "overrides",
        "CPU that overrides add to one request, decorator with key function, memory, µs",
        tuple(
            Column(f"{framework}, {measure.removesuffix(' added')}", OVERRIDES.format(framework), measure)
            for framework in ("Starlette", "Flask")
            for measure in ("p50 added", "p99 added")
        ),
        chief=None,
    ),
    Grid(
        "flood",
        "a flood of refusals over Redis against a view of 1 ms, × the capacity without a limiter",
        tuple(Column(framework, f"flood, {framework}", "capacity") for framework in FRAMEWORKS),
        chief=None,
        relative=True,
    ),
    Grid(
        "bytes", "bytes for one key on a server", tuple(Column(t.split()[-1], t, "bytes") for t in SERVERS), chief=None
    ),
    Grid("process", "bytes for one key in the process, 10/minute, one hit", (Column("bytes", PROCESS, "bytes"),)),
    Grid("import", "import, ms beyond the interpreter's own start", (Column("ms", "import", "start"),)),
    Grid(
        "replay",
        "an access log, parsed and grouped by address",
        (
            Column("CPU for one line, µs", LOG, "line"),
            Column("lines a second", LOG, "lines"),
            *[Column(f"{topic.rpartition(' with ')[2]}, lines a second", topic, "lines") for topic in REPLAYED],
        ),
    ),
)


def rows(grid: Grid, figures: Sequence[Figure], *, on_page: bool = False) -> Rows:
    """The heading and a row for each contender; an empty list if nothing was measured.

    A page has fewer columns, and neither quartiles nor ratios to the floor: the JSON has them.
    """
    columns = [column for column in grid.columns if column.on_page or not on_page]
    known = {(each.topic, each.measure, each.contender): each for each in figures}
    wanted = {(column.topic, column.measure) for column in columns}
    names = list(dict.fromkeys(each.contender for each in figures if (each.topic, each.measure) in wanted))
    if not names:
        return []
    chief = None if grid.chief is None else grid.columns[grid.chief]
    floor = None if chief is None or on_page else _floor(chief, known)
    found: Rows = [["", *[column.heading for column in columns]]]
    if chief is not None:
        found[0] += [*(["× floor"] if floor is not None else []), "× sluicegate"]
    for name in sorted(names, key=lambda each: _rank(each, known, chief or grid.columns[0])):
        cells = [_cell(known, column, name, relative=grid.relative) for column in columns]
        row = [name, *[cell.partition(" (")[0] if on_page else cell for cell in cells]]
        if chief is not None:
            row += _ratios(known, chief, name, floor=floor)
        found.append(row)
    return found


Known = dict[tuple[str, str, str], Figure]


def _rank(name: str, known: Known, chief: Column) -> tuple[int, float]:
    """The sort key: floors first, then from best to worst, then contenders without this figure."""
    figure = known.get((chief.topic, chief.measure, name))
    if figure is None:
        return (0 if name in FLOORS else 2), 0.0
    sign = -1 if MEASURES[chief.measure].more_is_better else 1
    return int(figure.role != "floor"), sign * figure.middle


def _floor(column: Column, known: Known) -> Figure | None:
    if column.measure == "added":  # "added" already is the difference to the floor
        return None
    return next((known[key] for name in FLOORS if (key := (column.topic, column.measure, name)) in known), None)


def _cell(known: Known, column: Column, name: str, *, relative: bool) -> str:
    figure = known.get((column.topic, column.measure, name))
    if figure is None:
        return "–"
    if relative:
        floor = _floor(column, known)
        return "–" if floor is None else format_spread(ratio(figure, floor), digits=2)
    return format_spread(figure.spread, digits=MEASURES[column.measure].digits)


def _ratios(known: Known, chief: Column, name: str, *, floor: Figure | None) -> list[str]:
    figure = known.get((chief.topic, chief.measure, name))
    store = name.rpartition(" ")[2]
    ours = known.get((chief.topic, chief.measure, f"{OURS} {store}")) if store in ("memory", "Redis") else None
    ours = known.get((chief.topic, chief.measure, OURS)) if ours is None else ours
    others = [ours] if floor is None else [floor, ours]
    return ["–" if figure is None or other is None else f"{ratio(figure, other).middle:.2f}" for other in others]


def format_spread(spread: Spread, *, digits: int) -> str:
    """A median with its quartiles, unless they are the same.

    >>> format_spread(Spread(1.0, 1.26, 1.5), digits=1), format_spread(Spread(2, 2, 2), digits=0)
    ('1.3 (1.0–1.5)', '2')
    """
    low, middle, high = (f"{each:,.{digits}f}" for each in spread)
    return middle if low == high else f"{middle} ({low}–{high})"


def budget_rows(found: Sequence[Verdict]) -> Rows:
    """The heading, and a row for each budget."""
    body = [
        [
            each.budget.what,
            each.budget.words,
            "–" if each.measured is None else format_spread(each.measured, digits=_digits(each)),
            each.words,
        ]
        for each in found
    ]
    return [["", "budget", "measured", ""], *body]


def _digits(verdict: Verdict) -> int:
    return 2 if verdict.budget.against and not verdict.budget.more else MEASURES[verdict.budget.measure].digits


def markdown(table: Rows) -> str:
    """The rows as a Markdown table; all columns but the first are aligned right.

    >>> print(markdown([["", "ms"], ["sluicegate", "1"]]))
    | | ms |
    |---|--:|
    | sluicegate | 1 |
    """
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in table]
    return "\n".join([lines[0], f"|---|{'--:|' * (len(table[0]) - 1)}", *lines[1:]])
