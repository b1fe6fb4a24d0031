"""GCRA, token bucket, leaky bucket: one algorithm in exact integers, under three familiar names.

The level rises by the cost and leaks at the quota's rate. With g = gcd(limit, period) a unit weighs period/g and
limit/g leaks each microsecond, so no rate is ever rounded. In any period at most burst + limit pass;
the burst is the limit unless the quota says otherwise. State: (level, time).
"""

from __future__ import annotations

from math import gcd

from sluicegate.algorithms.checks import MAX, exact, short
from sluicegate.plan import NEVER, Outcome, new
from sluicegate.quota import MAX_PERIOD_US, Quota

NAMES = ("gcra", "token-bucket", "leaky-bucket")
CODE = "gc"
GUARANTEE = "at most burst + limit in any period, never more than the burst at once"

State = tuple[int, int]


def params(quota: Quota) -> tuple[int, ...]:
    """Return (burst in units, weight of a unit, leak per microsecond)."""
    burst = quota.limit if quota.burst is None else quota.burst
    shared = gcd(quota.limit, quota.period_us)
    unit, leak = quota.period_us // shared, quota.limit // shared
    exact(quota, NAMES[0], largest=2 * burst * unit)
    return (burst, unit, leak)


def shape(params: tuple[int, ...]) -> str:
    """Return the unit's weight and the leak, which a level depends on. The burst may change freely."""
    return f"{short(params[1])}.{params[2]}"


def window_us(params: tuple[int, ...]) -> int:
    """Return the time that a full bucket takes to empty."""
    burst, unit, leak = params
    return -(-burst * unit // leak)


def owing(params: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same rate with the largest burst: a debt of 50 years."""
    _, unit, leak = params
    return (min(MAX // unit, MAX_PERIOD_US * leak // unit) // 2, unit, leak)


def decide(
    state: State | None, now: int, cost: int, params: tuple[int, ...], *, forced: bool = False
) -> tuple[Outcome, State | None]:
    """Return the outcome of a hit of this cost, and the level after it."""
    burst, unit, leak = params
    full = burst * unit
    before, lag = (0, 0) if state is None else _leaked(state, now, params)
    level = before + cost * unit
    allowed = level <= full or cost == 0
    retry: int | None = 0
    after = level, now + lag
    if not allowed:
        retry = lag - (-(level - full) // leak) if cost <= burst else NEVER
        level = before
        after = max(level, full) if forced else level, now + lag
    if level == 0:
        return new(Outcome, (allowed, burst, burst, retry, lag, 0, now, "store")), after
    free = (full - level) // unit if level < full else 0
    following = lag - (-(level - full + (free + 1) * unit) // leak)
    return new(Outcome, (allowed, burst, free, retry, lag - (-level // leak), following, now, "store")), after


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the level without the part of the hit that is certainly still in it.

    The level that a hit adds shrinks no faster than the leak, so at least that much of it is left.
    """
    _, unit, leak = params
    level, lag = (0, 0) if state is None else _leaked(state, now, params)
    left = cost * unit - max(0, now - at) * leak
    if left <= 0:
        return state
    return (level - left, now + lag) if level > left else None


def _leaked(state: State, now: int, params: tuple[int, ...]) -> tuple[int, int]:
    """Return the level now, and by how much the state is ahead of the clock."""
    level, time = state
    if time <= now:
        level -= (now - time) * params[2]
        return (level if level > 0 else 0), 0
    return (level, time - now) if time - now <= window_us(params) else (0, 0)
