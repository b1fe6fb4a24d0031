"""The algorithms, and the contract that each of them keeps.

An algorithm is one module: three pure functions over an in-memory state, and the same three told again
in a `.lua` file of the same name over Redis structures. A module of this package imports values and the
standard library: never a clock, a lock, asyncio or a client.

    params(quota)                         -> the integers they work with; the first is the limit
    check(state, now, cost, params)       -> Outcome  may drop what has expired; changes nothing else
    charge(state, now, cost, params)      -> state    adds the cost; called after a check of this state at this time,
                                                      when every check of the plan allowed
    refund(state, now, cost, params, at)  -> state    gives a charge back that was made at `at`: its outcome's `at`

`state` is None for an identity that has none. All times and parameters are integers in microseconds, and every
product of them stays below 2^53, so that Lua's doubles are exact; `params` refuses a quota for which it would not.

The laws, which `sluicegate.testing.AlgorithmExam` examines:

1. Cost 0 is a peek: it is always allowed and shows what is there.
2. A refusal changes nothing that any later answer could show.
3. After exactly `retry_after` the same cost passes, and one microsecond earlier it does not.
4. A cost above the limit is NEVER, whatever the state.
5. After `reset_after` the state may be forgotten and nobody can tell.
6. `remaining` is never negative, also after the limit was lowered on live state.
7. A charge that was not allowed first (a rule with `count_denied`) fills up to the limit and no further: what
   has to make room is the oldest.
8. A clock that goes back frees nothing, and freezes nobody for longer than one window beyond the step:
   waits are counted from the time given; a state further ahead than a window is taken for empty.
9. A refund right after its charge leaves nothing that any later answer could show. A later one gives back the cost or
   a part of it, and never more room than there would be had the charge not been made; and nothing once the charge's
   `reset_after` has passed. It cannot know of a state that was forgotten in between: then it may give back up to the
   cost of what came after.

To add one: write the two files, and add its name below.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, Protocol, cast

from sluicegate.algorithms import ban, fixed_window, gcra, sliding_counter, sliding_log, sliding_window
from sluicegate.errors import AlgorithmError
from sluicegate.plan import Outcome
from sluicegate.quota import Quota


class Algorithm(Protocol):
    """What a module of this package offers."""

    NAMES: tuple[str, ...]  # the first is its own, and its file's with "-" for "_"; the others are aliases
    CODE: str  # a few letters for Redis keys
    GUARANTEE: str  # what it promises in any window, for people

    def params(self, quota: Quota) -> tuple[int, ...]: ...

    def shape(self, params: tuple[int, ...]) -> str:
        """What of the parameters a stored state depends on: a change of it starts a new budget."""
        ...

    def window_us(self, params: tuple[int, ...]) -> int:
        """How long the limit takes to come back whole."""
        ...

    def check(self, state: Any, now: int, cost: int, params: tuple[int, ...]) -> Outcome: ...

    def charge(self, state: Any, now: int, cost: int, params: tuple[int, ...]) -> Any: ...

    def refund(self, state: Any, now: int, cost: int, params: tuple[int, ...], at: int) -> Any: ...


_MODULES: Final[tuple[ModuleType, ...]] = (sliding_window, sliding_log, sliding_counter, fixed_window, gcra)

ALGORITHMS: Final[dict[str, Algorithm]] = {
    name: cast(Algorithm, module) for module in _MODULES for name in module.NAMES
}
DEFAULT: Final = "sliding-window"
KEPT: Final[dict[str, Algorithm]] = {**ALGORITHMS, ban.NAMES[0]: cast(Algorithm, ban)}
"""What a store keeps state of: the algorithms of rules, and the counting of refusals towards a ban."""


def find(name: object) -> Algorithm:
    """The algorithm of that name; AlgorithmError names the known ones."""
    found = ALGORITHMS.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(ALGORITHMS)
        raise AlgorithmError("algorithm", name, problem="not known", expected=f"use one of: {known}")
    return found
