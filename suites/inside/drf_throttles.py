"""Pytest plugin: sluicegate's throttle classes in place of REST framework's own."""

from __future__ import annotations

from typing import Any

from suites.inside.timed import CLOCK, fresh_budgets, pytest_sessionfinish  # noqa: F401  # a fixture and a hook


def pytest_sessionstart() -> None:
    """Replace the classes, after the tests' conftest has configured Django."""
    from rest_framework import throttling

    from sluicegate import drf

    class Timed:
        def prepare(self, view: Any) -> bool:
            CLOCK.throttle = self
            found: bool = super().prepare(view)  # type: ignore[misc]
            return found

    for name in ("SimpleRateThrottle", "AnonRateThrottle", "UserRateThrottle", "ScopedRateThrottle"):
        setattr(throttling, name, type(name, (Timed, getattr(drf, name)), {}))
