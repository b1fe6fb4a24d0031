"""The page of one's own usage, as a view of Django."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.urls import URLResolver, get_resolver

from sluicegate.django import conf
from sluicegate.django.charge import charge
from sluicegate.django.conf import Gates
from sluicegate.django.request import state_of
from sluicegate.django.routes import endpoints
from sluicegate.observe.usage import Budget
from sluicegate.web.charge import AnyQuota
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import EXEMPT, declare
from sluicegate.web.usage import LIMIT, MAX_AGE, OPTIONS, body, fields


def usage(*, limit: AnyQuota = LIMIT, max_age: int = MAX_AGE) -> Callable[[HttpRequest], HttpResponse]:
    """Return a view that answers with the caller's budgets under all rules as JSON. It charges none of them.

    It has a `limit` of its own. A browser may keep the answer for `max_age` seconds.

        path("usage", usage())
    """
    headers = fields(limit, max_age)

    def sluicegate_usage(request: HttpRequest) -> HttpResponse:
        charge(request, limit, **OPTIONS)  # raises without the middleware
        state = state_of(request)
        if state is None:  # limits are off
            return HttpResponse(body(()), headers=headers)
        gate = state.gate
        _bind_all(gate, get_resolver())
        budgets = async_to_sync(gate.usage)(state) if isinstance(gate, AsyncGate) else gate.usage(state)
        return HttpResponse(body(budgets), headers=headers)

    return declare(sluicegate_usage, EXEMPT)


def usage_of(identity: object) -> tuple[Budget, ...]:
    """Return what an identity has used under every rule whose quota is written and whose key may give it: of tiers the
    budget of each tier. Charges nothing.

    The identity is as its key gives it:

        usage_of(("user", "42"))
    """
    conf.check_can_wait("usage_of", type(identity), instead="ausage_of(…)")
    gate = Gates.async_ or conf.sync_gate()
    _bind_all(gate, get_resolver())
    return async_to_sync(gate.usage_of)(identity) if isinstance(gate, AsyncGate) else gate.usage_of(identity)


async def ausage_of(identity: object) -> tuple[Budget, ...]:
    """Do the same as `usage_of` in async code."""
    return await sync_to_async(usage_of)(identity)


@lru_cache(maxsize=2)  # a gate under WSGI, and one under ASGI
def _bind_all(gate: Gate | AsyncGate, _: URLResolver) -> None:
    """Bind the rules of all views: a gate knows the views that were asked for."""
    for each in endpoints():
        gate.bind(each)
