"""Events: what `on_decision` is called with, a value for each decision.

An event refers to the decision, and computes each fact when it is read. It has nothing of the request but the route's
template and the method. An identity is shown as the digest that is also in the store's key, unless the limiter has
`show_identities`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NoReturn, final

from sluicegate.clock import MICROSECOND
from sluicegate.identity import digest
from sluicegate.plan import BAN, Check, Decision, Outcome, Terms
from sluicegate.rules.rule import METHODS

Result = Literal["allowed", "refused", "shadow", "banned"]
"""What a rule said: "shadow" if it only would have refused, "banned" if the refusal comes from a ban."""

EventSource = Literal["store", "cache", "prefetch", "local", "policy"]
"""Who made an outcome: the store, the deny cache, a permit fetched ahead, the local fallback, or the failure policy."""

_METHODS: Final = METHODS | {""}
_RULE_FIELDS: Final = (
    "rule",
    "result",
    "limit",
    "remaining",
    "cost",
    "retry_after",
    "reset_after",
    "near",
    "source",
    "identity",
)
_FIELDS: Final = ("application", "endpoint", "method", "allowed", "forbidden", "degraded", "store_seconds", "rules")


class _Value:
    """A value whose fields are properties, compared and shown by them."""

    __slots__ = ()
    _fields: tuple[str, ...]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all([getattr(self, name) == getattr(other, name) for name in self._fields])

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in self._fields]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([f'{name}={getattr(self, name)!r}' for name in self._fields])})"

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"a {name} cannot be copied or pickled, because it knows identities; send asdict() instead")


@final
class RuleEvent(_Value):
    """One rule of a decision."""

    __slots__ = ("_check", "_hint", "_outcome", "_shows")
    _fields = _RULE_FIELDS

    def __init__(self, check: Check, outcome: Outcome, hint: EventSource, *, shows: bool) -> None:
        self._check = check
        self._outcome = outcome
        self._hint: EventSource = hint  # the source of an outcome of the store
        self._shows = shows

    @property
    def rule(self) -> str:
        """The name of the rule. A ban is a rule of its own."""
        return self._check.terms.name

    @property
    def result(self) -> Result:
        """What the rule said."""
        return _said(self._check.terms, self._outcome)[0]

    @property
    def limit(self) -> int:
        """The limit in units; of a ban, the number of refusals that begin it."""
        return self._outcome.limit

    @property
    def remaining(self) -> int:
        """The units that are left after the decision."""
        return self._outcome.remaining

    @property
    def cost(self) -> int:
        """The units that the decision is about."""
        return self._check.cost

    @property
    def retry_after(self) -> float | None:
        """The seconds after which the same passes: 0.0 if it was allowed, None if no wait helps."""
        wait = self._outcome.retry_after
        return None if wait is None else wait / MICROSECOND

    @property
    def reset_after(self) -> float:
        """The seconds until the limit is full again."""
        return self._outcome.reset_after / MICROSECOND

    @property
    def near(self) -> bool:
        """True if the rule allowed, and at most a tenth of its limit is left. Never for a ban."""
        return _said(self._check.terms, self._outcome)[1]

    @property
    def source(self) -> EventSource:
        """Who made the outcome."""
        source = self._outcome.source
        return self._hint if source == "store" else source

    @property
    def identity(self) -> str:
        """The digest of the identity, or with `show_identities` its text."""
        text = self._check.identity
        return text if self._shows else digest(text)

    def asdict(self) -> dict[str, Any]:
        """Return all fields by their names."""
        return {name: getattr(self, name) for name in self._fields}


@final
class DecisionEvent(_Value):
    """One decision: of a hit, a reservation, a slot, a request, or a charge inside a view.

    `application` is the name in the settings. `endpoint` is the template of the route, and `method` the method of the
    request ("other" for an unregistered one); both are empty for a plain limiter, and the endpoint also for a path
    without a route. `store_seconds` is the time of the calls of the store; None if it was not called.
    """

    __slots__ = ("_decision", "_rules", "_shows", "application", "endpoint", "method", "store_seconds")
    _fields = _FIELDS

    def __init__(
        self,
        decision: Decision,
        *,
        application: str = "",
        endpoint: str = "",
        method: str = "",
        store_seconds: float | None = None,
        show_identities: bool = False,
    ) -> None:
        self._decision = decision
        self._shows = show_identities
        self._rules: tuple[RuleEvent, ...] | None = None
        self.application: Final = application
        self.endpoint: Final = endpoint
        self.method: Final = method if method in _METHODS else "other"
        self.store_seconds: Final = store_seconds

    @property
    def allowed(self) -> bool:
        """True if the request may pass."""
        return self._decision.allowed

    @property
    def forbidden(self) -> bool:
        """True if the `deny` list refused."""
        return self._decision.forbidden

    @property
    def degraded(self) -> bool:
        """True if the store was unavailable for at least one rule."""
        return self._decision.degraded

    @property
    def rules(self) -> tuple[RuleEvent, ...]:
        """The rules that applied, in their order."""
        if self._rules is None:
            _, checks, outcomes = self._decision
            hint, pairs = self._hint, zip(checks, outcomes, strict=True)
            self._rules = tuple([RuleEvent(check, outcome, hint, shows=self._shows) for check, outcome in pairs])
        return self._rules

    @property
    def tally(self) -> list[tuple[str, Result, EventSource, bool]]:
        """The rule, its result, its source and whether it is near its limit, for each rule: what metrics count. It
        costs a third of reading the same from `rules`.
        """
        decision = self._decision
        found: list[tuple[str, Result, EventSource, bool]] = []
        hint: EventSource = "store" if self.store_seconds is not None else self._hint
        for check, outcome in zip(decision[1], decision[2], strict=True):
            terms, source = check[0], outcome[7]
            result, near = _said(terms, outcome)
            found.append((terms[0], result, hint if source == "store" else source, near))
        return found

    @property
    def _hint(self) -> EventSource:
        """The source of an outcome of the store."""
        if self.store_seconds is not None:
            return "store"
        return "prefetch" if self._decision.allowed else "cache"

    def asdict(self) -> dict[str, Any]:
        """Return all fields by their names, the rules as dictionaries too: for JSON, or for another process."""
        found = {name: getattr(self, name) for name in self._fields}
        return {**found, "rules": [each.asdict() for each in self.rules]}


def _said(terms: Terms, outcome: Outcome) -> tuple[Result, bool]:
    """Return what a rule said, and whether it allowed with at most a tenth of its limit left."""
    if not outcome[0]:
        return ("banned" if terms.algorithm == BAN else "refused"), False
    if outcome[3] != 0:  # a shadow rule that would have refused: it has a time to wait
        return "shadow", False
    return "allowed", outcome[2] * 10 <= outcome[1] and terms.algorithm != BAN
