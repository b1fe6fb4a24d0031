"""sluicegate: the gate that decides how many requests may enter.

The public names, listed once. Adapters live in `sluicegate.starlette`, `sluicegate.fastapi`, `sluicegate.flask`,
`sluicegate.django`, `sluicegate.asgi` and `sluicegate.wsgi`; importing sluicegate imports none of them, nor Redis.
"""

from typing import TYPE_CHECKING

from sluicegate.clock import ManualClock
from sluicegate.concurrency import Concurrency
from sluicegate.errors import ConfigurationError, RateLimitExceeded, SluicegateError, SluicegateWarning, StoreError
from sluicegate.limiter import AsyncLimiter, Limiter
from sluicegate.plan import Decision, Outcome
from sluicegate.quota import Quota

if TYPE_CHECKING:
    from sluicegate.ban import Ban
    from sluicegate.rule import Rule
    from sluicegate.tiers import Tiers

__version__ = "0.1.0"

__all__ = [
    "AsyncLimiter",
    "Ban",
    "Concurrency",
    "ConfigurationError",
    "Decision",
    "Limiter",
    "ManualClock",
    "Outcome",
    "Quota",
    "RateLimitExceeded",
    "Rule",
    "SluicegateError",
    "SluicegateWarning",
    "StoreError",
    "Tiers",
]


def __getattr__(name: str) -> object:
    """Rule, when it is asked for: a plain limiter needs none of what it needs, a third of the time to import this."""
    if name in ("Ban", "Rule", "Tiers"):
        from sluicegate.ban import Ban
        from sluicegate.rule import Rule
        from sluicegate.tiers import Tiers

        globals().update(Ban=Ban, Rule=Rule, Tiers=Tiers)
        return globals()[name]
    raise AttributeError(f"module 'sluicegate' has no attribute {name!r}")
