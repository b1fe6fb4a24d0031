"""The end of a Django request that owes something: judged by its response, renewed as it streams, released when closed.

Django closes the request with whichever response it sends at last, also when that one has replaced others. Only where
its task is cancelled it closes nothing; then what is held is released when nobody has the request any more.
This module knows Django's requests and responses; it asks no gate.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from sluicegate.after import Headers, Response
from sluicegate.django.visit import Visit
from sluicegate.ending import AsyncEnding, Ending

_STATUSES: tuple[tuple[type[Exception], int], ...] = (  # what Django makes of exceptions that no view has caught
    (Http404, 404),
    (PermissionDenied, 403),
    (MultiPartParserError, 400),
    (BadRequest, 400),
    (SuspiciousOperation, 400),
)


def end_with(request: HttpRequest, visit: Visit) -> None:
    """Have the end of the request release what was charged for as long as it lasts."""
    ending = visit.ending
    if ending is None or not ending.holds or visit.ends:
        return
    visit.ends = True
    setattr(request, "close", _closing(request, ending))  # noqa: B010  # mypy forbids to replace a method
    if isinstance(ending, AsyncEnding):
        weakref.finalize(request, partial(_lost, asyncio.get_running_loop(), ending)).atexit = False


def answered(response: HttpResponseBase, visit: Visit) -> None:
    """Give back what the response gives back, before it is sent."""
    ending = visit.ending
    if isinstance(ending, AsyncEnding):  # a sync view under ASGI
        async_to_sync(answered_later)(response, visit)
    elif ending is not None:
        visit.regain(ending.answered(_seen(response)))
        _attend(response, ending)


async def answered_later(response: HttpResponseBase, visit: Visit) -> None:
    """Give back what the response gives back, before it is sent."""
    ending = visit.ending
    if isinstance(ending, Ending):  # an async view under WSGI
        await sync_to_async(answered)(response, visit)
    elif ending is not None:
        visit.regain(await ending.answered(_seen(response)))
        _attend(response, ending)


def left(visit: Visit, error: BaseException | None) -> None:
    """End a request that was left without a response of its view."""
    ending = visit.ending
    if isinstance(ending, AsyncEnding):
        async_to_sync(left_later)(visit, error)
    elif ending is not None:
        if isinstance(error, Exception):
            ending.answered(Response(_status(error)))
        ending.over(error)


async def left_later(visit: Visit, error: BaseException | None) -> None:
    """End a request that was left without a response of its view."""
    ending = visit.ending
    if isinstance(ending, Ending):
        await sync_to_async(left)(visit, error)
    elif ending is not None:
        if isinstance(error, Exception):
            await ending.answered(Response(_status(error)))
        await ending.over(error)


def _status(error: Exception) -> int:
    """The status that an exception will have; REST framework's know their own."""
    own = getattr(error, "status_code", None)
    if isinstance(own, int):
        return own
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def _seen(response: HttpResponseBase) -> Response:
    return Response(response.status_code, Headers(response.items()))


def _attend(response: HttpResponseBase, ending: Ending | AsyncEnding) -> None:
    """Renew what is held as a streaming response is sent.

    Under ASGI Django makes a list of a synchronous iterator, in a thread; there the loop's timer does it alone.
    """
    if not ending.holds or not isinstance(response, StreamingHttpResponse):
        return
    content: Any = response.streaming_content
    if response.is_async:
        response.streaming_content = _attended_later(content, ending)
    elif isinstance(ending, Ending):
        response.streaming_content = _attended(content, ending)


def _attended(chunks: Iterator[bytes], ending: Ending) -> Iterator[bytes]:
    for chunk in chunks:
        ending.going_on()
        yield chunk


async def _attended_later(chunks: AsyncIterator[bytes], ending: Ending | AsyncEnding) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        if isinstance(ending, AsyncEnding):
            await ending.going_on()
        else:
            ending.going_on()
        yield chunk


def _closing(request: HttpRequest, ending: Ending | AsyncEnding) -> Callable[[], None]:
    """What closes the request, and releases what it holds. It must not keep the request alive."""
    before, found = vars(request).get("close"), weakref.ref(request)

    def close() -> None:
        try:
            if before is not None:
                before()
            elif (known := found()) is not None:
                type(known).close(known)
        finally:
            _release(ending)

    return close


def _release(ending: Ending | AsyncEnding) -> None:
    if isinstance(ending, Ending):
        ending.ended()
    elif _is_on_loop():  # somebody has closed the response where nobody may wait
        ending.end_soon()
    elif ending.holds:
        async_to_sync(ending.ended)()


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _lost(loop: asyncio.AbstractEventLoop, ending: AsyncEnding) -> None:
    """The request is gone; called from wherever the interpreter noticed."""
    with suppress(RuntimeError):  # so is the loop
        loop.call_soon_threadsafe(ending.end_soon)
