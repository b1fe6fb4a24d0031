"""The algorithms, and the contract that each of them keeps.

An algorithm is one module: three pure functions over an in-memory state, and the same functions in a `.lua` file
of the same name over Redis structures. A module of this package imports values and the standard library: never a
clock, a lock, asyncio or a client.

    params(quota)                             -> the integers they work with; the first is the limit
    decide(state, now, cost, params, forced)  -> (Outcome, state)  the state is that after the hit if it is allowed or
                                                 `forced`, else one with the same outcomes as before
    refund(state, now, cost, params, at)      -> state  refunds a charge that was made at `at`: its outcome's `at`
    owing(params)                             -> the highest parameters for the same state, to charge a debt with

`state` is None for an identity that has none. No function changes it: a store charges a plan by keeping the states that
`decide` returned for its checks. In Lua, `decide` is two functions, `check` and `charge`, because a script reads the
keys of all checks before it writes. All times and parameters are integers in microseconds, and every
product of them stays below 2^53, so that Lua's doubles are exact; `params` refuses a quota for which it would not.

The laws, which `AlgorithmExam` in `tests/algorithms` tests:

1. Cost 0 is a peek: it is always allowed and shows the current state.
2. A refusal changes no later outcome.
3. After exactly `retry_after` the same cost passes, and one microsecond earlier it does not.
4. A cost above the limit is NEVER, whatever the state.
5. After `reset_after` the state may be deleted, and no later outcome differs.
6. `remaining` is never negative, also after the limit was lowered on live state.
7. A charge that is `forced` although it is refused (a rule with `count_denied`) fills up to the limit and no
   further: the oldest units make room.
8. A clock that goes back frees nothing, and blocks no identity for longer than one window beyond the step: waits are
   counted from the given time; a state further ahead than a window counts as empty.
9. A refund right after its charge leaves later outcomes as if there had been no charge. A later refund gives back the
   cost or a part of it, never more room than there would be without the charge, and nothing once the charge's
   `reset_after` has passed. It cannot know of a state that was deleted in between: then it may refund up to the cost of
   later charges.

10. A cost that is spent already is charged, `forced`, with the parameters of `owing`: the state has the debt then, and
   under the rule's own parameters nothing passes before it is paid.

To add one: write the two files, and add its names below.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, Literal, Protocol, cast

from sluicegate.algorithms import ban, calendar, fixed_window, gcra, sliding_counter, sliding_log, sliding_window
from sluicegate.errors import AlgorithmError, nearest
from sluicegate.plan import Outcome
from sluicegate.quota import Quota


class Algorithm(Protocol):
    """What a module of this package offers."""

    NAMES: tuple[str, ...]  # the first is its own: its file's name with "-" for "_"; the others are aliases
    CODE: str  # a few letters for Redis keys
    GUARANTEE: str  # its promise for any window, in words

    def params(self, quota: Quota) -> tuple[int, ...]: ...

    def shape(self, params: tuple[int, ...]) -> str:
        """Return the parameters that a stored state depends on, as text: a change of them starts a new budget."""
        ...

    def window_us(self, params: tuple[int, ...]) -> int:
        """Return the time until a used-up limit is full again."""
        ...

    def owing(self, params: tuple[int, ...]) -> tuple[int, ...]:
        """Return the highest parameters under which the same state is kept exactly."""
        ...

    def decide(
        self, state: Any, now: int, cost: int, params: tuple[int, ...], *, forced: bool = False
    ) -> tuple[Outcome, Any]: ...

    def refund(self, state: Any, now: int, cost: int, params: tuple[int, ...], at: int) -> Any: ...


AlgorithmName = Literal[
    "sliding-window", "sliding-log", "sliding-counter", "fixed-window", "gcra", "token-bucket", "leaky-bucket"
]
"""The names of the table below, for type checkers."""

_MODULES: Final[tuple[ModuleType, ...]] = (sliding_window, sliding_log, sliding_counter, fixed_window, gcra)

ALGORITHMS: Final[dict[str, Algorithm]] = {
    name: cast(Algorithm, module) for module in _MODULES for name in module.NAMES
}
DEFAULT: Final = "sliding-window"  # strict in any period, at any limit in little memory
KEPT: Final = ALGORITHMS | {each.NAMES[0]: cast(Algorithm, each) for each in (calendar, ban)}
"""The algorithms that a store keeps state of: those of rules, that of quotas with a Calendar, and the one of bans."""


def find(name: object) -> Algorithm:
    """Return the algorithm of that name; AlgorithmError names the known ones."""
    found = ALGORITHMS.get(name) if isinstance(name, str) else None
    if found is None:
        expected = nearest(name, ALGORITHMS, f"use one of: {', '.join(ALGORITHMS)}", kind="algorithm")
        raise AlgorithmError("algorithm", name, problem="not known", expected=expected)
    return found
