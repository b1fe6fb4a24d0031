"""AlgorithmExam: the laws of `sluicegate.algorithms`, tested on the Python half of an algorithm.

StoreExam tests the Lua half, on a server or on fakeredis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple

from hypothesis import assume, given
from hypothesis import strategies as st

from sluicegate.algorithms import Algorithm
from sluicegate.plan import NEVER, Outcome
from sluicegate.quota import Quota
from sluicegate.testing.scenarios import COSTS, LONGEST, MOMENTS, WAITS, Cost, Wait, examples, quotas

EXACT: Final = 2**53
_EXAMPLES: Final = 60


class Step(NamedTuple):
    """Move the clock, refund the last charge if `refunded`, then request this cost.

    `forced` charges a refusal too, as a rule with count_denied does.
    """

    wait: Wait
    cost: Cost
    forced: bool = False
    refunded: bool = False


STEPS: Final = st.builds(Step, WAITS, COSTS)


class Story(NamedTuple):
    """A quota and the steps that are taken under it."""

    quota: Quota
    start_us: int
    steps: Sequence[Step]


class Scene(NamedTuple):
    """The state after a story. `admitted` has (moment, cost) of every charge that was not refunded."""

    state: Any
    now: int
    params: tuple[int, ...]
    last: Outcome | None
    admitted: list[tuple[int, int]]

    @property
    def limit(self) -> int:
        return self.params[0]


class AlgorithmExam(ABC):
    """Subclass it, set `algorithm` and define `guarantee`; pytest runs every law.

    class TestFixedWindow(AlgorithmExam):
        algorithm = fixed_window
        first_hit_opens = True

        def guarantee(self, quota):
            return 2 * quota.limit
    """

    algorithm: Algorithm
    first_hit_opens = False  # whether the first hit on an unused budget starts the window

    @abstractmethod
    def guarantee(self, quota: Quota) -> int:
        """Return the largest total cost that the algorithm may allow in any time span as long as the quota's period."""

    def scene(self, story: Story) -> Scene:
        """Run every step of a story and return the final state."""
        params = self.algorithm.params(story.quota)
        scene = Scene(state=None, now=story.start_us, params=params, last=None, admitted=[])
        for step in story.steps:
            now = scene.now + step.wait.us_after(self.algorithm.window_us(params), scene.last)
            if step.refunded and scene.admitted:
                at, cost = scene.admitted.pop()
                scene = scene._replace(state=self.algorithm.refund(scene.state, now, cost, params, at))
            cost = step.cost.number(params[0], scene.last)
            last, state = self.algorithm.decide(scene.state, now, cost, params)
            if not last.allowed and step.forced and last.retry_after is not None:
                _, state = self.algorithm.decide(scene.state, now, cost, params, forced=True)
            scene = scene._replace(now=now, last=last, state=state)
            if cost and last.allowed:
                scene.admitted.append((now, cost))
        return scene

    def ask(self, scene: Scene, cost: int, *, after: int = 0) -> Outcome:
        """Return the outcome of a cost, `after` microseconds later. The scene does not change."""
        return self.algorithm.decide(deepcopy(scene.state), scene.now + after, cost, scene.params)[0]

    def answers(self, scene: Scene, *, after: int = 0) -> list[Outcome]:
        """Return all one can see of a state: outcomes of several costs, now and later, before and after a charge."""
        window = self.algorithm.window_us(scene.params)
        costs = {0, 1, 2, scene.limit // 2, scene.limit}
        moments = [after, after + 1, after + window // 3, after + window - 1, after + window, after + 2 * window]
        seen = [self.ask(scene, cost, after=moment) for moment in moments for cost in sorted(costs)]
        if self.ask(scene, 1, after=after).allowed:
            charged = self._charged(scene._replace(now=scene.now + after), 1)._replace(now=scene.now)
            seen += [self.ask(charged, cost, after=moment) for moment in moments for cost in (0, 1, scene.limit)]
        return seen

    @examples(_EXAMPLES)
    @given(st.data())
    def test_law_1_cost_0_is_a_peek(self, data: st.DataObject) -> None:
        scene = self._drawn(data)
        before = self.answers(scene)
        outcome, state = self.algorithm.decide(scene.state, scene.now, 0, scene.params)
        assert (outcome.allowed, outcome.retry_after) == (True, 0)
        assert self.answers(scene) == self.answers(scene._replace(state=state)) == before

    @examples(_EXAMPLES)
    @given(st.data(), COSTS)
    def test_law_2_a_refusal_changes_nothing(self, data: st.DataObject, cost: Cost) -> None:
        scene = self._drawn(data)
        before, seen = self.answers(scene), self.ask(scene, 0)
        asked = cost.number(scene.limit, scene.last)
        outcome, state = self.algorithm.decide(scene.state, scene.now, asked, scene.params)
        assert self.answers(scene) == before
        if not outcome.allowed:
            assert self.answers(scene._replace(state=state)) == before
            assert outcome == seen._replace(allowed=False, retry_after=outcome.retry_after)
            assert outcome.retry_after is None or outcome.retry_after > 0

    @examples(2 * _EXAMPLES)
    @given(st.data(), COSTS)
    def test_law_3_retry_after_is_exact(self, data: st.DataObject, wanted: Cost) -> None:
        scene = self._drawn(data)
        cost = wanted.number(scene.limit, scene.last)
        outcome = self.ask(scene, cost)
        if outcome.allowed:
            assert outcome.retry_after == 0
        elif outcome.retry_after is not None:
            assert self.ask(scene, cost, after=outcome.retry_after).allowed
            assert not self.ask(scene, cost, after=outcome.retry_after - 1).allowed

    @examples(_EXAMPLES)
    @given(st.data(), st.integers(1, 5))
    def test_law_4_above_the_limit_is_never(self, data: st.DataObject, more: int) -> None:
        scene = self._drawn(data)
        for state in (scene, scene._replace(state=None)):
            outcome = self.ask(state, state.limit + more)
            assert (outcome.allowed, outcome.retry_after) == (False, NEVER)
            assert self.ask(state, state.limit).retry_after is not None

    @examples(_EXAMPLES)
    @given(st.data())
    def test_law_5_the_state_may_be_dropped_after_reset_after(self, data: st.DataObject) -> None:
        scene = self._drawn(data)
        seen = self.ask(scene, 0)
        reset = seen.reset_after
        assert self.answers(scene, after=reset) == self.answers(scene._replace(state=None), after=reset)
        assert (reset == 0) is (seen.next_after == 0)
        if reset:
            assert self.ask(scene, 0, after=reset - 1).remaining < scene.limit

    @examples(_EXAMPLES)
    @given(st.data(), st.booleans(), COSTS)
    def test_law_6_remaining_is_never_negative_and_grows_at_next_after(
        self, data: st.DataObject, lowered: bool, wanted: Cost
    ) -> None:
        scene = self._drawn(data)
        if lowered:
            scene = scene._replace(params=(max(1, scene.limit // 3), *scene.params[1:]))
            raised = (3 * scene.limit + 2, *scene.params[1:])
            peeked = self._charged(scene, 0)._replace(params=raised)
            assert self.answers(peeked) == self.answers(scene._replace(params=raised)), "cost 0 is a peek, also forced"
        cost = wanted.number(scene.limit, scene.last)
        outcome = self.ask(scene, cost)
        assert 0 <= outcome.remaining <= outcome.limit == scene.limit
        if outcome.allowed and cost:
            scene = self._charged(scene, cost)
        seen = self.ask(scene, 0)
        expected = (outcome.remaining, outcome.reset_after, outcome.next_after)
        assert (seen.remaining, seen.reset_after, seen.next_after) == expected
        if seen.next_after:
            assert self.ask(scene, 0, after=seen.next_after - 1).remaining == seen.remaining
            assert self.ask(scene, 0, after=seen.next_after).remaining > seen.remaining

    @examples(_EXAMPLES)
    @given(st.data())
    def test_law_7_a_forced_charge_fills_up_to_the_limit_and_no_further(self, data: st.DataObject) -> None:
        scene = self._drawn(data)
        full = self._charged(scene, scene.limit)
        fuller = self._charged(full, scene.limit)
        assert self.ask(full, 0).remaining == 0
        assert self.answers(fuller) == self.answers(full)

    @examples(2 * _EXAMPLES)
    @given(st.data(), COSTS, st.integers(0, 400))
    def test_law_8_a_clock_that_goes_back_neither_frees_nor_blocks(
        self, data: st.DataObject, wanted: Cost, percent: int
    ) -> None:
        scene = self._drawn(data)
        window = self.algorithm.window_us(scene.params)
        back = window * percent // 100
        cost, before = wanted.number(scene.limit, scene.last), self.ask(scene, 0)
        seen, outcome = self.ask(scene, 0, after=-back), self.ask(scene, cost, after=-back)
        if before.reset_after and back > 3 * window + window // 50 + 2:
            assert seen.reset_after == 0  # what still counts began at most two windows ago; timestamps are rounded
        assert seen.reset_after <= before.reset_after + back
        if percent <= 100:
            assert seen.remaining <= before.remaining or seen.reset_after == 0
        if not outcome.allowed and outcome.retry_after is not None:
            assert self.ask(scene, cost, after=outcome.retry_after - back).allowed
            assert not self.ask(scene, cost, after=outcome.retry_after - back - 1).allowed

    @examples(2 * _EXAMPLES)
    @given(st.data(), COSTS)
    def test_law_9_an_immediate_refund_restores_the_state(self, data: st.DataObject, wanted: Cost) -> None:
        scene = self._drawn(data)
        debt = data.draw(st.integers(0, scene.limit), label="debt")  # of another hit, whose cost was above its estimate
        if debt:
            owing = scene.params, self.algorithm.owing(scene.params)
            scene = self._charged(scene._replace(params=owing[1]), debt)._replace(params=owing[0])
            scene = scene._replace(now=scene.now + data.draw(st.integers(0, 2), label="later"))
        cost = wanted.number(scene.limit, scene.last)
        outcome, before = self.ask(scene, cost), self.answers(scene)
        assert outcome.at == scene.now
        if outcome.allowed and cost:
            refunded = self._refunded(self._charged(scene, cost), cost, at=outcome.at)
            assert self.answers(refunded) == before

    @examples(4 * _EXAMPLES)
    @given(data=st.data(), wanted=COSTS, steps=st.lists(STEPS, max_size=5), wait=WAITS)
    def test_law_9_a_later_refund_gives_back_at_most_the_difference(
        self, data: st.DataObject, wanted: Cost, steps: Sequence[Step], wait: Wait
    ) -> None:
        scene = self._drawn(data)
        cost = wanted.number(scene.limit, scene.last)
        outcome = self.ask(scene, cost)
        if not (outcome.allowed and cost):
            return
        window = self.algorithm.window_us(scene.params)
        charged, without = self._charged(scene, cost)._replace(last=outcome), scene
        alike = True  # whether both states have the same windows
        for step in [*steps, Step(wait, Cost("none"))]:
            now = charged.now + step.wait.us_after(window, charged.last)
            charged, without = charged._replace(now=now), without._replace(now=now)
            more = step.cost.number(scene.limit, charged.last)
            last = self.ask(charged, more)
            alike = alike and (not self.first_hit_opens or self.ask(without, 0).reset_after > 0)
            if last.allowed and more:
                charged, without = self._charged(charged, more), self._charged(without, more)
            charged = charged._replace(last=last)
        refunded = self._refunded(charged, cost, at=outcome.at)
        if charged.now - outcome.at >= outcome.reset_after:
            assert self.answers(refunded) == self.answers(charged)
        for after in (0, 1, window // 3, window - 1, window):
            left, right, kept = (self.ask(each, 0, after=after).remaining for each in (refunded, without, charged))
            assert kept <= left <= kept + cost
            assert left <= right or not alike

    @examples(2 * _EXAMPLES)
    @given(st.data())
    def test_no_period_admits_more_than_the_guarantee(self, data: st.DataObject) -> None:
        story = self._story(data, forced=False)
        admitted = self.scene(story).admitted
        for end, _ in admitted:
            inside = sum(cost for moment, cost in admitted if end - story.quota.period_us < moment <= end)
            assert inside <= self.guarantee(story.quota)

    @examples(_EXAMPLES)
    @given(st.data(), COSTS)
    def test_numbers_are_integers_that_fit_a_double(self, data: st.DataObject, cost: Cost) -> None:
        scene = self._drawn(data)
        outcome = self.ask(scene, cost.number(scene.limit, scene.last))
        for number in (*outcome[1:7], *scene.params):
            assert number is None or (type(number) is int and 0 <= number < EXACT)

    def _charged(self, scene: Scene, cost: int) -> Scene:
        _, state = self.algorithm.decide(deepcopy(scene.state), scene.now, cost, scene.params, forced=True)
        return scene._replace(state=state)

    def _refunded(self, scene: Scene, cost: int, *, at: int) -> Scene:
        state = self.algorithm.refund(deepcopy(scene.state), scene.now, cost, scene.params, at)
        return scene._replace(state=state)

    def _story(self, data: st.DataObject, *, forced: bool = True) -> Story:
        steps = st.builds(Step, WAITS, COSTS, st.booleans() if forced else st.just(value=False), st.booleans())
        return data.draw(
            st.builds(Story, quotas(self.algorithm), MOMENTS, st.lists(steps, max_size=LONGEST)), label="story"
        )

    def _drawn(self, data: st.DataObject) -> Scene:
        scene = self.scene(self._story(data))
        assume(scene.now + 4 * self.algorithm.window_us(scene.params) < EXACT)
        return scene
