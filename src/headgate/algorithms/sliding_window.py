"""Sliding window, the default: a run-length log that is strict at any limit and never large.

At most the limit in any period. Up to RESOLUTION units it is exact; above, moments are rounded up to a grain of
period / RESOLUTION, so that it stays strict, frees at most 1 % late, and a limit of a million costs no more than one
of a hundred. State: [used, stamp, count, stamp, count, …], the oldest stamp first; `used` is the sum of the counts. No
number in it grows with the age of the key.
"""

from __future__ import annotations

from typing import Final

from headgate.algorithms.exact import exact, no_burst, told
from headgate.plan import NEVER, Outcome
from headgate.quota import Quota

NAMES = ("sliding-window",)
CODE = "sw"
GUARANTEE = "at most the limit in any period; above 100 units freed up to 1 % late"

RESOLUTION: Final = 100

State = list[int]


def params(quota: Quota) -> tuple[int, ...]:
    """(limit, window, grain)."""
    no_burst(quota, NAMES[0])
    exact(quota, NAMES[0], largest=2 * quota.limit)
    grain = 1 if quota.limit <= RESOLUTION else max(1, quota.period_us // RESOLUTION)
    return (quota.limit, quota.period_us, grain)


def shape(params: tuple[int, ...]) -> str:
    """Stamps outlive their window only by being kept for it; limit and grain may change freely."""
    return told(params[1])


def window_us(params: tuple[int, ...]) -> int:
    """The period itself."""
    return params[1]


def _drop(state: State, now: int, params: tuple[int, ...]) -> None:
    """Forget the stamps out of sight, and all of them when the last lies a window ahead of the clock."""
    _, window, grain = params
    gone, units = 1, 0
    if state[-2] - now > window + grain:
        gone, units = len(state), state[0]
    else:
        while gone < len(state) and state[gone] + window <= now:
            units += state[gone + 1]
            gone += 2
    del state[1:gone]
    state[0] -= units


def _when(state: State, units: int) -> int:
    """The stamp with which at least so many of the oldest units go."""
    index = 2
    while state[index] < units:
        units -= state[index]
        index += 2
    return state[index - 1]


def check(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> Outcome:
    """What a hit of this cost would come to."""
    limit, window, grain = params
    if state and len(state) > 1 and (state[1] + window <= now or state[-2] > now):
        _drop(state, now, params)
    ends = window - now
    if not state or len(state) == 1:
        if cost > limit:
            return Outcome(False, limit, limit, NEVER, 0, 0)
        wait = -(-now // grain) * grain + ends if cost else 0
        return Outcome(True, limit, limit - cost, 0, wait, wait)
    used = state[0]
    following = (state[1] if used <= limit else _when(state, used - limit + 1)) + ends
    excess = used + cost - limit
    if excess <= 0 or cost == 0:
        newest = max(state[-2], -(-now // grain) * grain) if cost else state[-2]
        return Outcome(True, limit, -excess if excess < 0 else 0, 0, newest + ends, following)
    retry = _when(state, excess) + ends if cost <= limit else NEVER
    return Outcome(False, limit, limit - used if used < limit else 0, retry, state[-2] + ends, following)


def charge(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> State:
    """The log with the hit in it, the oldest units gone where they would pass the limit."""
    limit, _, grain = params
    stamp = -(-now // grain) * grain
    if state and len(state) > 1:
        _drop(state, now, params)
    if not state or len(state) == 1:
        return [cost, stamp, cost]
    if state[-2] >= stamp:
        state[-1] += cost
    else:
        state += (stamp, cost)
    state[0] += cost
    if state[0] > limit:
        _cut(state, limit)
    return state


def _cut(state: State, limit: int) -> None:
    """Leave only the newest `limit` units."""
    surplus = state[0] - limit
    gone = 1
    while state[gone + 1] <= surplus:
        surplus -= state[gone + 1]
        gone += 2
    del state[1:gone]
    state[0], state[2] = limit, state[2] - surplus
