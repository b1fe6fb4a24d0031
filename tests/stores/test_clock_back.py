"""A clock that goes back (set by an operator, or after a failover): defined, and the same in all stores."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import ALGORITHMS
from sluicegate.plan import Check, Outcome, Plan
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import RedisStore
from sluicegate.testing.driver import Driver
from sluicegate.testing.scenarios import COSTS, LATEST, MOMENTS, WAITS, examples, quotas
from sluicegate.testing.store import NAMES, terms
from tests.servers import Server
from tests.stores.places import client


class Skewed:
    """A clock that may be set to anything."""

    def __init__(self, moment: int) -> None:
        self.moment = moment

    def now_us(self) -> int:
        return self.moment


class Pure:
    """One budget by the Python half alone. What a peek or a refusal drops because it has expired is not kept dropped:
    those of Lua write nothing, so that after a step back Lua still knows what Python may have forgotten.
    """

    def __init__(self, clock: Skewed) -> None:
        self._clock, self._state = clock, None

    def run(self, check: Check) -> Outcome:
        terms, _, cost = check
        algorithm, now = ALGORITHMS[terms.algorithm], self._clock.moment
        outcome, state = algorithm.decide(self._state, now, cost, terms.params)
        counted = not outcome.allowed and terms.count_denied and outcome.retry_after is not None
        if counted:
            _, self._state = algorithm.decide(self._state, now, cost, terms.params, forced=True)
            return algorithm.decide(self._state, now, cost, terms.params)[0]
        if cost and outcome.allowed:
            self._state = state
        return outcome


@pytest.mark.parametrize("algorithm", NAMES)
def test_python_and_lua_agree_when_the_clock_goes_back(server: Server, algorithm: str) -> None:
    with client(server) as given_client, asyncio.Runner() as runner:

        @examples(60)
        @given(st.data(), quotas(ALGORITHMS[algorithm]), MOMENTS)
        def run_story(data: st.DataObject, quota: object, start: int) -> None:
            clock = Skewed(start)
            pure = Pure(clock)
            remote = Driver(RedisStore(given_client, clock=clock), runner)
            rule = terms(algorithm, quota, counted=data.draw(st.booleans(), label="counted"))  # type: ignore[arg-type]
            last = None
            steps = st.tuples(st.sampled_from([1, 1, -1]), WAITS, COSTS)
            for sign, wait, cost in data.draw(st.lists(steps, max_size=16), label="steps"):
                moment = clock.moment + sign * wait.us_after(rule.window_us, last)
                clock.moment = min(max(0, moment), LATEST)
                check = Check(rule, "a", cost.number(rule.params[0], last))
                (last,) = remote.run(Plan((check,)))
                assert last == pure.run(check)

        run_story()


@pytest.mark.parametrize("algorithm", NAMES)
def test_a_step_back_admits_no_refused_client_and_a_long_one_blocks_none(server: Server, algorithm: str) -> None:
    rule = terms(algorithm, "2/minute")
    clock = Skewed(1_760_000_000_123_457)
    with closing(RedisStore.from_url(server.url, clock=clock, deadline=10)) as remote:
        for store in (MemoryStore(clock=clock), remote):
            identity = f"{algorithm} {id(store)}"
            start = clock.moment
            plan = Plan((Check(rule, identity, 2),))
            assert store.run(plan)[0].allowed
            clock.moment = start - 30_000_000
            (refused,) = store.run(plan)
            assert not refused.allowed
            assert refused.retry_after is not None
            assert refused.retry_after <= (150 if algorithm == "sliding-counter" else 90) * 1_000_000
            clock.moment = start - 3_600_000_000
            assert store.run(plan)[0].allowed, "a state far ahead of the clock is taken for empty"
            clock.moment = start
