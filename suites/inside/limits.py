"""The options of every insertion: limits that no test reaches. Counts the calls of the memory stores."""

from __future__ import annotations

import atexit
import os
from typing import Any, Final

from sluicegate.concurrency import Concurrency
from sluicegate.plan import Checks, Network, Outcomes, Terms
from sluicegate.rules.rule import Rule
from sluicegate.stores import Mode, Run
from sluicegate.stores.memory import MemoryStore
from suites.inside.record import write

# No RateLimit fields: some tests compare whole responses.
OPTIONS: Final[dict[str, Any]] = {"default_limits": ["1000000000/day"], "headers": None}

# One rule reads the request, one refunds by the response, and one holds a slot until the end.
RULES: Final = (
    Rule(name="asked", quota="1000000000/day", key=("ip", "header:Accept"), methods=["GET", "POST"], path="/*"),
    Rule(name="answered", quota="1000000000/day", key="ip", refund_when=lambda response: response.status_code >= 400),
    Rule(name="held", quota=Concurrency(1_000_000), key="ip"),
)
if os.environ["SUITES_RULES"]:
    OPTIONS["rules"] = RULES

OUTSIDE: Final = {**OPTIONS, "key": "ip"}
"""The options outside of an AuthenticationMiddleware, where nobody is known: the key "user" would warn (SG110)."""

_compile = MemoryStore.compile


class _Calls:
    """The number of calls of the stores in this process."""

    times = 0


def _compile_counted(self: MemoryStore, terms: tuple[Terms, ...], mode: Mode) -> Run:
    run = _compile(self, terms, mode)

    def counted(checks: Checks, network: Network = None) -> Outcomes:
        _Calls.times += 1
        return run(checks, network)

    return counted


MemoryStore.compile = _compile_counted  # type: ignore[method-assign]


@atexit.register
def _write_count() -> None:
    write(requests=_Calls.times)
