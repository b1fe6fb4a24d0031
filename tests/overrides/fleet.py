"""An application for a fleet of workers: each answer says which process gave it. `STORE` and `PREFIX` are variables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sluicegate.asgi import RateLimitMiddleware as AsgiMiddleware
from sluicegate.wsgi import RateLimitMiddleware as WsgiMiddleware

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

OPTIONS: Any = {
    "store": os.environ.get("STORE", "memory://"),
    "prefix": os.environ.get("PREFIX", "sg"),
    "rules": [{"name": "page", "quota": "50000/day", "key": "header:x-user"}],
    "headers": "x-ratelimit",
    "deadline": 2,  # on a busy machine a worker would decide by itself, and the server would count less
}


async def _asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    body = str(os.getpid()).encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _wsgi(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    body = str(os.getpid()).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


asgi = AsgiMiddleware(_asgi, **OPTIONS)
wsgi = WsgiMiddleware(_wsgi, **OPTIONS)
