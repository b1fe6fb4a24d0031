"""Events: what they say of a decision, and never an identity."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from werkzeug.local import LocalProxy

from sluicegate import AsyncLimiter, Ban, Limiter, ManualClock, asgi
from sluicegate.identity import digest, identity_text
from sluicegate.observe.events import DecisionEvent, Delivery, Pending, RuleEvent
from sluicegate.plan import FORBIDDEN, NEVER, Check, Decision, Outcome, Plan, Terms
from sluicegate.rules.terms import make_terms, read
from sluicegate.stores.async_adapter import AsyncAdapter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import BrokenStore
from tests.adapters.asgi_client import make_scope

ALICE = identity_text("alice")
TEN: Terms = make_terms("ten", read("10/minute"), algorithm="gcra")[0]
SHADOW = TEN._replace(name="trial", shadow=True)
BANNED = TEN._replace(name="out", algorithm="ban")


def decision(*rules: tuple[Terms, Outcome]) -> Decision:
    checks = tuple([Check(terms, ALICE, 2) for terms, _ in rules])
    outcomes = tuple([outcome for _, outcome in rules])
    return Decision(all([outcome.allowed for outcome in outcomes]), checks, outcomes)


def passed(remaining: int = 8, **more: Any) -> Outcome:
    return Outcome(True, 10, remaining, 0, 1_500_000, 500_000, **more)


def failed(wait: int | None = 2_500_000, **more: Any) -> Outcome:
    return Outcome(False, 10, 0, wait, 60_000_000, 1_000_000, **more)


def event(*rules: tuple[Terms, Outcome], **more: Any) -> DecisionEvent:
    return DecisionEvent(decision(*rules), **{"store_seconds": 0.001, **more})


def test_a_rule_event_has_the_numbers_of_its_outcome() -> None:
    (rule,) = event((TEN, passed())).rules
    assert rule.asdict() == {
        "rule": "ten",
        "result": "allowed",
        "limit": 10,
        "remaining": 8,
        "cost": 2,
        "retry_after": 0.0,
        "reset_after": 1.5,
        "near": False,
        "source": "store",
        "identity": digest(ALICE),
    }


@pytest.mark.parametrize(
    ("terms", "outcome", "result", "near"),
    [
        (TEN, passed(2), "allowed", False),
        (TEN, passed(1), "allowed", True),
        (TEN, passed(0), "allowed", True),
        (TEN, failed(), "refused", False),
        (TEN, failed(NEVER), "refused", False),
        (SHADOW, passed(0), "allowed", True),
        (SHADOW, failed()._replace(allowed=True), "shadow", False),
        (SHADOW, failed(NEVER)._replace(allowed=True), "shadow", False),
        (BANNED, passed(0), "allowed", False),
        (BANNED, failed(), "banned", False),
    ],
)
def test_the_result_of_a_rule(terms: Terms, outcome: Outcome, result: str, *, near: bool) -> None:
    made = event((terms, outcome))
    (rule,) = made.rules
    assert (rule.result, rule.near) == (result, near)
    assert made.labels()[4] == ((rule.rule, result, "store", near),)
    assert rule.retry_after == (None if outcome.retry_after is None else outcome.retry_after / 1e6)


@pytest.mark.parametrize(
    ("outcome", "seconds", "source"),
    [
        (passed(), 0.001, "store"),
        (failed(), 0.001, "store"),
        (failed(), None, "cache"),
        (passed(source="local"), 0.1, "local"),
        (passed(source="local"), None, "local"),
        (failed(source="policy"), None, "policy"),
    ],
)
def test_the_source_of_a_rule(outcome: Outcome, seconds: float | None, source: str) -> None:
    made = event((TEN, outcome), store_seconds=seconds)
    assert [made.rules[0].source, made.labels()[4][0][2]] == [source, source]


def test_a_cached_refusal_has_one_source_for_all_its_rules() -> None:
    rules = event((TEN, passed()), (TEN, failed()), store_seconds=None).rules
    assert [rule.source for rule in rules] == ["cache", "cache"]


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (event((TEN, passed())), (True, False, False)),
        (event((TEN, passed()), (TEN, failed())), (False, False, False)),
        (event((TEN, passed(source="local"))), (True, False, True)),
        (DecisionEvent(FORBIDDEN), (False, True, False)),
    ],
)
def test_an_event_says_what_the_decision_says(made: DecisionEvent, fields: tuple[bool, bool, bool]) -> None:
    assert (made.allowed, made.forbidden, made.degraded) == fields
    assert made.application == made.endpoint == made.method == ""


@pytest.mark.parametrize(
    ("method", "shown"), [("GET", "GET"), ("PROPFIND", "PROPFIND"), ("", ""), ("get", "other"), ("X" * 99, "other")]
)
def test_a_client_cannot_invent_methods(method: str, shown: str) -> None:
    assert DecisionEvent(FORBIDDEN, method=method).method == shown


def test_an_identity_is_shown_only_if_asked_for() -> None:
    seen = Limiter().hit("5/minute", "alice")
    hidden, shown = DecisionEvent(seen), DecisionEvent(seen, show_identities=True)
    assert hidden.rules[0].identity == digest(ALICE)
    assert shown.rules[0].identity == ALICE
    assert "alice" not in f"{hidden!r} {hidden.rules!r} {hidden.asdict()}"
    assert "alice" in repr(shown)


def test_an_event_is_frozen_and_compared_by_its_fields() -> None:
    one, other = event((TEN, passed())), event((TEN, passed()))
    assert one == other
    assert len({one, other}) == len({one.rules[0], other.rules[0]}) == 1
    assert one != event((TEN, passed(7)))
    assert one.rules[0] is one.rules[0]
    for made, name in ((one, "allowed"), (one, "rules"), (one, "new"), (one.rules[0], "result")):
        with pytest.raises(AttributeError):
            setattr(made, name, 1)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_event_leaves_the_process_as_a_dictionary(copied: Any) -> None:
    made: DecisionEvent | RuleEvent
    for made in (event((TEN, passed())), event((TEN, passed())).rules[0]):
        with pytest.raises(TypeError, match="asdict"):
            copied(made)
    assert pickle.loads(pickle.dumps(event((TEN, passed())).asdict()))["rules"][0]["rule"] == "ten"


# The limiters


def by_kind(events: list[DecisionEvent]) -> list[tuple[bool, list[tuple[str, str, str]]]]:
    return [(event.allowed, [(rule.rule, rule.result, rule.source) for rule in event.rules]) for event in events]


class Calls:
    """A Limiter or an AsyncLimiter, called in the same way."""

    def __init__(self, kind: Any, store: Any, **options: Any) -> None:
        self.events: list[DecisionEvent] = []
        if kind is AsyncLimiter and not isinstance(store, str):
            store = AsyncAdapter(store)
        self.limiter = kind(store, on_decision=self.events.append, **options)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            made = getattr(self.limiter, name)(*args, **options)
            return self.await_(made) if inspect.isawaitable(made) else made

        return call

    def await_(self, made: Any) -> Any:
        async def main() -> Any:
            return await made

        return self.loop.run_until_complete(main())

    def hold(self, *args: Any) -> None:
        if isinstance(self.limiter, Limiter):
            with self.limiter.hold(*args):
                return

        async def main() -> None:
            async with self.limiter.hold(*args):
                return

        self.await_(main())


@pytest.fixture(params=[Limiter, AsyncLimiter])
def calls(request: pytest.FixtureRequest) -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    Calls.loop = loop  # type: ignore[attr-defined]
    yield lambda store="memory://", **options: Calls(request.param, store, **options)
    loop.close()


def test_every_decision_of_a_limiter_gives_one_event(calls: Any) -> None:
    made = calls(application="shop")
    made.hit("2/minute", "alice")
    made.hit("2/minute", "alice")  # prepared, in memory
    made.hit("2/minute", "alice")
    made.is_action_allowed("alice", "reply", 60, 5)
    reservation = made.reserve("10/minute; 20/hour", "alice", cost=3)
    settled = reservation.settle(1)
    if inspect.isawaitable(settled):
        made.await_(settled)
    made.hold("1 at once", "alice")
    seen = [(event.allowed, len(event.rules), event.rules[0].cost) for event in made.events]
    assert seen == [(True, 1, 1), (True, 1, 1), (False, 1, 1), (True, 1, 1), (True, 2, 3), (True, 1, 1)]
    for event in made.events:
        assert event.store_seconds is not None
        assert event.store_seconds > 0
        assert (event.application, event.endpoint, event.method) == ("shop", "", "")
    ban = Ban(after=1, within=60, duration=60)
    made.peek("2/minute", "alice")
    made.reset("2/minute", "alice")
    made.ban("alice", ban)
    made.unban("alice", ban)
    made.reset_all("alice")
    assert len(made.events) == 6


def test_an_event_says_who_has_answered(calls: Any) -> None:
    made = calls(MemoryStoreBehind(ManualClock()))
    for _ in range(3):
        made.hit("2/minute", "alice")
    assert [source for _, ((_, _, source),) in by_kind(made.events)] == ["store", "store", "store"]
    made.hit("2/minute", "alice")
    assert by_kind(made.events)[-1] == (False, [("default", "refused", "cache")])
    assert made.events[-1].store_seconds is None


@pytest.mark.parametrize(("policy", "source", "allowed"), [("local", "local", True), ("deny", "policy", False)])
def test_an_event_says_that_the_store_has_failed(calls: Any, policy: str, source: str, *, allowed: bool) -> None:
    made = calls(BrokenStore(), on_store_failure=policy)
    made.hit("5/minute", "alice")  # it is called, and fails
    made.hit("5/minute", "alice")  # the circuit is open
    assert [(event.allowed, event.degraded, event.rules[0].source) for event in made.events] == [
        (allowed, True, source)
    ] * 2
    assert made.events[0].store_seconds is not None
    assert made.events[1].store_seconds is None


@pytest.mark.parametrize("inside", [False, True])
def test_a_limiter_that_tests_give_another_store_goes_on(*, inside: bool) -> None:
    events: list[DecisionEvent] = []
    limiter = Limiter(on_decision=events.append)
    limiter.use(MemoryStoreBehind(ManualClock()) if inside else MemoryStore())
    assert limiter.hit("1/minute", "alice").allowed
    assert not limiter.hit("1/minute", "alice").allowed
    assert [(event.allowed, event.rules[0].source) for event in events] == [(True, "store"), (False, "store")]


def _hello(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


class MemoryStoreBehind:
    """A store that is no MemoryStore: it has all wrappers, as a server has."""

    def __init__(self, clock: ManualClock) -> None:
        self.inside, self.clock = MemoryStore(clock=clock), clock

    def run(self, plan: Any) -> Any:
        return self.inside.run(plan)

    def refund(self, plan: Any, outcomes: Any) -> None:
        self.inside.refund(plan, outcomes)

    def renew(self, plan: Any, outcomes: Any) -> Any:
        return self.inside.renew(plan, outcomes)

    def forget(self, rule_id: str, identity: str) -> None:
        self.inside.forget(rule_id, identity)

    def close(self) -> None:
        self.inside.close()


def test_several_threads_deliver_each_event_once() -> None:
    events: list[DecisionEvent] = []
    limiter = Limiter(on_decision=events.append)

    def work() -> None:
        for _ in range(200):
            limiter.hit("1000/minute", "alice")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events) == 800
    assert sorted([event.rules[0].remaining for event in events]) == list(range(200, 1000))


def test_a_decision_of_a_handler_has_no_event(calls: Any) -> None:
    """A handler that calls its limiter twice would else call itself without an end."""
    made = calls()
    events, tasks = made.events, list[Any]()

    def handle(event: DecisionEvent) -> None:
        events.append(event)
        assert len(events) < 5, "it is called again"
        for _ in range(2):
            found = made.limiter.hit("9/minute", "handler")
            if inspect.isawaitable(found):
                tasks.append(asyncio.ensure_future(found))

    made.limiter.events = Delivery(handle, application="", show_identities=False)

    async def main() -> None:
        found = made.limiter.hit("5/minute", "alice")
        if inspect.isawaitable(found):
            await found
        await asyncio.gather(*tasks)

    for _ in range(2):
        made.await_(main())
    assert len(events) == 2
    assert made.peek("9/minute", "handler").outcomes[0].remaining == 5


def test_two_limiters_whose_handlers_call_each_other() -> None:
    seen: list[str] = []

    def handler(name: str, other: str) -> Any:
        def handle(event: DecisionEvent) -> None:
            seen.append(name)
            limiters[other].hit("9/minute", "handler")

        return handle

    limiters = {name: Limiter(on_decision=handler(name, other)) for name, other in ("ab", "ba")}
    limiters["a"].hit("5/minute", "alice")
    assert seen == ["a", "b"]


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_is_raised_after_all_was_delivered(kind: type[BaseException]) -> None:
    seen: list[str] = []

    def stop(event: DecisionEvent) -> None:
        raise kind

    delivery = Delivery([stop, lambda event: seen.append(event.endpoint)], application="", show_identities=False)
    pending = Pending(("/orders", "GET"))
    caller: Any = SimpleNamespace(pending=lambda: pending)
    for _ in range(2):
        delivery.note(FORBIDDEN, None, caller)
    with pytest.raises(kind):
        pending.end()
    assert seen == ["/orders", "/orders"]
    limiter = Limiter(on_decision=[stop, lambda event: seen.append("plain")])
    with pytest.raises(kind):
        limiter.hit("5/minute", "alice")
    assert seen[2:] == ["plain"]
    assert limiter.peek("5/minute", "alice").outcomes[0].remaining == 4
    with pytest.raises(kind):
        limiter.hit("5/minute", "alice")
    assert seen[2:] == ["plain", "plain"], "the limiter takes it for a decision of its handler"


def test_neither_an_unbound_handler_nor_an_interrupt_stops_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(function: object) -> str:
        raise KeyboardInterrupt  # as a signal handler does, at any line

    seen: list[DecisionEvent] = []
    variable = contextvars.ContextVar[Any]("handler")
    bound = variable.set(print)
    limiters = [Limiter(on_decision=[seen.append, LocalProxy(variable)]) for _ in range(2)]
    variable.reset(bound)
    assert limiters[0].hit("5/minute", "alice")
    with monkeypatch.context() as patch:
        patch.setattr("sluicegate.observe.events.label_of", interrupt)
        with pytest.raises(KeyboardInterrupt):
            limiters[1].hit("5/minute", "alice")
    for limiter in limiters:
        limiter.hit("5/minute", "alice")
    assert len(seen) == 4


UNUSED = """
import sys
import sluicegate.flask, sluicegate.starlette, sluicegate.wsgi
from sluicegate import AsyncLimiter, Limiter
assert Limiter().hit("5/minute", "alice")
limiter = sluicegate.wsgi.RateLimitMiddleware(lambda environ, start: [], default_limits=["5/minute"])
limiter({"REMOTE_ADDR": "192.0.2.7"}, lambda *_: None)
assert type(limiter) is sluicegate.wsgi.RateLimitMiddleware
print([name for name in ("sluicegate.observe.events", "sluicegate.stores.watched") if name in sys.modules])
"""


def test_without_the_option_nothing_of_events_is_loaded() -> None:
    found = subprocess.run([sys.executable, "-c", UNUSED], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


class Late(AsyncAdapter):
    """A store that charges, and whose reply never comes."""

    charged: asyncio.Event

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        outcomes = await super().run(plan)
        if plan.charge:
            self.charged.set()
            await asyncio.Event().wait()
        return outcomes


@pytest.mark.parametrize("how", ["limiter", "asgi"])
def test_a_request_that_is_cancelled_before_the_decision_has_no_event(how: str) -> None:
    """docs/events.md says so: its charge stays, and nobody knows whether it was allowed."""
    seen: list[DecisionEvent] = []

    async def main() -> None:
        store = Late(MemoryStore())
        store.charged = asyncio.Event()
        if how == "limiter":
            limiter = AsyncLimiter(store, on_decision=seen.append)
            call: Any = limiter.hit("5/minute", ("ip", "198.51.100.9"), action="default")
        else:
            options: Any = {"store": store, "default_limits": ["5/minute"], "on_decision": seen.append}
            call = asgi.RateLimitMiddleware(unreached, **options)(make_scope(), unreached, unreached)
        task = asyncio.create_task(call)
        await store.charged.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not seen
        assert store.describe().entries == 1  # it was charged

    async def unreached(*_: Any) -> Any:
        raise AssertionError

    asyncio.run(main())


def test_a_later_call_of_the_store_does_not_change_an_event() -> None:
    seen: list[DecisionEvent] = []
    limiter = Limiter(on_decision=seen.append)
    reservation = limiter.reserve("9/minute", "alice", cost=2)
    limiter.hit("9/minute", "alice")
    before = [event.store_seconds for event in seen]
    limiter.peek("9/minute", "alice")
    reservation.settle(3)
    assert [event.store_seconds for event in seen] == before


def test_the_context_of_a_decision_can_be_compared_at_any_moment() -> None:
    """asgiref compares the values of two contexts by ==, also while a decision is being made."""
    contexts: list[Any] = []

    class Seen(MemoryStore):
        def prepare(self, *terms: Terms) -> Any:
            return lambda identity, cost, origin=None: None

        def run(self, plan: Plan) -> tuple[Outcome, ...]:
            contexts.append(contextvars.copy_context())
            if len(contexts) == 3:
                raise ValueError("the third")
            return super().run(plan)

    delivered: list[DecisionEvent] = []
    limiter = Limiter(Seen(), on_decision=delivered.append, on_store_failure="raise")
    for _ in range(2):
        limiter.hit("5/minute", "alice")
    with pytest.raises(ValueError, match="the third"):
        limiter.hit("5/minute", "alice")
    contexts.append(contextvars.copy_context())
    for one, other in pairwise(contexts):
        for variable, value in one.items():
            assert (value == other.get(variable)) in (True, False), repr(value)
    assert [[rule.remaining for rule in each.rules] for each in delivered] == [[4], [3]]
