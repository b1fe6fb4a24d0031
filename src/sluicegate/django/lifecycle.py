"""The end of a Django request: refunds by its response, renewal while it streams, release when it is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache, partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from sluicegate.django.request import DjangoRequestState, at_close, if_lost, native_of, state_of
from sluicegate.rules.response import Headers, Response
from sluicegate.stores.completion import running_loop
from sluicegate.web.settlement import AsyncSettlement, Settlement


def release_at_close(state: DjangoRequestState) -> None:
    """Release the slots of a concurrency limit when the request is closed. Django closes no copy of a request."""
    settlement = state.settlement
    if settlement is None:
        return
    _watch_logins()  # the response decides about its charges
    if not settlement.holds or state.releases_at_close:
        return
    request = state.own_request() or state.native
    state.releases_at_close = True
    at_close(request, partial(_release, settlement))
    if "scope" in vars(request):  # the timer of an async settlement would renew a lost slot for ever
        if_lost(request, settlement.end_soon if isinstance(settlement, AsyncSettlement) else settlement.ended)


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


def _read_response(response: HttpResponseBase, state: DjangoRequestState) -> Response:
    return Response(response.status_code, Headers(response.items()), login_failed=state.login_failed)


@cache
def _watch_logins() -> None:
    """Be told of failed logins. Imported here: importing sluicegate must import no application of Django."""
    from django.contrib.auth.signals import user_login_failed

    user_login_failed.connect(_note_failed_login)


def _note_failed_login(request: object = None, **_: object) -> None:
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
    elif isinstance(response, HttpResponse):
        settlement.read(response.content)
        settlement.complete = True


def _renewing(chunks: Iterator[bytes], settlement: Settlement | AsyncSettlement) -> Iterator[bytes]:
    try:
        for chunk in chunks:
            if isinstance(settlement, Settlement):
                settlement.going_on(chunk)
            else:
                settlement.read(chunk)
            yield chunk
        settlement.complete = True
    except Exception:
        _release(settlement)
        raise


async def _renewing_async(
    chunks: AsyncIterator[bytes], settlement: Settlement | AsyncSettlement
) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            renewed = settlement.going_on(chunk)
            if renewed is not None:
                await renewed
            yield chunk
        settlement.complete = True
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
