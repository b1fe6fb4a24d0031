"""The middleware: each request meets its gate once, and each response tells how its limits stand.

Rules are enforced in `process_view`, which runs after every middleware's request phase: the route is known, and so is
the user, wherever this one stands in MIDDLEWARE. A request that never came so far (404, a redirect for a slash, another
middleware's own answer, a failed CSRF check) is charged when its response comes back, and refused then.
Resolving ahead instead would do every request's routing twice, and get it wrong before LocaleMiddleware.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.django import gates
from sluicegate.django.answers import enforce, enforce_later, instead, raised, refuse, told
from sluicegate.django.endings import answered, answered_later, left, left_later
from sluicegate.django.places import arrival_of
from sluicegate.django.visit import Visit, begin, is_preflight_of, visit_of
from sluicegate.errors import RateLimitExceeded
from sluicegate.gate import AsyncGate, Bound, Gate


class RateLimitMiddleware:
    """Limits every request of a Django project, as `settings.SLUICEGATE` says.

    One class for WSGI and ASGI. On an event loop nothing of it runs in a thread. Wrong settings raise when the
    server starts.
    """

    sync_capable = True
    async_capable = True
    process_view: Callable[..., Any]

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._gate: Callable[[], Gate | AsyncGate] = gates.sync_gate
        self._later = iscoroutinefunction(get_response)  # pyright: ignore[reportDeprecated]
        if self._later:
            markcoroutinefunction(self)
            self._gate = gates.async_gate
        self.process_view = self._view_later if self._later else self._view
        self._gate()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._later:
            return self._respond_later(request)
        visit = self._begin(request)
        if visit is None:
            return cast("HttpResponseBase", self.get_response(request))
        done: HttpResponseBase | None = None
        try:
            response: HttpResponseBase = self.get_response(request)
            if not visit.charged:
                refusal = enforce(request, visit, _arrive_without_view(request, visit, response.status_code))
                response = response if refusal is None else instead(refusal, response)
            if visit.ending is not None:
                answered(response, visit)
            done = told(response, visit)
            return done
        finally:  # no `except`: whatever was raised is not ours
            if done is None and visit.ending is not None:
                left(visit, sys.exception())

    async def _respond_later(self, request: HttpRequest) -> HttpResponseBase:
        visit = self._begin(request)
        if visit is None:
            return cast("HttpResponseBase", await self.get_response(request))
        done: HttpResponseBase | None = None
        try:
            response: HttpResponseBase = await self.get_response(request)
            if not visit.charged:
                refusal = await enforce_later(
                    request, visit, _arrive_without_view(request, visit, response.status_code)
                )
                response = response if refusal is None else instead(refusal, response)
            if visit.ending is not None:
                await answered_later(response, visit)
            done = told(response, visit)
            return done
        finally:
            if done is None and visit.ending is not None:
                await left_later(visit, sys.exception())

    def _view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        visit = visit_of(request)
        if visit is None or visit.charged:
            return None
        return enforce(request, visit, _arrive(request, visit))

    async def _view_later(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        visit = visit_of(request)
        if visit is None or visit.charged:
            return None
        return await enforce_later(request, visit, _arrive(request, visit))

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """Answer a view that raised RateLimitExceeded. Django calls this in a thread where the view was async."""
        if not isinstance(error, RateLimitExceeded):
            return None
        visit = visit_of(request)
        if visit is not None and visit.open:
            return refuse(request, visit, raised(visit, error))
        visit = begin(request, self._gate())  # limits are off, but the view asks for an answer
        return told(refuse(request, visit, raised(visit, error)), visit)

    def _begin(self, request: HttpRequest) -> Visit | None:
        """A visit for this middleware to lead; None where limits are off, or another one outside leads already."""
        gate = self._gate()
        return begin(request, gate) if gate.settings.enabled and visit_of(request) is None else None


def _arrive(request: HttpRequest, visit: Visit) -> tuple[Bound, ...]:
    """Note where the request has arrived; the rules that hold there."""
    arrival = arrival_of(request)
    visit.charged = True
    visit.enforced.update(arrival.marks)
    return visit.gate.bind(arrival.place)


def _arrive_without_view(request: HttpRequest, visit: Visit, status: int) -> tuple[Bound, ...]:
    """The same for a request that reached no view. A CORS preflight that was answered so is free; it may be denied.

    A CORS layer answers by 2xx, the URL resolver by 404 or, for a slash, 301. All else is charged: a check of keys that
    answers 401, or sends to a login, could be asked without end by requests that look like preflights.
    """
    bounds = _arrive(request, visit)
    is_free = is_preflight_of(request) and (200 <= status < 300 or status in (301, 404))
    return () if is_free else bounds
