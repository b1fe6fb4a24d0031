"""Two pages, /limited and /free, in every framework with its adapter. The options come as JSON in the environment.

They run in their own process: `uvicorn --factory tests.faults.apps:asgi`, `gunicorn 'tests.faults.apps:wsgi()'`.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from wsgiref.types import StartResponse, WSGIEnvironment

VARIABLE = "FAULTS_OPTIONS"
BODY = b"open"


def options() -> dict[str, Any]:
    logging.basicConfig()
    logging.getLogger("sluicegate").setLevel(logging.INFO)  # of the line "recovered"
    return dict(json.loads(os.environ[VARIABLE]))


def asgi() -> Any:
    from sluicegate.asgi import RateLimitMiddleware

    async def page(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY})

    return RateLimitMiddleware(page, **options())


def wsgi() -> Any:
    from sluicegate.wsgi import RateLimitMiddleware

    def page(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
        return [BODY]

    return RateLimitMiddleware(page, **options())


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from sluicegate.starlette import RateLimitMiddleware

    async def page(request: Request) -> Response:
        return Response(BODY, media_type="text/plain")

    limiting = Middleware(RateLimitMiddleware, **options())
    return Starlette(routes=[Route("/limited", page), Route("/free", page)], middleware=[limiting])


def flask() -> Any:
    from flask import Flask

    from sluicegate.flask import RateLimiter

    app = Flask(__name__)

    @app.get("/limited")
    @app.get("/free")
    def page() -> bytes:
        return BODY

    RateLimiter(app, **options())
    return app


def django_pair(configure: Callable[[], None]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return two functions that make the Django application: for WSGI and for ASGI servers."""

    def wsgi() -> Any:
        configure()
        from django.core.wsgi import get_wsgi_application

        return get_wsgi_application()

    def asgi() -> Any:
        configure()
        from django.core.asgi import get_asgi_application

        return get_asgi_application()

    return wsgi, asgi


def _configure_django() -> None:
    import django
    from django.conf import settings
    from django.http import HttpRequest, HttpResponse
    from django.urls import path

    def page(request: HttpRequest) -> HttpResponse:
        return HttpResponse(BODY)

    settings.configure(
        ALLOWED_HOSTS=["*"],
        SLUICEGATE=options(),
        MIDDLEWARE=["sluicegate.django.RateLimitMiddleware"],
        ROOT_URLCONF=(path("limited", page), path("free", page)),
        SECRET_KEY="only for tests",
    )
    django.setup()


django_wsgi, django_asgi = django_pair(_configure_django)
