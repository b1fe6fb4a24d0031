"""Giving a client everything back: `reset_all`."""

from __future__ import annotations

from typing import cast

from starlette.requests import HTTPConnection

from sluicegate.starlette.middleware import state_at
from sluicegate.web.gate import AsyncGate


async def reset_all(connection: HTTPConnection, /, identity: object) -> int:
    """Forget every budget, slot and ban of an identity under the limiter that the request has passed. Return how many
    budgets were forgotten.

    The identity is as its key gives it, and need not be that of the request:

        await reset_all(request, ("user", "alice"))
        await reset_all(request, ("ip", "203.0.113.7"))
    """
    state = state_at(connection.scope, "reset_all in", connection.scope.get("endpoint", connection))
    return await cast("AsyncGate", state.gate).reset_all(identity)
