"""A charge inside a Django view: `charge` for sync code, `acharge` for async code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar, Unpack

from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpRequest

from sluicegate.django import conf
from sluicegate.django.lifecycle import release_at_close
from sluicegate.django.request import DjangoRequestState, native_request, state_of
from sluicegate.django.routes import arrival_of
from sluicegate.errors import NotEnforcedError
from sluicegate.web.charge import AnyQuota, AsyncCharge, Charge, Charged, ChargedRule, ChargeOptions, text_of, unlimited
from sluicegate.web.gate import AsyncGate

P = ParamSpec("P")
T = TypeVar("T")


def charge(request: object, /, quota: AnyQuota, **options: Unpack[ChargeOptions]) -> Charged:
    """Charge this request under a rule of the view's own. Return the decision; raise RateLimitExceeded if it refuses.

    The middleware answers the exception with its usual refusal. What the request was charged before is given back then,
    unless `refund_earlier=False`. A rule that the request was charged for already is not charged again. The other
    options are those of `@limit`. Takes a request of Django or of REST framework.

        charge(request, "1/minute", key=email_of)
        with charge(request, "2 at once"): ...  # until the block ends; without a block until the response ends
    """
    rule = ChargedRule.of("charge", quota, **options)
    native = native_request(request, "charge")
    state = _state_for(native)
    if state is None:
        return unlimited()
    if isinstance(state.gate, AsyncGate):
        conf.check_can_wait("charge", text_of(rule.mark), instead="acharge(…)")
    return run(rule.charge(state, arrival_of(native).endpoint), native, state)


def settle(request: object, /, used: int, *, unit: str | None = None) -> None:
    """Note how many units the request has cost so far, for its rules with an `estimate`: those of this `unit`, or all.

    Call it as often as you count: the last number counts, in place of `cost_after`, when the response has ended. It
    does no I/O, and is the same in plain views and in async ones.
    """
    state = state_of(request)
    if state is not None:
        state.settle(used, unit)


def acharge(request: object, /, quota: AnyQuota, **options: Unpack[ChargeOptions]) -> AsyncCharge:
    """Do the same as `charge` in async code: `await acharge(…)`, or `async with acharge(…):`."""
    rule = ChargedRule.of("charge", quota, **options)
    conf.check_is_async("acharge", quota, instead="charge(…)")
    return AsyncCharge(_acharge(rule, request))


async def _acharge(rule: ChargedRule, request: object) -> Charged:
    native = native_request(request, "charge")
    state = _state_for(native)
    if state is None:
        return unlimited()
    return await run_async(rule.charge(state, arrival_of(native).endpoint), native, state)


_acharge.__qualname__ = "acharge"  # Python's warning about a forgotten await shows it


def run(charge: Charge, request: HttpRequest, state: DjangoRequestState) -> Charged:
    """Run a charge of this request in sync code. Raises RateLimitExceeded if it refuses."""
    if isinstance(state.gate, AsyncGate):  # sync code under ASGI: the gate's connections belong to the server's loop
        return async_to_sync(run_async)(charge, request, state).called_by(_from_thread)
    charged = charge.run(state.charging(request, charge.bounds))
    release_at_close(state)
    return charged


async def run_async(charge: Charge, request: HttpRequest, state: DjangoRequestState) -> Charged:
    """Do the same as `run` in async code."""
    if not isinstance(state.gate, AsyncGate):  # async code under WSGI: its loop ends with this call
        return await sync_to_async(run)(charge, request, state)
    charged = await charge.run_async(state.charging(request, charge.bounds))
    release_at_close(state)
    return charged


def _from_thread(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    return async_to_sync(function)(*args, **kwargs)


def _state_for(native: HttpRequest) -> DjangoRequestState | None:
    """Return the state of a request; None if limits are off. Raises NotEnforcedError without the middleware."""
    state = state_of(native)
    if state is not None and not state.alone:
        return state
    if not conf.gate_for(native).settings.enabled:
        return None
    problem, expected = "the request has not passed RateLimitMiddleware", f'add "{conf.ADVISED}" to MIDDLEWARE'
    raise NotEnforcedError("charge in", arrival_of(native).endpoint.label, problem=problem, expected=expected)
