"""How a refused request is answered: by the user's own function or handler, by a response, or by raising.

This module knows Starlette's responses and exceptions; no rule, no route.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any, cast

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException, WebSocketException
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from sluicegate.asgi import REASON, ASGIApp, AsgiCaller, Scope, answer_of, can_deny
from sluicegate.clock import epoch_seconds
from sluicegate.errors import RateLimitExceeded, SluicegateError
from sluicegate.http import denial
from sluicegate.plan import Decision
from sluicegate.problem import status_of
from sluicegate.settings import Settings


class Refused(RateLimitExceeded, HTTPException):
    """A request that was refused where only raising helps: in a dependency, or in a function that a view calls.

    The application's handler for RateLimitExceeded answers it, or for the status 429, or for HTTPException.
    """

    def __init__(self, decision: Decision) -> None:
        answer = denial(decision, None, epoch=epoch_seconds(), accept="text/plain")
        headers = {name: value for name, value in answer.fields if not name.startswith("Content-")}
        # Not by super(): each parent would hand its own arguments to the other.
        HTTPException.__init__(self, answer.status, answer.body.decode().strip(), headers)
        self.decision = decision


def refusal(scope: Scope, decision: Decision) -> Exception:
    """What to raise where nothing can be returned."""
    if scope["type"] == "websocket" and not can_deny(scope):
        return WebSocketException(1008, REASON)
    return Refused(decision)


async def own_answer(
    settings: Settings, caller: AsgiCaller, decision: Decision, *, outer: object = None
) -> ASGIApp | None:
    """The answer of `on_denied`; else of the application's handler for the status, or RateLimitExceeded; or None.

    After a mounted application has raised, the scope names that one; `outer` is the one that the limiter stands in.
    """
    own = None if settings.on_denied is None else await answer_of(settings, caller, decision)
    if own is not None:
        return own
    status = status_of(decision)
    kinds = (403,) if status == 403 else (status, Refused, RateLimitExceeded, SluicegateError)
    tables = [getattr(app, "exception_handlers", None) or {} for app in (caller.scope.get("app"), outer)]
    handler = next((table[kind] for table in tables for kind in kinds if kind in table), None)
    if handler is None:
        return None
    refused = Refused(decision)
    is_async = iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)
    answer = handler(caller.native, refused) if is_async else run_in_threadpool(handler, caller.native, refused)
    return cast("ASGIApp | None", await answer)


async def response_of(settings: Settings, caller: AsgiCaller, decision: Decision) -> Any:
    """A response for a refused request. The middleware adds the fields when it passes."""
    own = await own_answer(settings, caller, decision)
    if own is not None:
        return own
    answer = denial(decision, None, epoch=epoch_seconds(), accept=",".join(caller.header("accept")))
    return Response(answer.body, answer.status, dict(answer.fields))


async def shut(websocket: WebSocket, response: Any) -> None:
    """Refuse a WebSocket: by a response where it is still possible, else by closing it."""
    if websocket.client_state is WebSocketState.CONNECTING:
        await websocket.receive()  # the handshake has to be heard before it is answered
    if websocket.application_state is WebSocketState.CONNECTING and can_deny(websocket.scope):
        await websocket.send_denial_response(response)
    else:
        await websocket.close(1008, REASON)
