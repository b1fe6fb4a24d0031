"""Fixed window, aligned to the first hit: a count that ends one period after it began.

At most twice the limit in any period: a full window's end and the next one's beginning.
State: (start, used).
"""

from __future__ import annotations

from sluicegate.algorithms.checks import exact, no_burst, short
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


def _live(state: State | None, now: int, window: int) -> State:
    """Return the window that holds `now`, a new one where the old has ended or lies a window ahead."""
    return state if state is not None and -window <= now - state[0] < window else (now, 0)


def check(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> Outcome:
    """Return the outcome of a hit of this cost."""
    limit, window = params
    start, used = _live(state, now, window)
    left, wait = limit - used - cost, start + window - now
    if left >= 0 or cost == 0:
        if left == limit:
            wait = 0
        return new(Outcome, (True, limit, left if left > 0 else 0, 0, wait, wait, now, "store"))
    retry = wait if cost <= limit else NEVER
    wait = wait if used else 0
    return new(Outcome, (False, limit, limit - used if used < limit else 0, retry, wait, wait, now, "store"))


def charge(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> State:
    """Return the count after the hit, no further than the limit."""
    limit, window = params
    start, used = _live(state, now, window)
    count = used + cost
    return (start, count if count <= limit else max(used, limit))


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the count without the hit, if its window is the current one; None if no other hit is left in it."""
    _, window = params
    start, used = _live(state, now, window)
    if not start <= at < start + window:
        return state
    return (start, used - cost) if used > cost else None
