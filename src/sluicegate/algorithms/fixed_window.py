"""Fixed window, aligned to the first hit: a count that ends one period after it began.

At most twice the limit in any period: a full window's end and the next one's beginning.
State: (start, used).
"""

from __future__ import annotations

from sluicegate.algorithms.checks import exact, no_burst, short
from sluicegate.plan import NEVER, Budget, Outcome, new
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
    if state is None or not -window <= now - state[0] < window:
        return (now, 0)
    return state


def check(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> Outcome:
    """Return the outcome of a hit of this cost."""
    limit, window = params
    start, used = _live(state, now, window)
    wait = start + window - now
    allowed = used + cost <= limit or cost == 0
    retry = 0 if allowed else wait if cost <= limit else NEVER
    if allowed:
        used += cost
    if used == 0:
        wait = 0
    return new(Outcome, (allowed, limit, limit - used if used < limit else 0, retry, wait, wait, now, "store"))


def charge(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> State:
    """Return the count after the hit, no further than the limit."""
    limit, window = params
    start, used = _live(state, now, window)
    return (start, used + cost if used + cost <= limit else max(used, limit))


def hit(budget: Budget, now: int, cost: int, params: tuple[int, ...]) -> Outcome | None:
    """Check and charge a budget in one step, if its window goes on and the cost fits."""
    state: State | None = budget.state
    if state is None or not cost:
        return None
    limit, window = params
    start, used = state
    used += cost
    wait, left = start + window - now, limit - used
    if left < 0 or not 0 < wait <= window:
        return None
    budget.state = (start, used)
    return new(Outcome, (True, limit, left, 0, wait, wait, now, "store"))


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the count without the hit, if its window is the current one; None if no other hit is left in it."""
    _, window = params
    start, used = _live(state, now, window)
    if not start <= at < start + window:
        return state
    return (start, used - cost) if used > cost else None
