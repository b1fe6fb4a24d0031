"""A cost that the response tells: the estimate that is charged before the view, and the response when it has ended.

A function of the user's that fails changes no response: the estimate stands, and the log says so once a minute (SG118).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sluicegate.clock import monotonic
from sluicegate.errors import RuleError, shows_half_made
from sluicegate.plan import Terms
from sluicegate.rules.response import Response
from sluicegate.rules.terms import whole_cost
from sluicegate.runtime.awaiting import close_unawaited, waits

HEAD: Final = 4_096  # bytes: the first event of a stream is shorter
TAIL: Final = 16_384  # bytes: the last events of a stream, or the end of a JSON body
_QUIET: Final = 60.0  # seconds without another line about one option of one rule
_MOST: Final = 1_024  # lines that are remembered: rules made for each request would grow the table without end

log = logging.getLogger("sluicegate.charges")
_quiet_until: Final[dict[tuple[str, str], float]] = {}


@shows_half_made
@dataclass(frozen=True, slots=True)
class Ended(Response):
    """A response that has ended: the argument of `cost_after` in every framework.

    `head` and `tail` are the first HEAD and the last TAIL bytes of the body; a short body is in both. `size` is the
    number of bytes that the application has sent. `complete` is False if the client has cut the response off, or if
    the application has failed.

    >>> Ended(200, tail=b'{"rows": 7}', size=11).size
    11
    """

    head: bytes = b""
    tail: bytes = b""
    size: int = 0
    complete: bool = True


class Body:
    """The two ends of a body, while it is sent. Each byte is copied once or twice, however large the body is."""

    __slots__ = ("head", "size", "tail")

    def __init__(self) -> None:
        self.head, self.tail, self.size = b"", bytearray(), 0

    def add(self, part: bytes) -> None:
        """Note a part of the body."""
        self.size += len(part)
        if len(self.head) < HEAD:
            self.head += part[: HEAD - len(self.head)]
        self.tail += part[-TAIL:]
        if len(self.tail) > 2 * TAIL:
            del self.tail[:-TAIL]

    def of(self, response: Response, *, complete: bool) -> Ended:
        """Return the response with this body."""
        start = response.status_code, response.headers, response.login_failed
        return Ended(*start, head=self.head, tail=bytes(self.tail[-TAIL:]), size=self.size, complete=complete)


class Estimate(NamedTuple):
    """An estimate of the user's as the cost of a rule: at least 1, and 1 if the function fails."""

    rule: str
    func: Callable[[Any], Any]  # the name that `label_of` looks for

    def __call__(self, request: object) -> int | Awaitable[int]:
        """Return the estimate for a request."""
        try:
            found = self.func(request)
        except Exception as error:  # noqa: BLE001  # whatever a function of the user's raises is logged
            return self._failed(error)
        return self._awaited(found) if waits(found) else self._checked(found)

    async def _awaited(self, answer: Awaitable[object]) -> int:
        try:
            found = await answer
        except Exception as error:  # noqa: BLE001
            return self._failed(error)
        return self._checked(found)

    def _checked(self, found: object) -> int:
        return max(1, units(self.rule, "estimate", lambda: found) or 1)

    def _failed(self, error: Exception) -> int:
        _report(self.rule, "estimate", error)
        return 1


def untold(response: Ended) -> None:
    """Return no cost: the `cost_after` of a rule that has only an estimate, which the view settles."""


def units(rule: str, option: str, read: Callable[[], object]) -> int | None:
    """Return the number of units that a user's function returns; None if it fails or returns anything else. That a
    `cost_after` returns None is usual: the estimate stands.
    """
    try:
        found = read()
        if waits(found):
            close_unawaited(found)
        return None if found is None and option == "cost_after" else whole_cost(option, found)
    except Exception as error:  # noqa: BLE001  # whatever a function of the user's raises is logged
        _report(rule, option, error)
        return None


def unsettled(unit: str | None, rules: Sequence[Terms]) -> None:
    """Log that a view has settled a request whose rules have no estimate in this unit."""
    counted = ", ".join([f"{each.name} ({each.unit or 'no unit'})" for each in rules if each.cost_after is not None])
    problem = "no rule of the request has an estimate" + ("" if unit is None else " in this unit")
    expected = f"these have one: {counted}" if counted else "give the rule an estimate"
    _report(
        "/".join([each.name for each in rules]), "settle", RuleError("unit", unit, problem=problem, expected=expected)
    )


def _report(rule: str, option: str, error: Exception) -> None:
    """Log what is wrong with an estimate or a cost, once a minute for each rule."""
    now = monotonic()
    if _quiet_until.get((rule, option), now) <= now:
        if len(_quiet_until) >= _MOST:
            _quiet_until.clear()
        _quiet_until[rule, option] = now + _QUIET
        text = "sluicegate: rule %r: %s failed, and the estimate stands [SG118]"
        log.warning(text, rule, option, exc_info=error)
