"""Part of our own exam: shadow rules do not change the others, and count as if they were enforced. The public exam
compares their outcomes with those of the reference, of which this is proven here.

The outcomes of the enforced checks must be the same as without the shadow checks. The outcomes of the checks of one
shadow rule must be those that they would have if it were the only rule and enforced: all are charged, or none is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.clock import ManualClock
from sluicegate.plan import Check, Outcome, Plan, in_shadow
from sluicegate.quota import Quota
from sluicegate.rules.terms import make_terms
from sluicegate.testing import StoreExam
from sluicegate.testing.driver import Driver, Play, acts_of
from sluicegate.testing.scenarios import examples
from sluicegate.testing.store import NAMES, plays

NEVER_PASSES: Final = Check(make_terms("never", (Quota(1, 1),), algorithm="fixed-window")[0], "", 2)
"""A check that is always refused: replaces the enforced rules after they have refused."""


class Stores(NamedTuple):
    """The stores for one story: with all rules, with the enforced rules only, and with each shadow rule alone."""

    whole: Driver
    enforced: Driver
    alone: Driver


def examine_rollout(play: Play, stores: Stores, *, clock: ManualClock) -> None:
    """Run the story, compare the outcomes, and close the stores."""
    paid: _Paid = []
    try:
        for act, plan, last in acts_of(play, stores, clock=clock):
            if act.kind == "refund":
                for store, charged, outcomes in paid:
                    store.refund(charged, outcomes)
                paid = []
            last[:], paid = _compare(plan._replace(forced=False), stores, before=paid)
    finally:
        for store in stores:
            store.close()


_Paid = list[tuple["Driver", Plan, tuple[Outcome, ...]]]


def _compare(plan: Plan, stores: Stores, *, before: _Paid) -> tuple[tuple[Outcome, ...], _Paid]:
    """Run a plan on the three stores; return the outcomes, and what can be refunded now."""
    outcomes = stores.whole.run(plan)
    pairs = list(zip(plan.checks, outcomes, strict=True))
    enforced = plan._replace(checks=tuple(check for check in plan.checks if not check.terms.shadow))
    without = stores.enforced.run(enforced)
    among_all = tuple(outcome for check, outcome in pairs if not check.terms.shadow)
    assert among_all == without, "a shadow rule changed an enforced outcome"
    passed = all(outcome.allowed for outcome in without)
    paid: _Paid = [(stores.whole, plan, outcomes), (stores.enforced, enforced, without)]
    for group in dict.fromkeys(check.group for check in plan.checks if check.terms.shadow):
        mine = [(check, outcome) for check, outcome in pairs if check.group == group]
        real = tuple(check._replace(terms=check.terms._replace(shadow=False)) for check, _ in mine)
        one = plan._replace(checks=real if passed else (*real, NEVER_PASSES))
        by_itself = stores.alone.run(one)
        for (_, outcome), alone in zip(mine, by_itself, strict=False):
            expected = in_shadow(alone, passed=alone.allowed)
            assert outcome == expected, "a shadow rule did not count as if it were enforced"
        paid.append((stores.alone, one, by_itself))
    return outcomes, paid if plan.charge and passed else before


class ShadowLaws(StoreExam):
    """The exam with the law of shadow rules."""

    @pytest.mark.parametrize("algorithm", NAMES)
    def test_shadow_rules_refuse_nothing_and_count_as_if_enforced(self, algorithm: str) -> None:
        @examples(self.examples)
        @given(plays(algorithm, shadow=st.sampled_from([True, True, False])))
        def examine(play: Play) -> None:
            clock = ManualClock(0)
            alone = Driver(self.make_reference(clock), self.runner)
            examine_rollout(play, Stores(self.drive(clock), self.drive(clock), alone), clock=clock)

        examine()
