"""The state of one request: the gate's decision about it, and the charges that its response may refund or release.

The adapter stores the state on the request. Views and guards read it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from sluicegate.errors import warn
from sluicegate.plan import BAN, Check, Decision, Terms
from sluicegate.rules.cost import unsettled
from sluicegate.web.charges import Charges, owed, replaced, without
from sluicegate.web.endpoint import printable
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import Mark
from sluicegate.web.settings import Settings
from sluicegate.web.settlement import AsyncSettlement, Settlement

NO_MARKS: Final[frozenset[Mark]] = frozenset()


class RequestState:
    """The gate's decision about one request, and the charges that the response may still refund or release."""

    __slots__ = ("decision", "enforced", "gate", "settlement")

    def __init__(self, gate: Gate | AsyncGate) -> None:
        self.gate = gate
        self.decision: Decision | None = None
        # Only for a request that has charges to refund or release when the response starts or ends.
        self.settlement: Settlement | AsyncSettlement | None = None
        self.enforced = NO_MARKS

    @property
    def can_hold(self) -> bool:
        """True if a slot that is taken now will be released when the response ends."""
        return self.settlement is None or not self.settlement.is_over

    @property
    def can_refuse(self) -> bool:
        """True until the response starts: a refusal would be the response, and charges may still depend on it."""
        raise NotImplementedError

    def note_marks(self, marks: Iterable[Mark]) -> None:
        """Record that the rules of these marks have been enforced for the request. Most requests have none."""
        if marks:
            self.enforced = self.enforced.union(marks)

    def note(self, decision: Decision | None) -> None:
        """Add a decision to the earlier decisions, and what it owes to the settlement."""
        if decision is None:
            return
        if self.gate.may_owe and (charges := owed(decision)):
            self.owe(charges)
        self.join(decision)

    def join(self, decision: Decision) -> None:
        """Add a decision to the earlier ones. Then `decision` covers all rules that were checked for the request."""
        first = self.decision
        if first is None:
            self.decision = decision
            return
        earlier = self._beside(decision.checks)
        self.decision = Decision(
            allowed=first.allowed and decision.allowed,
            checks=(*[check for check, _ in earlier], *self.named(decision.checks)),
            outcomes=(*[outcome for _, outcome in earlier], *decision.outcomes),
        )

    def _beside(self, checks: Sequence[Check]) -> Charges:
        """Return what was decided before and stays beside these checks. What charged nothing is replaced by a check of
        the same limit: a view that catches a refusal may try again, as often as it likes.
        """
        if self.decision is None:
            return []
        again = {(check.budget, check.terms.limit) for check in checks}
        pairs = zip(self.decision.checks, self.decision.outcomes, strict=True)
        return [pair for pair in pairs if pair[0].cost or (pair[0].budget, pair[0].terms.limit) not in again]

    def named(self, checks: Sequence[Check]) -> tuple[Check, ...]:
        """Return the checks of a further decision, each with a name of its own in the header fields. A ban keeps its
        name: the fields have no bans.
        """
        taken = {check.terms.name for check, _ in self._beside(checks)}
        named: list[Check] = []
        for check in checks:
            first, number = check.terms.name, 2
            name = first
            while name in taken and check.terms.algorithm != BAN:
                name, number = f"{first}-{number}", number + 1
            taken.add(name)
            named.append(check if name == first else check._replace(terms=_named(check.terms, name)))
        return tuple(named)

    def owe(self, charges: Charges) -> None:
        """Add charges that the response may refund, or that are released when it has ended: at once, if it has."""
        if self.settlement is None:
            settlement = self.gate.settlement()
            settlement.is_over = not self.can_hold  # before `self.settlement`, which `can_hold` reads
            self.settlement = settlement
        self.settlement.add(charges)

    def settle(self, used: int, unit: str | None) -> None:
        """Note the cost of the request so far, of the rules of this unit or of all."""
        noted = self.settlement is not None and self.settlement.settle(used, unit)
        if not noted and self.decision is not None:  # else no rule applied, as for a client on the list `allow`
            unsettled(unit, [check.terms for check in self.decision.checks])

    def refuse(self, decision: Decision) -> Decision:
        """Record the refusal that the application raised (RateLimitExceeded), unless it is recorded already. Return its
        decision.

        The returned decision always refuses, even if the raised decision allowed: to raise it means to refuse. The
        rules of a Limiter may have any names. In the returned decision all names are printable.
        """
        refused = decision._replace(allowed=False, checks=tuple(map(_printable, decision.checks)))
        known = () if self.decision is None else self.decision.outcomes
        if not all(any(outcome is each for each in known) for outcome in decision.outcomes):
            self.note(refused)
        elif self.decision is not None and decision.outcomes:
            self.decision = self.decision._replace(allowed=False)
        return refused

    def regain(self, charges: Charges) -> None:
        """Subtract refunded charges from the decision, so that the header fields show what is left now."""
        if charges and self.decision is not None:
            self.decision = without(self.decision, charges)

    def replace(self, returned: Charges, taken: Charges) -> None:
        """Show that the charges that were given back have been replaced by others in the same budgets."""
        if returned and self.decision is not None:
            self.decision = replaced(self.decision, returned, taken)


def count_together(one: Settings, other: Settings) -> bool:
    """True if limiters with these two settings count in the same store. Then equal rules share a budget."""
    own_memory = isinstance(one.store, str) and one.store.lower().startswith("memory:")
    return not own_memory and (one.store, one.prefix) == (other.store, other.prefix)


@lru_cache(maxsize=1024)  # always the same object: the deny cache knows terms by it
def _named(terms: Terms, name: str) -> Terms:
    """Return the terms with another name."""
    return terms._replace(name=name)


def warn_of_twice(outer: RequestState | None, gate: Gate | AsyncGate, decision: Decision | None) -> None:
    """Warn (SG105) if an outer limiter has charged one of these budgets for the same request."""
    if outer is None or outer.decision is None or decision is None:
        return
    if not count_together(outer.gate.settings, gate.settings):
        return
    charged = {check.budget for check in outer.decision.checks}
    for check in decision.checks:
        if check.budget in charged:
            warn("SG105", check.terms.name, strict=gate.settings.strict)


def _printable(check: Check) -> Check:
    """Return the check with a name that header fields can show."""
    name = check.terms.name
    shown = printable(name)
    return check if shown == name else check._replace(terms=check.terms._replace(name=shown))
