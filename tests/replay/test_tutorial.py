"""The page that goes from a log to a limit prints what its commands print."""

from __future__ import annotations

import pytest

from docs import limits


@pytest.mark.slow
def test_the_page_shows_the_output_of_its_commands() -> None:
    """`python -m docs.limits` writes it again."""
    assert limits.PAGE.read_text("utf-8") == limits.page()
