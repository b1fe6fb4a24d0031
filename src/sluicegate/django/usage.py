"""The page of one's own usage, as a view of Django."""

from __future__ import annotations

from collections.abc import Callable

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse

from sluicegate.django.charge import charge
from sluicegate.django.request import state_of
from sluicegate.web.charge import AnyQuota
from sluicegate.web.gate import AsyncGate
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
        budgets = async_to_sync(gate.usage)(state) if isinstance(gate, AsyncGate) else gate.usage(state)
        return HttpResponse(body(budgets), headers=headers)

    return declare(sluicegate_usage, EXEMPT)
