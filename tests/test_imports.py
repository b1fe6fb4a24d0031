"""Imports between modules: no circles, few arrows between folders, and the picture in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from docs import imports
from tests.test_house import SOURCE, own

# As many as there are, rounded up. It goes down with each round; a new arrow between two folders needs a reason.
# 13 are of `overrides`, which the limiter, the gate, the dashboard, the commands and Django's admin read. 17 are of the
# dashboard: it stands on all the others, and only a command imports it.
MOST_ARROWS = 207


def graph() -> dict[str, set[str]]:
    """For each module the modules of sluicegate that it imports, type-only imports included."""
    found = {
        module.name: {own(to) for _, to in module.imports if to.split(".")[0] == "sluicegate"} for module in SOURCE
    }
    return {name: targets - {name} for name, targets in found.items()}


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle of imports, if there is one."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.slow
def test_no_module_imports_in_a_circle() -> None:
    # A module may import its own package by name; the package's __init__ then does not import that module.
    assert not circle(graph())


@pytest.mark.parametrize(("arrows", "found"), [({"a": {"b"}, "b": {"a"}}, True), ({"a": {"b"}, "b": set()}, False)])
def test_a_circle_is_found(arrows: dict[str, set[str]], *, found: bool) -> None:
    assert bool(circle(arrows)) is found


@pytest.mark.slow
def test_folders_have_few_arrows_between_them() -> None:
    def folder(name: str) -> str:
        return name.partition(".")[0]

    arrows = {(folder(name), folder(to)) for name, targets in graph().items() for to in targets}
    assert len({(one, other) for one, other in arrows if one != other}) <= MOST_ARROWS


@pytest.mark.slow
def test_the_picture_shows_the_current_imports() -> None:
    """`python -m docs.imports` draws it again."""
    assert imports.PICTURE.read_text(encoding="utf-8") == imports.draw()
