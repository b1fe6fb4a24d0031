"""`--matrix`: without it a run takes a sample of each matrix, and deselects the cases with the mark."""

from __future__ import annotations

import pytest

from tests.test_fast import run


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "1 passed, 1 deselected"),
        (["--matrix"], "2 passed"),
        (["--matrix", "-m", "matrix"], "1 passed, 1 deselected"),
    ],
)
def test_the_cases_beyond_the_sample_run_when_asked_for(tmp_path, options, expected):
    marked = "pytest.param(2, marks=pytest.mark.matrix)"
    test = f"import pytest\n@pytest.mark.parametrize('case', [1, {marked}])\ndef test_it(case): pass\n"
    assert run(tmp_path, test, *options) == expected
