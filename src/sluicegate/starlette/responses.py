"""Responses to a refused request in Starlette: from the user's function or handler, our own, or an exception."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any, Final, cast

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException, WebSocketException
from starlette.websockets import WebSocket

from sluicegate.asgi import REASON, ASGIApp, AsgiCaller, Scope, answer_of, can_deny
from sluicegate.errors import SluicegateError, shows_half_made
from sluicegate.plan import DENIED, Decision, RateLimitExceeded
from sluicegate.web.http import denial
from sluicegate.web.settings import Settings


@shows_half_made
class Refused(RateLimitExceeded, HTTPException):
    """The error of a refusal in a dependency, or in a function that a view calls.

    The application's handler for RateLimitExceeded handles it, or for the status 429, or for HTTPException.
    """

    def __init__(self, decision: Decision) -> None:
        answer = denial(decision, None, accept="text/plain")
        # Not super(): each parent would pass its arguments to the other.
        HTTPException.__init__(self, answer.status, answer.body.decode().strip(), dict(answer.fields))
        self.decision = decision


def error_for(scope: Scope, decision: Decision) -> Exception:
    """Return the exception for a refusal where no response can be returned."""
    if scope["type"] == "websocket" and not can_deny(scope):
        return WebSocketException(1008, REASON)
    return Refused(decision)


async def own_answer(
    settings: Settings,
    caller: AsgiCaller,
    decision: Decision,
    *,
    outer: object = None,
    socket: WebSocket | None = None,
) -> ASGIApp | None:
    """Return the response of `on_denied`, else of the application's exception handler; None without either.

    After a mounted application has raised, `scope["app"]` is the mounted one. `outer` is the application that has
    called the limiter for this request. A handler gets the `socket` of a handshake, as from Starlette. It may close it.
    """
    own = await answer_of(settings, caller, decision)
    if own is not None:
        return own
    handler = handler_of(caller.scope.get("app"), decision) or handler_of(outer, decision)
    if handler is None:
        return None
    refused = Refused(decision)
    is_async = iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)
    connection = caller.native if socket is None else socket
    answer = handler(connection, refused) if is_async else run_in_threadpool(handler, connection, refused)
    return cast("ASGIApp | None", await answer)


def handler_of(app: object, decision: Decision) -> Any:
    """Return an application's exception handler for this refusal: as Starlette finds it for `Refused`, but a denied
    client is no RateLimitExceeded. None without one. The one that FastAPI itself has for HTTPException does not count.
    """
    handlers = getattr(app, "exception_handlers", None)
    if not handlers:  # as in a plain Starlette application
        return None
    status = decision.status
    for kind in (status, HTTPException) if status == DENIED else (status, *_KINDS):
        found = handlers.get(kind)
        if found is not None and getattr(found, "__module__", None) != "fastapi.exception_handlers":
            return found
    return None


_KINDS: Final = (Refused, RateLimitExceeded, SluicegateError, HTTPException)
