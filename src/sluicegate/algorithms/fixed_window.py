"""Fixed window, aligned to the first hit: a count that ends one period after it began.

At most twice the limit in any period: a full window's end and the next one's beginning.
State: (start, used).
"""

from __future__ import annotations

from sluicegate.algorithms.exact import exact, no_burst, told
from sluicegate.plan import NEVER, Outcome, new
from sluicegate.quota import Quota

NAMES = ("fixed-window",)
CODE = "fw"
GUARANTEE = "at most twice the limit in any period"

State = tuple[int, int]


def params(quota: Quota) -> tuple[int, ...]:
    """(limit, window)."""
    no_burst(quota, NAMES[0])
    exact(quota, NAMES[0], largest=2 * quota.limit)
    return (quota.limit, quota.period_us)


def shape(params: tuple[int, ...]) -> str:
    """A window's end depends on its length."""
    return told(params[1])


def window_us(params: tuple[int, ...]) -> int:
    """The period itself."""
    return params[1]


def _live(state: State | None, now: int, window: int) -> State:
    """The window that holds `now`, a new one where the old has ended or lies a window ahead."""
    if state is None or not -window <= now - state[0] < window:
        return (now, 0)
    return state


def check(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> Outcome:
    """What a hit of this cost would come to."""
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
    """The count after the hit, no further than the limit."""
    limit, window = params
    start, used = _live(state, now, window)
    return (start, used + cost if used + cost <= limit else max(used, limit))


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """The count without the hit, if its window is still the one; a window of which nothing is left never was."""
    _, window = params
    start, used = _live(state, now, window)
    if not start <= at < start + window:
        return state
    return (start, used - cost) if used > cost else None
