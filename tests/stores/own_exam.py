"""Our own exam: the public one, and two laws of the reference, with which the public one compares every outcome.

Shadow rules do not change the others, and count as if they were enforced. Slots are compared with a model that stores
only when each slot was taken.

The outcomes of the enforced checks must be the same as without the shadow checks. The outcomes of the checks of one
shadow rule must be those that they would have if it were the only rule and enforced: all are charged, or none is.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.clock import ManualClock
from sluicegate.plan import Check, Outcome, Plan, Terms, in_shadow
from sluicegate.quota import Quota
from sluicegate.rules.terms import make_terms
from sluicegate.testing import StoreExam
from sluicegate.testing.driver import Driver, Play, acts_of
from sluicegate.testing.held import STORIES, Outcomes, Story, at_once
from sluicegate.testing.scenarios import LATEST, examples
from sluicegate.testing.store import EXAMINED, plays

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


class Model:
    """When each slot was taken, the oldest first. A slot taken above the limit removes the oldest."""

    def __init__(self, terms: Terms) -> None:
        self.limit, self.lease_us, self.grain = terms.params
        self.stamps: list[int] = []

    def used(self, now: int) -> int:
        self.stamps = [stamp for stamp in self.stamps if stamp + self.lease_us > now]
        return len(self.stamps)

    def take(self, now: int, units: int) -> None:
        self.stamps = sorted([*self.stamps, *[self.stamp(now)] * units])[-self.limit :]

    def release(self, at: int, units: int, *, now: int) -> None:
        for _ in range(units if self.used(now) else 0):
            if self.stamp(at) in self.stamps:
                self.stamps.remove(self.stamp(at))

    def stamp(self, at: int) -> int:
        return -(-at // self.grain) * self.grain


def _perform(story: Story, store: Driver, clock: ManualClock) -> None:
    """Run the story on the store and on the model, and also count the running requests."""
    terms = at_once(story.limit, story.lease_us)
    model, begun, late = Model(terms), list[tuple[Plan, Outcomes]](), 0
    for event in story.events:
        wait = max(0, int(event.wait * story.lease_us) + event.us)
        clock.advance_us(min(wait, LATEST - clock.now_us()))
        now = clock.now_us()
        if event.kind == "take":
            plan = Plan((Check(terms, "somebody", 1 + event.number % min(3, story.limit)),))
            [(_, _, units)] = plan.checks
            used = model.used(now)
            outcomes = store.run(plan)
            assert outcomes[0].allowed == (used + units <= story.limit)
            if outcomes[0].allowed:
                model.take(now, units)
                begun.append((plan, outcomes))
            assert outcomes[0].remaining == story.limit - model.used(now)
        elif event.kind == "forget":
            store.forget(terms.rule_id, "somebody")
            model.stamps, begun, late = [], [], 0
        elif begun:
            plan, outcomes = begun.pop(event.number % len(begun))
            model.release(outcomes[0].at, plan.checks[0].cost, now=now)
            if event.kind == "renew":
                if outcomes[0].at + story.lease_us <= now:  # the lease has ended, but the request still runs
                    late += plan.checks[0].cost
                outcomes = store.renew(plan, outcomes)
                assert outcomes[0].at == now
                model.take(now, plan.checks[0].cost)
                begun.append((plan, outcomes))
            else:
                store.refund(plan, outcomes)
            assert store.run(plan._replace(charge=False))[0].limit == story.limit
        alive = [plan.checks[0].cost for plan, (outcome,) in begun if outcome.at + story.lease_us > now]
        assert sum(alive) <= story.limit + late


class OwnExam(StoreExam):
    """The public exam, with the laws of shadow rules and of slots."""

    @pytest.mark.parametrize("algorithm", EXAMINED)
    def test_shadow_rules_refuse_nothing_and_count_as_if_enforced(self, algorithm: str) -> None:
        @examples(self.examples)
        @given(plays(algorithm, shadow=st.sampled_from([True, True, False])))
        def examine(play: Play) -> None:
            clock = ManualClock(0)
            alone = Driver(self.make_reference(clock), self.runner)
            examine_rollout(play, Stores(self.drive(clock), self.drive(clock), alone), clock=clock)

        examine()

    def test_a_slot_is_taken_when_the_model_says_so(self) -> None:
        @examples(self.examples)
        @given(STORIES)
        def examine(story: Story) -> None:
            clock = ManualClock(0)
            clock.advance_us(story.start_us)
            with closing(self.drive(clock)) as driver:
                _perform(story, driver, clock)

        examine()
