"""The Django middleware: charges each request once, and adds the RateLimit fields to each response.

It enforces rules in `process_view`, which runs after the request phase of every middleware: the route and the user are
known, at any position in MIDDLEWARE. A request that does not reach `process_view` (404, a redirect for a slash, a
response of another middleware, a failed CSRF check) is charged when its response comes back, and may be refused then.
Resolving the route earlier would route every request twice, and would be wrong before LocaleMiddleware.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.django import conf
from sluicegate.django.lifecycle import (
    settle_response,
    settle_response_async,
    settle_without_response,
    settle_without_response_async,
)
from sluicegate.django.request import STATE, AsyncDjangoRequestState, DjangoRequestState, begin, state_of
from sluicegate.django.responses import add_fields, enforce, enforce_async, refuse, replace_response
from sluicegate.django.routes import arrival_of
from sluicegate.plan import RateLimitExceeded
from sluicegate.web.bound import NO_BOUNDS, Bounds
from sluicegate.web.gate import AsyncGate, Gate


class RateLimitMiddleware:
    """Limits every request of a Django project by `settings.SLUICEGATE`.

    One class for WSGI and ASGI. On an event loop it uses no threads. Wrong settings fail when the server starts.
    """

    sync_capable = True
    async_capable = True
    process_view: Callable[..., Any]

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._gate: Callable[[], Gate | AsyncGate] = conf.sync_gate
        self._state = DjangoRequestState
        self._is_async = iscoroutinefunction(get_response)  # pyright: ignore[reportDeprecated]
        if self._is_async:
            markcoroutinefunction(self)
            self._gate, self._state = conf.async_gate, AsyncDjangoRequestState
        self.process_view = self._process_view_async if self._is_async else self._process_view
        self._gate()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._is_async:
            return self._respond_async(request)
        state = self._begin(request)
        if state is None:
            return cast("HttpResponseBase", self.get_response(request))
        done: HttpResponseBase | None = None
        try:
            response: HttpResponseBase = self.get_response(request)
            if not state.charged:
                refusal = enforce(request, state, _arrive_without_view(request, state, response.status_code))
                response = response if refusal is None else replace_response(refusal, response)
            if state.settlement is not None:
                response = settle_response(response, state)
            done = add_fields(response, state)
            return done
        finally:  # no `except`: the exception belongs to the application
            if done is None and state.settlement is not None:
                settle_without_response(state, sys.exception())

    async def _respond_async(self, request: HttpRequest) -> HttpResponseBase:
        state = self._begin(request)
        if state is None:
            return cast("HttpResponseBase", await self.get_response(request))
        done: HttpResponseBase | None = None
        try:
            response: HttpResponseBase = await self.get_response(request)
            if not state.charged:
                refusal = await enforce_async(
                    request, state, _arrive_without_view(request, state, response.status_code)
                )
                response = response if refusal is None else replace_response(refusal, response)
            if state.settlement is not None:
                response = await settle_response_async(response, state)
            done = add_fields(response, state)
            return done
        finally:
            if done is None and state.settlement is not None:
                await settle_without_response_async(state, sys.exception())

    def _process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        state = vars(request).get(STATE)  # not state_of: Django calls this with its own request
        if not isinstance(state, DjangoRequestState) or state.charged:
            return None
        return enforce(request, state, _arrive(request, state))

    async def _process_view_async(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        state = vars(request).get(STATE)  # not state_of: Django calls this with its own request
        if not isinstance(state, DjangoRequestState) or state.charged:
            return None
        return await enforce_async(request, state, _arrive(request, state))

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """Return the refusal if the view raised RateLimitExceeded. For an async view, Django calls this in a thread."""
        if not isinstance(error, RateLimitExceeded):
            return None
        state = state_of(request)
        if state is not None and state.can_refuse:
            return refuse(request, state, state.refuse(error.decision))
        state = begin(request, self._gate())  # limits are off, but the view has raised a refusal
        return add_fields(refuse(request, state, state.refuse(error.decision)), state)

    def _begin(self, request: HttpRequest) -> DjangoRequestState | None:
        """Return the state of a new request; None if limits are off, or an outer RateLimitMiddleware has made one."""
        gate, facts = self._gate(), vars(request)
        if not gate.settings.enabled or isinstance(facts.get(STATE), DjangoRequestState):
            return None
        state = facts[STATE] = self._state(request, gate)  # as `begin` does, but the class is chosen already
        return state


def _arrive(request: HttpRequest, state: DjangoRequestState) -> Bounds:
    """Mark the request as charged, and return the rules of its endpoint."""
    endpoint, marks = arrival_of(request)
    state.charged = True
    if marks:
        state.note_marks(marks)
    return state.gate.bind(endpoint)


def _arrive_without_view(request: HttpRequest, state: DjangoRequestState, status: int) -> Bounds:
    """Do the same as `_arrive` for a request that reached no view. A CORS preflight with this `status` is free, but the
    deny list applies to it.

    A CORS layer responds with 2xx, the URL resolver with 404 or, for a slash, 301. All other responses are charged:
    else requests that look like preflights could try API keys without limit where a wrong key gets 401 or a redirect.
    """
    bounds = _arrive(request, state)
    is_free = state.charging(request, bounds).is_cors_preflight() and (200 <= status < 300 or status in (301, 404))
    return NO_BOUNDS if is_free else bounds
