"""The limiter of this process: its status, a health view and `reset_all`; `astatus` and `areset_all` for async code."""

from __future__ import annotations

from collections.abc import Callable

from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpRequest, HttpResponse

from sluicegate.django import conf
from sluicegate.django.conf import Gates
from sluicegate.observe.status import Status
from sluicegate.web.health import FIELDS, OK, answer, check_code
from sluicegate.web.marks import EXEMPT, declare


def status() -> Status:
    """Return this process's status: of its ASGI limiter if it has one, else of its WSGI limiter. Charges nothing."""
    conf.check_can_wait("status", "()", instead="astatus()")
    under_asgi = Gates.async_
    return conf.sync_gate().limiter.status() if under_asgi is None else async_to_sync(under_asgi.limiter.status)()


async def astatus() -> Status:
    """Do the same as `status` in async code."""
    return await sync_to_async(status)()


def reset_all(identity: object) -> int:
    """Forget every budget, slot and ban of an identity. Return how many budgets were forgotten.

    The identity is as its key gives it:

        reset_all(("user", "42"))
        reset_all(("ip", "203.0.113.7"))
    """
    conf.check_can_wait("reset_all", type(identity), instead="areset_all(…)")
    under_asgi = Gates.async_
    found = 0 if under_asgi is None else async_to_sync(under_asgi.reset_all)(identity)
    # The gates may count in different memories, and each remembers refusals of its own.
    opened = [gate for gate in (Gates.sync, Gates.loop) if gate is not None]
    gates = opened if opened or under_asgi is not None else [conf.sync_gate()]
    return found + sum([gate.reset_all(identity) for gate in gates])


async def areset_all(identity: object) -> int:
    """Do the same as `reset_all` in async code."""
    return await sync_to_async(reset_all)(identity)


def health(*, unavailable: int = OK) -> Callable[[HttpRequest], HttpResponse]:
    """Return a view without limits that answers with the status as JSON.

    `unavailable` is the status code while the store is unavailable: 200 unless another one is given.

        path("health/limits", health())
    """
    check_code(unavailable)

    def sluicegate_health(request: HttpRequest) -> HttpResponse:
        code, body = answer(status(), unavailable=unavailable)
        return HttpResponse(body, status=code, headers=dict(FIELDS))

    return declare(sluicegate_health, EXEMPT)
