"""The limiter that a request has passed: its status, a health endpoint, and `reset_all`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from sluicegate.observe.status import Status
from sluicegate.starlette.decorators import exempt
from sluicegate.starlette.middleware import state_at
from sluicegate.web.gate import AsyncGate
from sluicegate.web.health import FIELDS, OK, answer, check_code


async def status(connection: HTTPConnection, /) -> Status:
    """Return the status of the limiter that the request has passed. Charges nothing."""
    return await passed(connection, "status in").limiter.status()


async def reset_all(connection: HTTPConnection, /, identity: object) -> int:
    """Forget every budget, slot and ban of an identity under the limiter that the request has passed. Return how many
    budgets were forgotten.

    The identity is as its key gives it, and need not be that of the request:

        await reset_all(request, ("user", "alice"))
        await reset_all(request, ("ip", "203.0.113.7"))
    """
    return await passed(connection, "reset_all in").reset_all(identity)


def passed(connection: HTTPConnection, what: str) -> AsyncGate:
    """Return the gate of the limiter that a request has passed."""
    state = state_at(connection.scope, what, connection.scope.get("endpoint", connection))
    return cast("AsyncGate", state.gate)  # the middleware's: no other adapter writes into a scope


def health(*, unavailable: int = OK) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint without limits that answers with the status as JSON.

    `unavailable` is the status code while the store is unavailable: 200 unless another one is given.

        Route("/health/limits", health())
    """
    check_code(unavailable)

    async def sluicegate_health(request: Request) -> Response:
        code, body = answer(await status(request), unavailable=unavailable)
        return Response(body, code, dict(FIELDS))

    return exempt(sluicegate_health)
