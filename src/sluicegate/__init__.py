"""Rate limiting for web applications: the public names.

Adapters live in `sluicegate.starlette`, `sluicegate.fastapi`, `sluicegate.flask`,
`sluicegate.django`, `sluicegate.asgi` and `sluicegate.wsgi`; importing sluicegate imports neither an adapter nor redis.
"""

from typing import TYPE_CHECKING

from sluicegate.clock import ManualClock
from sluicegate.concurrency import Concurrency
from sluicegate.errors import ConfigurationError, SluicegateError, SluicegateWarning, StoreError
from sluicegate.limiter import AsyncLimiter, Limiter
from sluicegate.plan import Decision, Outcome, RateLimitExceeded
from sluicegate.quota import Calendar, Quota

if TYPE_CHECKING:
    from sluicegate.rules.ban import Ban
    from sluicegate.rules.response import login_failed
    from sluicegate.rules.rule import Rule
    from sluicegate.rules.tiers import Tiers
    from sluicegate.web.settings import Settings

__all__ = [
    "AsyncLimiter",
    "Ban",
    "Calendar",
    "Concurrency",
    "ConfigurationError",
    "Decision",
    "Limiter",
    "ManualClock",
    "Outcome",
    "Quota",
    "RateLimitExceeded",
    "Rule",
    "Settings",
    "SluicegateError",
    "SluicegateWarning",
    "StoreError",
    "Tiers",
    "login_failed",
]


def __getattr__(name: str) -> object:
    """Import what is for rules at its first use, because a plain limiter does not need it.

    Their import is a third of the time to import sluicegate. The import statements are written out, so that packers
    such as PyInstaller find the modules.
    """
    if name in ("Ban", "Rule", "Settings", "Tiers", "login_failed"):
        from sluicegate.rules.ban import Ban
        from sluicegate.rules.response import login_failed
        from sluicegate.rules.rule import Rule
        from sluicegate.rules.tiers import Tiers
        from sluicegate.web.settings import Settings

        globals().update(Ban=Ban, Rule=Rule, Settings=Settings, Tiers=Tiers, login_failed=login_failed)
        return globals()[name]
    raise AttributeError(f"module 'sluicegate' has no attribute {name!r}")
