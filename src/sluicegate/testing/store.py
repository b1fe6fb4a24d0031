"""StoreExam: what every store promises, in either colour, held against a reference that is told the same story.

The reference is the memory store unless a subclass names another; what it answers, the store must answer, field by
field, microsecond by microsecond. This module knows stores and algorithms, and nothing of rules' other options.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from inspect import iscoroutinefunction
from itertools import count, cycle
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import ALGORITHMS
from sluicegate.clock import MICROSECOND, Clock, ManualClock
from sluicegate.plan import NEVER, Check, Outcome, Plan, Terms
from sluicegate.quota import Quota
from sluicegate.shadow import shadows
from sluicegate.stores import AsyncStore, Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.terms import make_terms
from sluicegate.testing.held import HeldLaws
from sluicegate.testing.scenarios import COSTS, LATEST, LONGEST, MOMENTS, WAITS, Cost, Wait, examples, quotas, takes
from sluicegate.testing.shadow import Stores, tell

NAMES: Final = tuple(dict.fromkeys(module.NAMES[0] for module in ALGORITHMS.values()))
HOSTILE: Final = ("", "\0", "\n", "a:b", "a", "{a}", "}{", "ü", "\ud800", "\udfff", "a\0b", "x" * 1_000_000, "*", "a b")
SELDOM: Final = st.sampled_from([False, False, False, True])


class Act(NamedTuple):
    """Wait, then hit, peek, force, or hit after a budget was forgotten, a limit changed or the last hit refunded."""

    wait: Wait
    costs: Sequence[Cost]
    kind: str = "hit"


class Play(NamedTuple):
    """Two sets of terms for each rule, the second with another limit, and what happens under them."""

    rules: Sequence[tuple[Terms, Terms]]
    start_us: int
    acts: Sequence[Act]


def terms(
    algorithm: str, quota: Quota | str, *, scope: str = "exam", counted: bool = False, shadow: bool = False
) -> Terms:
    """Terms as a rule would make them."""
    quota = Quota.parse(quota) if isinstance(quota, str) else quota
    made = make_terms(scope, (quota,), algorithm=algorithm, counted=counted)
    return (shadows(made) if shadow else made)[0]


class Driver:
    """A store of either colour as ordinary calls, with a fresh name for every identity."""

    def __init__(self, store: Store | AsyncStore, runner: asyncio.Runner) -> None:
        self._store, self._runner = store, runner
        self._tag = uuid4().hex  # servers outlive an example, and budgets in them outlive it too

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Run the plan."""
        outcomes: tuple[Outcome, ...] = self._answer(self._store.run, self._own(plan))
        return outcomes

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give back what the plan was charged."""
        self._answer(self._store.refund, self._own(plan), outcomes)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Give back what the plan was charged, and charge it again."""
        renewed: tuple[Outcome, ...] = self._answer(self._store.renew, self._own(plan), outcomes)
        return renewed

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop a budget."""
        self._answer(self._store.forget, rule_id, self._tag + identity)

    def close(self) -> None:
        """Close the store."""
        self._answer(self._store.close)

    def _own(self, plan: Plan) -> Plan:
        checks = [check._replace(identity=self._tag + check.identity) for check in plan.checks]
        return plan._replace(checks=tuple(checks))

    def _answer(self, call: Any, *arguments: Any) -> Any:
        return self._runner.run(call(*arguments)) if iscoroutinefunction(call) else call(*arguments)


class StoreExam(HeldLaws):
    """Subclass it and say how a store is made; pytest runs every law, for every algorithm.

        class TestMyStore(StoreExam):
            def make_store(self, clock):
                return MyStore(clock=clock)

    `examples` bounds the stories told of each algorithm: fewer for a slow store.
    """

    examples = 40
    runner: asyncio.Runner

    @abstractmethod
    def make_store(self, clock: Clock | None) -> Store | AsyncStore:
        """A store, empty or not, that follows the clock; with None one that keeps its own time."""

    def make_reference(self, clock: Clock) -> Store:
        """The store that is taken to be right."""
        return MemoryStore(clock=clock)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _loop(cls) -> Iterator[None]:
        with asyncio.Runner() as cls.runner:
            yield

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Driver]:
        """A driven store."""
        driver = self.drive(clock)
        yield driver
        driver.close()

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock that the store follows."""
        return ManualClock()

    def drive(self, clock: Clock | None) -> Driver:
        """A store of one's own."""
        return Driver(self.make_store(clock), self.runner)

    @pytest.mark.parametrize("algorithm", NAMES)
    def test_every_outcome_is_that_of_the_reference(self, algorithm: str) -> None:
        @examples(self.examples)
        @given(plays(algorithm))
        def tell(play: Play) -> None:
            clock = ManualClock(0)
            clock.advance_us(play.start_us)
            driver = self.drive(clock)
            try:
                _perform(play, driver, Driver(self.make_reference(clock), self.runner), clock=clock)
            finally:
                driver.close()

        tell()

    @pytest.mark.parametrize("algorithm", NAMES)
    def test_shadow_rules_have_no_say_and_count_as_they_would(self, algorithm: str) -> None:
        @examples(self.examples)
        @given(plays(algorithm, shadow=st.sampled_from([True, True, False])))
        def tell_thrice(play: Play) -> None:
            clock = ManualClock(0)
            alone = Driver(self.make_reference(clock), self.runner)
            tell(play, Stores(self.drive(clock), self.drive(clock), alone), clock=clock)

        tell_thrice()

    @pytest.mark.parametrize("algorithm", NAMES)
    def test_it_admits_the_limit_and_answers_in_order(self, store: Driver, algorithm: str) -> None:
        plan = Plan((Check(terms(algorithm, "5/hour"), "a", 1), Check(terms(algorithm, "3/day", scope="b"), "a", 1)))
        told = [store.run(plan) for _ in range(5)]
        assert [(one.allowed, two.allowed) for one, two in told] == [(True, True)] * 3 + [(True, False)] * 2
        assert [(one.limit, one.remaining) for one, _ in told] == [(5, 4), (5, 3), (5, 2), (5, 2), (5, 2)]
        assert [(two.limit, two.remaining) for _, two in told] == [(3, 2), (3, 1), (3, 0), (3, 0), (3, 0)]

    @pytest.mark.parametrize("algorithm", NAMES)
    def test_a_peek_takes_nothing(self, store: Driver, algorithm: str) -> None:
        check = Check(terms(algorithm, "1/hour"), "a", 1)
        for _ in range(3):
            assert store.run(Plan((check,), charge=False))[0][:3] == (True, 1, 1)
            assert store.run(Plan((check._replace(cost=0),)))[0][:3] == (True, 1, 1)
        assert store.run(Plan((check,)))[0].allowed
        assert not store.run(Plan((check,), charge=False))[0].allowed

    @pytest.mark.parametrize("algorithm", NAMES)
    def test_forget_gives_one_budget_back(self, store: Driver, algorithm: str) -> None:
        one, two = (Check(terms(algorithm, "1/hour", scope=scope), "a", 1) for scope in ("one", "two"))
        assert all(outcome.allowed for outcome in store.run(Plan((one, two))))
        store.forget(one.terms.rule_id, "a")
        store.forget(one.terms.rule_id, "nobody")
        assert [outcome.allowed for outcome in store.run(Plan((one, two)))] == [True, False]

    @pytest.mark.parametrize("algorithm", NAMES)
    def test_a_refund_gives_back_what_was_charged(self, store: Driver, algorithm: str) -> None:
        once = Plan((Check(terms(algorithm, "1/hour"), "a", 1), Check(terms(algorithm, "5/day", scope="b"), "a", 2)))
        for _ in range(3):
            told = store.run(once)
            assert [outcome.allowed for outcome in told] == [True, True]
            refused = store.run(once)
            for nothing in (once._replace(charge=False), once):
                store.refund(nothing, refused)
            store.refund(once._replace(charge=False), told)
            store.refund(once, tuple([outcome._replace(source="policy") for outcome in told]))
            assert store.run(once) == refused, "what was never charged was given back"
            store.refund(once, told)
            assert [outcome.remaining for outcome in store.run(once._replace(charge=False))] == [1, 5]

    def test_an_empty_plan_has_no_outcomes(self, store: Driver) -> None:
        assert store.run(Plan(())) == ()

    def test_identities_never_meet(self, store: Driver) -> None:
        once = terms("fixed-window", "1/hour")
        for allowed in (True, False):
            told = [store.run(Plan((Check(once, identity, 1),)))[0].allowed for identity in HOSTILE]
            assert told == [allowed] * len(HOSTILE)

    @pytest.mark.parametrize("algorithm", NAMES)
    def test_its_own_clock_moves(self, algorithm: str) -> None:
        store = self.drive(None)
        plan = Plan((Check(terms(algorithm, Quota(3, 0.02)), "a", 1),))  # 20 ms: over before long
        try:
            admitted = next(number for number in count() if not store.run(plan)[0].allowed and number >= 6)
        finally:
            store.close()
        assert admitted >= 6

    def test_close_may_be_called_twice(self) -> None:
        store = self.drive(ManualClock())
        store.run(Plan((Check(terms("fixed-window", "1/hour"), "a", 1),)))
        store.close()
        store.close()


@st.composite
def plays(draw: st.DrawFn, algorithm: str, shadow: st.SearchStrategy[bool] = SELDOM) -> Play:
    """Stories of one algorithm, alone or with others."""
    names = [algorithm, *draw(st.lists(st.sampled_from(NAMES), max_size=2))]
    rules = []
    for number, name in enumerate(names):
        make = partial(terms, name, scope=f"rule{number}", counted=draw(st.booleans()), shadow=draw(shadow))
        quota = draw(quotas(ALGORITHMS[name]))
        period = Fraction(quota.period_us, MICROSECOND)
        others = st.integers(1, quota.limit).map(partial(Quota, period=period))
        if quota.burst is not None:
            others = st.builds(Quota, st.just(quota.limit), st.just(period), burst=st.integers(1, quota.burst))
        other = draw(others.filter(partial(takes, ALGORITHMS[name])))
        pair = [make(each) for each in (quota, other)]
        rules.append((pair[0], pair[1]))
    kinds = st.sampled_from(["hit"] * 7 + ["peek", "forget", "change", "force", "refund", "refund"])
    acts = st.builds(Act, WAITS, st.lists(COSTS, min_size=1, max_size=3), kinds)
    return Play(rules, draw(MOMENTS), draw(st.lists(acts, max_size=LONGEST)))


def _perform(play: Play, store: Driver, reference: Driver, *, clock: ManualClock) -> None:
    """Tell both stores the same story, and compare every answer."""
    rules = list(play.rules)
    last: list[Outcome | None] = [None] * len(rules)
    charged: tuple[Plan, tuple[Outcome, ...]] = (Plan(()), ())
    for number, act in enumerate(play.acts):
        chosen = number % len(rules)
        wait = act.wait.us_after(rules[chosen][0].window_us, last[chosen])
        clock.advance_us(max(0, min(wait, LATEST - clock.now_us())))
        if act.kind == "forget":
            for driver in (store, reference):
                driver.forget(rules[chosen][0].rule_id, "somebody")
        if act.kind == "refund":
            for driver in (store, reference):
                driver.refund(*charged)
            charged = (Plan(()), ())
        if act.kind == "change":
            rules[chosen] = (rules[chosen][1], rules[chosen][0])
        checks = tuple(
            Check(rule, "somebody", cost.number(rule.params[0], seen))
            for (rule, _), cost, seen in zip(rules, cycle(act.costs), last, strict=False)
        )
        plan = Plan(checks, charge=act.kind != "peek", forced=act.kind == "force")
        told = store.run(plan)
        assert told == reference.run(plan)
        last = list(told)
        if plan.charge and all(outcome.allowed for outcome in told):
            charged = (plan, told)
        if number % 3 == 0:
            _examine_wait(plan, told, store=store, clock=clock)


def _examine_wait(plan: Plan, told: tuple[Outcome, ...], *, store: Driver, clock: ManualClock) -> None:
    """A plan that was refused passes after the longest `retry_after`, and not one microsecond earlier."""
    waits = [outcome.retry_after for check, outcome in zip(plan.checks, told, strict=True) if not check.terms.shadow]
    longest = max((wait for wait in waits if wait is not None), default=0)
    if NEVER in waits or not longest:
        return
    peek = plan._replace(charge=False)
    clock.advance_us(longest - 1)
    assert not all(outcome.allowed for outcome in store.run(peek))
    clock.advance_us(1)
    assert all(outcome.allowed for outcome in store.run(peek))
