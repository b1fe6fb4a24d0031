"""A charge inside an endpoint: `charge` for async code, `charge_sync` for plain functions in Starlette's threads."""

from __future__ import annotations

from typing import Unpack

import anyio.from_thread
from starlette.requests import HTTPConnection

from sluicegate.asgi import charge_of
from sluicegate.asgi import settle as settle_scope
from sluicegate.errors import AsyncMismatchError, RuleError
from sluicegate.starlette.request import StarletteCaller, is_in_a_thread
from sluicegate.starlette.routes import endpoint_at
from sluicegate.web.charge import AnyQuota, AsyncCharge, Charge, Charged, ChargedRule, ChargeOptions, run_async


def charge(connection: HTTPConnection, /, quota: AnyQuota, **options: Unpack[ChargeOptions]) -> AsyncCharge:
    """Charge a Request or a WebSocket under a rule of the endpoint's own: `await` it, or write `async with` before it.

    Returns the decision; raises RateLimitExceeded if the rule refuses, which the middleware answers with its usual
    refusal. What the request was charged before is given back then, unless `refund_earlier=False`. A rule that the
    request was charged for already is not charged again, but each message of an open WebSocket is. The other options
    are those of `@limit`. Each endpoint has a budget of its own for each quota, unless `scope` shares it.

        await charge(request, "3/day", key=email_of)
        async with charge(request, "2 at once"): ...  # until the block ends; without one until the response ends
    """
    one = _charge_of(connection, quota, **options)
    if is_in_a_thread():
        problem, expected = "called in a plain function, where nothing can await it", "write charge_sync(…)"
        raise AsyncMismatchError("charge", quota, problem=problem, expected=expected)
    return AsyncCharge(run_async(one, StarletteCaller(connection.scope)))


def charge_sync(connection: HTTPConnection, /, quota: AnyQuota, **options: Unpack[ChargeOptions]) -> Charged:
    """Do the same as `charge` in a plain function, which Starlette and FastAPI run in a thread."""
    one = _charge_of(connection, quota, **options)
    if not is_in_a_thread():
        problem, expected = "called on the event loop, where it cannot wait", "write await charge(…)"
        raise AsyncMismatchError("charge_sync", quota, problem=problem, expected=expected)
    run = anyio.from_thread.run
    charged: Charged = run(run_async, one, StarletteCaller(connection.scope))
    return charged.called_by(run)


def settle(connection: HTTPConnection, /, used: int, *, unit: str | None = None) -> None:
    """Note how many units a request has cost so far, for its rules with an `estimate`: those of this `unit`, or all.

    Call it as often as you count: the last number counts, in place of `cost_after`, when the response has ended. It
    does no I/O, and is the same in plain functions and in async ones.
    """
    settle_scope(connection.scope, used, unit=unit)


def _charge_of(connection: HTTPConnection, /, quota: AnyQuota, **options: Unpack[ChargeOptions]) -> Charge | None:
    rule = ChargedRule.of("charge", quota, **options)
    if not isinstance(connection, HTTPConnection):
        expected = "give the endpoint's own request or websocket first"
        raise RuleError("charge", type(connection), problem="not a request", expected=expected)
    return charge_of(rule, connection.scope, endpoint_at(connection.scope))
