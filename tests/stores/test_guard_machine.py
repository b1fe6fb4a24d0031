"""What stands before a store without I/O (deny cache, circuit breaker, local fallback), under every order of events.

Hypothesis tells stories to a limiter over a scripted store. It decides when the server runs a call, when the reply
comes, and what the reply is: the answer, a failure, another exception or nothing, because the caller was cancelled. A
second process changes budgets meanwhile. The laws, which the machine checks after each event:

1. A refusal is repeated only while the store would return the same. It is not repeated after this process has changed
   one of its budgets: by a charge, a forced charge, a counted refusal, a refund, a renewal or a reset. That includes a
   change that was noted between the call of the store and its reply.
2. A failure counts against the closing of the circuit in which its request was sent. A late failure does not open a
   circuit that has closed again since.
3. Each way out of a charge is a change: a reply, a failure, any exception, a cancellation.
4. While the circuit is open, no request calls the store. After a successful probe one request does.
5. The local fallback decides exactly when the store failed or the circuit is open. It begins with what the store last
   said of a budget to a request; a probe only asks whether the store answers.
6. A repeated refusal has its waits reduced and its `at` moved by the time since the reply. No wait is negative.
7. A refund or a renewal reaches the store while the circuit is closed.

`SLUICEGATE_EXAMPLES=2000` draws 2,000 stories, each time others.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, ClassVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from sluicegate import Ban, Decision, ManualClock, Rule
from sluicegate.errors import StoreError
from sluicegate.identity import identity_text
from sluicegate.plan import BAN, Check, Checks, Outcome, Outcomes, Plan
from sluicegate.rules.terms import make_terms, read
from sluicegate.stores import StoreChange
from sluicegate.stores.breaker import Breaker
from sluicegate.testing.scenarios import examples
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.settings import Settings
from tests.stores.guard_story import Budget, Call, Flight, Interrupt, LoopDriver, ThreadDriver

STALENESS_US = 1_000_000  # of the deny cache
SOONEST_US, LATEST_US = 25_000, 1_000_000  # a probe is due between these times after a failure
GIVEN_BACK_US = 50_000  # until an attempt without a result may be made again
ATTEMPT_US = 1_100_000  # the deadline and the longest back-off: then a silent attempt is taken for lost

LONG_BAN = Ban(after=2, within="1 minute", duration="5 minutes")
RULES = [  # the budgets are those of the limits below, by their scope and period
    Rule(
        name="counted", scope="a", quota="4/minute", count_denied=True, route="counted", key=lambda caller: caller.who
    ),
    Rule(name="banned", scope="b", quota="6/hour", ban=LONG_BAN, route="banned", key=lambda caller: caller.who),
]
LIMITS = [("4/minute", "a"), ("4/minute; 6/hour", "a"), ("5/minute; 6/hour", "b")]
WHO = ["alice", "bob"]
COSTS = [1, 1, 1, 2, 3, 5, 5, 5]
TIMES = [1, 1000, 24_999, 60_000, 500_000, 999_999, 1_000_000, 1_100_000, 3_000_000, 20_000_000, 61_000_000]
MOSTLY = [True, True, True, False]
PICKS = st.integers(0, 5)
ENDS = ["reply", "reply", "failure", "full", "plan", "rule", "other", "cancel"]


class Visitor:
    """A caller whose identity and cost a test gives."""

    method, path, peer = "GET", "/", "203.0.113.7"

    def __init__(self, who: str) -> None:
        self.who = who

    @property
    def native(self) -> Any:
        return self

    def header(self, name: str) -> Sequence[str]:
        return ()

    def path_value(self, name: str) -> str | None:
        return None

    def user(self) -> None:
        return None

    def signs_in_later(self) -> bool:
        return False


class Circuit:
    """The circuit as the laws have it."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.closed = self.times = 1
        self.half = self.fails_peeks = False
        self.soonest = self.latest = 0  # when the next attempt is due
        self.changes: list[bool] = []  # what a hook gets: whether the store is available

    def may_try(self) -> bool:
        return self._clock.now_us() >= self.soonest

    def must_try(self) -> bool:
        return self._clock.now_us() >= self.latest

    def begin_attempt(self, call: Call) -> None:
        call.attempt, call.trial = True, self.half
        self.soonest = self.latest = self._clock.now_us() + ATTEMPT_US

    def end(self, call: Call) -> None:
        """Take the result of a call."""
        error, now = call.error, self._clock.now_us()
        failed = isinstance(error, StoreError) and error.concerns in ("node", "store")
        if not call.attempt:
            if failed and call.closing and call.closing == self.closed:
                self._open(call)
                self.changes.append(False)
        elif failed:
            if not self.closed:
                self._open(call)
        elif error is not None and (not isinstance(error, StoreError) or error.concerns == "plan"):
            self.half = False
            self.soonest = self.latest = now + GIVEN_BACK_US
        elif not self.closed and call.trial:
            self.times += 1
            self.closed, self.half = self.times, False
            self.changes.append(True)
        elif not self.closed:
            self.half = True
            self.soonest = self.latest = now

    def _open(self, call: Call) -> None:
        now, error = self._clock.now_us(), cast(StoreError, call.error)
        charges = call.charges or call.what in ("refund", "renew")
        self.closed, self.half = 0, False
        self.fails_peeks = not charges or not isinstance(error.cause, str)
        self.soonest, self.latest = now + SOONEST_US, now + LATEST_US


class Machine(RuleBasedStateMachine):
    """One limiter, its gate, and the scripted server."""

    is_async: ClassVar[bool]
    seen: ClassVar[Counter[str]]  # how often the stories of a run came to what the laws are about

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(1_760_000_000)
        kind = LoopDriver if self.is_async else ThreadDriver
        self.driver = kind(self.clock)
        self.server = self.driver.server
        self.changes: list[bool] = []

        def note(change: StoreChange) -> None:
            self.changes.append(change.available)

        made = Settings(store=self.driver.store, rules=RULES, on_store_change=note)
        self.gate: Any = AsyncGate(made) if self.is_async else Gate(made)
        self.limiter: Any = self.gate.limiter
        self.circuit = Circuit(self.clock)
        self.events = 0
        self.ending = "reply", True  # of the story that is told
        self.flights: list[Flight] = []
        self.charged: list[Decision] = []  # that may be refunded
        self.slots: list[Any] = []
        self.holds: list[Any] = []  # a block that nobody refers to would end, and release its slot
        self.reservations: list[Any] = []
        self.refusals: dict[Checks, list[Call]] = {}  # every refusal that the store has returned
        self.changed: dict[Budget, int] = {}  # the last event that changed a budget, by this process
        self.disturbed: dict[Budget, int] = {}  # the same, by another
        self.notes: dict[
            Budget, tuple[int, Outcome, int]
        ] = {}  # the store's last word: when, what, and used here since

    # what the application does

    @rule(
        limit=st.sampled_from(LIMITS),
        who=st.sampled_from(WHO),
        cost=st.sampled_from(COSTS),
        end=st.sampled_from(MOSTLY),
    )
    def hit(self, limit: tuple[str, str], who: str, cost: int, end: bool) -> None:
        self.end_if(end, self.fly_hit(limit, who, cost))

    @rule(name=st.sampled_from(["counted", "banned"]), who=st.sampled_from(WHO), end=st.sampled_from(MOSTLY))
    def visit(self, name: str, who: str, end: bool) -> None:
        self.end_if(end, self.fly_visit(name, who))

    @rule(limit=st.sampled_from(LIMITS), who=st.sampled_from(WHO), end=st.sampled_from(MOSTLY))
    def peek(self, limit: tuple[str, str], who: str, end: bool) -> None:
        quota, action = limit
        self.end_if(end, self.fly("peek", lambda: self.limiter.peek(quota, who, action=action)))

    @precondition(lambda self: self.charged)
    @rule(pick=PICKS, end=st.sampled_from(MOSTLY))
    def refund(self, pick: int, end: bool) -> None:
        decision = self.charged.pop(pick % len(self.charged))
        self.end_if(end, self.fly("refund", lambda: self.limiter.refund(decision), decision))

    @rule(who=st.sampled_from(WHO), end=st.sampled_from(MOSTLY))
    def reserve(self, who: str, end: bool) -> None:
        self.end_if(end, self.fly("reserve", lambda: self.limiter.reserve("4/minute", who, cost=1, action="a")))

    @precondition(lambda self: self.reservations)
    @rule(pick=PICKS, actual=st.sampled_from([0, 3]), end=st.sampled_from(MOSTLY))
    def settle(self, pick: int, actual: int, end: bool) -> None:
        reservation = self.reservations.pop(pick % len(self.reservations))
        what = "forced" if actual else "refund"
        self.end_if(end, self.fly(what, lambda: reservation.settle(actual), reservation.decision))

    @rule(who=st.sampled_from(WHO), end=st.sampled_from(MOSTLY))
    def hold(self, who: str, end: bool) -> None:
        held: Any = self.limiter.hold("2 at once", who, action="c")
        self.holds.append(held)
        self.end_if(end, self.fly("hold", held.__aenter__ if self.is_async else held.__enter__))

    @precondition(lambda self: self.slots)
    @rule(pick=PICKS, renew=st.booleans(), end=st.sampled_from(MOSTLY))
    def end_slot(self, pick: int, renew: bool, end: bool) -> None:
        slot = self.slots[pick % len(self.slots)]
        if not renew:
            self.slots.remove(slot)
        what, decision = "renew" if renew else "release", slot.decision
        self.end_if(end, self.fly(what, slot.renew if renew else slot.release, decision))

    @rule(limit=st.sampled_from(LIMITS), who=st.sampled_from(WHO), end=st.sampled_from(MOSTLY))
    def reset(self, limit: tuple[str, str], who: str, end: bool) -> None:
        self.end_if(end, self.fly_reset(limit, who))

    @rule(who=st.sampled_from(WHO), begin=st.booleans(), end=st.sampled_from(MOSTLY))
    def ban(self, who: str, begin: bool, end: bool) -> None:
        act = self.limiter.ban if begin else self.limiter.unban
        self.end_if(end, self.fly("ban" if begin else "reset", lambda: act(who, LONG_BAN), None if begin else 1))

    # what the network, the server and another process do

    @precondition(lambda self: self.server.waiting)
    @rule(pick=PICKS)
    def run(self, pick: int) -> None:
        self.server.run_now(self.server.waiting[pick % len(self.server.waiting)])

    @precondition(lambda self: self.server.waiting)
    @rule(pick=PICKS, how=st.sampled_from(ENDS), ran=st.booleans())
    def end(self, pick: int, how: str, ran: bool) -> None:
        self.end_call(self.server.waiting[pick % len(self.server.waiting)], how, ran=ran)

    @rule(us=st.sampled_from(TIMES))
    def pass_time(self, us: int) -> None:
        self.clock.advance_us(us)

    @rule(limit=st.sampled_from(LIMITS), who=st.sampled_from(WHO), cost=st.sampled_from([1, 2]), drop=st.booleans())
    def another_process(self, limit: tuple[str, str], who: str, cost: int, drop: bool) -> None:
        """Charge or drop budgets behind this process."""
        checks = self.checks_of(limit, who, cost)
        for check in checks:
            if drop:
                self.server.budgets.forget(*check.budget)
            self.disturbed[check.budget] = self.count()
        if not drop:
            self.server.budgets.run(Plan(checks))

    # stories that need several events in one order, which are too rare by chance

    @rule(
        limit=st.sampled_from(LIMITS), other=st.sampled_from(LIMITS), who=st.sampled_from(WHO),
        how=st.sampled_from(ENDS), begin=st.integers(0, 2), wait=st.integers(0, 2), ran=st.booleans(),
    )  # fmt: skip
    def cross(
        self, limit: tuple[str, str], other: tuple[str, str], who: str, how: str, begin: int, wait: int, ran: bool
    ) -> None:
        """A charge begins and ends anywhere between the steps of a refusal."""
        self.recover(who)
        charge: list[Flight] = []
        refusal: list[Flight] = []
        steps: list[Callable[[], object]] = [
            lambda: refusal.append(self.fly_hit(limit, who, 5)),
            lambda: self.end_calls(refusal, "run"),
            lambda: self.end_calls(refusal, "reply"),
        ]
        steps.insert(begin, lambda: charge.append(self.fly_hit(other, who, 1)))
        steps.insert(begin + 1 + wait, lambda: self.end_calls(charge, how, ran=ran))
        for step in steps:
            step()
        self.end_calls([*refusal, *charge], "reply")
        self.hit(limit, who, 5, end=True)

    @rule(limit=st.sampled_from(LIMITS), who=st.sampled_from(WHO), how=st.sampled_from(ENDS), ran=st.booleans())
    def go_out_and_come_back(self, limit: tuple[str, str], who: str, how: str, ran: bool) -> None:
        """The circuit opens and closes while a request waits. Then that request ends."""
        self.recover(who)
        late = self.fly_hit(limit, who, 1)
        self.end_calls([self.fly_hit(limit, who, 1)], "failure", ran=ran)
        self.recover(who)
        self.end_calls([late], how, ran=ran)

    @rule(
        limit=st.sampled_from(LIMITS), other=st.sampled_from(LIMITS), who=st.sampled_from(WHO),
        change=st.sampled_from(["", "charge", "charge", "counted", "refund", "forced", "reset"]),
        how=st.sampled_from(ENDS), ran=st.booleans(), us=st.sampled_from(TIMES),
    )  # fmt: skip
    def refuse_again(
        self, limit: tuple[str, str], other: tuple[str, str], who: str, change: str, how: str, ran: bool, us: int
    ) -> None:
        """A refusal is repeated, perhaps after a change that ends in any way."""
        self.recover(who)
        given: list[Any] = []
        if change in ("refund", "forced"):
            act = partial(self.hit, other, who, 1) if change == "refund" else partial(self.reserve, who)
            act(end=True)
            charges = self.charged if change == "refund" else self.reservations
            given = [charges.pop()] if charges else []
        self.hit(limit, who, 5, end=True)
        flight = None
        if change == "charge":
            flight = self.fly_hit(other, who, 1)
        elif change == "counted":
            flight = self.fly_visit("counted", who)
        elif change == "reset":
            flight = self.fly_reset(other, who)
        elif given and change == "refund":
            flight = self.fly("refund", lambda: self.limiter.refund(given[0]), given[0])
        elif given:
            flight = self.fly("forced", lambda: given[0].settle(3), given[0].decision)
        if flight is not None:
            self.end_calls([flight], how, ran=ran)
            self.end_if(True, flight)
        self.clock.advance_us(us)
        self.hit(limit, who, 5, end=True)

    @rule(who=st.sampled_from(WHO))
    def recover(self, who: str) -> None:
        """A probe and a trial succeed, if they are due."""
        if self.circuit.closed:
            return
        self.clock.advance_us(LATEST_US)
        for _ in range(2):
            self.fly_hit(LIMITS[0], who, 1)
            for call in [each for each in self.server.waiting if each.attempt]:
                self.end_call(call, "reply")

    # the steps of a story

    def count(self) -> int:
        self.events += 1
        return self.events

    def checks_of(self, limit: tuple[str, str], who: str, cost: int) -> Checks:
        """The checks of a hit."""
        quota, action = limit
        found = make_terms(action, read(quota), algorithm="sliding-window", scope=action)
        return tuple([Check(terms, identity_text(who), cost) for terms in found])

    def fly_hit(self, limit: tuple[str, str], who: str, cost: int) -> Flight:
        quota, action = limit
        return self.fly("hit", lambda: self.limiter.hit(quota, who, action=action, cost=cost))

    def fly_visit(self, name: str, who: str) -> Flight:
        bounds = self.gate.bind(Endpoint(name, names=(name,)))
        return self.fly("hit", lambda: self.gate.decide(Visitor(who), bounds))

    def fly_reset(self, limit: tuple[str, str], who: str) -> Flight:
        quota, action = limit
        budgets = len(self.checks_of(limit, who, 0))
        return self.fly("reset", lambda: self.limiter.reset(quota, who, action=action), budgets)

    def fly(self, what: str, call: Callable[[], Any], given: Any = None) -> Flight:
        """Begin a call of the limiter."""
        flight = Flight(what, self.circuit.closed, given, half=self.circuit.half, due=self.circuit.must_try())
        if what == "reset" or (isinstance(given, Decision) and given.degraded):
            self.notes.clear()  # the local fallback drops or gives back at once
        self.flights.append(flight)
        self.driver.fly(flight, call)
        self.look()
        return flight

    def open_calls(self, flights: list[Flight]) -> list[Call]:
        return [call for flight in flights for call in flight.calls if not call.ended]

    def end_calls(self, flights: list[Flight], how: str, *, ran: bool = True) -> None:
        """End what these flights wait for, or only run it."""
        for call in self.open_calls(flights):
            if how == "run":
                self.server.run_now(call)
            else:
                self.end_call(call, how, ran=ran)

    def end_if(self, end: bool, flight: Flight) -> None:
        while end and not flight.done and (calls := self.open_calls([flight])):
            self.end_call(calls[0], "reply")

    def end_call(self, call: Call, how: str, *, ran: bool = True) -> None:
        """End a call of the store."""
        flight = call.flight
        if how == "cancel" and flight is None:  # a probe: nobody cancels it
            how = "reply"
        if ran or how == "reply":
            self.server.run_now(call)
        if how == "cancel" and flight is not None:
            flight.cancelled = True
            self.driver.cancel(flight)
        else:
            call.error = {
                "failure": StoreError("scripted", ConnectionError("reset")),
                "full": StoreError("scripted", "OOM command not allowed"),
                "plan": StoreError("scripted", "too long", concerns="plan"),
                "rule": StoreError("scripted", "WRONGTYPE", concerns="rule"),
                "other": LookupError("a bug"),
            }.get(how)
            self.driver.release(call)
        if call.ended:
            self.take(call)
        self.look()

    def take(self, call: Call) -> None:
        """Note the end of a call."""
        self.circuit.end(call)
        now, outcomes = self.count(), call.answer
        if call.what == "run" and call.error is None:
            pairs = list(zip(call.plan.checks, cast(Outcomes, outcomes), strict=True))
            for check, outcome in pairs if call.flight is not None else ():
                self.notes[check.budget] = self.clock.now_us(), outcome, 0
            refused = not all([outcome.allowed for outcome in outcomes])
            if call.charges and refused and not call.plan.forced:
                self.refusals.setdefault(call.plan.checks, []).append(call)
                banned = any([check.terms.algorithm == BAN and not outcome.allowed for check, outcome in pairs])
                for check, outcome in pairs:
                    if check.terms.count_denied:
                        self.changed[check.budget] = now
                    if check.terms.ban is not None and not outcome.allowed and not banned:
                        self.changed[check.terms.ban.rule_id, check.identity] = now
                return
        for budget in call.budgets:
            self.changed[budget] = now

    # the laws

    def look(self) -> None:
        """Check each call that has come, and each flight that has ended."""
        for call in self.server.arrived:
            call.sent = self.count()
            self.check_call(call)
        self.server.arrived.clear()
        for flight in [each for each in self.flights if each.done]:
            self.flights.remove(flight)
            self.check_flight(flight)

    def check_call(self, call: Call) -> None:
        """Laws 2 and 4."""
        circuit, flight = self.circuit, call.flight
        if call.what == "forget":
            self.notes.pop(call.given, None)
        if circuit.closed:
            assert flight is not None, "a probe of a store that is available"
            call.closing = circuit.closed
            return
        self.seen["call while open"] += 1
        if call.what == "forget":
            if circuit.may_try() and (not circuit.half or circuit.fails_peeks):
                circuit.begin_attempt(call)
            else:
                assert circuit.half, "a reset before a probe is due"
            return
        assert call.what == "run", "a refund while the circuit is open"
        if flight is None:
            self.seen["probe"] += 1
            assert not call.plan.charge
            assert not circuit.half, "a probe after the store has answered one"
        else:
            self.seen["trial"] += 1
            assert circuit.half, "a request before the store has answered a probe"
            assert call.plan.charge or circuit.fails_peeks, "a trial that proves nothing"
        assert circuit.may_try(), "a second attempt, or one that is too early"
        circuit.begin_attempt(call)

    def check_flight(self, flight: Flight) -> None:
        """Laws 5 and 7, and that the caller gets what the store has answered."""
        error, result = flight.error, flight.result
        if flight.cancelled:
            assert isinstance(error, asyncio.CancelledError if self.is_async else Interrupt)
            return
        failed = [call.error for call in flight.calls if call.error is not None]
        others = [each for each in failed if not isinstance(each, StoreError)]
        if others:
            assert error is others[-1], "a bug in the store admits nobody"
            return
        if flight.what in ("refund", "release", "renew"):
            assert error is None
            self.check_refund(flight)
        elif flight.what == "reset":
            dropped = len(flight.calls) - len(failed)  # the circuit may open between two budgets of one reset
            assert isinstance(error, StoreError) if dropped < flight.given else error is None
            self.forget_notes(flight)
        elif flight.what == "ban":
            assert (error is None) is (bool(flight.calls) and not failed)
            self.notes = {budget: note for budget, note in self.notes.items() if not budget[0].endswith(BAN)}
        else:
            assert error is None
            if flight.what == "forced":
                self.forget_notes(flight)
                return
            self.check_decision(flight, result if isinstance(result, Decision) else result.decision)
            if flight.what == "hold":
                self.slots.append(result)
            elif flight.what == "reserve":
                self.reservations.append(result)
            elif result.allowed and flight.what == "hit":
                self.charged.append(result)

    def check_refund(self, flight: Flight) -> None:
        decision: Decision = flight.given
        # A release that waited for a renewal begins when that has ended: the circuit may be open by then.
        if not flight.closed or not (flight.calls or self.circuit.closed):
            self.forget_notes(flight)
        elif decision.allowed and not decision.degraded:
            method = "renew" if flight.what == "renew" else "refund"
            assert [call.what for call in flight.calls] == [method], "it has not reached the store"
            assert [check.budget for check in flight.calls[0].plan.checks] == [c.budget for c in decision.checks]
            assert flight.what == "renew" or flight.calls[0].given[1][0].at <= self.clock.now_us()
        if decision.degraded:
            self.forget_notes(flight)

    def forget_notes(self, flight: Flight) -> None:
        """After this the local fallback may know more, or less, than the last reply says."""
        self.notes.clear()

    def check_decision(self, flight: Flight, decision: Decision) -> None:
        runs = [call for call in flight.calls if call.what == "run"]
        sources = {outcome.source for outcome in decision.outcomes}
        assert len(runs) <= 1, "a charge is never sent twice"
        if runs and runs[0].error is None:
            assert decision.outcomes == runs[0].answer
            assert sources == {"store"}
        elif runs:
            assert sources == {"local"}, "the store failed: the local fallback decides"
            self.check_local(flight, decision)
        elif sources == {"store"}:
            assert flight.what != "peek"
            self.check_repeated(decision)
        else:
            assert not flight.closed, "the store is available, and it was not asked"
            assert sources == {"local"}
            self.check_attempts(flight)
            self.check_local(flight, decision)

    def check_attempts(self, flight: Flight) -> None:
        """A request that the local fallback decides while the circuit is open has begun a probe, if one was due."""
        if flight.due and not flight.half:
            assert any([call.attempt and call.flight is None for call in self.server.waiting]), "no probe was begun"
        assert not (flight.due and flight.half and flight.what != "peek"), "no trial was made"

    def check_local(self, flight: Flight, decision: Decision) -> None:
        """Law 5: an outage refills no budget."""
        self.seen["local"] += 1
        now = self.clock.now_us()
        for check, outcome in zip(decision.checks, decision.outcomes, strict=True):
            note = self.notes.get(check.budget)
            if note is None or check.terms.held or check.terms.algorithm == BAN:
                continue
            noted_us, last, used = note
            if now < noted_us + last.next_after:
                self.seen["noted"] += 1
                taken = check.cost if decision.allowed and flight.what != "peek" else 0
                assert outcome.remaining <= max(0, last.remaining - used - taken), "an outage refills the budget"
                self.notes[check.budget] = noted_us, last, used + taken

    def check_repeated(self, decision: Decision) -> None:
        """Laws 1, 3 and 6."""
        self.seen["repeated"] += 1
        now, checks = self.clock.now_us(), decision.checks
        assert not decision.allowed
        found = [
            call for call in self.refusals.get(checks, ())
            if moved(call.answer, now - call.ended_us) == decision.outcomes
        ]  # fmt: skip
        assert found, "no refusal of these checks has these numbers now"
        budgets = [check.budget for check in checks]
        found = [call for call in found if all([self.changed.get(each, 0) <= call.sent for each in budgets])]
        # A refusal that counted, or that was a strike, has changed its budgets itself, when it was noted.
        assert found, "one of its budgets has changed since it was sent"
        found = [call for call in found if now - call.sent_us < STALENESS_US]
        assert found, "it is stale"
        for outcome in decision.outcomes:
            assert min(outcome.retry_after or 0, outcome.reset_after, outcome.next_after) >= 0
        call = found[-1]
        moving = {each for one in self.server.waiting if one.ran for each in one.budgets}
        if moving.isdisjoint(budgets) and all([self.disturbed.get(each, 0) < call.sent for each in budgets]):
            self.seen["compared"] += 1
            late = call.ended_us - call.ran_us  # the waits begin at the reply: they are never too short
            truth = self.server.budgets.run(Plan(checks))
            assert moved(truth, -late) == decision.outcomes, "the store would not return this"

    @invariant()
    def the_hook_gets_each_change_of_the_circuit(self) -> None:
        """Law 2: exactly those that are the circuit's own."""
        assert self.changes == self.circuit.changes
        if not self.is_async:
            assert self.limiter.status().available is bool(self.circuit.closed or self.circuit.half)

    def teardown(self) -> None:
        self.driver.end()


def moved(outcomes: Outcomes, us: int) -> Outcomes:
    """The outcomes as they are when this time has passed."""
    return tuple(
        [
            each._replace(
                retry_after=each.retry_after and each.retry_after - us,
                reset_after=each.reset_after and each.reset_after - us,
                next_after=each.next_after and each.next_after - us,
                at=each.at + us,
            )
            for each in outcomes
        ]
    )


@pytest.fixture(autouse=True)
def _told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a probe is due is drawn from what Hypothesis seeds before each story: a story is the same each time."""
    monkeypatch.setitem(cast(Any, Breaker.__init__).__kwdefaults__, "jitter", random.random)


@pytest.mark.slow
@pytest.mark.filterwarnings(  # a bug in the store, which a story may tell of a probe
    "ignore:Exception in thread sluicegate-probe:pytest.PytestUnhandledThreadExceptionWarning"
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_every_order_of_events_keeps_the_laws(is_async: bool) -> None:
    seen: Counter[str] = Counter()
    machine = type("Drawn", (Machine,), {"is_async": is_async, "seen": seen})
    run_state_machine_as_test(cast(Any, machine), settings=settings(examples(120), stateful_step_count=40))
    for what in ("repeated", "compared", "probe", "trial", "local", "noted"):
        assert seen[what] > 0, f"no story came to: {what}"


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_each_change_at_each_place_of_a_refusal(is_async: bool) -> None:
    """The stories that matter most, each of them once: chance may miss one."""
    seen: Counter[str] = Counter()
    kind: Any = type("Told", (Machine,), {"is_async": is_async, "seen": seen})
    first, second, _ = LIMITS
    for how, ran in product(dict.fromkeys(ENDS), [False, True]):
        stories: list[Callable[[Any], None]] = [
            lambda machine: machine.go_out_and_come_back(first, "alice", how, ran),  # noqa: B023
            *[partial(_cross, limits=(first, second), begin=b, wait=w) for b, w in product(range(3), range(3))],
            *[
                partial(_again, limits=(first, second), change=change)
                for change in ("", "charge", "counted", "refund", "forced", "reset")
            ],
        ]
        stories += [_strikes, _refund_in_an_outage, *[partial(_wait, us=us) for us in TIMES]]
        for story in stories:
            machine = kind()
            machine.ending = how, ran
            try:
                story(machine)
                machine.the_hook_gets_each_change_of_the_circuit()
            finally:
                machine.teardown()
    assert seen["compared"] > 0


def _cross(machine: Any, *, limits: tuple[Any, Any], begin: int, wait: int) -> None:
    how, ran = machine.ending
    machine.cross(limits[0], limits[1], "alice", how, begin, wait, ran)


def _again(machine: Any, *, limits: tuple[Any, Any], change: str) -> None:
    how, ran = machine.ending
    machine.refuse_again(limits[0], limits[1], "alice", change, how, ran, 1)


def _strikes(machine: Any) -> None:
    """Refusals that count, or are strikes towards a ban, come between two equal refusals."""
    for name, limit in (("counted", LIMITS[0]), ("banned", LIMITS[2])):
        for _ in range(9):
            machine.visit(name, "alice", end=True)
            machine.hit(limit, "alice", 5, end=True)
        machine.clock.advance_us(61_000_000)
        machine.hit(limit, "alice", 5, end=True)
        machine.visit(name, "alice", end=True)
        machine.hit(limit, "alice", 5, end=True)


def _refund_in_an_outage(machine: Any) -> None:
    machine.hit(LIMITS[0], "alice", 1, end=True)
    machine.end_calls([machine.fly_hit(LIMITS[0], "bob", 1)], "failure")
    machine.refund(0, end=True)


def _wait(machine: Any, *, us: int) -> None:
    """Time passes between two equal refusals, and before the reply to the first."""
    for _ in range(4):
        machine.hit(LIMITS[0], "alice", 1, end=True)
    machine.clock.advance_us(59_400_000)  # so that units are free again before the refusal is stale
    machine.hit(LIMITS[0], "alice", 1, end=True)
    machine.clock.advance_us(us)
    machine.hit(LIMITS[0], "alice", 1, end=True)
    refused = machine.fly_hit(LIMITS[0], "alice", 5)
    machine.clock.advance_us(us)
    machine.end_calls([refused], "reply")
    machine.hit(LIMITS[0], "alice", 5, end=True)
