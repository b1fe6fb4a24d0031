"""Pytest plugin: sluicegate.starlette in every Starlette application, and around any other one of a TestClient.

The middleware is added when the application builds its stack, outside the user's own, as `add_middleware` does.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from sluicegate.starlette import RateLimitMiddleware
from suites.inside.limits import OUTSIDE

_build, _open = Starlette.build_middleware_stack, TestClient.__init__


@wraps(_build)
def _build_limited(self: Starlette) -> Any:
    given = self.user_middleware
    self.user_middleware = [Middleware(RateLimitMiddleware, **OUTSIDE), *given]
    try:
        return _build(self)
    finally:
        self.user_middleware = given


@wraps(_open)
def _open_limited(self: TestClient, app: Any, *args: Any, **kwargs: Any) -> None:
    _open(self, app, *args, **kwargs)
    if not isinstance(app, Starlette):
        self.app = self._transport.app = RateLimitMiddleware(self.app, **OUTSIDE)  # type: ignore[attr-defined]


Starlette.build_middleware_stack = _build_limited  # type: ignore[method-assign]
TestClient.__init__ = _open_limited  # type: ignore[method-assign]
