"""Fixed window, aligned to the first hit: a count that ends one period after it began.

At most twice the limit in any period: a full window's end and the next one's beginning.
State: (start, used).
"""

from __future__ import annotations

from sluicegate.algorithms.checks import MAX, exact, no_burst, short
from sluicegate.plan import NEVER, Outcome, new
from sluicegate.quota import Quota

NAMES = ("fixed-window",)
CODE = "fw"
GUARANTEE = "at most twice the limit in any period"

State = tuple[int, int]


def params(quota: Quota) -> tuple[int, ...]:
    """Return (limit in units, window in microseconds)."""
    no_burst(quota, NAMES[0])
    exact(quota, NAMES[0], largest=2 * quota.limit)
    return (quota.limit, quota.period_us)


def shape(params: tuple[int, ...]) -> str:
    """Return the window as text, because the end of a stored window depends on its length."""
    return short(params[1])


def window_us(params: tuple[int, ...]) -> int:
    """Return the period itself."""
    return params[1]


def owing(params: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same window with the highest limit."""
    return (MAX // 2, params[1])


def decide(
    state: State | None, now: int, cost: int, params: tuple[int, ...], *, forced: bool = False
) -> tuple[Outcome, State | None]:
    """Return the outcome of a hit of this cost, and the count after it."""
    limit, window = params
    start, used = (now, 0) if state is None else state
    if not -window <= now - start < window:  # it has ended, or lies a window ahead
        start, used = now, 0
    left, wait = limit - used - cost, start + window - now
    if left >= 0:
        if cost:
            state = start, used + cost
        elif used == 0:
            wait = 0
        return new(Outcome, (True, limit, left, 0, wait, wait, now, "store")), state
    if forced:
        state = (start, max(used, limit))
    left = limit - used if used < limit else 0
    retry = 0 if cost == 0 else wait if cost <= limit else NEVER
    wait = wait if used else 0
    return new(Outcome, (cost == 0, limit, left, retry, wait, wait, now, "store")), state


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the count without the hit, if its window is the current one; None if no other hit is left in it."""
    start, used = (now, 0) if state is None else state
    if not -params[1] <= now - start < params[1] or not start <= at < start + params[1]:
        return state
    return (start, used - cost) if used > cost else None
