"""Sliding counter: this window's count plus the last one's, weighted by the part of it that is still in the period.

Less than twice the limit in any period, and never more than the limit at an instant. The estimate is the one that
Cloudflare described in 2017. Windows are aligned to the first hit. State: (start, current, previous), times in ticks.

A tick is one microsecond, unless limit × window would pass 2^53: then it is the least power of ten that
divides the window and fits. Every outcome is still exact in microseconds; only counts move at ticks.
"""

from __future__ import annotations

from sluicegate.algorithms.checks import MAX, exact, no_burst, short
from sluicegate.plan import NEVER, Outcome, new
from sluicegate.quota import Quota

NAMES = ("sliding-counter",)
CODE = "sc"
GUARANTEE = "less than twice the limit in any period, never more than the limit at an instant"

State = tuple[int, int, int]
_WIDEST = 4  # the largest number in any step is below 4 × limit × window


def params(quota: Quota) -> tuple[int, ...]:
    """Return (limit in units, window in ticks, tick in microseconds)."""
    no_burst(quota, NAMES[0])
    ticks = (10**power for power in range(7) if quota.period_us % 10**power == 0)
    tick = next((tick for tick in ticks if _WIDEST * quota.limit * (quota.period_us // tick) <= MAX), 1)
    exact(quota, NAMES[0], largest=_WIDEST * quota.limit * (quota.period_us // tick))
    return (quota.limit, quota.period_us // tick, tick)


def shape(params: tuple[int, ...]) -> str:
    """Return the window in ticks: counts belong to windows of one length."""
    _, window, tick = params
    return short(window * tick) if tick == 1 else f"{short(window * tick)}.{tick}"


def window_us(params: tuple[int, ...]) -> int:
    """Return the period itself."""
    return params[1] * params[2]


def _live(state: State | None, at: int, window: int) -> State:
    """Return the counts in the window of the tick `at`."""
    if state is None:
        return (at, 0, 0)
    start, current, _ = state
    if -window <= at - start < window:
        return state
    return (start + window, 0, current) if window <= at - start < 2 * window and current else (at, 0, 0)


def _wait(live: State, room: int, window: int) -> int:
    """Return the ticks from the window's start until the estimate is at most `room`, which it is not now."""
    _, current, previous = live
    if current <= room:  # soon: enough of the previous window leaves the period
        return window - (room - current) * window // previous
    return 2 * window - room * window // current  # later: this window is the previous one by then


def owing(params: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same window with the highest limit for which two windows of it are exact: at least twice the limit."""
    return (MAX // (2 * params[1]), *params[1:])


def decide(
    state: State | None, now: int, cost: int, params: tuple[int, ...], *, forced: bool = False
) -> tuple[Outcome, State | None]:
    """Return the outcome of a hit of this cost, and the counts after it."""
    limit, window, tick = params
    at = now // tick
    live = start, current, previous = _live(state, at, window)
    free = (limit - current - cost) * window  # all this is multiplied by the window
    if previous:
        free -= previous * (window - at + start if at > start else window)
    until = start * tick - now
    allowed = free >= 0 or cost == 0
    retry: int | None = 0
    if allowed:
        current += cost
        if cost:
            state = (start, current, previous)
    else:
        retry = until + _wait(live, limit - cost, window) * tick if cost <= limit else NEVER
        free += cost * window
        if forced:
            state = (start, max(current, min(current + cost, limit)), previous)
    remaining = free // window if free > 0 else 0
    if free == limit * window:
        return new(Outcome, (allowed, limit, remaining, retry, 0, 0, now, "store")), state
    reset = until + (2 * window if current else window) * tick
    following = until + _wait((start, current, previous), limit - remaining - 1, window) * tick
    return new(Outcome, (allowed, limit, remaining, retry, reset, following, now, "store")), state


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the counts without the hit, which was in this window or in the last one."""
    _, window, tick = params
    start, current, previous = _live(state, now // tick, window)
    number = (at // tick - start) // window
    if number == 0:
        current = max(0, current - cost)
    elif number == -1:
        previous = max(0, previous - cost)
    else:
        return state
    return (start, current, previous) if current or previous else None
