"""Part of StoreExam: concurrency limits. At most `limit` slots are in use, also after releases, long runs and crashes.

The tests compare the store with a model that stores only when each slot was taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from fractions import Fraction
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.clock import MICROSECOND, Clock, ManualClock
from sluicegate.concurrency import Concurrency
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.rules.terms import make_terms
from sluicegate.testing.driver import Driver
from sluicegate.testing.scenarios import LATEST, LONGEST, MOMENTS, examples

Outcomes = tuple[Outcome, ...]
LEASES_US: Final = (MICROSECOND, 60 * MICROSECOND, 1000, 3)
KINDS: Final = ["take"] * 5 + ["release"] * 3 + ["renew"] * 2 + ["forget"]


class Event(NamedTuple):
    """After a wait, a request takes slots, or a running request releases or renews them, or the budget is dropped."""

    wait: Fraction  # in leases
    us: int
    kind: str
    number: int  # which running request; for "take", how many slots


class Story(NamedTuple):
    """The requests under one rule."""

    limit: int
    lease_us: int
    start_us: int
    events: Sequence[Event]


LIMITS: Final = st.one_of(st.integers(1, 4), st.sampled_from([100, 101, 250]))
EVENTS: Final = st.builds(
    Event,
    st.sampled_from([Fraction(part, 12) for part in (0, 0, 0, 1, 4, 6, 12)]),
    st.integers(-1, 1),
    st.sampled_from(KINDS),
    st.integers(0, 7),
)
STORIES: Final = st.builds(
    Story, LIMITS, st.sampled_from(LEASES_US), MOMENTS, st.lists(EVENTS, min_size=1, max_size=2 * LONGEST)
)


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


def at_once(limit: int, lease_us: int = 60 * MICROSECOND, *, scope: str = "exam") -> Terms:
    """Return the terms of a rule with this concurrency limit."""
    (terms,) = make_terms(scope, Concurrency(limit, Fraction(lease_us, MICROSECOND)), algorithm="gcra")
    return terms


class HeldLaws(ABC):
    """Tests of rules with a concurrency limit."""

    examples: int

    @abstractmethod
    def drive(self, clock: Clock | None) -> Driver:
        """Return a store with fresh identities."""

    def test_never_more_than_the_limit_at_once(self) -> None:
        @examples(self.examples)
        @given(STORIES)
        def examine(story: Story) -> None:
            clock = ManualClock(0)
            clock.advance_us(story.start_us)
            with closing(self.drive(clock)) as driver:
                _perform(story, driver, clock)

        examine()

    @pytest.mark.parametrize("limit", [2, 100, 300])
    def test_a_slot_is_free_after_its_lease_and_not_before(self, store: Driver, clock: ManualClock, limit: int) -> None:
        terms = at_once(limit)
        one, (_, lease_us, grain) = Plan((Check(terms, "a", 1),)), terms.params
        clock.advance_us(-clock.now_us() % grain)
        taken = [store.run(one) for _ in range(limit)]
        assert [outcome.remaining for (outcome,) in taken] == list(reversed(range(limit)))
        assert not store.run(one)[0].allowed
        store.refund(one, taken.pop())
        kept = store.run(one)
        assert kept[0].allowed, "the released slot is free"
        clock.advance_us(lease_us - 1)
        assert not store.run(one)[0].allowed, "no slot is free before its lease has ended"
        kept = store.renew(one, kept)
        clock.advance_us(1)
        store.refund(one, taken[0])  # its lease has ended: the release changes nothing
        assert store.run(one._replace(charge=False))[0].remaining == limit - 1, "only the renewed slot is in use"
        clock.advance_us(lease_us - 2 if grain == 1 else lease_us - 1)
        assert store.run(one._replace(charge=False))[0].reset_after == 1
        clock.advance_us(1)
        assert store.run(one._replace(charge=False))[0].reset_after == 0

    def test_only_taken_slots_are_renewed(self, store: Driver, clock: ManualClock) -> None:
        two = Plan((Check(at_once(1), "a", 1), Check(at_once(3, scope="b"), "b", 2)))
        taken = store.run(two)
        elsewhere = tuple([outcome._replace(source="policy") for outcome in taken])
        refused = store.run(two)
        clock.advance_us(1)
        for plan, outcomes in ((two, refused), (two, elsewhere), (two._replace(charge=False), taken), (Plan(()), ())):
            assert store.renew(plan, outcomes) == outcomes
        taken = store.renew(two, taken)
        assert [outcome.at for outcome in taken] == [clock.now_us()] * 2
        store.refund(two, taken)
        assert [outcome.remaining for outcome in store.run(two._replace(charge=False))] == [1, 3]


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
