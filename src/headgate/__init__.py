"""headgate: the gate that decides how many requests may enter.

The public names, listed once. Adapters live in `headgate.starlette`, `headgate.fastapi`, `headgate.flask`,
`headgate.django`, `headgate.asgi` and `headgate.wsgi`; importing headgate imports none of them, nor Redis.
"""

from typing import TYPE_CHECKING

from headgate.clock import ManualClock
from headgate.concurrency import Concurrency
from headgate.errors import ConfigurationError, HeadgateError, HeadgateWarning, RateLimitExceeded, StoreError
from headgate.limiter import AsyncLimiter, Limiter
from headgate.plan import Decision, Outcome
from headgate.quota import Quota

if TYPE_CHECKING:
    from headgate.ban import Ban
    from headgate.rule import Rule
    from headgate.tiers import Tiers

__version__ = "0.1.0"

__all__ = [
    "AsyncLimiter",
    "Ban",
    "Concurrency",
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
    "Tiers",
]


def __getattr__(name: str) -> object:
    """Rule, when it is asked for: a plain limiter needs none of what it needs, a third of the time to import this."""
    if name in ("Ban", "Rule", "Tiers"):
        from headgate.ban import Ban
        from headgate.rule import Rule
        from headgate.tiers import Tiers

        globals().update(Ban=Ban, Rule=Rule, Tiers=Tiers)
        return globals()[name]
    raise AttributeError(f"module 'headgate' has no attribute {name!r}")
