"""The adapter for Starlette: `RateLimitMiddleware`, `limit`, `exempt`, and `decision` for views.

The routes ahead are matched before the application is called (`places`), so that one plan holds everything: defaults,
the settings' rules and the view's own. A view that cannot be seen ahead is charged by its guard when it is reached
(`decorators`). This package knows Starlette and `sluicegate.asgi`; no store.
"""

from sluicegate.extras import needs

with needs("starlette"):
    from sluicegate.starlette.answers import Refused
    from sluicegate.starlette.decorators import exempt, limit
    from sluicegate.starlette.middleware import RateLimitMiddleware, decision

__all__ = ["RateLimitMiddleware", "Refused", "decision", "exempt", "limit"]
