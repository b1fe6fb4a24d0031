"""Bans: refusals that are counted, and what begins when there are too many. No algorithm of a rule.

A store asks it after the checks of a plan, for each ban and identity that those name. Its check refuses while the ban
lasts, and tells its end. It is charged, struck, when the plan is charged, the ban does not hold, and a check that names
it has refused. At `after` strikes since the first one within a time, a ban begins, longer each time; how many there
were is forgotten a while after the last one's end. What holds is not counted, and what is allowed leaves no trace.

A check has a cost of 0. A cost is so many strikes at once, whatever holds: `after` of them begin a ban by hand.
State: (strikes, when the first of them was, the end of the last ban, its level).
"""

from __future__ import annotations

from sluicegate.plan import BAN, Outcome, Terms, new

NAMES = (BAN,)

State = tuple[int, int, int, int]


def lasting(terms: Terms, length_us: int) -> Terms:
    """The terms of the same ban, whose next one lasts so long."""
    after, within, remembered, *lengths = terms.params
    return terms._replace(params=(after, within, remembered, *[length_us] * len(lengths)))


def _live(state: State | None, now: int, params: tuple[int, ...]) -> State:
    """What of the state still counts."""
    if state is None:
        return (0, 0, 0, 0)
    strikes, since, ends, level = state
    if strikes and not -params[1] <= now - since < params[1]:
        strikes = 0
    return (strikes, since, ends, level if now < ends + params[2] else 0)


def check(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> Outcome:
    """Whether the ban holds; or, at a cost, how it stands after so many strikes, which always pass."""
    after, within, remembered = params[:3]
    strikes, since, ends, level = charge(state, now, cost, params) if cost else _live(state, now, params)
    left = ends - now if now < ends else 0
    following = left or (since + within - now if strikes else 0)
    reset = max(following, ends + remembered - now if level else 0)
    remaining = 0 if left or strikes > after else after - strikes
    allowed = cost > 0 or not left
    return new(Outcome, (allowed, after, remaining, 0 if allowed else left, reset, following, now, "store"))


def charge(state: State | None, now: int, cost: int, params: tuple[int, ...]) -> State:
    """The state after so many strikes."""
    strikes, since, ends, level = _live(state, now, params)
    after, _, _, *lengths = params
    if not strikes:
        since = now
    if strikes + cost < after:
        return (strikes + cost, since, ends, level)
    top = len(lengths) - 1
    return (0, since, now + lengths[min(level, top)], min(level + 1, top))


def refund(state: State | None, now: int, cost: int, params: tuple[int, ...], at: int) -> State | None:
    """The state as it is: a strike is not given back. Whoever was banned by mistake is unbanned."""
    return state
