"""The cases of the network matrix: each over each link in each mode, some of them the sample."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.networks.links import LINKS
from tests.networks.traffic import TRAFFIC

DEADLINE = 0.5


def matrix(cases: Iterable[str], *sample: str, modes: Iterable[str] = tuple(TRAFFIC)) -> pytest.MarkDecorator:
    """Each case over each link in each mode. The named ones are the sample: "half-open plain sync"."""
    every = [(case, link, mode) for case in cases for link in LINKS for mode in modes]
    named = [" ".join(each) for each in every]
    assert set(sample) <= set(named), set(sample) - set(named)
    return pytest.mark.parametrize(
        ("case", "link", "mode"),
        [
            pytest.param(*each, id=name, marks=() if name in sample else pytest.mark.matrix)
            for each, name in zip(every, named, strict=True)
        ],
        indirect=["link"],
    )
