"""The adapter for Django: a middleware under WSGI and ASGI alike, and decorators that work with and without it.

    MIDDLEWARE = [..., "headgate.django.RateLimitMiddleware"]
    HEADGATE = {"STORE": "redis://localhost:6379/0", "DEFAULT_LIMITS": ["1000/day"]}

"headgate.django" may stand in INSTALLED_APPS, so that `manage.py check` reads the settings; nothing else needs it.
Importing this package imports no models and reads no settings.
"""

from headgate.extras import needs

with needs("django"):
    from headgate.django import checks as _checks  # noqa: F401  # pyright: ignore[reportUnusedImport]  (registers them)
    from headgate.django.decorators import exempt, limit
    from headgate.django.middleware import RateLimitMiddleware
    from headgate.django.signals import rate_limited
    from headgate.django.visit import decision

__all__ = ["RateLimitMiddleware", "decision", "exempt", "limit", "rate_limited"]
