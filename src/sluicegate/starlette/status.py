"""The status of the limiter that a request has passed, and a health endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from sluicegate.starlette.decorators import exempt
from sluicegate.starlette.middleware import state_at
from sluicegate.status import Status
from sluicegate.web.gate import AsyncGate
from sluicegate.web.health import FIELDS, OK, answer, check_code


async def status(connection: HTTPConnection, /) -> Status:
    """Return the status of the limiter that the request has passed. Charges nothing."""
    state = state_at(connection.scope, "status in", connection.scope.get("endpoint", connection))
    return await cast("AsyncGate", state.gate).limiter.status()


def health(*, unavailable: int = OK) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint without limits that answers with the status as JSON.

    `unavailable` is the status code while the store is unavailable: 200 unless another one is given.

        Route("/health/limits", health())
    """
    check_code(unavailable)

    async def sluicegate_health(request: Request) -> Response:
        code, body = answer(await status(request), unavailable=unavailable)
        return Response(body, code, dict(FIELDS))

    return cast("Callable[[Request], Awaitable[Response]]", exempt(sluicegate_health))
