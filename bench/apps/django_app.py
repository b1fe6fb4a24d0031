"""Django: `gunicorn bench.apps.django_app:app`."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from bench.apps import LIMIT, LIMITER, STORE, empty_script, work

MIDDLEWARE = {
    "none": [],
    "empty": ["bench.apps.django_app.empty"],
    "script": ["bench.apps.django_app.script"],
    "sluicegate": ["sluicegate.django.RateLimitMiddleware"],
    "django-ratelimit": [],
}
CACHES = {
    True: {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 10_000}},
    False: {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": STORE},
}

settings.configure(
    SECRET_KEY="only for the benchmark",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=MIDDLEWARE[LIMITER],
    CACHES={"default": CACHES[STORE == "memory://"]},
    SLUICEGATE={"STORE": STORE, "DEFAULT_LIMITS": [LIMIT], "KEY": "header:X-User"},
    SILENCED_SYSTEM_CHECKS=["django_ratelimit.E003", "django_ratelimit.W001"],
)


def empty(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware that does nothing: the cost of any middleware."""

    def middleware(request: HttpRequest) -> HttpResponse:
        return get_response(request)

    return middleware


def script(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware that asks the server to do nothing: the cost of any round trip."""
    ask = empty_script()

    def middleware(request: HttpRequest) -> HttpResponse:
        ask(request.headers["X-User"])
        return get_response(request)

    return middleware


def home(request: HttpRequest) -> HttpResponse:
    return HttpResponse(work())


def view() -> Any:
    if LIMITER != "django-ratelimit":
        return home
    from django_ratelimit.decorators import ratelimit

    return ratelimit(key="header:x-user", rate=LIMIT.replace("hour", "h"), block=True)(home)


urlpatterns = [path("", view())]
app = get_wsgi_application()
