"""The adapter for Starlette: `RateLimitMiddleware`, `limit`, `exempt`, and `decision` for views.

The routes ahead are matched before the application is called (`places`), so that one plan holds everything: defaults,
the settings' rules and the view's own. A view that cannot be seen ahead is charged by its guard when it is reached
(`decorators`). This package knows Starlette and `headgate.asgi`; no store.
"""

from headgate.extras import needs

with needs("starlette"):
    from headgate.starlette.answers import Refused
    from headgate.starlette.decorators import exempt, limit
    from headgate.starlette.middleware import RateLimitMiddleware, decision

__all__ = ["RateLimitMiddleware", "Refused", "decision", "exempt", "limit"]
