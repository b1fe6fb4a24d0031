"""Pytest plugin: sluicegate.asgi around each TestClient's application, and around each ASGI application of Starlette
that a test calls directly.

Responses, routes, routers and middleware are ASGI applications too. Inside a wrapped one they are not wrapped again.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from functools import partial, wraps
from importlib import import_module
from typing import Any

import starlette
from starlette.testclient import TestClient

from sluicegate.asgi import RateLimitMiddleware, state_of
from suites.inside.limits import OUTSIDE

_ASGI = ["self", "scope", "receive", "send"]

_open = TestClient.__init__


@wraps(_open)
def _open_limited(self: TestClient, app: Any, *args: Any, **kwargs: Any) -> None:
    _open(self, app, *args, **kwargs)
    self.app = self._transport.app = RateLimitMiddleware(self.app, **OUTSIDE)  # type: ignore[attr-defined]


def _applications() -> Iterator[type]:
    """Every class of Starlette whose instances are ASGI applications."""
    for module in pkgutil.walk_packages(starlette.__path__, "starlette."):
        if module.name == TestClient.__module__:
            continue
        for cls in [*vars(import_module(module.name)).values()]:
            if inspect.isclass(cls) and cls.__module__ == module.name:
                call = vars(cls).get("__call__")
                if inspect.iscoroutinefunction(call) and [*inspect.signature(call).parameters] == _ASGI:
                    yield cls


def _limited(call: Any) -> Any:
    @wraps(call)
    async def limited(self: Any, scope: Any, receive: Any, send: Any) -> None:
        app = partial(call, self)
        await (app if state_of(scope) else RateLimitMiddleware(app, **OUTSIDE))(scope, receive, send)

    return limited


TestClient.__init__ = _open_limited  # type: ignore[method-assign]
for _class in _applications():
    _class.__call__ = _limited(vars(_class)["__call__"])  # type: ignore[method-assign]
