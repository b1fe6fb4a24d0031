"""Part of StoreExam: concurrency limits. At most `limit` slots are in use, also after releases, long runs and crashes.

A story compares the store with the memory store, as the other tests of StoreExam do.
"""

from __future__ import annotations

import asyncio
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
from sluicegate.stores.memory import MemoryStore
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


def at_once(limit: int, lease_us: int = 60 * MICROSECOND, *, scope: str = "exam") -> Terms:
    """Return the terms of a rule with this concurrency limit."""
    (terms,) = make_terms(scope, Concurrency(limit, Fraction(lease_us, MICROSECOND)), algorithm="gcra")
    return terms


class HeldLaws(ABC):
    """Tests of rules with a concurrency limit."""

    examples: int
    runner: asyncio.Runner

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
                _perform(story, driver, Driver(MemoryStore(clock=clock), self.runner), clock=clock)

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


def _perform(story: Story, store: Driver, reference: Driver, *, clock: ManualClock) -> None:
    """Run the story on both stores, and compare every outcome."""
    terms, stores = at_once(story.limit, story.lease_us), (store, reference)
    begun: list[tuple[Plan, list[Outcomes]]] = []
    for event in story.events:
        wait = max(0, int(event.wait * story.lease_us) + event.us)
        clock.advance_us(min(wait, LATEST - clock.now_us()))
        plan, found = Plan((Check(terms, "somebody", 1 + event.number % min(3, story.limit)),)), list[Outcomes]()
        if event.kind == "take":
            found = [each.run(plan) for each in stores]
            begun += [(plan, found)] if found[1][0].allowed else []
        elif event.kind == "forget":
            for each in stores:
                each.forget(terms.rule_id, "somebody")
            begun = []
        elif begun:
            plan, taken = begun.pop(event.number % len(begun))
            if event.kind == "renew":
                found = [each.renew(plan, outcomes) for each, outcomes in zip(stores, taken, strict=True)]
                begun.append((plan, found))
            else:
                for each, outcomes in zip(stores, taken, strict=True):
                    each.refund(plan, outcomes)
        assert found[:1] == found[1:]
        ours, theirs = [each.run(plan._replace(charge=False)) for each in stores]
        assert ours == theirs
