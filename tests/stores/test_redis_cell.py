"""The store over CL.THROTTLE: the laws of every store, to the precision of the command, and its errors.

On fakeredis, as Dragonfly, time is moved by hand. On the real redis-cell, in Valkey and in Redis 6.2, the wall clock
runs; it is moved forward by moving every budget back, for a key holds the moment at which its bucket will be empty.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis
from fakeredis import TcpFakeServer
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import AsyncLimiter, Limiter, ManualClock, Quota, Rule, StoreError
from sluicegate.clock import MICROSECOND
from sluicegate.errors import AlgorithmError, ConfigurationError, RuleError, StoreURLError
from sluicegate.identity import digest
from sluicegate.plan import NEVER, Check, Outcome, Plan, Terms
from sluicegate.stores import SCHEMES, AsyncStore, Store, open_async_store, open_store
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis.cell import AsyncRedisCellStore, RedisCellStore, _bucket
from sluicegate.testing.driver import Driver
from sluicegate.testing.scenarios import examples
from sluicegate.testing.store import HOSTILE, terms
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import make_mark
from sluicegate.web.settings import Settings
from tests.servers import Server, redis_server, valkey_server
from tests.stores.places import monitored, sent_by_clients
from tests.stores.redis_cell_module import library

PAGE = Path(__file__).parents[2] / "docs" / "redis-cell.md"
PATIENT = 10.0  # seconds, for a busy machine
MINUTE = 60 * MICROSECOND
DRAGONFLY_LATE = 2 * MICROSECOND + 1000  # it rounds up to milliseconds, and adds a second


# In a script, because redis-cell panics on a negative time, which a key that expires before DECRBY would be.
BACK = """
for _, key in ipairs(redis.call('KEYS', '*:cell')) do
  if redis.call('EXISTS', key) == 1 then redis.call('DECRBY', key, ARGV[1]) end
end
"""


class Time:
    """The clock of the reference, which moves together with the server's."""

    def now_us(self) -> int:
        raise NotImplementedError

    def advance_us(self, microseconds: int) -> None:
        raise NotImplementedError


class FakeTime(Time):
    """The `time.time` of fakeredis inside this block: exact, unlike a float."""

    def __init__(self) -> None:
        self._clock = ManualClock()

    def now_us(self) -> int:
        return self._clock.now_us()

    def advance_us(self, microseconds: int) -> None:
        self._clock.advance_us(microseconds)

    @contextmanager
    def results(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: Fraction(self._clock.now_us(), MICROSECOND))
            yield


class RealTime(Time):
    """The wall clock that redis-cell reads, plus all moves."""

    def __init__(self, server: Server) -> None:
        self._client = redis.Redis.from_url(server.url, socket_timeout=PATIENT)
        self._moved = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self._moved

    def advance_us(self, microseconds: int) -> None:
        self._moved += microseconds
        self._client.eval(BACK, 0, microseconds * 1000)

    def close(self) -> None:
        self._client.close()


@dataclass
class Place:
    """A server with CL.THROTTLE, a store on it, and the precision of its expected outcomes."""

    url: str
    make: Callable[[], Store | AsyncStore]
    time: Time
    exact: bool  # True if the clock does not move by itself
    late_us: int  # the microseconds that a wait may be too long
    examples: int


def opened(url: str, *, is_async: bool) -> Callable[[], Store | AsyncStore]:
    where = url.replace("redis://", "redis+cell://")
    return partial(open_async_store if is_async else open_store, where, prefix="exam", deadline=PATIENT)


@contextmanager
def dragonfly(*, is_async: bool) -> Iterator[Place]:
    server, moment = TcpFakeServer(("127.0.0.1", 0), server_type="dragonfly"), FakeTime()
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    url = f"redis://127.0.0.1:{server.server_address[1]}/0"
    thread.start()
    try:
        with moment.results():
            make = opened(url, is_async=is_async)
            yield Place(url, make, moment, exact=True, late_us=DRAGONFLY_LATE, examples=10 if is_async else 60)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def module(start: Callable[..., Server], *, is_async: bool) -> Iterator[Place]:
    with start("--loadmodule", str(library())) as server, closing(RealTime(server)) as moment:
        make = opened(server.url, is_async=is_async)
        yield Place(server.url, make, moment, exact=False, late_us=MICROSECOND, examples=10 if is_async else 30)


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "dragonfly": partial(dragonfly, is_async=False),
    "dragonfly_async": partial(dragonfly, is_async=True),
    "valkey": partial(module, valkey_server, is_async=False),
    "valkey_async": partial(module, valkey_server, is_async=True),
    "redis6": partial(module, redis_server, is_async=False),
}


@dataclass
class Act:
    """Wait until a time of the last outcome, or some quarters of an interval, then act."""

    until: str  # "now", "retry_after", "reset_after", "next_after"
    quarters: int
    us: int
    kind: str  # "hit", "peek", "forget", "change"
    costs: list[int]


def buckets(burst: int, interval_us: int) -> Quota:
    """One unit per interval with a burst: exactly the arguments of CL.THROTTLE."""
    return Quota(1, Fraction(interval_us, MICROSECOND), burst=burst)


def acts(*, exact: bool) -> st.SearchStrategy[Act]:
    """One act. The real clock runs during the test, so single microseconds are not tested there."""
    return st.builds(
        Act,
        st.sampled_from(["now", "now", "retry_after", "reset_after", "next_after"]),
        st.one_of(st.just(0), st.integers(0, 12)),
        st.integers(-1, 1) if exact else st.just(0),
        st.sampled_from(["hit"] * 6 + ["peek", "forget", "change"]),
        st.lists(st.integers(0, 6), min_size=1, max_size=3),
    )


@st.composite
def plays(draw: st.DrawFn, *, exact: bool) -> tuple[list[list[Terms]], list[Act]]:
    """One to three rules, each with another burst to change to, and the acts under them."""
    fast = [20_000, 100_000, 333_334, MICROSECOND, 1_500_000] if exact else []
    intervals = st.sampled_from([*fast, MINUTE, 90 * MICROSECOND, 60 * MINUTE])
    rules = []
    for number in range(draw(st.integers(1, 3))):
        interval = draw(intervals)
        bursts = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
        shadow = draw(st.sampled_from([False, False, True]))
        of_rule = f"rule{draw(st.integers(0, number))}"
        made = [terms("gcra", buckets(each, interval), scope=f"rule{number}", shadow=shadow) for each in bursts]
        rules.append([each._replace(group=of_rule) for each in made])
    return rules, draw(st.lists(acts(exact=exact), min_size=1, max_size=16))


def agree(results: Outcome, true: Outcome, terms: Terms, *, late_us: int, slack_us: int) -> None:
    """The outcome is exact; a wait is never too short, and too long by less than the precision."""
    # If the limit was lowered, or a shadow rule would have refused, the reply has only the time in seconds.
    if true.reset_after <= terms.window_us and not (terms.shadow and true.retry_after):
        late_us = min(late_us, terms.params[1] // terms.params[2])
    assert results[:3] == true[:3]
    assert (results.retry_after is NEVER) == (true.retry_after is NEVER)
    for name in ("retry_after", "reset_after", "next_after"):
        wait, least = getattr(results, name), getattr(true, name)
        if least is not NEVER:
            assert least - slack_us <= wait <= least + late_us + slack_us, name
            assert (wait == 0) == (least == 0) or slack_us, name


class TestTheExam:
    """The laws of StoreExam for the one algorithm of this store, with waits up to the precision."""

    place: ClassVar[Place]
    runner: ClassVar[asyncio.Runner]

    @pytest.fixture(autouse=True, scope="class", params=PLACES)
    @classmethod
    def _place(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        with PLACES[request.param]() as cls.place, asyncio.Runner() as cls.runner:
            yield

    @pytest.fixture
    def store(self) -> Iterator[Driver]:
        with closing(Driver(self.place.make(), self.runner)) as driver:
            yield driver

    def test_every_outcome_is_that_of_the_reference(self, store: Driver) -> None:
        @examples(self.place.examples)
        @given(plays(exact=self.place.exact))
        def run_story(play: tuple[list[list[Terms]], list[Act]]) -> None:
            reference = Driver(MemoryStore(clock=self.place.time), self.runner)
            self._perform(*play, stores=(reference, Driver(store._store, self.runner)))

        run_story()

    def _perform(self, rules: list[list[Terms]], story: list[Act], *, stores: tuple[Driver, Driver]) -> None:
        place, began = self.place, time.monotonic_ns()
        last: list[Outcome] = []
        for number, act in enumerate(story):
            chosen = rules[number % len(rules)]
            named = max([getattr(outcome, act.until) or 0 for outcome in last], default=0) if act.until != "now" else 0
            interval = chosen[0].params[1] // chosen[0].params[2]
            place.time.advance_us(max(0, named + act.quarters * interval // 4 + act.us))
            if act.kind == "forget":
                for driver in stores:
                    driver.forget(chosen[0].rule_id, "somebody")
            if act.kind == "change":
                chosen.reverse()
            checks = [Check(rule[0], "somebody", act.costs[at % len(act.costs)]) for at, rule in enumerate(rules)]
            plan = Plan(tuple(checks), charge=act.kind != "peek")
            true, results = (driver.run(plan) for driver in stores)
            slack = 0 if place.exact else (time.monotonic_ns() - began) // 1000 + 1
            for check, one, other in zip(checks, results, true, strict=True):
                agree(one, other, check.terms, late_us=place.late_us, slack_us=slack)
            last = list(results)

    @pytest.mark.parametrize("interval", [100_000, 333_334, MICROSECOND, 12 * MICROSECOND])
    @pytest.mark.parametrize("cost", [1, 3])
    def test_a_wait_is_long_enough_and_no_longer_than_the_precision(
        self, store: Driver, interval: int, cost: int
    ) -> None:
        check = Check(terms("gcra", buckets(3, interval)), "a", 1)
        if not self.place.exact and interval < MINUTE:  # a real machine may be slower
            check = check._replace(terms=terms("gcra", buckets(3, interval * 600)))
        for _ in range(3):
            assert store.run(Plan((check,)))[0].allowed
        again = Plan((check._replace(cost=cost),), charge=False)
        (refused,) = store.run(again)
        assert not refused.allowed
        assert refused.retry_after is not None
        earlier = max(0, refused.retry_after - self.place.late_us - (0 if self.place.exact else 5 * MICROSECOND))
        self.place.time.advance_us(earlier)
        assert not store.run(again)[0].allowed or earlier == 0
        self.place.time.advance_us(refused.retry_after - earlier)
        assert store.run(again)[0].allowed

    @pytest.mark.parametrize("interval", [MICROSECOND, MINUTE])
    @pytest.mark.parametrize("charge", [True, False])
    def test_a_wait_is_long_enough_when_the_limit_was_lowered(self, store: Driver, interval: int, charge: bool) -> None:
        high, low = (Check(terms("gcra", buckets(burst, interval)), "a", 1) for burst in (6, 2))
        assert store.run(Plan((high._replace(cost=6),)))[0].allowed
        (refused,) = store.run(Plan((low,), charge))
        assert refused[:3] == (False, 2, 0)
        assert refused.retry_after is not None
        assert refused.retry_after >= 4 * interval
        self.place.time.advance_us(refused.retry_after)
        assert store.run(Plan((low,)))[0].allowed

    def test_it_admits_the_limit_and_returns_outcomes_in_order(self, store: Driver) -> None:
        plan = Plan((Check(terms("gcra", "5/hour"), "a", 1), Check(terms("token-bucket", "3/day", scope="b"), "a", 1)))
        results = [store.run(plan) for _ in range(5)]
        assert [(one.allowed, two.allowed) for one, two in results] == [(True, True)] * 3 + [(True, False)] * 2
        assert [(one.limit, one.remaining) for one, _ in results] == [(5, 4), (5, 3), (5, 2), (5, 2), (5, 2)]
        assert [(two.limit, two.remaining) for _, two in results] == [(3, 2), (3, 1), (3, 0), (3, 0), (3, 0)]

    def test_a_forced_plan_takes_what_there_is(self, store: Driver) -> None:
        one, two = (Check(terms("gcra", "5/hour", scope=scope), "a", 3) for scope in ("one", "two"))
        assert store.run(Plan((one,)))[0].allowed
        assert [outcome.remaining for outcome in store.run(Plan((one, two), forced=True))] == [0, 2]
        assert [outcome.remaining for outcome in store.run(Plan((one, two), charge=False, forced=True))] == [0, 2]
        assert store.run(Plan((two._replace(cost=1),), forced=True))[0].remaining == 1

    def test_a_refused_plan_charges_nothing(self, store: Driver) -> None:
        full, empty = (Check(terms("gcra", "2/hour", scope=scope), "a", 1) for scope in ("full", "empty"))
        assert all(outcome.allowed for outcome in store.run(Plan((empty._replace(cost=2),))))
        for checks in ((full, empty), (empty, full), (full._replace(cost=3), full._replace(identity="b"))):
            assert not all(outcome.allowed for outcome in store.run(Plan(checks)))
        for identity in "ab":
            assert store.run(Plan((full._replace(identity=identity),), charge=False))[0].remaining == 2

    def test_a_peek_takes_nothing(self, store: Driver) -> None:
        check = Check(terms("gcra", "1/hour"), "a", 1)
        for _ in range(3):
            assert store.run(Plan((check,), charge=False))[0][:3] == (True, 1, 1)
            assert store.run(Plan((check._replace(cost=0),)))[0][:3] == (True, 1, 1)
        assert store.run(Plan((check,)))[0].allowed
        assert not store.run(Plan((check,), charge=False))[0].allowed

    def test_forget_resets_one_budget(self, store: Driver) -> None:
        one, two = (Check(terms("gcra", "1/hour", scope=scope), "a", 1) for scope in ("one", "two"))
        assert all(outcome.allowed for outcome in store.run(Plan((one, two))))
        store.forget(one.terms.rule_id, "a")
        store.forget(one.terms.rule_id, "nobody")
        assert [outcome.allowed for outcome in store.run(Plan((one, two)))] == [True, False]

    def test_identities_have_separate_budgets(self, store: Driver) -> None:
        once = terms("gcra", "1/hour")
        for allowed in (True, False):
            results = [store.run(Plan((Check(once, identity, 1),)))[0].allowed for identity in HOSTILE]
            assert results == [allowed] * len(HOSTILE)

    def test_an_empty_plan_has_no_outcomes(self, store: Driver) -> None:
        assert store.run(Plan(())) == ()

    @pytest.mark.parametrize("cost", [4, 10**6, 10**18, 2**63])
    def test_a_cost_above_the_limit_never_passes_and_changes_nothing(self, store: Driver, cost: int) -> None:
        check = Check(terms("gcra", "3/hour"), "a", 1)
        for checks in ((check._replace(cost=cost),), (check._replace(cost=cost), check._replace(identity="b"))):
            outcome = store.run(Plan(checks))[0]
            assert (outcome.allowed, outcome.remaining, outcome.retry_after) == (False, 3, NEVER)
        assert store.run(Plan((check._replace(cost=3),)))[0].allowed

    @pytest.mark.parametrize("quota", ["1 per 36500 days", "1/second burst 1000000000", "10000/second", "7/month"])
    def test_a_quota_at_the_edge_is_kept(self, store: Driver, quota: str) -> None:
        check = Check(terms("gcra", quota), "a", 1)
        limit = check.terms.params[0]
        assert store.run(Plan((check._replace(cost=limit),)))[0][:3] == (True, limit, 0)
        (refused,) = store.run(Plan((check._replace(cost=limit),)))
        assert not refused.allowed
        assert refused.retry_after is not None
        assert refused.retry_after >= check.terms.window_us - PATIENT * MICROSECOND

    def test_a_refund_does_nothing(self, store: Driver) -> None:
        check = Check(terms("gcra", "2/hour"), "a", 2)
        store._call(store._store.refund, Plan((check,)), store.run(Plan((check,))))
        assert store.run(Plan((check,), charge=False))[0].remaining == 0

    def test_close_may_be_called_twice_and_the_store_used_again(self, store: Driver) -> None:
        check = Check(terms("gcra", "2/hour"), "a", 1)
        assert store.run(Plan((check,)))[0].remaining == 1
        store.close()
        store.close()
        assert store.run(Plan((check,)))[0].remaining == 0

    def test_many_at_once_are_admitted_exactly_to_the_limit(self) -> None:
        one, two = (Check(terms("gcra", "50/hour", scope=scope), "many", 1) for scope in ("one", "two"))
        store, plan = self.place.make(), Plan((one, two))
        if isinstance(store, AsyncRedisCellStore):
            results = self.runner.run(tasks(store, plan))
        else:
            assert isinstance(store, RedisCellStore)
            with closing(store), ThreadPoolExecutor(8) as pool:
                results = list(pool.map(store.run, [plan] * 120))
        assert sum(all(outcome.allowed for outcome in outcomes) for outcomes in results) == 50


async def tasks(store: AsyncRedisCellStore, plan: Plan) -> list[tuple[Outcome, ...]]:
    try:
        return await asyncio.gather(*[store.run(plan) for _ in range(120)])
    finally:
        await store.close()


@pytest.fixture(scope="module")
def cell() -> Iterator[Server]:
    with valkey_server("--loadmodule", str(library())) as server:
        yield server


def url(server: Server) -> str:
    return server.url.replace("redis://", "redis+cell://")


def test_the_clock_of_the_server_runs(cell: Server) -> None:
    plan = Plan((Check(terms("gcra", Quota(3, 0.06)), "a", 1),))  # 60 ms, so that it ends soon
    with closing(RedisCellStore(url(cell), deadline=PATIENT)) as store:
        assert next(number for number in count() if not store.run(plan)[0].allowed and number >= 6) >= 6


def test_a_request_is_one_command(cell: Server) -> None:
    with monitored(cell) as seen, Limiter(url(cell), algorithm="gcra", deadline=PATIENT) as limiter:
        limiter.hit("5/minute", "alice")
        limiter.hit("5/minute; 100/hour; 1000/day", "alice")
        limiter.hit("10/second", "alice")
    sent = [name for name in sent_by_clients(seen) if name not in {"CLIENT", "HELLO", "PING"}]
    assert sent == ["CL.THROTTLE", "EVAL", "EVAL"]
    assert not any("alice" in command["command"] for command in seen), "an identity was sent in plain text"


def test_keys_have_one_hash_tag_and_expire(cell: Server) -> None:
    check = Check(terms("gcra", "5/minute", scope="reply"), "alice", 1)
    with closing(RedisCellStore(url(cell), prefix="shop", deadline=PATIENT)) as store:
        store.run(Plan((check,)))
    with redis.Redis.from_url(cell.url, decode_responses=True) as connection:
        (key,) = connection.scan_iter("shop:*", count=10_000)
        assert key == f"shop:{{{digest('alice')}}}:{check.terms.rule_id}:cell"
        assert 0 < connection.pttl(key) <= 12_000


def test_the_permissions_that_the_docs_grant_are_enough(cell: Server) -> None:
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith("A user of the server needs")]
    rights = re.findall(r"[+~][\w.:*]+", line)
    assert len(rights) == 4
    with redis.Redis.from_url(cell.url) as connection:
        connection.execute_command("ACL", "SETUSER", "limited", "on", ">secret", "resetkeys", "-@all", *rights)
    with Limiter(url(cell).replace("://", "://limited:secret@"), algorithm="gcra", deadline=PATIENT) as limiter:
        assert limiter.hit("5/minute", "permitted").remaining == 4
        assert limiter.hit("5/minute; 5/hour", "permitted").remaining == 3
        limiter.reset("5/minute", "permitted")


def test_the_command_cannot_refund(cell: Server) -> None:
    """The reason why `refund` does nothing. If a server can refund, this test fails."""
    with redis.Redis.from_url(cell.url) as connection:
        with pytest.raises(redis.ResponseError, match="expire"):
            connection.execute_command("CL.THROTTLE", "given", 4, 5, 60, -1)
        assert connection.pttl("given") == -1, "redis-cell left a key that never expires"
    with (
        dragonfly(is_async=False) as place,
        redis.Redis.from_url(place.url) as connection,
        pytest.raises(redis.ResponseError, match="not an integer"),
    ):
        connection.execute_command("CL.THROTTLE", "given", 4, 5, 60, -1)


@pytest.mark.parametrize("make", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("quota", ["5/minute", "5/minute; 100/hour"])
def test_a_server_without_the_command_is_a_configuration_error(server: Server, make: Any, quota: str) -> None:
    with asyncio.Runner() as runner:
        limiter = make(url(server), algorithm="gcra", deadline=PATIENT)
        with pytest.raises(StoreURLError, match=r"no CL\.THROTTLE; load the module redis-cell.*SG004"):
            answer(limiter.hit(quota, "a"), runner)
        answer(limiter.close(), runner)


def answer(value: Any, runner: asyncio.Runner) -> Any:
    return runner.run(value) if asyncio.iscoroutine(value) else value


WORDS = [
    ("10/minute", (9, 1, 6)),
    ("1/second burst 20", (19, 1, 1)),
    ("5 per 100 milliseconds", (4, 50, 1)),
    ("1/microsecond", (0, 10**6, 1)),
    ("30/second", (29, 500_000, 16_667)),  # 33,333 1/3 µs is sent as 33,334
    ("7/minute", (6, 1_000_000, 8_571_429)),
    ("10000/second", (9999, 10_000, 1)),
    ("1000/day", (999, 5, 432)),
    ("7/month", (6, 1, 370_286)),  # above an hour: whole seconds
    ("1 per 36500 days", (0, 1, 36500 * 86_400)),
]


@pytest.mark.parametrize(("quota", "words"), WORDS)
def test_the_arguments_of_a_quota(quota: str, words: tuple[int, int, int]) -> None:
    assert _bucket(terms("gcra", quota)).words == words


@given(st.integers(1, 20_000), st.integers(1, 400 * 86_400 * MICROSECOND))
def test_the_rate_is_never_faster_and_not_much_slower(limit: int, period_us: int) -> None:
    try:
        rule = terms("gcra", Quota(limit, Fraction(period_us, MICROSECOND), burst=1))
        meter = _bucket(rule)
    except AlgorithmError:
        return
    _, number, period = meter.words
    results, exact = Fraction(period, number), Fraction(period_us, limit * MICROSECOND)
    assert exact <= results <= exact * Fraction(101, 100)
    assert results == Fraction(meter.interval, MICROSECOND)
    assert period * 10**9 < 2**62  # redis-cell panics at 2^63, and its server ends


REFUSED: list[tuple[dict[str, Any], type[ConfigurationError], str]] = [
    ({"algorithm": "sliding-window"}, AlgorithmError, 'use "gcra"'),
    ({"algorithm": "fixed-window"}, AlgorithmError, 'use "gcra"'),
    ({"count_denied": True}, RuleError, "leave it out"),
    ({"once_per": "header:Idempotency-Key"}, RuleError, "leave it out"),
    ({"quota": "5 at once", "algorithm": None}, RuleError, "keep it in a redis:// or memory:// store"),
    ({"quota": "30000/second"}, AlgorithmError, "1 % slower"),
    ({"quota": "3/microsecond"}, AlgorithmError, "1 % slower"),
    ({"quota": "1/day burst 36501"}, AlgorithmError, "100 years"),
]


@pytest.mark.parametrize(("options", "error", "words"), REFUSED)
@pytest.mark.parametrize("kind", [RedisCellStore, AsyncRedisCellStore])
def test_an_option_that_the_command_does_not_have_is_refused(
    kind: Any, options: dict[str, Any], error: type[ConfigurationError], words: str
) -> None:
    rule = Rule(**{"name": "login", "quota": "5/minute", "algorithm": "gcra", **options})
    with pytest.raises(error, match=words) as caught:
        kind("redis+cell://localhost").accept(rule.terms("gcra")[0])
    assert "login" in str(caught.value)
    assert "redis://" in str(caught.value)


@pytest.mark.parametrize("kind", [Gate, AsyncGate])
@pytest.mark.parametrize(("options", "error", "words"), REFUSED)
def test_an_application_does_not_start_with_such_a_rule(
    kind: Any, options: dict[str, Any], error: type[ConfigurationError], words: str
) -> None:
    rule = Rule(**{"name": "login", "quota": "5/minute", "algorithm": "gcra", **options})
    with pytest.raises(error, match=words):
        kind(Settings(store="redis+cell://localhost", rules=[rule]))
    given = {option: getattr(rule, option) for option in ("algorithm", "count_denied", "once_per")}
    marked = make_mark(rule.quota, **given)
    gate = kind(Settings(store="redis+cell://localhost", default_limits=["5/minute"], algorithm="gcra"))
    with pytest.raises(error, match=words):
        gate.bind(Endpoint(view="reply", label="shop.reply", marks=(marked,)))


def test_a_limiter_s_own_algorithm_is_refused_before_anything_is_sent() -> None:
    with Limiter("redis+cell://127.0.0.1:1") as limiter, pytest.raises(AlgorithmError, match="sliding-window"):
        limiter.hit("5/minute", "a")


@pytest.mark.parametrize("make", [Limiter, AsyncLimiter])
def test_a_clock_is_refused(make: Any) -> None:
    with pytest.raises(StoreURLError, match=r"uses only the server's clock; test with memory://"):
        make("redis+cell://localhost", clock=ManualClock())


@pytest.mark.parametrize("make", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("redis+cell://:sesame@host:port", "a part of it cannot be read"),
        ("rediss+cell://:sesame@host:99999/0", "Port out of range"),
        ("redis+cell://:sesame@host?no_such_option=1", "no_such_option"),
        ("redis+cell://:sesame@host?socket_timeout=1", "deadline"),
    ],
)
def test_a_wrong_url_is_refused_at_once_and_its_password_not_shown(make: Any, where: str, problem: str) -> None:
    with pytest.raises(StoreURLError, match=problem) as caught:
        make(where)
    assert "sesame" not in str(caught.value)
    assert "sesame" not in repr(vars(caught.value))


def test_a_repr_shows_no_password() -> None:
    for kind in (RedisCellStore, AsyncRedisCellStore):
        assert repr(kind("redis+cell://:sesame@host:7/0")) == f"{kind.__name__}(redis+cell://host:7/0)"
    assert {scheme for scheme, where in SCHEMES.items() if "cell" in where} == {"redis+cell", "rediss+cell"}


@pytest.mark.parametrize("garbage", ["wrongtype", "nonsense"])
def test_what_is_not_a_budget_is_a_store_error(cell: Server, garbage: str) -> None:
    check = Check(terms("gcra", "5/minute"), garbage, 1)
    with redis.Redis.from_url(cell.url) as connection, closing(RedisCellStore(url(cell), deadline=PATIENT)) as store:
        key = f"sg:{{{digest(garbage)}}}:{check.terms.rule_id}:cell"
        connection.lpush(key, "x") if garbage == "wrongtype" else connection.set(key, "x")
        for plan in (Plan((check,)), Plan((check, check._replace(identity="other")))):
            with pytest.raises(StoreError, match="SG020"):
                store.run(plan)
        assert store.run(Plan((check._replace(identity="other"),), charge=False))[0].remaining == 5


@pytest.mark.parametrize("is_async", [False, True])
def test_a_dead_and_a_hung_server_are_store_errors_within_the_deadline(is_async: bool) -> None:
    plan = Plan((Check(terms("gcra", "5/minute"), "a", 1),))
    with valkey_server("--loadmodule", str(library())) as server, asyncio.Runner() as runner:
        make = open_async_store if is_async else open_store
        store = make(url(server), prefix="exam", deadline=0.2)
        assert answer(store.run(plan), runner)[0].remaining == 4
        for stop, go in ((server.pause, server.resume), (server.kill, server.start)):
            stop()
            began = time.monotonic()
            with pytest.raises(StoreError, match=str(server.port)):
                answer(store.run(plan), runner)
            assert time.monotonic() - began < 2
            go()
        assert answer(store.run(plan), runner)[0].remaining == 4, "a restarted server is empty"
        answer(store.close(), runner)
