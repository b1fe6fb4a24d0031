"""The adapter for Flask: one extension, `@limit` and `@exempt`, and errors that Flask's own handlers understand.

    from sluicegate.flask import RateLimiter, limit

    app = Flask(__name__)
    RateLimiter(app, default_limits=["1000/day"])

    @app.post("/reply")
    @limit("5/minute")
    def reply(): ...

The store is always a sync one, for async views too: Flask runs each async view in a new event loop.
"""

from sluicegate.errors import needs

with needs("flask"):
    from sluicegate.flask.decorators import exempt, limit
    from sluicegate.flask.extension import Installation, RateLimiter, charge, decision, settle
    from sluicegate.flask.health import health
    from sluicegate.flask.responses import Denied, RateLimited, StoreUnavailable, rate_limited
    from sluicegate.flask.usage import usage

__all__ = [
    "Denied",
    "Installation",
    "RateLimited",
    "RateLimiter",
    "StoreUnavailable",
    "charge",
    "decision",
    "exempt",
    "health",
    "limit",
    "rate_limited",
    "settle",
    "usage",
]
