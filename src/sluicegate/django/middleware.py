"""The Django middleware: charges each request once, and adds the RateLimit fields to each response.

It enforces rules in `process_view`, which runs after the request phase of every middleware: the route and the user are
known, at any position in MIDDLEWARE. A request that does not reach `process_view` (404, a redirect for a slash, a
response of another middleware, a failed CSRF check) is charged when its response comes back, and may be refused then.
Resolving the route earlier would route every request twice, and would be wrong before LocaleMiddleware.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.django import conf
from sluicegate.django.conf import Gates
from sluicegate.django.lifecycle import settle_response, settle_response_async
from sluicegate.django.request import STATE, DjangoRequestState, begin, state_of
from sluicegate.django.responses import add_fields, enforce, enforce_async, refuse, replace_response
from sluicegate.django.routes import arrival_of
from sluicegate.plan import RateLimitExceeded
from sluicegate.web.bound import NO_BOUNDS, Bounds
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.settlement import AsyncSettlement, Settlement


class RateLimitMiddleware:
    """Limits every request of a Django project by `settings.SLUICEGATE`.

    One class for WSGI and ASGI. On an event loop it uses no threads. Wrong settings fail when the server starts.
    """

    sync_capable = True
    async_capable = True
    process_view: Callable[..., object]

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)  # pyright: ignore[reportDeprecated]
        if self._is_async:
            markcoroutinefunction(self)
        self.process_view = self._process_view_async if self._is_async else self._process_view
        self._gate()  # wrong settings are an error now

    def _gate(self) -> Gate | AsyncGate:
        return conf.async_gate() if self._is_async else conf.sync_gate()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._is_async:
            return self._respond_async(request)
        response: HttpResponseBase
        gate, facts = Gates.sync or conf.sync_gate(), vars(request)
        # Limits are off, or another RateLimitMiddleware is outside.
        if not gate.settings.enabled or isinstance(facts.get(STATE), DjangoRequestState):
            response = self.get_response(request)
            return response
        state = facts[STATE] = DjangoRequestState(request, gate)
        is_done = False
        try:
            response = self.get_response(request)
            if not state.charged:
                refusal = enforce(request, state, _arrive_without_view(request, state, response.status_code))
                response = response if refusal is None else replace_response(refusal, response)
            if state.settlement is not None:
                response = settle_response(response, state)  # before the fields: they show what a refund has left
            response = add_fields(response, state)
            is_done = True
            return response
        finally:  # no `except`: the exception belongs to the application
            if not is_done and isinstance(state.settlement, Settlement):
                state.settlement.over(sys.exception())

    async def _respond_async(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase
        gate, facts = Gates.async_ or conf.async_gate(), vars(request)
        if not gate.settings.enabled or isinstance(facts.get(STATE), DjangoRequestState):
            response = await self.get_response(request)
            return response
        state = facts[STATE] = DjangoRequestState(request, gate)
        is_done = False
        try:
            response = await self.get_response(request)
            if not state.charged:
                bounds = _arrive_without_view(request, state, response.status_code)
                refusal = await enforce_async(request, state, bounds)
                response = response if refusal is None else replace_response(refusal, response)
            if state.settlement is not None:
                response = await settle_response_async(response, state)
            response = add_fields(response, state)
            is_done = True
            return response
        finally:
            if not is_done and isinstance(state.settlement, AsyncSettlement):
                await state.settlement.over(sys.exception())

    def _process_view(self, request: HttpRequest, *_: object) -> HttpResponseBase | None:
        state = vars(request).get(STATE)  # not state_of: Django calls this with its own request
        if not isinstance(state, DjangoRequestState) or state.charged:
            return None
        return enforce(request, state, _arrive(request, state))

    async def _process_view_async(self, request: HttpRequest, *_: object) -> HttpResponseBase | None:
        state = vars(request).get(STATE)
        if not isinstance(state, DjangoRequestState) or state.charged:
            return None
        return await enforce_async(request, state, _arrive(request, state))

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """Return the refusal if the view raised RateLimitExceeded. For an async view, Django calls this in a thread."""
        if not isinstance(error, RateLimitExceeded):
            return None
        state = state_of(request)
        if state is not None and state.open and not state.alone:
            return refuse(request, state, state.refuse(error.decision))
        state = begin(request, self._gate())  # limits are off, but the view has raised a refusal
        return add_fields(refuse(request, state, state.refuse(error.decision)), state)


def _arrive(request: HttpRequest, state: DjangoRequestState) -> Bounds:
    """Mark the request as charged, and return the rules of its endpoint."""
    endpoint, marks = arrival_of(request)
    bounds = state.bounds = state.gate.bind(endpoint)
    state.charged = True
    state.enforced = state.enforced.union(marks)
    if state.current() is not request:  # a middleware has passed on a copy
        state.charging(request, bounds)
    return bounds


def _arrive_without_view(request: HttpRequest, state: DjangoRequestState, status: int) -> Bounds:
    """Do the same as `_arrive` for a request that reached no view. A CORS preflight with this `status` is free, but the
    deny list applies to it.

    A CORS layer responds with 2xx, the URL resolver with 404 or, for a slash, 301. All other responses are charged:
    else requests that look like preflights could try API keys without limit where a wrong key gets 401 or a redirect.
    """
    bounds = _arrive(request, state)
    is_free = state.is_cors_preflight() and (200 <= status < 300 or status in (301, 404))
    return NO_BOUNDS if is_free else bounds
