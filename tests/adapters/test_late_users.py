"""Users who are known late: two users with tokens at one address, each with a budget of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, cast
from uuid import uuid4

import flask
import pytest
from django.urls import path
from fastapi import Depends, FastAPI, Header
from flask_jwt_extended import JWTManager, create_access_token, get_jwt_identity, jwt_required, verify_jwt_in_request
from flask_jwt_extended.exceptions import JWTExtendedException
from flask_login import LoginManager, UserMixin
from jwt import PyJWTError
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sluicegate.fastapi import RateLimit
from sluicegate.flask import RateLimiter, charge
from sluicegate.starlette import RateLimitMiddleware
from sluicegate.starlette import charge as starlette_charging
from sluicegate.starlette import limit as starlette_limit
from sluicegate.testing.client import Answer
from tests.adapters.django_app import User, serving
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import Server

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("NINJA_SKIP_REGISTRY", "yes")
    import adrf.views
    import ninja
    from ninja.security import HttpBearer
    from rest_framework.authentication import BaseAuthentication
    from rest_framework.decorators import (
        api_view,
        authentication_classes,
        renderer_classes,
        throttle_classes,
    )
    from rest_framework.exceptions import AuthenticationFailed
    from rest_framework.renderers import JSONRenderer
    from rest_framework.response import Response
    from rest_framework.views import APIView
    from rest_framework.viewsets import ViewSet

    from sluicegate import drf
    from sluicegate import ninja as throttles

Get = Callable[[str], Answer]
"""Sends a request with the token of this user."""


class Tokens(BaseAuthentication):
    """Bearer tokens that are the user's name."""

    def authenticate(self, request: Any) -> Any:
        name = request.META.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
        if name not in ("alice", "bob"):
            raise AuthenticationFailed
        return User(name), name

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"


class Two(drf.UserRateThrottle):
    rate = "2/min"


class Plain(APIView):
    authentication_classes = (Tokens,)
    renderer_classes = (JSONRenderer,)
    throttle_classes = (Two,)

    def get(self, request: Any) -> Response:
        return Response("passed")


class Async(adrf.views.APIView):
    authentication_classes = (Tokens,)
    renderer_classes = (JSONRenderer,)
    throttle_classes = (Two,)

    async def get(self, request: Any) -> Response:
        return Response("passed")


class Set(ViewSet):
    authentication_classes = (Tokens,)
    renderer_classes = (JSONRenderer,)
    throttle_classes = (Two,)

    def list(self, request: Any) -> Response:
        return Response("passed")


@api_view(["GET"])
@authentication_classes([Tokens])
@renderer_classes([JSONRenderer])
@throttle_classes([Two])
def function(request: Any) -> Response:
    return Response("passed")


class Bearer(HttpBearer):
    def authenticate(self, request: Any, token: str) -> Any:
        return token if token in ("alice", "bob") else None


def operations(*given: Any) -> Any:
    """The routes of a Ninja API with one sync and one async operation."""
    api = ninja.NinjaAPI(auth=Bearer(), throttle=[*given], urls_namespace=uuid4().hex, docs_url=None, openapi_url=None)

    @api.get("sync")
    def in_thread(request: Any) -> str:
        return "passed"

    @api.get("async")
    async def on_loop(request: Any) -> str:
        return "passed"

    return api.urls


@contextmanager
def django_site(view: Any, *, asgi: bool, **options: Any) -> Iterator[Get]:
    with serving(asgi=asgi, urls=[path("x", view())], **options) as site:
        yield lambda user: site.request("GET", "/x", headers=[("Authorization", f"Bearer {user}")])


@contextmanager
def ninja_site(name: str, *, asgi: bool, **options: Any) -> Iterator[Get]:
    with serving(asgi=asgi, urls=[path("", operations(throttles.AuthRateThrottle("2/min")))], **options) as site:
        yield lambda user: site.request("GET", f"/{name}", headers=[("Authorization", f"Bearer {user}")])


def by_token(request: Any) -> Any:
    try:
        verify_jwt_in_request(optional=True)
    except (JWTExtendedException, PyJWTError):
        return "address", request.remote_addr
    name = get_jwt_identity()
    return ("address", request.remote_addr) if name is None else ("user", name)


def flask_view() -> str:
    return "passed"


def user_of(request: Any) -> Any:
    return get_jwt_identity()


@jwt_required()
def flask_charge() -> str:
    charge(flask.request, "2/minute", key=user_of)
    return "passed"


@contextmanager
def flask_login_site(**options: Any) -> Iterator[Get]:
    app = flask.Flask(__name__)
    login = LoginManager(app)

    @login.request_loader
    def load(request: Any) -> Any:
        user = UserMixin()
        user.id = request.headers["Authorization"].removeprefix("Bearer ")
        return user

    RateLimiter(app, **options, rules=[{"name": "own", "quota": "2/minute", "key": "user"}])
    app.add_url_rule("/x", view_func=flask_view)
    client = WsgiClient(app)
    yield lambda user: client.request("GET", "/x", headers=[("Authorization", f"Bearer {user}")])


class Backend:
    """Bearer tokens that are the user's name, for Starlette."""

    async def authenticate(self, connection: Any) -> Any:
        name = connection.headers["Authorization"].removeprefix("Bearer ")
        return AuthCredentials(["authenticated"]), SimpleUser(name)


@starlette_limit("2/minute", key="user")
async def starlette_limited(request: Any) -> PlainTextResponse:
    return PlainTextResponse("passed")


async def starlette_charge(request: Any) -> PlainTextResponse:
    await starlette_charging(request, "2/minute", key="user")
    return PlainTextResponse("passed")


def starlette_site(view: Any, *, is_outside: bool, **options: Any) -> AbstractContextManager[Get]:
    layers = [Middleware(AuthenticationMiddleware, backend=cast(Any, Backend()))]
    layers.insert(is_outside, Middleware(RateLimitMiddleware, **options))
    return asgi_site(Starlette(routes=[Route("/x", view)], middleware=layers))


async def current_user(authorization: Annotated[str, Header()]) -> str:
    return authorization.removeprefix("Bearer ")


async def fastapi_view() -> str:
    return "passed"


def fastapi_site(**options: Any) -> AbstractContextManager[Get]:
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, **options)])
    app.get("/x", dependencies=[Depends(RateLimit("2/minute", user=current_user))])(fastapi_view)
    return asgi_site(app)


@contextmanager
def asgi_site(app: Any) -> Iterator[Get]:
    with TestClient(app) as client:

        def get(user: str) -> Answer:
            found = client.get("/x", headers={"Authorization": f"Bearer {user}"})
            return Answer(found.status_code, [*found.headers.items()], found.content)

        yield get


@contextmanager
def flask_site(view: Any, **options: Any) -> Iterator[Get]:
    app = flask.Flask(__name__)
    app.config["JWT_SECRET_KEY"] = "only for tests, and 32 bytes long"
    JWTManager(app)
    RateLimiter(app, **options)
    app.add_url_rule("/x", view_func=view)
    with app.app_context():
        tokens = {name: create_access_token(name) for name in ("alice", "bob")}
    client = WsgiClient(app)
    yield lambda user: client.request("GET", "/x", headers=[("Authorization", f"Bearer {tokens[user]}")])


SITES: dict[str, Callable[..., Any]] = {
    **{
        f"{name}, {'asgi' if asgi else 'wsgi'}": lambda asgi=asgi, view=view, **options: django_site(
            view, asgi=asgi, **options
        )
        for asgi in (False, True)
        for name, view in {
            "APIView": Plain.as_view,
            "ViewSet": lambda: Set.as_view({"get": "list"}),
            "function view": lambda: function,
            "adrf": Async.as_view,
        }.items()
    },
    **{
        f"Ninja {name}, {'asgi' if asgi else 'wsgi'}": lambda asgi=asgi, name=name, **options: ninja_site(
            name, asgi=asgi, **options
        )
        for asgi in (False, True)
        for name in ("sync", "async")
    },
    "Flask with a JWT": lambda **options: flask_site(
        flask_view, **options, rules=[{"name": "own", "quota": "2/minute", "key": by_token}]
    ),
    "Flask, a charge behind a JWT": lambda **options: flask_site(flask_charge, **options),
    "Flask-Login": flask_login_site,
    "FastAPI, a dependency": fastapi_site,
    "Starlette, users outside": lambda **options: starlette_site(starlette_limited, is_outside=True, **options),
    "Starlette, users inside": lambda **options: starlette_site(starlette_charge, is_outside=False, **options),
}


@pytest.mark.parametrize("real", [False, True], ids=["memory", "server"])
@pytest.mark.parametrize("site", SITES)
def test_each_user_of_a_token_has_a_budget(site: str, real: bool, request: pytest.FixtureRequest) -> None:
    server: Server | None = request.getfixturevalue("valkey") if real else None
    store = {} if server is None else {"store": server.url, "prefix": f"late-{uuid4().hex}", "deadline": 30}
    with SITES[site](key="ip", default_limits=["100/day"], **store) as get:
        for user in ("alice", "bob"):
            answers = [get(user) for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 200, 429]
            assert answers[2].one("retry-after") == "60"
            assert ["r=0;t=60" in (answer.one("ratelimit") or "") for answer in answers] == [False, True, True]
