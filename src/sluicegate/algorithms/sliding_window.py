"""Sliding window, the default: a run-length log that is strict at any limit and never large.

At most the limit in any period. Up to RESOLUTION units it is exact; above, moments are rounded up to a grain of
period / RESOLUTION, so that it stays strict, frees at most 1 % late, and a limit of a million costs no more than one
of a hundred. State: [used, stamp, count, stamp, count, …], the oldest stamp first; `used` is the sum of the counts. No
number in it grows with the age of the key.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from sluicegate.algorithms.checks import exact, no_burst, short
from sluicegate.plan import NEVER, Outcome, new
from sluicegate.quota import Quota

NAMES = ("sliding-window",)
CODE = "sw"
GUARANTEE = "at most the limit in any period; above 100 units freed up to 1 % late"

RESOLUTION: Final = 100  # parts of a period: so many stamps a log may have, and a unit is free at most one part late

State = list[int]


def params(quota: Quota) -> tuple[int, ...]:
    """Return (limit in units, window in microseconds, grain in microseconds). Stamps are rounded up to the grain."""
    no_burst(quota, NAMES[0])
    exact(quota, NAMES[0], largest=2 * quota.limit)
    grain = 1 if quota.limit <= RESOLUTION else max(1, quota.period_us // RESOLUTION)
    return (quota.limit, quota.period_us, grain)


def shape(params: tuple[int, ...]) -> str:
    """Return the window: a stamp is deleted when its window has passed, so the key depends on it.

    The limit and the grain may change.
    """
    return short(params[1])


def window_us(params: tuple[int, ...]) -> int:
    """Return the period itself."""
    return params[1]


def _drop(state: State, now: int, params: tuple[int, ...]) -> None:
    """Delete the stamps before the period, and all of them if the last is more than a window ahead of the clock."""
    _, window, grain = params
    if state[-2] + window <= now or state[-2] > now + window + grain:
        state.clear()
        return
    gone, units = 1, 0
    while state[gone] + window <= now:
        units += state[gone + 1]
        gone += 2
    del state[1:gone]
    state[0] -= units


def _when(state: State, units: int) -> int:
    """Return the stamp at whose expiry at least this many of the oldest units are free."""
    index = 2
    while state[index] < units:
        units -= state[index]
        index += 2
    return state[index - 1]


def check(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> Outcome:
    """Return the outcome of a hit of this cost."""
    limit, window, grain = params
    if state and (state[1] + window <= now or state[-2] > now + window + grain):
        _drop(state, now, params)
    stamp, ends = now if grain == 1 else -(-now // grain) * grain, window - now
    if not state:
        if cost > limit:
            return new(Outcome, (False, limit, limit, NEVER, 0, 0, now, "store"))
        wait = stamp + ends if cost else 0
        return new(Outcome, (True, limit, limit - cost, 0, wait, wait, now, "store"))
    used, newest = state[0], state[-2]
    left = limit - used - cost
    if left >= 0:
        if cost and newest < stamp:
            newest = stamp
        return new(Outcome, (True, limit, left, 0, newest + ends, state[1] + ends, now, "store"))
    following = (state[1] if used <= limit else _when(state, used - limit + 1)) + ends
    if cost == 0:  # the limit was lowered
        return new(Outcome, (True, limit, 0, 0, newest + ends, following, now, "store"))
    retry = _when(state, -left) + ends if cost <= limit else NEVER
    left = limit - used if used < limit else 0
    return new(Outcome, (False, limit, left, retry, newest + ends, following, now, "store"))


def charge(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> State:
    """Return the log with the hit, without the oldest units above the limit."""
    limit, _, grain = params
    stamp = now if grain == 1 else -(-now // grain) * grain
    if not state:
        return [cost, stamp, cost]
    if state[-2] < stamp:
        state += (stamp, cost)
    else:
        state[-1] += cost
    state[0] += cost
    if state[0] > limit:
        _cut(state, limit)
    return state


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the log without the units of the hit's stamp that are still in it."""
    if state:
        _drop(state, now, params)
    if not state:
        return None
    stamps = state[1::2]
    place = bisect_left(stamps, at)
    if place < len(stamps) and stamps[place] <= -(-at // params[2]) * params[2]:  # a later stamp belongs to other hits
        count = 2 * place + 2
        units = min(cost, state[count])
        state[0] -= units
        state[count] -= units
        if state[count] == 0:
            del state[count - 1 : count + 1]
    return state if state[0] else None


def _cut(state: State, limit: int) -> None:
    """Leave only the newest `limit` units."""
    surplus = state[0] - limit
    gone = 1
    while state[gone + 1] <= surplus:
        surplus -= state[gone + 1]
        gone += 2
    del state[1:gone]
    state[0], state[2] = limit, state[2] - surplus
