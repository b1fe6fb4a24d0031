"""The settings of Django's tests, with sluicegate's added. SUITES_RUNNER names the test runner."""

from __future__ import annotations

import os

from test_sqlite import *  # noqa: F403

from suites.inside.limits import OPTIONS

SLUICEGATE = OPTIONS
TEST_RUNNER = f"suites.inside.django_runners.{os.environ['SUITES_RUNNER']}"
