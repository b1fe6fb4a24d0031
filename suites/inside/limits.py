"""The options of every insertion: limits that nothing reaches. Counts what the memory stores are asked."""

from __future__ import annotations

import atexit
import os
from typing import Any, Final

from sluicegate.concurrency import Concurrency
from sluicegate.plan import Outcome, Plan
from sluicegate.rule import Rule
from sluicegate.stores.memory import MemoryStore
from suites.inside.record import write

# Without fields in the responses: there are tests of all that stands in a response.
OPTIONS: Final[dict[str, Any]] = {"default_limits": ["1000000000/day"], "headers": None}

# What a request can be asked for, what its response can give back, and what is held until its end.
RULES: Final = (
    Rule(name="asked", quota="1000000000/day", key=("ip", "header:Accept"), methods=["GET", "POST"], path="/*"),
    Rule(name="answered", quota="1000000000/day", key="ip", refund_when=lambda response: response.status_code >= 400),
    Rule(name="held", quota=Concurrency(1_000_000), key="ip"),
)
if os.environ["SUITES_RULES"]:
    OPTIONS["rules"] = RULES

_run = MemoryStore.run


class _Asked:
    """How often the stores of this process were asked."""

    times = 0


def _run_counted(self: MemoryStore, plan: Plan) -> tuple[Outcome, ...]:
    _Asked.times += 1
    return _run(self, plan)


MemoryStore.run = _run_counted  # type: ignore[method-assign]


@atexit.register
def _write_count() -> None:
    write(requests=_Asked.times)
