"""Bans: the counting of refusals, and the blocking after too many. Not an algorithm of a rule.

A store runs it after the checks of a plan, for each ban and identity in them. It refuses while the ban is
active, and returns its end. It is charged one strike when the plan is charged, the ban is not active, and a check with
this ban has refused. A ban begins at `after` strikes since the first one, within a time. Each next ban is longer; their
number is forgotten a while after the end of the last one. Refusals during a ban are not counted, and allowed requests
leave no state.

A check has a cost of 0. A cost is a number of strikes at once, also during a ban: `after` of them begin a manual ban.
State: (strikes, the time of the first of them, the end of the last ban, its level).
"""

from __future__ import annotations

from sluicegate.plan import BAN, Outcome, Terms, new

NAMES = (BAN,)

State = tuple[int, int, int, int]


def lasting(terms: Terms, length_us: int) -> Terms:
    """Return the terms of the same ban, with this length for its next one."""
    after, within, remembered, *lengths = terms.params
    return terms._replace(params=(after, within, remembered, *[length_us] * len(lengths)))


def _live(state: State | None, now: int, params: tuple[int, ...]) -> State:
    """Return the part of the state that still counts."""
    if state is None:
        return (0, 0, 0, 0)
    strikes, since, ends, level = state
    if strikes and not -params[1] <= now - since < params[1]:
        strikes = 0
    return (strikes, since, ends, level if now < ends + params[2] else 0)


def decide(
    state: State | None, now: int, cost: int, params: tuple[int, ...], *, forced: bool = False
) -> tuple[Outcome, State | None]:
    """Return the outcome that says whether the ban is active, and the state. With a cost, return both after this number
    of strikes, which are always allowed.
    """
    after, within, remembered, *lengths = params
    strikes, since, ends, level = _live(state, now, params)
    if cost:
        since, strikes, top = since if strikes else now, strikes + cost, len(lengths) - 1
        if strikes >= after:
            strikes, ends, level = 0, now + lengths[min(level, top)], min(level + 1, top)
        state = strikes, since, ends, level
    left = ends - now if now < ends else 0
    following = left or (since + within - now if strikes else 0)
    reset = max(following, ends + remembered - now if level else 0)
    remaining = 0 if left or strikes > after else after - strikes
    allowed = cost > 0 or not left
    return new(Outcome, (allowed, after, remaining, 0 if allowed else left, reset, following, now, "store")), state


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """Return the state unchanged, because a strike is not refunded. Use `unban` to end a ban that was a mistake."""
    return state
