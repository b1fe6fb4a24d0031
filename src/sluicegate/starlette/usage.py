"""The page of one's own usage, as an endpoint of Starlette."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from sluicegate.observe.usage import Budget
from sluicegate.starlette.charge import charge
from sluicegate.starlette.decorators import exempt
from sluicegate.starlette.request import StarletteCaller
from sluicegate.starlette.status import passed
from sluicegate.web.charge import AnyQuota
from sluicegate.web.usage import LIMIT, MAX_AGE, OPTIONS, body, fields


def usage(*, limit: AnyQuota = LIMIT, max_age: int = MAX_AGE) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers with the caller's budgets under all rules as JSON. It charges none of them.

    It has a `limit` of its own. A browser may keep the answer for `max_age` seconds.

        Route("/usage", usage())
    """
    headers = fields(limit, max_age)

    async def sluicegate_usage(request: Request) -> Response:
        await charge(request, limit, **OPTIONS)
        budgets = await passed(request, "usage in").usage(StarletteCaller(request.scope))
        return Response(body(budgets), headers=headers)

    return exempt(sluicegate_usage)


async def usage_of(connection: HTTPConnection, /, identity: object) -> tuple[Budget, ...]:
    """Return what an identity has used under the limiter that the request has passed: under every rule whose quota is
    written and whose key may give this identity, of tiers the budget of each tier. Charges nothing.

    The identity is as its key gives it, and need not be that of the request:

        await usage_of(request, ("user", "alice"))
    """
    return await passed(connection, "usage_of in").usage_of(identity)
