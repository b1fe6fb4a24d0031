"""Giving a client everything back: `reset_all` for sync code, `areset_all` for async code."""

from __future__ import annotations

from asgiref.sync import async_to_sync, sync_to_async

from sluicegate.django import conf


def reset_all(identity: object) -> int:
    """Forget every budget, slot and ban of an identity. Return how many budgets were forgotten.

    The identity is as its key gives it:

        reset_all(("user", "42"))
        reset_all(("ip", "203.0.113.7"))
    """
    conf.check_can_wait("reset_all", type(identity), instead="areset_all(…)")
    under_asgi = conf.opened_async_gate()
    found = 0 if under_asgi is None else async_to_sync(under_asgi.reset_all)(identity)
    return found + sum([gate.reset_all(identity) for gate in conf.sync_gates()])


async def areset_all(identity: object) -> int:
    """Do the same as `reset_all` in async code."""
    return await sync_to_async(reset_all)(identity)
