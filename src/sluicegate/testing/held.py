"""The laws of what is held: so many at once and no more, whatever ends, lasts long or dies. A part of StoreExam.

They are held against a model that knows nothing but when each place was taken. This module knows plans and terms; how
a store is driven is the exam's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.clock import MICROSECOND, Clock, ManualClock
from sluicegate.concurrency import Concurrency
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.terms import make_terms
from sluicegate.testing.scenarios import LATEST, LONGEST, MOMENTS, examples

if TYPE_CHECKING:
    from sluicegate.testing.store import Driver

Outcomes = tuple[Outcome, ...]
LEASES_US: Final = (MICROSECOND, 60 * MICROSECOND, 1000, 3)
KINDS: Final = ["take"] * 5 + ["release"] * 3 + ["renew"] * 2 + ["forget"]


class Event(NamedTuple):
    """Some time later a request begins, or one of those that have begun ends, renews its lease or is reset."""

    later: Fraction  # in leases
    us: int
    kind: str
    number: int  # which of them; of a beginning, how many places it takes


class Story(NamedTuple):
    """Who came and went under one rule."""

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
    """When each unit was taken, the oldest first. What is taken in spite of the limit pushes the oldest out."""

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
    """Terms as a rule would make them."""
    (terms,) = make_terms(scope, Concurrency(limit, Fraction(lease_us, MICROSECOND)), algorithm="gcra")
    return terms


class HeldLaws(ABC):
    """What StoreExam asks about rules of so many at once."""

    examples: int

    @abstractmethod
    def drive(self, clock: Clock | None) -> Driver:
        """A store of one's own."""

    def test_so_many_at_once_and_no_more(self) -> None:
        @examples(self.examples)
        @given(STORIES)
        def tell(story: Story) -> None:
            clock = ManualClock(0)
            clock.advance_us(story.start_us)
            driver = self.drive(clock)
            try:
                _perform(story, driver, clock)
            finally:
                driver.close()

        tell()

    @pytest.mark.parametrize("limit", [2, 100, 300])
    def test_a_place_comes_back_after_its_lease_and_not_before(
        self, store: Driver, clock: ManualClock, limit: int
    ) -> None:
        terms = at_once(limit)
        one, (_, lease_us, grain) = Plan((Check(terms, "a", 1),)), terms.params
        clock.advance_us(-clock.now_us() % grain)
        taken = [store.run(one) for _ in range(limit)]
        assert [outcome.remaining for (outcome,) in taken] == list(reversed(range(limit)))
        assert not store.run(one)[0].allowed
        store.refund(one, taken.pop())
        kept = store.run(one)
        assert kept[0].allowed, "one was released"
        clock.advance_us(lease_us - 1)
        assert not store.run(one)[0].allowed, "nobody knows who has died before the lease is over"
        kept = store.renew(one, kept)
        clock.advance_us(1)
        store.refund(one, taken[0])  # it has lived on, and is late
        assert store.run(one._replace(charge=False))[0].remaining == limit - 1, "only what was renewed is held"
        clock.advance_us(lease_us - 2 if grain == 1 else lease_us - 1)
        assert store.run(one._replace(charge=False))[0].reset_after == 1
        clock.advance_us(1)
        assert store.run(one._replace(charge=False))[0].reset_after == 0

    def test_what_was_not_taken_is_not_renewed(self, store: Driver, clock: ManualClock) -> None:
        two = Plan((Check(at_once(1), "a", 1), Check(at_once(3, scope="b"), "b", 2)))
        told = store.run(two)
        elsewhere = tuple([outcome._replace(source="policy") for outcome in told])
        refused = store.run(two)
        clock.advance_us(1)
        for plan, outcomes in ((two, refused), (two, elsewhere), (two._replace(charge=False), told), (Plan(()), ())):
            assert store.renew(plan, outcomes) == outcomes
        told = store.renew(two, told)
        assert [outcome.at for outcome in told] == [clock.now_us()] * 2
        store.refund(two, told)
        assert [outcome.remaining for outcome in store.run(two._replace(charge=False))] == [1, 3]


def _perform(story: Story, store: Driver, clock: ManualClock) -> None:
    """Tell the store and the model the same, and count who is in flight besides."""
    terms = at_once(story.limit, story.lease_us)
    model, begun, late = Model(terms), list[tuple[Plan, Outcomes]](), 0
    for event in story.events:
        wait = max(0, int(event.later * story.lease_us) + event.us)
        clock.advance_us(min(wait, LATEST - clock.now_us()))
        now = clock.now_us()
        if event.kind == "take":
            plan = Plan((Check(terms, "somebody", 1 + event.number % min(3, story.limit)),))
            [(_, _, units)] = plan.checks
            used = model.used(now)
            told = store.run(plan)
            assert told[0].allowed == (used + units <= story.limit)
            if told[0].allowed:
                model.take(now, units)
                begun.append((plan, told))
            assert told[0].remaining == story.limit - model.used(now)
        elif event.kind == "forget":
            store.forget(terms.rule_id, "somebody")
            model.stamps, begun, late = [], [], 0
        elif begun:
            plan, told = begun.pop(event.number % len(begun))
            model.release(told[0].at, plan.checks[0].cost, now=now)
            if event.kind == "renew":
                late += plan.checks[0].cost * (told[0].at + story.lease_us <= now)  # too late: it is in flight anyway
                told = store.renew(plan, told)
                assert told[0].at == now
                model.take(now, plan.checks[0].cost)
                begun.append((plan, told))
            else:
                store.refund(plan, told)
            assert store.run(plan._replace(charge=False))[0].limit == story.limit
        alive = [plan.checks[0].cost for plan, (told,) in begun if told.at + story.lease_us > now]
        assert sum(alive) <= story.limit + late
