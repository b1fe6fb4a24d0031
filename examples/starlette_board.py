"""A board on Starlette: a user may reply 5 times a minute; others are counted by address."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from sluicegate.starlette import RateLimitMiddleware, exempt, limit

TOKENS = {"token-of-alice": "alice", "token-of-bob": "bob"}
replies: list[str] = []


class Tokens(AuthenticationBackend):
    """The user of each token. A real application reads it from a database."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = TOKENS.get(conn.headers.get("Authorization", "").removeprefix("Bearer "))
        return None if name is None else (AuthCredentials(["authenticated"]), SimpleUser(name))


async def list_replies(request: Request) -> Response:
    """Only the default limits apply here."""
    return JSONResponse(replies)


@limit("5/minute")
async def post_reply(request: Request) -> Response:
    """Five a minute for each user."""
    replies.append(f"{request.user.display_name or 'anonymous'} was here")
    return JSONResponse({"replies": len(replies)}, status_code=201)


@limit("2/minute; 10/hour", key="ip", scope="export")
def export(request: Request) -> Response:
    """An expensive page: two limits at once, for each address instead of each user."""
    return PlainTextResponse("\n".join(replies))


@exempt
async def health(request: Request) -> Response:
    """No limit at all."""
    return PlainTextResponse("ok")


@limit("3/minute")
async def live(websocket: WebSocket) -> None:
    """Handshakes are limited like requests."""
    await websocket.accept()
    await websocket.send_json(replies)
    await websocket.close()


app = Starlette(
    routes=[
        Route("/replies", list_replies, methods=["GET"]),
        Route("/replies", post_reply, methods=["POST"]),
        Mount("/admin", routes=[Route("/export", export)]),
        Route("/health", health),
        WebSocketRoute("/live", live),
    ],
    middleware=[
        Middleware(AuthenticationMiddleware, backend=Tokens()),  # outermost, so the limiter knows the user
        Middleware(
            RateLimitMiddleware,
            store=os.environ.get("SLUICEGATE_STORE", "memory://"),
            deadline=float(os.environ.get("SLUICEGATE_DEADLINE", "0.1")),
            default_limits=["20/second", "1000/day"],
        ),
    ],
)
