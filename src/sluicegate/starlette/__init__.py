"""The adapter for Starlette: `RateLimitMiddleware`, `limit`, `exempt`, and `decision` for views.

The middleware matches the routes before it calls the application (`routes`). So one plan has all rules: the default
limits, the rules of the settings, and the view's own limits. If the middleware cannot find a view in this way, the
guard around the view charges the view's limits when the view is called (`decorators`).
"""

from sluicegate.errors import needs

with needs("starlette"):
    from sluicegate.starlette.charge import charge, charge_sync, settle
    from sluicegate.starlette.decorators import exempt, limit
    from sluicegate.starlette.middleware import RateLimitMiddleware, decision
    from sluicegate.starlette.responses import Refused
    from sluicegate.starlette.status import health, reset_all, status
    from sluicegate.starlette.usage import usage, usage_of

__all__ = [
    "RateLimitMiddleware",
    "Refused",
    "charge",
    "charge_sync",
    "decision",
    "exempt",
    "health",
    "limit",
    "reset_all",
    "settle",
    "status",
    "usage",
    "usage_of",
]
