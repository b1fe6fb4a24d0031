"""Calendar windows: a count that ends when the calendar of the quota says so. Every quota with a Calendar is counted
here: no rule chooses this algorithm, and none another one for such a quota.

The process that asks computes the windows, because only it has time zones; the store's clock says which of them is
meant. So the parameters have the beginning of the window that the process is in, its length and that of the next one.
A time outside of both is in a window of the same length: the process's clock is wrong.

The first charge stores when its window ends, and that end stays. A process with an old time zone database has other
windows, and so has another calendar of one identity. It takes an end in the second half of its window for the end of
that window, and any other end as it is. So two ends are at least half a window apart. No charge moves an end: with
three calendars in turn it would move on and on.
State: (end, used).
"""

from __future__ import annotations

from typing import Final, cast

from sluicegate.algorithms.checks import MAX, no_burst
from sluicegate.clock import MICROSECOND
from sluicegate.plan import NEVER, Outcome, Terms, new
from sluicegate.quota import CALENDAR_UNITS, Calendar, Quota

NAMES = ("calendar",)
CODE = "ca"
GUARANTEE = "at most the limit in each window of the calendar, twice the limit in any time as long as the shortest"

State = tuple[int, int]
_LENGTHS: Final = 2**25  # seconds, more than 366 days: two lengths are one number below 2^53, and a script reads three
_SOME_DAY: Final = 946_684_800 * MICROSECOND
_UNITS: Final = tuple(CALENDAR_UNITS)


def params(quota: Quota) -> tuple[int, ...]:
    """Return (limit, beginning of a window, lengths of this one and of the next in seconds, by how much its times are
    ahead of the store's clock, unit) for the window of some day. `present` returns those of a given time.
    """
    no_burst(quota, NAMES[0])
    return _params(quota.limit, cast("Calendar", quota.calendar), now=_SOME_DAY, ahead=0)


def present(terms: Terms, now: int, ahead: int) -> Terms:
    """Return the terms of the window at this time of the calendar, which is `ahead` of the store's clock."""
    calendar, (limit, start, lengths, before, _) = terms.quota.calendar, terms.params
    if calendar is None or (start <= now < start + lengths // _LENGTHS * MICROSECOND and ahead == before):
        return terms
    found = _params(limit, calendar, now=now, ahead=ahead)
    return terms._replace(params=found, window_us=window_us(found))


def shape(params: tuple[int, ...]) -> str:
    """Return the unit's first letter: a budget lives on if a customer gets another zone or billing day."""
    return _UNITS[params[4]][0]


def window_us(params: tuple[int, ...]) -> int:
    """Return the length of the window."""
    return params[2] // _LENGTHS * MICROSECOND


def owing(params: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same windows with the highest limit."""
    return (MAX // 2, *params[1:])


def decide(
    state: State | None, now: int, cost: int, params: tuple[int, ...], *, forced: bool = False
) -> tuple[Outcome, State | None]:
    """Return the outcome of a hit of this cost, and the count after it."""
    limit = params[0]
    kept, end, used = _live(state, now, params)
    left, wait = limit - used - cost, end - now - params[3]
    if left >= 0:
        if cost:
            state = kept, used + cost
        elif used == 0:
            wait = 0
        return new(Outcome, (True, limit, left, 0, wait, wait, now, "store")), state
    if forced:
        state = kept, max(used, limit)
    retry = 0 if cost == 0 else wait if cost <= limit else NEVER
    wait = wait if used else 0
    return new(Outcome, (cost == 0, limit, max(0, limit - used), retry, wait, wait, now, "store")), state


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the count without the hit, if its window is the current one; None if no other hit is left in it."""
    kept, end, used = _live(state, now, params)
    if not used or not _window(end - 1, params)[0] <= at + params[3] < end:
        return state
    return (kept, used - cost) if used > cost else None


def _params(limit: int, calendar: Calendar, *, now: int, ahead: int) -> tuple[int, ...]:
    start, end, following = calendar.window(now)
    lengths = (end - start) // MICROSECOND * _LENGTHS + (following - end) // MICROSECOND
    return limit, start, lengths, ahead, _UNITS.index(calendar.unit)


def _window(time: int, params: tuple[int, ...]) -> tuple[int, int]:
    """Return the beginning and the end of the window that has this time."""
    start, (length, following) = params[1], divmod(params[2], _LENGTHS)
    length *= MICROSECOND
    if time >= start + length:
        start, length = start + length, following * MICROSECOND
    start += (time - start) // length * length
    return start, start + length


def _live(state: State | None, now: int, params: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the end that is kept, that end in this calendar, and what is used: those of the present window if there is
    no state, or its window has ended.
    """
    time = now + params[3]
    start, end = _window(time, params)
    if state is not None:
        kept, used = state
        until, (before, after) = kept, _window(kept, params)
        if 2 * (until - before) > after - before:
            until = after
        if time < until <= time + 3 * (end - start):  # else it has ended, or the clock went back by windows
            return kept, until, used
    return end, end, 0
