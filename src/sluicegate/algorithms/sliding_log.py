"""Sliding log: the moment of every unit admitted, exact and as large as the limit.

At most the limit in any period; a hit counts for the period that follows it, its own moment
included. State: the moments in order, one for each unit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from sluicegate.algorithms.checks import no_burst, short
from sluicegate.errors import AlgorithmError
from sluicegate.plan import NEVER, Outcome, new
from sluicegate.quota import Quota

NAMES = ("sliding-log",)
CODE = "sl"
GUARANTEE = "at most the limit in any period, exactly"

MAX_LIMIT = 10_000  # a log is O(limit): a sorted set of 10,000 is 1.2 MB and slow to trim

State = list[int]


def params(quota: Quota) -> tuple[int, ...]:
    """Return (limit in units, window in microseconds)."""
    no_burst(quota, NAMES[0])
    if quota.limit > MAX_LIMIT:
        raise AlgorithmError(
            f"algorithm {NAMES[0]!r} with quota",
            str(quota),
            problem=f"a log of more than {MAX_LIMIT} moments for each identity",
            expected="use algorithm 'sliding-window', which is as strict in 2 KB",
        )
    return (quota.limit, quota.period_us)


def shape(params: tuple[int, ...]) -> str:
    """Return the window: a moment is deleted when its window has passed, so the key depends on it."""
    return short(params[1])


def window_us(params: tuple[int, ...]) -> int:
    """Return the period itself."""
    return params[1]


def _live(state: State | None, now: int, window: int) -> State:
    """Return the moments still in the period; none if the last of them is more than a window ahead of the clock."""
    if not state:
        return []
    if state[-1] - now > window:
        state.clear()
    elif state[0] <= now - window:
        del state[: bisect_right(state, now - window)]
    return state


def check(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> Outcome:
    """Return the outcome of a hit of this cost."""
    limit, window = params
    log = _live(state, now, window)
    used = len(log)
    ends = window - now
    left = limit - used - cost
    if not log:
        allowed, wait = cost <= limit, window if 0 < cost <= limit else 0
        retry = 0 if allowed else NEVER
        return new(Outcome, (allowed, limit, left if allowed else limit, retry, wait, wait, now, "store"))
    newest = log[-1]
    following = log[used - limit if used > limit else 0] + ends
    if left >= 0 or cost == 0:
        if cost and newest < now:
            newest = now
        return new(Outcome, (True, limit, left if left > 0 else 0, 0, newest + ends, following, now, "store"))
    retry = log[-left - 1] + ends if cost <= limit else NEVER
    left = limit - used if used < limit else 0
    return new(Outcome, (False, limit, left, retry, newest + ends, following, now, "store"))


def charge(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> State:
    """Return the log with the hit, without the oldest moments above the limit."""
    log = [] if state is None else state
    log += [log[-1] if log and log[-1] > now else now] * cost
    if len(log) > params[0]:
        del log[: len(log) - params[0]]
    return log


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the log without the moments of the hit that are still in the period."""
    log = _live(state, now, params[1])
    first = bisect_left(log, at)
    del log[first : min(first + cost, bisect_right(log, at))]
    return log or None
