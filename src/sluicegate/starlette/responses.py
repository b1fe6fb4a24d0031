"""Responses to a refused request in Starlette: from the user's function or handler, our own, or an exception."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from sluicegate.asgi import REASON, ASGIApp, AsgiCaller, Scope, answer_of, can_deny
from sluicegate.errors import SluicegateError, shows_half_made
from sluicegate.plan import DENIED, Decision, RateLimitExceeded
from sluicegate.web.http import denial
from sluicegate.web.settings import Settings

Handler = Callable[[HTTPConnection, "Refused"], Any]
"""An exception handler of the application, sync or async."""


@shows_half_made
class Refused(RateLimitExceeded, HTTPException):
    """The error of a refusal in a dependency, or in a function that a view calls.

    The application's handler for RateLimitExceeded handles it, or for the status 429, or for HTTPException.
    """

    def __init__(self, decision: Decision, *, is_unhandled: bool = False) -> None:
        self.is_unhandled = is_unhandled  # the application has no handler for it: the limiter answers
        answer = denial(decision, None, accept="text/plain")
        # Not super(): each parent would pass its arguments to the other.
        HTTPException.__init__(self, answer.status, answer.body.decode().strip(), dict(answer.fields))
        self.decision = decision


def error_for(scope: Scope, decision: Decision) -> Exception:
    """Return the exception for a refusal where no response can be returned."""
    if scope["type"] == "websocket" and not can_deny(scope):
        return WebSocketException(1008, REASON)
    return Refused(decision)


def late_error(scope: Scope, decision: Decision) -> Exception:
    """Return the exception for a refusal by the guard of a view: code around the view lets an HTTPException pass."""
    return Refused(decision, is_unhandled=handler_of(scope.get("app"), decision) is None)


async def own_answer(
    settings: Settings,
    caller: AsgiCaller,
    decision: Decision,
    *,
    handler: Handler | None,
    socket: WebSocket | None,
) -> ASGIApp | None:
    """Return the response of `on_denied`, else of the application's exception handler; None without either.

    A handler gets the `socket` of a handshake, as from Starlette. It may close it.
    """
    own = await answer_of(settings, caller, decision)
    if own is not None or handler is None:
        return own
    refused = Refused(decision)
    is_async = iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)
    connection = caller.native if socket is None else socket
    answering = handler(connection, refused) if is_async else run_in_threadpool(handler, connection, refused)
    answer: ASGIApp | None = await answering
    return answer


def handler_of(app: object, decision: Decision) -> Handler | None:
    """Return an application's exception handler for this refusal: as Starlette finds it for `Refused`, but a denied
    client is no RateLimitExceeded. None without one. The one that FastAPI itself has for HTTPException does not count.
    """
    handlers = getattr(app, "exception_handlers", None)
    if not handlers:  # as in a plain Starlette application
        return None
    status = decision.status
    for kind in (status, HTTPException) if status == DENIED else (status, *_KINDS):
        found: Handler | None = handlers.get(kind)
        if found is not None and getattr(found, "__module__", None) != "fastapi.exception_handlers":
            return found
    return None


# In the order in which Starlette looks for a handler of `Refused`: that of its parents.
_KINDS: Final = (Refused, RateLimitExceeded, SluicegateError, HTTPException)
