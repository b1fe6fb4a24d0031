"""A refusal of a function that the limiter finds only at its call reaches the client, whatever is around the view."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Blueprint, Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from werkzeug.exceptions import HTTPException

import sluicegate.flask
import sluicegate.starlette
from sluicegate import ManualClock, RateLimitExceeded
from sluicegate.wsgi import RateLimitMiddleware
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.wsgi_client import WsgiClient, check_fields


class _AnswersErrors:
    """Answers every error of the application with 500, as many middlewares do."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
        except Exception:  # noqa: BLE001  # what the test is about
            await PlainTextResponse("error", 500)(scope, receive, send)


@sluicegate.starlette.limit("1/minute")
async def costly(request: Request) -> Response:
    return PlainTextResponse("costly")


async def calling(request: Request) -> Response:
    return await costly(request)


def _failed(request: Request, error: Exception) -> Response:
    return PlainTextResponse("unavailable", 503)


ROUTES = [Route("/", calling)]
INSIDE = Starlette(routes=ROUTES, exception_handlers={Exception: _failed})
AROUND: dict[str, dict[str, Any]] = {
    "a middleware": {"routes": ROUTES, "middleware": [Middleware(_AnswersErrors)]},
    "a mounted application": {
        "routes": [Mount("/", Starlette(routes=ROUTES, exception_handlers={Exception: _failed}))]
    },
}


@pytest.mark.parametrize("around", AROUND)
def test_starlette(around: str) -> None:
    app = Starlette(**AROUND[around])
    app.add_middleware(sluicegate.starlette.RateLimitMiddleware, clock=ManualClock())
    client = AsgiClient(app)
    assert client.request("GET", "/").status == 200
    refused = client.request("GET", "/")
    assert refused.status == 429
    check_fields(refused)


@pytest.mark.parametrize("is_blueprint", [False, True])
def test_flask(is_blueprint: bool) -> None:
    app, blueprint = Flask(__name__), Blueprint("board", __name__)

    @sluicegate.flask.limit("1/minute")
    def costly() -> str:
        return "costly"

    @blueprint.get("/")
    def calling() -> str:
        return costly()

    @blueprint.get("/caught")
    def catching() -> str:
        try:
            return costly()
        except HTTPException as error:
            return "caught" if isinstance(error, RateLimitExceeded) else "another error"

    place: Any = blueprint if is_blueprint else app

    @place.errorhandler(Exception)
    def failed(error: Exception) -> Any:
        return error if isinstance(error, HTTPException) else ("error", 500)

    app.register_blueprint(blueprint)
    sluicegate.flask.RateLimiter(app, clock=ManualClock())
    client = WsgiClient(app)
    assert client.request("GET", "/").status == 200
    refused = client.request("GET", "/")
    assert refused.status == 429
    check_fields(refused)
    assert client.request("GET", "/caught").body == b"caught"


@pytest.mark.parametrize("options", [{}, {"on_decision": lambda event: None}])
def test_the_close_of_a_body_that_is_a_kind_of_list_is_called(options: dict[str, Any]) -> None:
    closed: list[str] = []

    class Body(list[bytes]):
        def close(self) -> None:
            closed.append("closed")

    def app(environ: Any, start_response: Any) -> Body:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return Body([b"x"])

    assert (
        WsgiClient(RateLimitMiddleware(app, default_limits=["9/minute"], **options)).request("GET", "/").status == 200
    )
    assert closed == ["closed"]


def test_a_route_without_parameters_may_lose_its_methods() -> None:
    route = Route("/", lambda request: PlainTextResponse("ok"))
    app = Starlette(routes=[route])
    app.add_middleware(sluicegate.starlette.RateLimitMiddleware, default_limits=["9/minute"])
    client = AsgiClient(app)
    assert client.request("GET", "/").status == 200
    route.methods = None
    assert client.request("GET", "/").status == 200


@pytest.mark.parametrize(("path", "endpoint"), [("/a/1", "/a/{x}"), ("/o/other", "/o"), ("/none", "")])
def test_the_event_of_a_request_without_a_view_names_the_route(path: str, endpoint: str) -> None:
    seen: list[str] = []
    view = Route("/a/{x}", calling, methods=["POST"])
    app = Starlette(routes=[view, Mount("/o", routes=[Route("/in", calling)])])
    options: dict[str, Any] = {"default_limits": ["9/minute"], "on_decision": lambda event: seen.append(event.endpoint)}
    app.add_middleware(sluicegate.starlette.RateLimitMiddleware, **options)
    assert AsgiClient(app).request("GET", path).status in (404, 405)
    assert seen == [endpoint]
