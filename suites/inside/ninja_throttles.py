"""Pytest plugin: sluicegate's throttle classes in place of Ninja's own."""

from __future__ import annotations

from typing import Any

from suites.inside.timed import CLOCK, fresh_budgets, pytest_sessionfinish  # noqa: F401  # a fixture and a hook


def pytest_sessionstart() -> None:
    """Replace the classes, after the tests' conftest has configured Django."""
    from ninja import throttling

    from sluicegate import ninja

    class Timed:
        def allow_request(self, request: Any) -> bool:
            CLOCK.throttle = self
            found: bool = super().allow_request(request)  # type: ignore[misc]
            return found

    for name in ("SimpleRateThrottle", "AnonRateThrottle", "AuthRateThrottle", "UserRateThrottle"):
        setattr(throttling, name, type(name, (Timed, getattr(ninja, name)), {}))
