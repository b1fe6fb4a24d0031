"""StoreExam: tests of a sync or an async store against a reference store.

The reference is the memory store unless a subclass names another. Every field of every outcome must be the same, to the
microsecond.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from functools import partial
from itertools import count
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import ALGORITHMS, DEFAULT, KEPT
from sluicegate.clock import MICROSECOND, Clock, ManualClock, calendar_us
from sluicegate.plan import NEVER, Check, Outcome, Plan, Terms
from sluicegate.quota import Calendar, Quota
from sluicegate.rules.rollout import shadows
from sluicegate.rules.terms import make_terms, present
from sluicegate.stores import AsyncStore, Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.driver import Act, Driver, Play, acts_of
from sluicegate.testing.held import HeldLaws
from sluicegate.testing.scenarios import COSTS, LONGEST, MOMENTS, WAITS, examples, quotas, takes

NAMES: Final = tuple(dict.fromkeys(module.NAMES[0] for module in ALGORITHMS.values()))
EXAMINED: Final = (*NAMES, "calendar")
HOSTILE: Final = ("", "\0", "\n", "a:b", "a", "{a}", "}{", "ü", "\ud800", "\udfff", "a\0b", "x" * 1_000_000, "*", "a b")
SELDOM: Final = st.sampled_from([False, False, False, True])


def terms(
    algorithm: str, quota: Quota | str, *, scope: str = "exam", counted: bool = False, shadow: bool = False
) -> Terms:
    """Return the terms of a rule with this quota."""
    quota = Quota.parse(quota) if isinstance(quota, str) else quota
    if algorithm == "calendar":  # which is that of the quota, not of the rule
        quota, algorithm = Quota(quota.limit, quota.calendar or Calendar(quota.span)), DEFAULT
    made = present(make_terms(scope, (quota,), algorithm=algorithm, counted=counted), ManualClock().now_us(), 0)
    return (shadows(made) if shadow else made)[0]


class StoreExam(HeldLaws):
    """Subclass it and define `make_store`; pytest runs every test, for every algorithm.

        class TestMyStore(StoreExam):
            def make_store(self, clock):
                return MyStore(clock=clock)

    `examples` is the number of stories for each algorithm. Set fewer for a slow store.
    """

    examples = 40
    runner: asyncio.Runner

    @abstractmethod
    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        """Return a store, empty or not, that follows the clock. With None, it uses its own clock."""

    def make_reference(self, clock: Clock) -> Store:
        """Return the reference: the store whose outcomes are right."""
        return MemoryStore(clock=clock)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _loop(cls) -> Iterator[None]:
        with asyncio.Runner() as cls.runner:
            yield

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Driver]:
        with closing(self.drive(clock)) as driver:
            yield driver

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    def drive(self, clock: Clock | None) -> Driver:
        """Return a store with fresh identities."""
        return Driver(self.make_store(clock), self.runner)

    @pytest.mark.parametrize("algorithm", EXAMINED)
    def test_every_outcome_is_that_of_the_reference(self, algorithm: str) -> None:
        @examples(self.examples)
        @given(plays(algorithm))
        def examine(play: Play) -> None:
            clock = ManualClock(0)
            with closing(self.drive(clock)) as driver:
                _perform(play, driver, Driver(self.make_reference(clock), self.runner), clock=clock)

        examine()

    @pytest.mark.parametrize("algorithm", EXAMINED)
    def test_it_admits_the_limit_and_returns_outcomes_in_order(self, store: Driver, algorithm: str) -> None:
        plan = Plan((Check(terms(algorithm, "5/hour"), "a", 1), Check(terms(algorithm, "3/day", scope="b"), "a", 1)))
        outcomes = [store.run(plan) for _ in range(5)]
        assert [(one.allowed, two.allowed) for one, two in outcomes] == [(True, True)] * 3 + [(True, False)] * 2
        assert [(one.limit, one.remaining) for one, _ in outcomes] == [(5, 4), (5, 3), (5, 2), (5, 2), (5, 2)]
        assert [(two.limit, two.remaining) for _, two in outcomes] == [(3, 2), (3, 1), (3, 0), (3, 0), (3, 0)]

    @pytest.mark.parametrize("algorithm", EXAMINED)
    def test_a_peek_charges_nothing(self, store: Driver, algorithm: str) -> None:
        check = Check(terms(algorithm, "1/hour"), "a", 1)
        for _ in range(3):
            assert store.run(Plan((check,), charge=False))[0][:3] == (True, 1, 1)
            assert store.run(Plan((check._replace(cost=0),)))[0][:3] == (True, 1, 1)
        assert store.run(Plan((check,)))[0].allowed
        assert not store.run(Plan((check,), charge=False))[0].allowed

    @pytest.mark.parametrize("algorithm", EXAMINED)
    def test_forget_resets_one_budget(self, store: Driver, algorithm: str) -> None:
        one, two = (Check(terms(algorithm, "1/hour", scope=scope), "a", 1) for scope in ("one", "two"))
        assert all(outcome.allowed for outcome in store.run(Plan((one, two))))
        store.forget(one.terms.rule_id, "a")
        store.forget(one.terms.rule_id, "nobody")
        assert [outcome.allowed for outcome in store.run(Plan((one, two)))] == [True, False]

    @pytest.mark.parametrize("algorithm", EXAMINED)
    def test_a_refund_returns_what_was_charged(self, store: Driver, algorithm: str) -> None:
        once = Plan((Check(terms(algorithm, "1/hour"), "a", 1), Check(terms(algorithm, "5/day", scope="b"), "a", 2)))
        for _ in range(3):
            outcomes = store.run(once)
            assert [outcome.allowed for outcome in outcomes] == [True, True]
            refused = store.run(once)
            for nothing in (once._replace(charge=False), once):
                store.refund(nothing, refused)
            store.refund(once._replace(charge=False), outcomes)
            store.refund(once, tuple([outcome._replace(source="policy") for outcome in outcomes]))
            assert store.run(once) == refused, "a refund returned a charge that was never made"
            store.refund(once, outcomes)
            assert [outcome.remaining for outcome in store.run(once._replace(charge=False))] == [1, 5]

    def test_an_empty_plan_has_no_outcomes(self, store: Driver) -> None:
        assert store.run(Plan(())) == ()

    def test_different_identities_have_different_budgets(self, store: Driver) -> None:
        once = terms("fixed-window", "1/hour")
        for allowed in (True, False):
            outcomes = [store.run(Plan((Check(once, identity, 1),)))[0].allowed for identity in HOSTILE]
            assert outcomes == [allowed] * len(HOSTILE)

    @pytest.mark.parametrize("algorithm", NAMES)
    def test_its_own_clock_moves(self, algorithm: str) -> None:
        plan = Plan((Check(terms(algorithm, Quota(3, 0.02)), "a", 1),))  # 20 ms, so the window ends soon
        with closing(self.drive(None)) as store:
            assert next(number for number in count() if not store.run(plan)[0].allowed and number >= 6)

    def test_its_own_clock_knows_the_calendar(self) -> None:
        with closing(self.drive(None)) as store:
            now, ahead = calendar_us(None)
            made = present(make_terms("exam", (Quota(3, Calendar("month")),), algorithm=DEFAULT), now, ahead)
            [outcome] = store.run(Plan((Check(made[0], "a", 1),)))
            late = [now + outcome.reset_after - end for end in Calendar("month").window(now)[1:]]
            assert outcome.remaining == 2
            assert min(map(abs, late)) < 10 * MICROSECOND

    def test_close_may_be_called_twice(self) -> None:
        store = self.drive(ManualClock())
        store.run(Plan((Check(terms("fixed-window", "1/hour"), "a", 1),)))
        store.close()
        store.close()


@st.composite
def plays(draw: st.DrawFn, algorithm: str, shadow: st.SearchStrategy[bool] = SELDOM) -> Play:
    """Stories of quotas with this algorithm, alone or with quotas of other algorithms. Several may be of one rule."""
    names = [algorithm, *draw(st.lists(st.sampled_from(EXAMINED), max_size=2))]
    options = [(draw(st.booleans()), draw(shadow)) for _ in names]
    rules = []
    for number, name in enumerate(names):
        of_rule = draw(st.integers(0, number))
        counted, in_shadow = options[of_rule]
        make = partial(terms, name, scope=f"rule{number}", counted=counted, shadow=in_shadow)
        quota = draw(quotas(KEPT[name]))
        period = quota.calendar or Fraction(quota.period_us, MICROSECOND)
        others = st.integers(1, quota.limit).map(partial(Quota, period=period))
        if quota.burst is not None:
            others = st.builds(Quota, st.just(quota.limit), st.just(period), burst=st.integers(1, quota.burst))
        other = draw(others.filter(partial(takes, KEPT[name])))
        pair = [make(each)._replace(group=f"rule{of_rule}") for each in (quota, other)]
        rules.append((pair[0], pair[1]))
    kinds = st.sampled_from(["hit"] * 7 + ["peek", "forget", "change", "force", "refund", "refund"])
    acts = st.builds(Act, WAITS, st.lists(COSTS, min_size=1, max_size=3), kinds)
    return Play(rules, draw(MOMENTS), draw(st.lists(acts, max_size=LONGEST)))


def _perform(play: Play, store: Driver, reference: Driver, *, clock: ManualClock) -> None:
    """Run the story on both stores, and compare every outcome."""
    charged: tuple[Plan, tuple[Outcome, ...]] = (Plan(()), ())
    for number, (act, plan, last) in enumerate(acts_of(play, (store, reference), clock=clock)):
        if act.kind == "refund":
            for driver in (store, reference):
                driver.refund(*charged)
            charged = (Plan(()), ())
        outcomes = store.run(plan)
        assert outcomes == reference.run(plan)
        last[:] = outcomes
        if plan.charge and all(outcome.allowed for outcome in outcomes):
            charged = (plan, outcomes)
        if number % 3 == 0:
            _examine_wait(plan, outcomes, store=store, clock=clock)


def _examine_wait(plan: Plan, outcomes: tuple[Outcome, ...], *, store: Driver, clock: ManualClock) -> None:
    """A refused plan passes after the longest `retry_after`, and not one microsecond earlier."""
    waits = [
        outcome.retry_after for check, outcome in zip(plan.checks, outcomes, strict=True) if not check.terms.shadow
    ]
    longest = max((wait for wait in waits if wait is not None), default=0)
    if NEVER in waits or not longest:
        return
    peek = plan._replace(charge=False)
    clock.advance_us(longest - 1)
    assert not all(outcome.allowed for outcome in store.run(peek))
    clock.advance_us(1)
    assert all(outcome.allowed for outcome in store.run(peek))
