"""GCRA, token bucket, leaky bucket: one meter in exact integers, under three familiar names.

The level rises by the cost and leaks at the quota's rate. With g = gcd(limit, period) a unit weighs period/g and
limit/g leaks each microsecond, so no rate is ever rounded. In any period at most burst + limit pass;
the burst is the limit unless the quota says otherwise. State: (level, time).
"""

from __future__ import annotations

from math import gcd

from headgate.algorithms.exact import exact, told
from headgate.plan import NEVER, Outcome
from headgate.quota import Quota

NAMES = ("gcra", "token-bucket", "leaky-bucket")
CODE = "gc"
GUARANTEE = "at most burst + limit in any period, never more than the burst at once"

State = tuple[int, int]


def params(quota: Quota) -> tuple[int, ...]:
    """(burst, weight of a unit, leak per microsecond)."""
    burst = quota.limit if quota.burst is None else quota.burst
    shared = gcd(quota.limit, quota.period_us)
    unit, leak = quota.period_us // shared, quota.limit // shared
    exact(quota, NAMES[0], largest=2 * burst * unit)
    return (burst, unit, leak)


def shape(params: tuple[int, ...]) -> str:
    """A level is told in units and leaks at a rate; the burst may change freely."""
    return f"{told(params[1])}.{params[2]}"


def window_us(params: tuple[int, ...]) -> int:
    """The time that a full bucket takes to empty."""
    burst, unit, leak = params
    return -(-burst * unit // leak)


def check(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> Outcome:
    """What a hit of this cost would come to."""
    burst, unit, leak = params
    full = burst * unit
    level, lag = _leaked(state, now, params)
    if cost > burst:
        return Outcome(
            False, burst, max(0, full - level) // unit, NEVER, lag - (-level // leak), _next(level, lag, params)
        )
    total = level + cost * unit
    if total <= full or cost == 0:
        remaining = (full - total) // unit if total < full else 0
        return Outcome(True, burst, remaining, 0, lag - (-total // leak), _next(total, lag, params))
    wait = lag - (-(total - full) // leak)
    remaining = (full - level) // unit if level < full else 0
    return Outcome(False, burst, remaining, wait, lag - (-level // leak), _next(level, lag, params))


def charge(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> State:
    """The level after the hit, no further than full."""
    burst, unit, _ = params
    level, lag = _leaked(state, now, params)
    return (min(level + cost * unit, max(level, burst * unit)), now + lag)


def _leaked(state: State | None, now: int, params: tuple[int, ...]) -> tuple[int, int]:
    """The level now, and by how much the state is ahead of the clock."""
    if state is None:
        return 0, 0
    level, time = state
    if time <= now:
        return max(0, level - (now - time) * params[2]), 0
    return (level, time - now) if time - now <= window_us(params) else (0, 0)


def _next(level: int, lag: int, params: tuple[int, ...]) -> int:
    """Until one more whole unit is free."""
    if level == 0:
        return 0
    burst, unit, leak = params
    full = burst * unit
    free = (full - level) // unit if level < full else 0
    return lag - (-(level - full + (free + 1) * unit) // leak)
