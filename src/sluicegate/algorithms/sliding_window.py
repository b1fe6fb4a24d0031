"""Sliding window, the default: a run-length log that is strict at any limit and never large.

At most the limit in any period. Up to RESOLUTION units it is exact; above, moments are rounded up to a grain of
period / RESOLUTION, so that it stays strict, frees at most 1 % late, and a limit of a million costs no more than one
of a hundred. State: (used, oldest stamp, newest stamp, its count, (stamp, count, …) of the older ones, the oldest
first); `used` is the sum of the counts. No number in it grows with the age of the key.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from sluicegate.algorithms.checks import MAX, exact, no_burst, short
from sluicegate.plan import NEVER, Outcome, new
from sluicegate.quota import Quota

NAMES = ("sliding-window",)
CODE = "sw"
GUARANTEE = "at most the limit in any period; above 100 units freed up to 1 % late"

RESOLUTION: Final = 100  # parts of a period: so many stamps a log may have, and a unit is free at most one part late

State = tuple[int, int, int, int, tuple[int, ...]]
_NONE: Final[tuple[int, ...]] = ()


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


def owing(params: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same window and grain, by which a refund finds a charge, with the highest limit."""
    return (MAX // 2, *params[1:])


def decide(
    state: State | None, now: int, cost: int, params: tuple[int, ...], *, forced: bool = False
) -> tuple[Outcome, State | None]:
    """Return the outcome of a hit of this cost, and the log after it."""
    limit, window, grain = params
    stamp, ends = now if grain == 1 else -(-now // grain) * grain, window - now
    if state is None:
        used, oldest, newest, count, older = 0, stamp, stamp, 0, _NONE
    else:
        used, oldest, newest, count, older = state
        if oldest + window <= now or newest - grain > now + window:
            return decide(_live(state, now, params), now, cost, params, forced=forced)
    left = limit - used - cost
    if left >= 0:
        if not cost:
            reset, following = (newest + ends, oldest + ends) if used else (0, 0)
            return new(Outcome, (True, limit, left, 0, reset, following, now, "store")), state
        if newest < stamp:
            older += (newest, count)
            newest, count = stamp, 0
        return (
            new(Outcome, (True, limit, left, 0, newest + ends, oldest + ends, now, "store")),
            (used + cost, oldest, newest, count + cost, older),
        )
    if state is None:
        return new(Outcome, (False, limit, limit, NEVER, 0, 0, now, "store")), None
    following = (oldest if used <= limit else _when(state, used - limit + 1)) + ends
    retry: int | None = 0
    if cost:  # else the limit was lowered
        retry = _when(state, -left) + ends if cost <= limit else NEVER
    free = limit - used if used < limit else 0
    after = _with(state, stamp, cost, limit=limit) if forced and cost else state
    return new(Outcome, (cost == 0, limit, free, retry, newest + ends, following, now, "store")), after


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the log without the units of the hit's stamp that are still in it."""
    state = None if state is None else _live(state, now, params)
    if state is None:
        return None
    log = _flat(state)
    stamps = log[::2]
    place = bisect_left(stamps, at)
    if place < len(stamps) and stamps[place] <= -(-at // params[2]) * params[2]:  # a later stamp belongs to other hits
        count = 2 * place + 1
        log[count] -= min(cost, log[count])
        if log[count] == 0:
            del log[count - 1 : count + 1]
    return _of(log)


def _flat(state: State) -> list[int]:
    """Return all stamps, each with its count."""
    _, _, newest, count, older = state
    return [*older, newest, count]


def _of(log: list[int]) -> State | None:
    """Return the state with these stamps and counts."""
    return (sum(log[1::2]), log[0], log[-2], log[-1], tuple(log[:-2])) if log else None


def _live(state: State, now: int, params: tuple[int, ...]) -> State | None:
    """Return the log of the period; None if the last is more than a window ahead of the clock."""
    _, window, grain = params
    used, oldest, newest, count, older = state
    if newest + window <= now or newest - grain > now + window:
        return None
    gone = 0
    while oldest + window <= now:
        used -= older[gone + 1]
        gone += 2
        oldest = older[gone] if gone < len(older) else newest
    return used, oldest, newest, count, older[gone:]


def _when(state: State, units: int) -> int:
    """Return the stamp at whose expiry at least this many of the oldest units are free."""
    _, _, newest, _, older = state
    index = 1
    while index < len(older) and older[index] < units:
        units -= older[index]
        index += 2
    return older[index - 1] if index < len(older) else newest


def _with(state: State, stamp: int, cost: int, *, limit: int) -> State | None:
    """Return the log with a hit for which there is no room: the oldest units above the limit make it."""
    log = _flat(state)
    if log[-2] < stamp:
        log += (stamp, 0)
    log[-1] += cost
    surplus, gone = state[0] + cost - limit, 0
    while log[gone + 1] <= surplus:
        surplus -= log[gone + 1]
        gone += 2
    log[gone + 1] -= surplus
    return _of(log[gone:])
