"""One shop in every framework, the target of the corpus. Each view puts its name into `X-View`.

They run in a separate process, like those of tests/faults/apps.py, and take the same options.

| path | view |
|---|---|
| / | "home" |
| GET, POST /login | "login" |
| GET, POST /session | "form" for GET, "session" for POST; a class if the framework has them |
| GET, POST /api/board | "board"; mounted, if the framework mounts |
| GET, POST /decorated | "decorated"; behind `@limit("1/day", key="ip")`, if the adapter has views |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.faults.apps import django_pair, options

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIEnvironment

GUARD = "1/day"
VIEWS = {"/": "home", "/login": "login", "/api/board": "board"}
METHODS = ["GET", "POST"]


def _view(path: str, method: str) -> str:
    """The view of an application without a framework. It accepts methods in any case."""
    if path == "/session":
        return "session" if method.upper() == "POST" else "form"
    return VIEWS.get(path, "")


def asgi() -> Any:
    from sluicegate.asgi import RateLimitMiddleware

    async def page(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        view = _view(scope["path"], scope["method"])
        headers = [(b"content-length", b"0"), (b"x-view", view.encode())]
        await send({"type": "http.response.start", "status": 200 if view else 404, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return RateLimitMiddleware(page, **options())


def wsgi() -> Any:
    from sluicegate.wsgi import RateLimitMiddleware

    def page(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        view = _view(environ["PATH_INFO"], environ["REQUEST_METHOD"])
        start_response("200 OK" if view else "404 Not Found", [("Content-Length", "0"), ("X-View", view)])
        return [b""]

    return RateLimitMiddleware(page, **options())


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.endpoints import HTTPEndpoint
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    from sluicegate.starlette import RateLimitMiddleware, limit

    async def home(request: Request) -> Response:
        return Response(headers={"X-View": "home"})

    async def login(request: Request) -> Response:
        return Response(headers={"X-View": "login"})

    class Session(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return Response(headers={"X-View": "form"})

        async def post(self, request: Request) -> Response:
            return Response(headers={"X-View": "session"})

    async def board(request: Request) -> Response:
        return Response(headers={"X-View": "board"})

    @limit(GUARD, key="ip")
    async def decorated(request: Request) -> Response:
        return Response(headers={"X-View": "decorated"})

    routes = [
        Route("/", home),
        Route("/login", login, methods=METHODS),
        Route("/session", Session),
        Mount("/api", routes=[Route("/board", board, methods=METHODS)]),
        Route("/decorated", decorated, methods=METHODS),
    ]
    return Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, **options())])


def fastapi() -> Any:
    from fastapi import APIRouter, FastAPI, Response

    from sluicegate.fastapi import RateLimitMiddleware, limit

    app, api = FastAPI(), APIRouter(prefix="/api")

    def view(name: str) -> Any:
        return lambda: Response(headers={"X-View": name})

    app.add_api_route("/", view("home"))
    app.add_api_route("/login", view("login"), methods=METHODS)
    app.add_api_route("/session", view("form"))
    app.add_api_route("/session", view("session"), methods=["POST"])
    api.add_api_route("/board", view("board"), methods=METHODS)
    app.add_api_route("/decorated", limit(GUARD, key="ip")(view("decorated")), methods=METHODS)
    app.include_router(api)
    app.add_middleware(RateLimitMiddleware, **options())
    return app


def flask() -> Any:
    from flask import Blueprint, Flask, Response
    from flask.views import MethodView

    from sluicegate.flask import RateLimiter, limit

    app, api = Flask(__name__), Blueprint("api", __name__, url_prefix="/api")

    def view(name: str) -> Any:
        return lambda: Response(headers={"X-View": name})

    class Session(MethodView):
        def get(self) -> Response:
            return Response(headers={"X-View": "form"})

        def post(self) -> Response:
            return Response(headers={"X-View": "session"})

    app.add_url_rule("/", "home", view("home"))
    app.add_url_rule("/login", "login", view("login"), methods=METHODS)
    app.add_url_rule("/session", view_func=Session.as_view("session"))
    api.add_url_rule("/board", "board", view("board"), methods=METHODS)
    app.add_url_rule("/decorated", "decorated", limit(GUARD, key="ip")(view("decorated")), methods=METHODS)
    app.register_blueprint(api)
    RateLimiter(app, **options())
    return app


def _configure_django() -> None:
    import logging

    import django
    from django.conf import settings
    from django.http import HttpRequest, HttpResponse
    from django.urls import include, path
    from django.views import View

    from sluicegate.django import limit

    def view(name: str) -> Any:
        def answer(request: HttpRequest) -> HttpResponse:
            return HttpResponse(headers={"X-View": name})

        return answer

    class Session(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(headers={"X-View": "form"})

        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(headers={"X-View": "session"})

    settings.configure(
        ALLOWED_HOSTS=["*"],
        SLUICEGATE=options(),
        LOGGING_CONFIG=None,  # Python shows every warning
        MIDDLEWARE=["sluicegate.django.RateLimitMiddleware", "django.middleware.common.CommonMiddleware"],
        ROOT_URLCONF=(
            path("", view("home")),
            path("login", view("login")),
            path("session", Session.as_view()),
            path("api/", include([path("board", view("board"))])),
            path("decorated", limit(GUARD, key="ip")(view("decorated"))),
        ),
        SECRET_KEY="only for tests",
    )
    logging.getLogger("django.security.DisallowedHost").disabled = True  # Django sends 400 and logs a traceback
    django.setup()


django_wsgi, django_asgi = django_pair(_configure_django)
