"""Driver: a sync or an async store behind sync calls; and the stories that an exam runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import iscoroutine
from itertools import cycle
from typing import Any, NamedTuple
from uuid import uuid4

from sluicegate.clock import ManualClock
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.stores import AsyncStore, Store
from sluicegate.testing.scenarios import LATEST, Cost, Wait


class Act(NamedTuple):
    """Wait, then run a plan.

    `kind` is hit, peek, or force (charge a refusal too); or forget, change or refund: first drop a budget, change a
    limit or refund the last hit, then hit.
    """

    wait: Wait
    costs: Sequence[Cost]
    kind: str = "hit"


class Play(NamedTuple):
    """A story: two sets of terms for each rule, the second with another limit, and the acts under them."""

    rules: Sequence[tuple[Terms, Terms]]
    start_us: int
    acts: Sequence[Act]


def acts_of(
    play: Play, stores: Iterable[Driver], *, clock: ManualClock
) -> Iterator[tuple[Act, Plan, list[Outcome | None]]]:
    """Yield each act with its plan, when its time has come, its budget was dropped or its limit was changed. Put the
    outcomes of the plan into the list, which has the last outcome of each rule: the next act depends on them.
    """
    clock.advance_us(play.start_us)
    rules = list(play.rules)
    last: list[Outcome | None] = [None] * len(rules)
    for number, act in enumerate(play.acts):
        chosen = number % len(rules)
        wait = act.wait.us_after(rules[chosen][0].window_us, last[chosen])
        clock.advance_us(max(0, min(wait, LATEST - clock.now_us())))
        if act.kind == "forget":
            for store in stores:
                store.forget(rules[chosen][0].rule_id, "somebody")
        if act.kind == "change":
            rules[chosen] = (rules[chosen][1], rules[chosen][0])
        checks = tuple(
            Check(terms, "somebody", cost.number(terms.limit, seen))
            for (terms, _), cost, seen in zip(rules, cycle(act.costs), last, strict=False)
        )
        yield act, Plan(checks, charge=act.kind != "peek", forced=act.kind == "force"), last


class Driver:
    """A sync or an async store behind sync calls. Adds a random prefix to every identity."""

    def __init__(self, store: Store | AsyncStore, runner: asyncio.Runner) -> None:
        self._store, self._runner = store, runner
        self._tag = uuid4().hex  # a server keeps the budgets of earlier examples

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        outcomes: tuple[Outcome, ...] = self._call(self._store.run, self._own(plan))
        return outcomes

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        self._call(self._store.refund, self._own(plan), outcomes)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Refund what the plan was charged, and charge it again."""
        renewed: tuple[Outcome, ...] = self._call(self._store.renew, self._own(plan), outcomes)
        return renewed

    def forget(self, rule_id: str, identity: str) -> None:
        self._call(self._store.forget, rule_id, self._tag + identity)

    def close(self) -> None:
        self._call(self._store.close)

    def _own(self, plan: Plan) -> Plan:
        checks = [check._replace(identity=self._tag + check.identity) for check in plan.checks]
        return plan._replace(checks=tuple(checks))

    def _call(self, method: Callable[..., object], *arguments: object) -> Any:
        found: Any = method(*arguments)
        return self._runner.run(found) if iscoroutine(found) else found
