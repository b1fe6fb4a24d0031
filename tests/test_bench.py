"""The benchmark's pure parts: statistics, budgets and tables; and the page shows the stored figures."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest
import redis

from bench import figures, plots, report
from bench.budgets import BUDGETS, BY_HAND, MEMORY, NONE, Budget, verdicts
from bench.clocks import cpu, on_one_cpu, process_of
from bench.figures import Figure, Spread, added, by_merit, ratio, spread
from bench.race import Contender, Course, Effort
from bench.report import GRIDS, budget_rows, markdown, rows
from bench.scale import model, tables
from bench.scale import page as scale
from sluicegate.algorithms import ALGORITHMS
from tests.servers import valkey_server

ROOT = Path(__file__).parent.parent


def figure(*samples: float, contender: str = "sluicegate", topic: str = MEMORY, measure: str = "time") -> Figure:
    role: figures.Role = "sluicegate" if contender.startswith("sluicegate") else "peer"
    return Figure(topic, measure, contender, role, samples)


def test_the_pure_parts_need_neither_a_peer_nor_sluicegate() -> None:
    script = (
        "import sys, bench.plots, bench.race, bench.scale.page; "
        "print(*sorted({name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT)
    assert not {"sluicegate", "limits", "redis", "rich", "starlette", "throttled"} & set(printed.stdout.split())


@pytest.mark.parametrize("module", [figures, report, model, tables], ids=lambda module: module.__name__)
def test_doctests(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([7.0], (7, 7, 7)), ([1.0, 3.0], (1.5, 2, 2.5)), ([9.0, 1.0, 5.0], (3, 5, 7)), ([2.0] * 8, (2, 2, 2))],
)
def test_spread(samples: list[float], expected: Spread) -> None:
    assert spread(samples) == expected


@pytest.mark.parametrize(
    ("ours", "base", "expected"),
    [
        (figure(2, 4, 60), figure(1, 2, 30), 2),  # a slow round is slow for both
        (figure(4, 8), figure(1, 2, 3), 3),  # rounds without a pair: against the median of the base
        (figure(3, 4, measure="added"), figure(-1, 9, measure="added"), 0.875),  # never against a difference near zero
    ],
)
def test_ratio(ours: Figure, base: Figure, expected: float) -> None:
    assert ratio(ours, base).middle == pytest.approx(expected)


def test_added_is_round_by_round() -> None:
    extra = added(figure(100, 130, measure="cpu"), figure(90, 100, measure="cpu"))
    assert (extra.measure, extra.samples) == ("added", (10, 30))


@pytest.mark.parametrize(("measure", "first"), [("time", "b"), ("rate", "a")])
def test_by_merit(measure: str, first: str) -> None:
    both = [figure(2, contender="a", measure=measure), figure(1, contender="b", measure=measure)]
    assert by_merit(both)[0].contender == first


def test_json_keeps_figures() -> None:
    kept = figures.to_json([figure(1.23456, 2)])
    assert figures.from_json(json.loads(json.dumps(kept))) == [figure(1.235, 2)]


LEAST = Budget("x", (MEMORY,), "time", 0.5, against="a")
MOST = Budget("x", ("t",), "requests", 1, against=NONE, at_least=True)
BOTH = LEAST._replace(topics=(MEMORY, "u"))
ADDED = LEAST._replace(measure="added")


@pytest.mark.parametrize(
    ("budget", "known", "met"),
    [
        (LEAST, [figure(5), figure(10, contender="a")], True),
        (LEAST, [figure(5.1), figure(10, contender="a")], False),
        (LEAST, [figure(5), figure(10, contender="b")], None),
        (LEAST, [figure(10, contender="a")], None),
        # every topic has its own base, and the worst counts
        (BOTH, [figure(5), figure(10, contender="a"), figure(1, topic="u"), figure(2, contender="a", topic="u")], True),
        (
            BOTH,
            [figure(4), figure(10, contender="a"), figure(2, topic="u"), figure(3, contender="a", topic="u")],
            False,
        ),
        (BOTH, [figure(5), figure(10, contender="a"), figure(1, topic="u")], None),
        (BOTH._replace(base=MEMORY), [figure(5), figure(10, contender="a"), figure(5, topic="u")], True),
        # a difference
        (LEAST._replace(bound=2, more=True), [figure(5), figure(3, contender="a")], True),
        (LEAST._replace(bound=2, more=True), [figure(5.1), figure(3, contender="a")], False),
        # a difference below zero is no base, else a refusal that costs more than a cheap one would pass
        (ADDED, [figure(-9, measure="added"), figure(-3, contender="a", measure="added")], None),
        (
            MOST,
            [figure(7, topic="t", measure="requests"), figure(7, contender=NONE, topic="t", measure="requests")],
            True,
        ),
        (Budget("x", ("t", "u"), "bytes", 9), [figure(9, topic=each, measure="bytes") for each in "tu"], True),
        (
            Budget("x", ("t", "u"), "bytes", 9),
            [figure(8, topic="t", measure="bytes"), figure(10, topic="u", measure="bytes")],
            False,  # the worst topic counts
        ),
    ],
)
def test_verdicts(budget: Budget, known: list[Figure], met: bool | None) -> None:
    (verdict,) = verdicts(known, [budget])
    assert verdict.met is met


def test_at_least() -> None:
    known = [figure(n, contender=name, topic="t", measure="requests") for n, name in ((9, "sluicegate"), (10, NONE))]
    assert verdicts(known, [MOST])[0].met is False
    assert verdicts(known, [MOST._replace(bound=0.9)])[0].met is True


def test_every_budget_has_a_text() -> None:
    assert all(re.fullmatch(r"[≤≥] [\d.]+ (×|B|ms|µs|/s).*", budget.words) for budget in BUDGETS)
    assert len({(budget.what, budget.words) for budget in BUDGETS}) == len(BUDGETS)


def test_rows_compare_each_contender_with_the_floor_and_sluicegate() -> None:
    known = [
        figure(8, 8, contender="slow"),
        figure(4, 4),
        Figure(MEMORY, "time", BY_HAND, "floor", (2.0, 2.0)),
        figure(1, 3, contender="quick"),
    ]
    (grid,) = [grid for grid in GRIDS if grid.name == "memory"]
    table = rows(grid, known)
    assert table[0][-2:] == ["× floor", "× sluicegate"]
    assert [row[0] for row in table[1:]] == [BY_HAND, "quick", "sluicegate", "slow"]
    assert table[2][1:] == ["2.00 (1.50–2.50)", "–", "–", "–", "–", "1.00", "0.50"]
    assert table[4][-2:] == ["4.00", "2.00"]
    assert rows(grid, []) == []


def test_budget_rows() -> None:
    table = budget_rows(verdicts([figure(5)], [Budget("import", (MEMORY,), "time", 6)]))
    assert markdown(table).splitlines()[-1] == "| import | ≤ 6 µs | 5.00 | met |"


@pytest.mark.slow
def test_a_race_takes_turns_and_drops_a_contender_that_fails() -> None:
    messages: list[str] = []
    order: list[str] = []

    def turn(name: str, number: int) -> dict[str, float]:
        order.append(f"{name}{number}")
        if name == "c" and number == 1:
            raise OSError("gone")
        return {"time": float(number)}

    course = Course(Effort(rounds=2, checks=1, seconds=60), messages.append)
    found = course.race([Contender("t", name, "peer", lambda number, name=name: turn(name, number)) for name in "abc"])  # type: ignore[misc]
    assert order == ["a0", "b0", "c0", "b1", "c1", "a1", "a2", "b2"]
    assert [(each.contender, each.samples) for each in found] == [("b", (1.0, 2.0)), ("a", (1.0, 2.0))]
    assert messages == course.troubles == ["t: c is out: OSError: gone"]


def test_the_cpu_of_a_server() -> None:
    assert cpu(os.getpid()) == pytest.approx(time.process_time(), abs=1)
    with valkey_server() as server:
        before = cpu(process_of(server))
        for _ in range(100):
            server.command("PING")
        assert 0 < cpu(process_of(server)) - before < 10


def test_one_cpu_for_this_thread_a_server_and_other_processes() -> None:
    allowed = os.sched_getaffinity(0)
    with valkey_server() as server, valkey_server() as other:
        with on_one_cpu(server, process_of(other)):
            assert [os.sched_getaffinity(each) for each in (0, process_of(server), process_of(other))] == [
                {max(allowed)}
            ] * 3
        assert os.sched_getaffinity(0) == allowed
    with pytest.raises(RuntimeError, match="does not run"):
        process_of(server)


def test_the_bare_script_limits() -> None:
    script, third = (ROOT / "bench" / "gcra.lua").read_text("utf-8"), 20_000_000
    with valkey_server() as server, redis.Redis(port=server.port) as client:
        answers = [client.eval(script, 1, "alice", third, 3 * third) for _ in range(4)]
        assert [answer[:2] for answer in answers] == [[1, 2], [1, 1], [1, 0], [0, 0]]
        assert answers[0][2] == 0 < answers[3][2] <= third
        assert 0 < client.pttl("alice") <= 3 * third / 1000


def test_the_group_pins_everything() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    assert [pin for pin in groups["bench"] if not re.fullmatch(r"[a-z-]+==[\w.]+", pin)] == []


def kept() -> dict[str, object]:
    run: dict[str, object] = json.loads(plots.KEPT.read_text("utf-8"))
    return run


def test_the_pages_show_the_stored_figures() -> None:
    texts = [path.read_text("utf-8") for path in plots.PAGES]
    for text in texts:
        assert plots.page(text, kept()) == text, "run python -m bench.plots"
    marked = set(re.findall(r"<!-- bench: (\w+) -->", "".join(texts)))
    left_out = {"starlette", "fastapi", "flask", "django", "forms_over_redis", "requests", "refusals", "worst"}
    left_out |= {"process", "import", "replay"}
    assert marked == {grid.name for grid in GRIDS} - left_out | {"budgets", "machine"}


def test_a_later_run_of_a_part_replaces_only_its_figures() -> None:
    about = {"effort": "quick", "machine": "a machine", "commit": "c", "versions": {"x": "1"}}
    whole = {**about, "figures": figures.to_json([figure(1), figure(2, topic="t")]), "budgets": []}
    later = {**about, "machine": "another", "figures": figures.to_json([figure(3, topic="t")]), "budgets": []}
    found = plots.merged(whole, later, ["part"])
    assert figures.from_json(found["figures"]) == [figure(1), figure(3, topic="t")]
    assert len(found["budgets"]) == len(BUDGETS)
    assert plots.machine(found) == (
        "a machine. Quick run of sluicegate c. x 1.\n\n"
        "A later run has the figures of `part`: another. Quick run of sluicegate c."
    )


@pytest.mark.parametrize("plot", plots.PLOTS, ids=lambda plot: plot.name)
def test_the_pictures_show_the_stored_figures(plot: plots.Plot) -> None:
    found = figures.from_json(kept()["figures"])  # type: ignore[arg-type]
    drawn = plots.draw(plot, plots.panels(plot, found))
    assert plots.picture(plot).read_text("utf-8") == drawn, "run python -m bench.plots"
    ET.fromstring(drawn)
    assert drawn.count('class="sluicegate"') >= len(plots.panels(plot, found))


def test_every_topic_of_a_budget_is_in_a_table() -> None:
    shown = {(column.topic, column.measure) for grid in GRIDS for column in grid.columns}
    assert {(topic, budget.measure) for budget in BUDGETS for topic in budget.topics} <= shown


def test_every_topic_of_a_picture_is_in_a_table() -> None:
    shown = {(column.topic, column.measure) for grid in GRIDS for column in grid.columns}
    assert {(topic, plot.measure) for plot in plots.PLOTS for topic in plot.topics} <= shown


def carried(*, wire: float, script: float, further: float, busy: float = 100, others: float = 1) -> model.Known:
    """Figures for which the model is exactly right."""
    truth, found = model.Core(script, further, wire), []
    wanted = [(1, depth) for depth in model.DEPTHS] + [(2, model.DEEP), (3, model.DEEP), (3, 1)]
    for name in model.ALGORITHMS:
        for rules, depth in wanted:
            us, topic = truth.us(rules=rules, depth=depth), model.Point(name, rules, depth=depth).topic
            values = {"server": us, "rate": 1e6 / us, "busy": busy}
            found += [figure(value, contender=name, topic=topic, measure=each) for each, value in values.items()]
    for kind in model.KINDS:
        for count, rate in ((1, 12_500 if kind.waits else 16_667), (2, 25_000)):
            values = {"worker": 60, "server": 20, "rate": rate, "others": others}
            topic = model.PROCESSES.format(count)
            found += [figure(value, contender=kind.name, topic=topic, measure=each) for each, value in values.items()]
    for size in model.SIZES:
        found += [figure(150, contender=each, topic=size.topic, measure="bytes") for each in ("1000", "10000")]
    return model.Known(found)


def test_the_constants_of_the_model_are_recovered() -> None:
    known = carried(wire=32, script=15, further=8)
    assert model.core(known) == pytest.approx((15, 8, 32))
    assert model.core(known, "gcra").rate(rules=2) == pytest.approx(1e6 / (15 + 8 + 32))
    found = model.predictions(known, cores=2)
    assert len(found) == 2 + 1 + 1 + 1 + 2 * len(model.KINDS)
    assert [each.error for each in model.predicted_sizes(known)] == [0] * len(model.SIZES)
    assert [each.what for each in found if each.error is None or abs(each.error) > 0.001] == []


@pytest.mark.parametrize(("busy", "others", "unknown"), [(50, 1, {"at once"}), (100, 40, {"worker"})])
def test_a_busy_machine_gives_no_check_of_the_model(busy: float, others: float, unknown: set[str]) -> None:
    found = model.predictions(carried(wire=32, script=15, further=8, busy=busy, others=others), cores=2)
    assert {
        word for each in found if each.error is None for word in ("at once", "worker") if word in each.what
    } == unknown


def test_a_wrong_model_reports_its_error() -> None:
    assert model.Prediction("x", predicted=150, measured=100).error == pytest.approx(0.5)
    assert model.worst([model.Prediction("x", 1, None)]) is None


def test_the_model_knows_every_algorithm() -> None:
    assert set(model.ALGORITHMS) == {module.NAMES[0] for module in ALGORITHMS.values()}


def kept_scale() -> dict[str, object]:
    run: dict[str, object] = json.loads(scale.KEPT.read_text("utf-8"))
    return run


def test_the_scale_page_shows_the_stored_figures() -> None:
    text = scale.PAGE.read_text("utf-8")
    assert scale.page(text, kept_scale()) == text, "run python -m bench.scale.page"
    left_out = {"servers", "workers", "depths", "constants", "checked", "clusters", "hot", "live"}
    assert set(re.findall(r"<!-- bench: (\w+) -->", text)) == set(tables.SECTIONS) - left_out


@pytest.mark.parametrize("plot", scale.PLOTS, ids=lambda plot: plot.name)
def test_the_scale_pictures_show_the_stored_figures(plot: plots.Plot) -> None:
    drawn = scale.drawn(plot, kept_scale())
    assert scale.picture(plot).read_text("utf-8") == drawn, "run python -m bench.scale.page"
    ET.fromstring(drawn)
    assert f"{scale.picture(plot).name})" in scale.PAGE.read_text("utf-8")
