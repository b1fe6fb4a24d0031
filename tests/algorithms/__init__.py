"""Tests of sluicegate.algorithms: laws, vectors, and the exact model."""

import pytest

pytest.register_assert_rewrite("tests.algorithms.exam")
