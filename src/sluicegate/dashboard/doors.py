"""The two doors of the page: an ASGI and a WSGI application. Each reads a request, says whether it and its form may
pass, and sends the answer.

No door holds a connection: a page that is open asks for its live part again and again. So a server can stop at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from sluicegate.address import parse_address
from sluicegate.asgi import ASGIApp, AsgiCaller
from sluicegate.rules.key import Caller
from sluicegate.runtime.awaiting import async_mismatch, close_unawaited, waits
from sluicegate.wsgi import WsgiCaller

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

MOST: Final = 65_536  # bytes that are read of a form
# Headers that say that a proxy has forwarded a request. One on this machine is a peer on loopback for everybody.
_FORWARDED: Final = [f"X-Forwarded-{each}" for each in ("For", "Host", "Proto")]
_PROXIES: Final = ("Forwarded", "Via", "X-Real-IP", "CF-Connecting-IP", *_FORWARDED)
_LIFESPAN: Final = ("lifespan.startup.complete", "lifespan.shutdown.complete")  # of a server that has only this page
_LOCAL: Final = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]*)?", re.IGNORECASE)

Authorize = Callable[[Any], object] | None
"""Gets the scope or the environ, and says whether a request may pass. Without it requests of this machine may."""

Answer = tuple[HTTPStatus, list[tuple[str, str]], bytes]
"""A response: status, header fields and body."""

Respond = Callable[..., Answer]
"""Answers a request: its caller, the path of the dashboard in the application, the query, the form (None if it is
forged, or not whole) and what `authorize` has said.
"""


def asgi_door(respond: Respond, authorize: Authorize) -> ASGIApp:
    """Make the page as an ASGI application, on asyncio. The work of the page is done in threads."""

    async def dashboard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            for answer in _LIFESPAN if scope["type"] == "lifespan" else ("websocket.close",):
                await receive()
                await send({"type": answer})
            return
        caller, body, message = AsgiCaller(scope), b"", dict[str, Any](more_body=True)
        granted = _granted(caller, authorize)
        if waits(granted):
            granted = await granted
        while message.get("more_body") and len(body) <= MOST:
            message = await receive()
            body += message.get("body", b"")
        form = _form(caller, body, is_whole=message["type"] == "http.request" and len(body) <= MOST)
        mount, query = scope.get("root_path", ""), scope.get("query_string", b"").decode("latin-1")
        code, fields, content = await asyncio.to_thread(respond, caller, mount, query=query, form=form, granted=granted)
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields]
        await send({"type": "http.response.start", "status": int(code), "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return dashboard


def wsgi_door(respond: Respond, authorize: Authorize) -> WSGIApplication:
    """Make the page as a WSGI application."""

    def dashboard(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        # Of another length, or of one that nobody knows, a form is not whole.
        given = environ.get("CONTENT_LENGTH") or ("" if "HTTP_TRANSFER_ENCODING" in environ else "0")
        caller, length = WsgiCaller(environ), int(given) if re.fullmatch("[0-9]{1,9}", given) else -1
        granted = _granted(caller, authorize)
        if waits(granted):
            close_unawaited(granted)
            raise async_mismatch("authorize", authorize)
        body = environ["wsgi.input"].read(length) if 0 < length <= MOST else b""
        form = _form(caller, body, is_whole=len(body) == length)
        # PEP 3333 carries UTF-8 as latin-1.
        mount = environ.get("SCRIPT_NAME", "").encode("latin-1", "replace").decode("utf-8", "replace")
        query = environ.get("QUERY_STRING", "")
        code, fields, content = respond(caller, mount, query=query, form=form, granted=granted)
        start_response(f"{code:d} {code.phrase}", fields)
        return [content]

    return dashboard


def _granted(caller: Caller, authorize: Authorize) -> object:
    """Return whether a request may pass, or an awaitable of that."""
    if authorize is not None:  # it gets a copy: a request object may change it. Django's writes another PATH_INFO.
        return authorize({**caller.native})
    # A site whose name leads to this machine has its own name in Host (DNS rebinding).
    peer, is_named = parse_address(caller.peer or ""), _LOCAL.fullmatch(_one(caller, "Host"))
    is_here = peer is not None and peer.is_loopback and is_named is not None
    return is_here and not any(caller.header(name) for name in _PROXIES)


def _form(caller: Caller, body: bytes, *, is_whole: bool) -> str | None:
    """Return a form; None unless it came whole, and from a page of the same origin.

    The browser says where a form comes from, and no page can change what it says. So a form needs no token, and the
    page no cookie and no key.
    """
    site, origin = _one(caller, "Sec-Fetch-Site"), _one(caller, "Origin")
    # An older browser, or plain HTTP, has only the origin. Not its scheme: behind a proxy that ends TLS the application
    # does not know it.
    host = origin.partition("://")[2]
    is_own = site == "same-origin" if site else bool(host) and host == _one(caller, "Host")
    return body.decode("utf-8", "replace") if is_whole and is_own else None


def _one(caller: Caller, name: str) -> str:
    """Return a header. Several lines of it are joined, and then are nothing that is asked for here."""
    return ",".join(caller.header(name)).strip()
