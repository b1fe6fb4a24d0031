"""A shop on Django, in one file, with the dashboard at /limits/: under WSGI (application) and ASGI (asgi)."""

from __future__ import annotations

import os
from functools import cache
from io import BytesIO
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from examples.dashboard.rules import RULES, SIGN_IN, STORE, is_right
from sluicegate.dashboard import Dashboard


def staff(native: dict[str, Any]) -> object:
    """The name of the staff, from Django's session. `native` is the environ, or under ASGI the scope."""
    from django.contrib.sessions.backends.signed_cookies import SessionStore

    request = WSGIRequest(native) if "wsgi.input" in native else ASGIRequest(native, BytesIO())
    return SessionStore(request.COOKIES.get(settings.SESSION_COOKIE_NAME)).get("staff")


dashboard = Dashboard(STORE, authorize=staff, writable=True)
settings.configure(
    SECRET_KEY=os.environ.get("SHOP_SECRET", "for the example only"),
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    MIDDLEWARE=[
        "sluicegate.django.RateLimitMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
    ],
    SLUICEGATE={"STORE": STORE, "RULES": RULES, "ON_DECISION": dashboard.note},
)
django.setup()


def export(request: HttpRequest) -> HttpResponse:
    """What the rule limits."""
    return HttpResponse("exported\n")


@csrf_exempt
def sign_in(request: HttpRequest) -> HttpResponse:
    """For the staff."""
    if is_right(request.POST.get("password", "")):
        request.session["staff"] = "carol"
        return HttpResponseRedirect("/limits/")
    return HttpResponse(SIGN_IN)


urlpatterns = [path("export", export), path("sign-in", sign_in)]
# A project has these in two modules, and a process makes one of them: each has a limiter.
_wsgi, _asgi = cache(get_wsgi_application), cache(get_asgi_application)


def application(environ: dict[str, Any], start_response: Any) -> Any:
    """The dashboard below /limits, and Django for everything else."""
    path = environ["PATH_INFO"]
    if not f"{path}/".startswith("/limits/"):
        return _wsgi()(environ, start_response)
    script = environ.get("SCRIPT_NAME", "") + "/limits"
    return dashboard.wsgi({**environ, "SCRIPT_NAME": script, "PATH_INFO": path[7:]}, start_response)


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """The same under ASGI."""
    if scope["type"] == "http" and f"{scope['path']}/".startswith("/limits/"):
        await dashboard.asgi({**scope, "root_path": "/limits"}, receive, send)
    else:
        await _asgi()(scope, receive, send)
