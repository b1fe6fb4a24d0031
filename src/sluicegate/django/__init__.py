"""The Django adapter: one middleware for WSGI and ASGI, and decorators that work with and without it.

    MIDDLEWARE = [..., "sluicegate.django.RateLimitMiddleware"]
    SLUICEGATE = {"STORE": "redis://localhost:6379/0", "DEFAULT_LIMITS": ["1000/day"]}

Add "sluicegate.django" to INSTALLED_APPS to let `manage.py check` read the settings, and for `manage.py sluicegate`.
Nothing else needs it.
Importing this package imports no models and reads no settings.
"""

from sluicegate.errors import needs

with needs("django"):
    from sluicegate.django import checks as _checks  # noqa: F401  # pyright: ignore[reportUnusedImport]  (registers the system checks)
    from sluicegate.django.charge import acharge, charge, settle
    from sluicegate.django.decorators import exempt, limit
    from sluicegate.django.middleware import RateLimitMiddleware
    from sluicegate.django.request import decision
    from sluicegate.django.responses import rate_limited
    from sluicegate.django.status import areset_all, astatus, health, reset_all, status
    from sluicegate.django.usage import ausage_of, usage, usage_of

__all__ = [
    "RateLimitMiddleware",
    "acharge",
    "areset_all",
    "astatus",
    "ausage_of",
    "charge",
    "decision",
    "exempt",
    "health",
    "limit",
    "rate_limited",
    "reset_all",
    "settle",
    "status",
    "usage",
    "usage_of",
]
