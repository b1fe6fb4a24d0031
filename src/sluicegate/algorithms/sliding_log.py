"""Sliding log: the moment of every unit admitted, exact and as large as the limit.

At most the limit in any period; a hit counts for the period that follows it, its own moment
included. State: (log, start, end, newest, count). The moments are those of the units log[start:end], in order, and then
`count` times the newest one.

The log is shared by states, because a copy for each hit would take too long. A hit writes only behind the `end` of its
state, and only that state's newest moment. So it changes no state, and if it is not charged, the next hit writes the
same.
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

State = tuple[list[int], int, int, int, int]


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


def owing(params: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same window with the highest limit."""
    return (MAX_LIMIT, params[1])


def decide(
    state: State | None, now: int, cost: int, params: tuple[int, ...], *, forced: bool = False
) -> tuple[Outcome, State | None]:
    """Return the outcome of a hit of this cost, and the log after it."""
    limit, window = params
    live = None if state is None else _live(state, now, window)
    if live is None:
        allowed, wait = cost <= limit, window if 0 < cost <= limit else 0
        retry = 0 if allowed else NEVER
        left = limit - cost if allowed else limit
        return (
            new(Outcome, (allowed, limit, left, retry, wait, wait, now, "store")),
            ([], 0, 0, now, cost) if wait else None,
        )
    log, start, end, newest, count = live
    used, ends = end - start + count, window - now
    left = limit - used - cost
    oldest = start + used - limit if used > limit else start  # of those that free a unit
    following = (log[oldest] if oldest < end else newest) + ends
    allowed = left >= 0 or cost == 0
    if allowed or forced:
        state = live if cost == 0 else _with(live, now, cost, limit=limit)
    if allowed:
        reset = (now if cost and newest < now else newest) + ends
        return new(Outcome, (True, limit, left if left > 0 else 0, 0, reset, following, now, "store")), state
    wanted = start - left - 1
    retry = (log[wanted] if wanted < end else newest) + ends if cost <= limit else NEVER
    left = limit - used if used < limit else 0
    return new(Outcome, (False, limit, left, retry, newest + ends, following, now, "store")), state


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the log without the moments of the hit that are still in the period."""
    state = None if state is None else _live(state, now, params[1])
    if state is None:
        return None
    log, start, end, newest, count = state
    log = log[start:end] + [newest] * count
    first = bisect_left(log, at)
    del log[first : min(first + cost, bisect_right(log, at))]
    return (log, 0, len(log) - 1, log[-1], 1) if log else None


def _live(state: State, now: int, window: int) -> State | None:
    """Return the moments still in the period; None if the last of them is more than a window ahead of the clock."""
    log, start, end, newest, count = state
    if not -window <= now - newest < window:
        return None
    if start < end and log[start] <= now - window:
        start = bisect_right(log, now - window, lo=start, hi=end)
    return log, start, end, newest, count


def _with(state: State, now: int, cost: int, *, limit: int) -> State:
    """Return the log with a hit, without the oldest moments above the limit."""
    log, start, end, newest, count = state
    if newest < now:
        log[end : end + count] = [newest] * count
        newest, end, count = now, end + count, 0
    count += cost
    surplus = end - start + count - limit
    if surplus > 0:
        start, count = min(start + surplus, end), min(count, limit)
    if start > limit // 4:  # another list for the following states: no list is a quarter longer than it must be
        log, start, end = log[start:end], 0, end - start
    return log, start, end, newest, count
