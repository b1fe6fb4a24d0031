"""headgate: the gate that decides how many requests may enter.

The public names, listed once. Adapters live in `headgate.starlette`, `headgate.fastapi`, `headgate.flask`,
`headgate.django`, `headgate.asgi` and `headgate.wsgi`; importing headgate imports none of them, nor Redis.
"""

from headgate.clock import ManualClock
from headgate.errors import ConfigurationError, HeadgateError, HeadgateWarning, RateLimitExceeded, StoreError
from headgate.limiter import AsyncLimiter, Limiter
from headgate.plan import Decision, Outcome
from headgate.quota import Quota
from headgate.rule import Rule

__version__ = "0.1.0"

__all__ = [
    "AsyncLimiter",
    "ConfigurationError",
    "Decision",
    "HeadgateError",
    "HeadgateWarning",
    "Limiter",
    "ManualClock",
    "Outcome",
    "Quota",
    "RateLimitExceeded",
    "Rule",
    "StoreError",
]
