"""The adapter for Django: a middleware under WSGI and ASGI alike, and decorators that work with and without it.

    MIDDLEWARE = [..., "sluicegate.django.RateLimitMiddleware"]
    SLUICEGATE = {"STORE": "redis://localhost:6379/0", "DEFAULT_LIMITS": ["1000/day"]}

"sluicegate.django" may stand in INSTALLED_APPS, so that `manage.py check` reads the settings; nothing else needs it.
Importing this package imports no models and reads no settings.
"""

from sluicegate.extras import needs

with needs("django"):
    from sluicegate.django import checks as _checks  # noqa: F401  # pyright: ignore[reportUnusedImport]  (registers them)
    from sluicegate.django.decorators import exempt, limit
    from sluicegate.django.middleware import RateLimitMiddleware
    from sluicegate.django.signals import rate_limited
    from sluicegate.django.visit import decision

__all__ = ["RateLimitMiddleware", "decision", "exempt", "limit", "rate_limited"]
