"""An ASGI and a WSGI application, limited on the store in STORE. Each response names the worker."""

from __future__ import annotations

import os
from typing import Any, Final

from sluicegate import asgi, wsgi

OPTIONS: Final[dict[str, Any]] = {
    "store": os.environ["STORE"],
    "default_limits": ["30/day"],
    "deadline": 5,
    "on_store_failure": "deny",
}


def of_wsgi(environ, start_response):
    start_response("200 OK", [])
    return [b""]


async def of_asgi(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


limited_wsgi = wsgi.RateLimitMiddleware(of_wsgi, **OPTIONS)
limited_asgi = asgi.RateLimitMiddleware(of_asgi, **OPTIONS)


def wsgi_app(environ, start_response):
    worker = ("X-Worker", str(os.getpid()))
    return limited_wsgi(environ, lambda status, headers, *error: start_response(status, [*headers, worker], *error))


async def asgi_app(scope, receive, send):
    async def results(message):
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-worker", str(os.getpid()).encode())]
        await send(message)

    await limited_asgi(scope, receive, results)
