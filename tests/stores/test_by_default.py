"""A Redis store with the default wrappers, deny cache included, returns the same numbers as memory.

2,000 sequences, always the same ones, or a part of them. `SLUICEGATE_SEED` draws others, and `SLUICEGATE_EXAMPLES` that
many for each test.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import pytest

from sluicegate import Ban, Concurrency, ManualClock, Quota
from sluicegate.clock import MICROSECOND
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.rules.ban import with_bans
from sluicegate.rules.rollout import shadows
from sluicegate.rules.terms import make_terms
from sluicegate.stores import AsyncStore, Store, open_async_store, open_store
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.wrappers import StoreOptions
from sluicegate.testing.driver import Driver
from sluicegate.testing.scenarios import examples
from sluicegate.testing.store import NAMES
from tests.servers import MAKERS, Server
from tests.stores.modes import PATIENCE

SEQUENCES = 2_000
EACH = examples(SEQUENCES // (2 * len(NAMES) * len(MAKERS))).max_examples
SEED = os.environ.get("SLUICEGATE_SEED", "1")
ACTS = 24
KINDS = ["hit"] * 8 + ["again"] * 5 + ["peek", "force", "reset", "refund", "renew"]
WAITS = ["none"] * 6 + ["retry", "retry less 1 µs", "next", "reset", "a little", "a part"]
BAN = Ban(after=3, within=5, duration=10, factor=2, longest=40)

Charged = tuple[Plan, tuple[Outcome, ...]]


@contextmanager
def opened(server: Server, mode: str, *, clock: ManualClock, runner: asyncio.Runner) -> Iterator[Driver]:
    """The wrappers of a store that a limiter opens, called without await."""
    options = StoreOptions(clock=clock, deadline=PATIENCE)
    around: Store | AsyncStore
    if mode == "sync":
        store = open_store(server.url, prefix="default", clock=clock, deadline=PATIENCE)
        around = options.wrap(store, owned=True)
    else:
        async_store = open_async_store(server.url, prefix="default", clock=clock, deadline=PATIENCE)
        around = options.wrap_async(async_store, owned=True)
    driver = Driver(around, runner)
    try:
        yield driver
    finally:
        driver.close()


def drawn_rules(draw: random.Random, algorithm: str) -> list[Terms]:
    """One to three rules, the first of this algorithm."""
    rules = []
    for number in range(draw.randint(1, 3)):
        if number and draw.random() < 0.15:
            [terms] = make_terms(f"rule{number}", Concurrency(draw.randint(1, 4), lease=20), algorithm=algorithm)
        else:
            name = draw.choice(NAMES) if number else algorithm
            period = Fraction(draw.choice([1, 3, 60, 3600])) / draw.choice([1, 1, 7])
            quota = Quota(draw.randint(1, 9), round(period * MICROSECOND) / Fraction(MICROSECOND))
            ban = BAN.terms if draw.random() < 0.15 else None
            made = make_terms(f"rule{number}", (quota,), algorithm=name, counted=draw.random() < 0.1, ban=ban)
            [terms] = shadows(made) if draw.random() < 0.15 else made
        rules.append(terms)
    return rules


class Sequence:
    """Acts of a few identities under a few rules, done on both stores."""

    def __init__(self, draw: random.Random, algorithm: str, *, stores: list[Driver], clock: ManualClock) -> None:
        self._draw, self._stores, self._clock = draw, stores, clock
        self._rules = drawn_rules(draw, algorithm)
        self._tag = f"{draw.random()}"
        self._plans: list[Plan] = []
        self._charged: list[Charged] = []
        self._last: tuple[Outcome, ...] = ()
        self.acts: list[object] = []

    def run(self) -> None:
        for _ in range(ACTS):
            self._wait()
            getattr(self, f"_{self._draw.choice(KINDS)}")()

    def _wait(self) -> None:
        wait, us = self._draw.choice(WAITS), 0
        if self._last:
            outcome = self._draw.choice(self._last)
            named = {"retry": outcome.retry_after or 0, "next": outcome.next_after, "reset": outcome.reset_after}
            us = named.get(wait.partition(" ")[0], 0) - wait.endswith("µs")
        if wait == "a little":
            us = self._draw.choice([1, 2, 1000, MICROSECOND // 2])
        elif wait == "a part":
            us = round(self._draw.random() * 1.5 * self._rules[0].window_us)
        if us > 0:
            self.acts.append(f"wait {us} µs")
            self._clock.advance_us(us)

    def _plan(self) -> Plan:
        draw = self._draw
        chosen = draw.sample(self._rules, draw.randint(1, len(self._rules)))
        name = draw.choice(["alice", "alice", "bob"])
        checks = []
        for terms in chosen:
            identity = "everybody" if draw.random() < 0.15 else name
            checks.append(Check(terms, self._tag + identity, draw.randint(0, terms.params[0] + 1)))
        self._plans.append(Plan(with_bans(checks)))
        return self._plans[-1]

    def _hit(self) -> None:
        self._run(self._plan())

    def _again(self) -> None:
        """Retry, as a refused client does, with other requests in between."""
        self._run(self._draw.choice(self._plans[-4:]) if self._plans else self._plan())

    def _peek(self) -> None:
        plan = self._draw.choice([*self._plans[-4:], self._plan()])
        self._run(plan._replace(charge=False))

    def _force(self) -> None:
        plan = self._plan()
        self._run(plan._replace(checks=tuple([each for each in plan.checks if each.cost]), forced=True))

    def _reset(self) -> None:
        check = self._draw.choice(self._plan().checks)
        self.acts.append(("reset", check))
        for store in self._stores:
            store.forget(check.terms.rule_id, check.identity)

    def _refund(self) -> None:
        if self._charged:
            plan, outcomes = self._charged.pop(self._draw.randrange(len(self._charged)))
            self.acts.append(("refund", plan))
            for store in self._stores:
                store.refund(plan, outcomes)

    def _renew(self) -> None:
        """Renew held slots."""
        for at, (plan, outcomes) in enumerate(self._charged):
            if all([check.terms.held and check.cost for check in plan.checks]):
                self.acts.append(("renew", plan))
                results, expected = [store.renew(plan, outcomes) for store in self._stores]
                assert results == expected, self.acts
                self._charged[at] = (plan, results)

    def _run(self, plan: Plan) -> None:
        if not plan.checks:
            return
        self.acts.append((plan, [check.identity.removeprefix(self._tag) for check in plan.checks]))
        results, expected = [store.run(plan) for store in self._stores]
        assert results == expected, self.acts
        self._last = results
        if plan.charge and not plan.forced and all([outcome.allowed for outcome in results]):
            self._charged.append((plan, results))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("algorithm", NAMES)
def test_every_number_is_that_of_memory(server: Server, mode: str, algorithm: str) -> None:
    clock = ManualClock(1_760_000_000)
    with asyncio.Runner() as runner, opened(server, mode, clock=clock, runner=runner) as store:
        for number in range(EACH):
            seed = f"{SEED} {server.name} {mode} {algorithm} {number}"
            stores = [store, Driver(MemoryStore(clock=clock), runner)]
            sequence = Sequence(random.Random(seed), algorithm, stores=stores, clock=clock)
            try:
                sequence.run()
            except AssertionError as error:
                error.add_note(f"SLUICEGATE_SEED={SEED}, sequence {seed!r}")
                raise
