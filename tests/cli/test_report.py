"""The report of a replay on a terminal, and its JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from typing import Any, get_args, get_type_hints

import pytest
from rich.cells import cell_len
from rich.console import Console

from docs.pages import DOCS
from sluicegate.cli.report import show
from sluicegate.replay.result import Result, as_json
from sluicegate.replay.words import answer, facts, headline
from tests.replay.results import crowded, empty, generated, hostile, nothing_refused

RESULTS = (generated, nothing_refused, empty, hostile, crowded)


def shown(result: Result, *, width: int = 80, encoding: str = "utf-8") -> str:
    """What the report prints on a terminal of this width; an encoding that lacks a character is an error."""
    out = BytesIO()
    console = Console(
        file=TextIOWrapper(out, encoding, write_through=True), width=width, highlight=False, force_terminal=False
    )
    show(result, console)
    return out.getvalue().decode(encoding)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("made", RESULTS, ids=lambda each: each.__name__)
def test_every_report_fits(made: Any, width: int, encoding: str) -> None:
    text = shown(made(), width=width, encoding=encoding)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    if encoding == "utf-8":
        for each in made().candidates:
            assert f"{each.refused:,}" in text


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 200])
def test_the_first_lines_say_which_candidate_refuses_whom(width: int) -> None:
    lines = " ".join(shown(generated(), width=width).split("\nRead")[0].split())
    assert lines == " ".join(f"{each.name} {answer(each)}" for each in generated().candidates)


def test_a_share_says_of_what() -> None:
    """Issue 26: the headline is about all requests, a candidate about those that its rules apply to."""
    result = generated()
    assert f" of all {result.traffic.requests:,} requests." in headline(result)
    for each in result.candidates:
        assert f" of {each.decided:,} requests (" in answer(each)
        assert dict(facts(each))["Requests refused"].startswith(f"{each.refused:,} of {each.decided:,} (")


def test_what_could_not_be_read_is_said() -> None:
    text = shown(generated())
    traffic = generated().traffic
    ((file, line, example),) = traffic.unreadable.examples
    for part in (
        f"{file}:{line}: ",
        ascii(example)[1:-1],
        "3 lines of ",
        "UTC: 17",
        "lines are later than --window",
        "lacks duration",
    ):
        assert part in text


@pytest.mark.slow
def test_a_load_is_drawn_to_one_scale() -> None:
    """Without and with the candidate: the same moment of the day has the same height if nothing was refused."""
    rows = re.findall(r"^(?:without|with) +(\S.*?)  ", shown(nothing_refused()), re.MULTILINE)
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert "█" in rows[0]


@pytest.mark.parametrize("made", RESULTS, ids=lambda each: each.__name__)
def test_json_has_every_value_in_order(made: Any) -> None:
    def plain(value: Any) -> Any:
        if hasattr(value, "_fields"):
            return {name: plain(getattr(value, name)) for name in value._fields}
        return [plain(each) for each in value] if isinstance(value, tuple) else value

    found = json.loads(as_json(made()))
    assert found == json.loads(json.dumps(plain(made())).replace("\\udcff", "\\\\udcff"))
    assert list(found) == list(Result._fields)


def fields(kind: type[Any], before: str = "") -> Iterator[str]:
    """The names of all values in a value, as the page of the report has them."""
    for name, hint in get_type_hints(kind).items():
        inner = next((each for each in (hint, *get_args(hint)) if hasattr(each, "_fields")), None)
        if inner is None:
            yield before + name
        else:
            yield from fields(inner, f"{before}{name}.")


@pytest.mark.parametrize("part", get_type_hints(Result))
def test_the_page_has_every_field_of_the_json(part: str) -> None:
    text = (DOCS / "replay-report.md").read_text("utf-8").split("## JSON")[1]
    top, *parts = re.split(r"^### ", text, flags=re.MULTILINE)
    assert f"`{part}` " in top
    items = {each.split("\n")[0]: " ".join(re.findall(r"^- (`[\w.,\s`]+`):", each, re.MULTILINE)) for each in parts}
    wanted = [name.partition(".")[2] for name in fields(Result) if name.startswith(f"{part}.")]
    assert re.findall(r"[\w.]+", items.get(part, "")) == wanted
