"""What becomes of a charge once the response is known: kept, given back, or held until the response has ended.

Pure, and about values only: a decision and a response in, charges out. Who waits for the response and who asks the
store is a matter of `ending` and of the adapters; this module knows no store, no rule and no framework.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sluicegate.awaiting import answers_later, give_up, name_of, waits
from sluicegate.errors import ColourError, RuleError
from sluicegate.plan import Check, Decision, Outcome, Plan

log = logging.getLogger("sluicegate.after")

Charges = list[tuple[Check, Outcome]]
Due = tuple[Plan, tuple[Outcome, ...]]

_failed: Final[set[str]] = set()  # the rules whose predicate's failure has been told


class Headers(Mapping[str, str]):
    """The header fields of a response, by name in any case. Several lines of one name are joined by commas.

    >>> Headers([("Content-Type", "text/plain")])["content-type"]
    'text/plain'
    """

    __slots__ = ("_lines",)

    def __init__(self, lines: Iterable[tuple[str, str]] = ()) -> None:
        self._lines = tuple([(name.lower(), value) for name, value in lines])

    def __getitem__(self, name: str) -> str:
        values = [value for known, value in self._lines if known == name.lower()]
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._lines))

    def __len__(self) -> int:
        return len(dict(self._lines))

    def __repr__(self) -> str:
        return f"Headers({list(self._lines)!r})"


@dataclass(frozen=True, slots=True)
class Response:
    """A response as `charge_when` and `refund_when` see it, the same in every framework: its start, not its body.

    An exception that no handler answers is a response with the status 500 and without headers.

    >>> Response(401).status_code, Response(401).headers.get("location")
    (401, None)
    """

    status_code: int
    headers: Mapping[str, str] = field(default_factory=Headers)


class Unless(NamedTuple):
    """What gives a charge back unless the predicate asks for it. Equal ones are one, so that terms are found again."""

    predicate: Callable[[Response], bool]

    def __call__(self, response: Response) -> bool:
        """Whether the charge is given back."""
        return not _asked(self.predicate, response)


def when_to_refund(rule: str, charge_when: Any, refund_when: Any) -> Any:
    """The two options of a rule as one. RuleError for both at once or no function, ColourError for an async one."""
    if charge_when is None and refund_when is None:
        return None
    option, given = ("refund_when", refund_when) if charge_when is None else ("charge_when", charge_when)
    what = f"rule {rule!r}: {option}"
    if charge_when is not None and refund_when is not None:
        raise RuleError(what, given, problem="given beside refund_when", expected="keep one: each is the other's no")
    if not callable(given) or type(given).__hash__ is None:  # terms are remembered by what they are made from
        expected = "give a plain function of the response, as lambda response: response.status_code == 401"
        raise RuleError(what, given, problem="not a function", expected=expected)
    if answers_later(given):
        raise _late(what, given)
    return refund_when if charge_when is None else Unless(charge_when)


def owed(decision: Decision) -> Charges:
    """The charges of a decision that wait for the response, or for its end. None, for most rules."""
    allowed, checks, results = decision
    for terms, _, _ in checks:
        if terms.refund_when is not None or terms.held:
            break
    else:
        return []
    if not allowed:
        return []  # nothing was charged but what counts refusals, and that is meant to stay
    pairs = zip(checks, results, strict=True)
    return [(check, outcome) for check, outcome in pairs if _waits(check) and _counted(check, outcome)]


def refundable(charges: Charges, response: Response) -> Charges:
    """Those of the charges that are given back now that the response is known."""
    return [(check, outcome) for check, outcome in charges if not check.terms.held and _given_back(check, response)]


def held(charges: Charges) -> Charges:
    """Those of the charges that are given back when the response has ended."""
    return [(check, outcome) for check, outcome in charges if check.terms.held]


def due(charges: Charges) -> Due:
    """Charges as a store takes them."""
    return Plan(tuple([check for check, _ in charges])), tuple([outcome for _, outcome in charges])


def regained(decision: Decision, given_back: Charges) -> Decision:
    """The decision as it stands when these charges of it were given back: what header fields then tell."""
    costs = {id(outcome): check.cost for check, outcome in given_back}
    return decision._replace(
        results=tuple(
            [_fuller(outcome, costs[id(outcome)]) if id(outcome) in costs else outcome for outcome in decision.results]
        )
    )


def _waits(check: Check) -> bool:
    return check.terms.refund_when is not None or check.terms.held


def _counted(check: Check, outcome: Outcome) -> bool:
    """Whether a store has charged it: a policy charges nothing, nor a shadow rule that would have refused."""
    return check.cost > 0 and outcome.source != "policy" and outcome.retry_after == 0


def _fuller(outcome: Outcome, cost: int) -> Outcome:
    remaining = min(outcome.limit, outcome.remaining + cost)
    if remaining == outcome.limit:
        return outcome._replace(remaining=remaining, reset_after=0, next_after=0)
    return outcome._replace(remaining=remaining)


def _given_back(check: Check, response: Response) -> bool:
    """What the predicate says. One that fails is logged, once for each rule, and the charge stays."""
    terms = check.terms
    if terms.refund_when is None:
        return False
    try:
        refund_when = terms.refund_when
        return refund_when(response) if isinstance(refund_when, Unless) else _asked(refund_when, response)
    except Exception:
        if terms.rule_id not in _failed:
            _failed.add(terms.rule_id)
            log.exception("sluicegate: the predicate of rule %r failed, so the charge stays", terms.name)
        return False


def _asked(predicate: Callable[[Response], object], response: Response) -> bool:
    """What a predicate says. ColourError if that would have to be awaited."""
    answer = predicate(response)
    if waits(answer):
        give_up(answer)
        raise _late("predicate", predicate)
    return bool(answer)


def _late(what: str, function: object) -> ColourError:
    expected = "give a plain function: it is asked while the response waits to be sent"
    return ColourError(what, name_of(function), problem="an async function", expected=expected)
