"""The end of a Django request: refunds by its response, renewal while it streams, release when it is closed.

Django closes the request together with the response that it sends, also when that response has replaced others. If
Django's task is cancelled, it closes nothing; then slots are released when the request object is freed.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from sluicegate.django.request import DjangoRequestState, end_here, end_with, native_of, state_of
from sluicegate.rules.response import Headers, Response
from sluicegate.runtime import fork
from sluicegate.stores.completion import running_loop
from sluicegate.web.settlement import AsyncSettlement, Settlement

_STATUSES: tuple[tuple[type[Exception], int], ...] = (  # the statuses that Django gives to uncaught exceptions
    (Http404, 404),
    (PermissionDenied, 403),
    (MultiPartParserError, 400),
    (BadRequest, 400),
    (SuspiciousOperation, 400),
)


def release_at_close(state: DjangoRequestState) -> None:
    """Release the slots of a concurrency limit when the request is closed. Django closes no copy of a request."""
    settlement = state.settlement
    if settlement is not None:  # the response decides about its charges
        _watch_logins()
    if settlement is None or not settlement.holds or state.releases_at_close:
        return
    own = state.own_request()
    request: HttpRequest = state.native if own is None else own
    state.releases_at_close = True
    end_with(request, partial(_release, settlement))
    if isinstance(settlement, AsyncSettlement):
        weakref.finalize(request, partial(_release_lost, asyncio.get_running_loop(), settlement)).atexit = False
    elif isinstance(request, ASGIRequest):
        weakref.finalize(request, partial(end_here, settlement.ended, fork.generation())).atexit = False


def settle_response(response: HttpResponseBase, state: DjangoRequestState) -> HttpResponseBase:
    """Refund the charges that this response refunds, before it is sent. Return the response to send."""
    settlement = state.settlement
    if isinstance(settlement, AsyncSettlement):  # a sync view under ASGI
        return async_to_sync(settle_response_async)(response, state)
    if settlement is None:
        return response
    state.regain(settlement.answered(_read_response(response, state)))
    return _releasing(response, state)


async def settle_response_async(response: HttpResponseBase, state: DjangoRequestState) -> HttpResponseBase:
    """Do the same as `settle_response`."""
    settlement = state.settlement
    if isinstance(settlement, Settlement):  # an async view under WSGI
        return await sync_to_async(settle_response)(response, state)
    if settlement is None:
        return response
    state.regain(await settlement.answered(_read_response(response, state)))
    return _releasing(response, state)


def _releasing(response: HttpResponseBase, state: DjangoRequestState) -> HttpResponseBase:
    """Return the response for one request alone if closing the request releases its slots: a view may return one object
    to many, and Django closes a request by its response.

    Not by the copy module: a class may have a pickle format or a constructor of its own.
    """
    if not state.releases_at_close or state.settlement is None:
        return response
    own, facts = object.__new__(type(response)), dict(vars(response))
    close = facts.pop("close", None)  # another middleware has set it: it closes that response
    facts["_resource_closers"] = [*facts["_resource_closers"]] if close is None else [close]
    vars(own).update(facts)
    _renew_while_streaming(own, state.settlement)
    return own


def settle_without_response(state: DjangoRequestState, error: BaseException | None) -> None:
    """End a request whose view gave no response: it raised, or was cancelled."""
    settlement = state.settlement
    if isinstance(settlement, AsyncSettlement):
        async_to_sync(settle_without_response_async)(state, error)
    elif settlement is not None:
        if isinstance(error, Exception):
            settlement.answered(Response(_status(error)))
        settlement.over(error)


async def settle_without_response_async(state: DjangoRequestState, error: BaseException | None) -> None:
    """End a request whose view gave no response: it raised, or was cancelled."""
    settlement = state.settlement
    if isinstance(settlement, Settlement):
        await sync_to_async(settle_without_response)(state, error)
    elif settlement is not None:
        if isinstance(error, Exception):
            await settlement.answered(Response(_status(error)))
        await settlement.over(error)


def _status(error: Exception) -> int:
    """Return the status that an exception will have. REST framework's exceptions have their own."""
    own = getattr(error, "status_code", None)
    if isinstance(own, int):
        return own
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def _read_response(response: HttpResponseBase, state: DjangoRequestState) -> Response:
    return Response(response.status_code, Headers(response.items()), login_failed=state.login_failed)


@cache
def _watch_logins() -> None:
    """Be told of failed logins. Imported here: importing sluicegate must import no application of Django."""
    from django.contrib.auth.signals import user_login_failed

    user_login_failed.connect(_note_failed_login)


def _note_failed_login(request: Any = None, **_: object) -> None:
    state = None if native_of(request) is None else state_of(request)
    if state is not None:
        state.login_failed = True


def _renew_while_streaming(response: HttpResponseBase, settlement: Settlement | AsyncSettlement) -> None:
    """Renew the slots while a streaming response is sent. Release them if it raises, because Django under ASGI does
    not close it then.

    Under ASGI Django makes a list of a synchronous iterator, in a thread; there only the loop's timer renews.
    """
    if settlement.holds and isinstance(response, StreamingHttpResponse):
        content: Any = response.streaming_content
        response.streaming_content = (_renewing_async if response.is_async else _renewing)(content, settlement)


def _renewing(chunks: Iterator[bytes], settlement: Settlement | AsyncSettlement) -> Iterator[bytes]:
    try:
        for chunk in chunks:
            if isinstance(settlement, Settlement):
                settlement.going_on()
            yield chunk
    except Exception:
        _release(settlement)
        raise


async def _renewing_async(
    chunks: AsyncIterator[bytes], settlement: Settlement | AsyncSettlement
) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            renewed = settlement.going_on()
            if renewed is not None:
                await renewed
            yield chunk
    except Exception:
        _release(settlement)
        raise


def _release(settlement: Settlement | AsyncSettlement) -> None:
    if isinstance(settlement, Settlement):
        settlement.ended()
    elif running_loop() is not None:  # the response was closed on an event loop, where this function cannot await
        settlement.end_soon()
    elif settlement.holds:
        async_to_sync(settlement.ended)()


def _release_lost(loop: asyncio.AbstractEventLoop, settlement: AsyncSettlement) -> None:
    """Release the slots of a request that was freed without being closed. Called from any thread."""
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(settlement.end_soon)
