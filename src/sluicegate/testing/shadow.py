"""The law of shadow rules: the same story with and without them, and each of them told alone.

What a store answers to the enforced checks must be what it answers where the shadow checks are not; and what it answers
to a shadow check must be what it would say of that rule, were it enforced as the only one. Part of StoreExam.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Final, NamedTuple

from sluicegate.clock import ManualClock
from sluicegate.plan import Check, Outcome, Plan, in_shadow
from sluicegate.quota import Quota
from sluicegate.terms import make_terms
from sluicegate.testing.scenarios import LATEST

if TYPE_CHECKING:
    from sluicegate.testing.store import Driver, Play


NEVER_PASSES: Final = Check(make_terms("never", (Quota(1, 1),), algorithm="fixed-window")[0], "", 2)
"""Stands for the enforced rules where they have refused."""


class Stores(NamedTuple):
    """Three tellings of one story: all rules, only those that are enforced, and each shadow rule by itself."""

    whole: Driver
    enforced: Driver
    alone: Driver


def tell(play: Play, stores: Stores, *, clock: ManualClock) -> None:
    """Tell the story, compare, and close the stores."""
    clock.advance_us(play.start_us)
    try:
        _perform(play, stores, clock)
    finally:
        for store in stores:
            store.close()


def _perform(play: Play, stores: Stores, clock: ManualClock) -> None:
    rules = list(play.rules)
    last: list[Outcome | None] = [None] * len(rules)
    paid: list[tuple[Driver, Plan, tuple[Outcome, ...]]] = []
    for number, act in enumerate(play.acts):
        chosen = number % len(rules)
        wait = act.wait.us_after(rules[chosen][0].window_us, last[chosen])
        clock.advance_us(max(0, min(wait, LATEST - clock.now_us())))
        if act.kind == "forget":
            for store in stores:
                store.forget(rules[chosen][0].rule_id, "somebody")
        if act.kind == "change":
            rules[chosen] = (rules[chosen][1], rules[chosen][0])
        if act.kind == "refund":
            for store, plan, told in paid:
                store.refund(plan, told)
            paid = []
        checks = tuple(
            Check(terms, "somebody", cost.number(terms.params[0], seen))
            for (terms, _), cost, seen in zip(rules, cycle(act.costs), last, strict=False)
        )
        last, paid = _compare(Plan(checks, charge=act.kind != "peek"), stores, before=paid)


_Paid = list[tuple["Driver", Plan, tuple[Outcome, ...]]]


def _compare(plan: Plan, stores: Stores, *, before: _Paid) -> tuple[list[Outcome | None], _Paid]:
    """Run a plan three times over; the outcomes, and what can be refunded now."""
    told = stores.whole.run(plan)
    pairs = list(zip(plan.checks, told, strict=True))
    enforced = plan._replace(checks=tuple(check for check in plan.checks if not check.terms.shadow))
    without = stores.enforced.run(enforced)
    assert tuple(outcome for check, outcome in pairs if not check.terms.shadow) == without, "a shadow rule had a say"
    passed = all(outcome.allowed for outcome in without)
    paid: _Paid = [(stores.whole, plan, told), (stores.enforced, enforced, without)]
    for check, outcome in pairs:
        if check.terms.shadow:
            real = check._replace(terms=check.terms._replace(shadow=False))
            one = plan._replace(checks=(real,) if passed else (real, NEVER_PASSES))
            by_itself = stores.alone.run(one)
            expected = in_shadow(by_itself[0], passed=by_itself[0].allowed)
            assert outcome == expected, "a shadow rule did not count as it would"
            paid.append((stores.alone, one, by_itself))
    return list(told), paid if plan.charge and passed else before
