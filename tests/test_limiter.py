"""The limiters, sync and async: the plain call, the decision, and the schemes S1 to S6 from articles."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import redis
import redis.asyncio

import sluicegate.stores.memory
from sluicegate import AsyncLimiter, ConfigurationError, Decision, Limiter, ManualClock, Quota, StoreError
from sluicegate.algorithms import ALGORITHMS
from sluicegate.errors import AlgorithmError, AsyncMismatchError, QuotaError, RuleError, SettingsError, StoreURLError
from sluicegate.identity import identity_text
from sluicegate.limiter import OPTIONS
from sluicegate.plan import Check, Outcome, Plan
from sluicegate.rules.ban import Ban, with_bans
from sluicegate.rules.rule import Rule
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from sluicegate.stores.redis import AsyncRedisStore, RedisStore
from sluicegate.stores.wrappers import StoreOptions
from sluicegate.testing import AsyncAdapter, BrokenStore, OpenStore, ShutStore
from sluicegate.testing.store import terms
from sluicegate.web.gate import Gate
from sluicegate.web.settings import Settings
from tests.servers import MAKERS
from tests.stores.modes import MODES

EVERY_STORE = ("memory", *MAKERS)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_760_000_000)


def test_settings_have_every_option_of_a_limiter_with_its_default() -> None:
    settings = {option.name: option.default for option in fields(Settings)}
    options = Limiter.__init__.__kwdefaults__
    assert {name: settings[name] for name in OPTIONS} == options
    stack = StoreOptions.__init__.__kwdefaults__ or {}
    assert {name: options[name] for name in stack} == stack


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_limiter_shows_the_names_for_users(kind: Any) -> None:
    """In a shell, the completion of `limiter.` comes from here."""
    names = {"ban", "bans", "close", "hit", "hold", "is_action_allowed", "limit", "peek", "refund", "reserve", "reset"}
    assert {name for name in dir(kind()) if name[0] != "_"} == names | {
        "overrides",
        "reset_all",
        "status",
        "unban",
        "usage",
    }


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Any:
    return MODES[request.param]


@pytest.fixture(params=EVERY_STORE)
def limiter(request: pytest.FixtureRequest, mode: Any, clock: ManualClock) -> Iterator[Any]:
    """A sync and an async limiter on each store, all with one clock."""
    where = "memory://"
    if request.param != "memory":
        server = request.getfixturevalue(request.param)
        server.flush()
        where = server.url
    with mode(where, clock=clock, deadline=10, on_store_failure="raise") as made:  # CI machines may be busy
        yield made


def test_s1_the_plain_question(limiter: Any, clock: ManualClock) -> None:
    """This user may reply at most 5 times a minute."""
    allowed = [limiter.is_action_allowed("alice", "reply", 60, 5) for _ in range(20)]
    assert allowed == [True] * 5 + [False] * 15
    assert limiter.is_action_allowed("alice", "post", period=600, max_count=10)
    assert limiter.is_action_allowed("another", "reply", period=60, max_count=5)
    clock.advance(60)
    assert limiter.is_action_allowed(user_id="alice", action_key="reply", period=60, max_count=5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_s1_by_every_algorithm(limiter: Any, algorithm: str) -> None:
    allowed = [
        limiter.is_action_allowed("alice", "reply", period=60, max_count=5, algorithm=algorithm) for _ in range(8)
    ]
    assert allowed == [True] * 5 + [False] * 3


def test_s2_a_fixed_window_ends_when_it_said_it_would(limiter: Any, clock: ManualClock) -> None:
    """EXPIRE on every hit pushed the end away for ever; here steady traffic is let in again on time."""
    allowed = []
    for _ in range(13):
        allowed.append(limiter.hit("5/minute", "alice", algorithm="fixed-window").allowed)
        clock.advance(10)
    assert allowed == [True] * 5 + [False] + [True] * 5 + [False] + [True]


def test_s2_the_boundary_is_what_the_default_algorithm_mends(limiter: Any, clock: ManualClock) -> None:
    """98 at the end of one minute and 99 at the start of the next: twice the limit in two seconds."""
    admitted = {}
    for algorithm in ("fixed-window", "sliding-window"):
        limiter.hit("100/minute", "alice", algorithm=algorithm)
        clock.advance(59)
        admitted[algorithm] = limiter.hit("100/minute", "alice", cost=98, algorithm=algorithm).allowed
        clock.advance(2)
        admitted[algorithm] += limiter.hit("100/minute", "alice", cost=99, algorithm=algorithm).allowed
        clock.advance(3600)
    assert admitted == {"fixed-window": 2, "sliding-window": 1}


def test_s3_two_requests_of_one_moment_are_two(limiter: Any) -> None:
    """The same millisecond as ZSET member counted once."""
    allowed = [limiter.hit("5/minute", "alice", algorithm="sliding-log").allowed for _ in range(7)]
    assert allowed == [True] * 5 + [False] * 2


@pytest.mark.parametrize(("counted", "passes"), [(False, True), (True, False)])
def test_s3_refusals_are_not_recorded_unless_asked(
    limiter: Any, clock: ManualClock, counted: bool, passes: bool
) -> None:
    rule = terms("sliding-log", "2/minute", counted=counted)
    plan = Plan((Check(rule, identity_text("alice"), 1),))
    assert [limiter.run(plan).allowed for _ in range(2)] == [True, True]
    for _ in range(6):
        clock.advance(10)
        decision = limiter.run(plan)
    assert decision.allowed is passes


def test_s4_costs_and_clocks_are_in_microseconds(limiter: Any, clock: ManualClock) -> None:
    """The script's own moment, exact: refused one microsecond early, admitted on time."""
    limiter.hit("1/second", "alice", algorithm="sliding-log")
    clock.advance(0.999999)
    assert limiter.hit("1/second", "alice", algorithm="sliding-log").retry_after == 0.000001
    clock.advance(0.000001)
    assert limiter.hit("1/second", "alice", algorithm="sliding-log").allowed


def test_s5_the_list_is_the_default_and_holds_any_limit(limiter: Any) -> None:
    decision = limiter.hit("1000000/minute", "alice", cost=999_999)
    assert decision.remaining == 1
    assert limiter.hit("1000000/minute", "alice").allowed
    assert not limiter.hit("1000000/minute", "alice").allowed


def test_s6_the_funnel(limiter: Any, clock: ManualClock) -> None:
    """capacity = 15, leaking_rate = 0.5 a second; each call waters by its quota."""
    funnel = Quota.funnel(capacity=15, leaking_rate=0.5)
    assert limiter.hit(funnel, "alice", action="reply", cost=15, algorithm="leaky-bucket").remaining == 0
    refused = limiter.hit(funnel, "alice", action="reply", cost=2, algorithm="leaky-bucket")
    assert (refused.allowed, refused.retry_after) == (False, 4.0)
    clock.advance(4)
    assert limiter.hit(funnel, "alice", action="reply", cost=2, algorithm="leaky-bucket").allowed


def test_a_decision_by_example(limiter: Any, clock: ManualClock) -> None:
    decision = limiter.hit("5/minute; 100/day", "alice", action="like")
    assert list(decision.by_rule) == ["like-minute", "like-day"]
    assert (decision.allowed, decision.rule, decision.limit, decision.remaining) == (True, "like-minute", 5, 4)
    assert (decision.retry_after, decision.reset_after, decision.degraded) == (0.0, 60.0, False)
    clock.advance(15)
    refused = limiter.hit("5/minute; 100/day", "alice", action="like", cost=5)
    assert not refused
    assert (refused.rule, refused.limit, refused.remaining, refused.retry_after) == ("like-minute", 5, 4, 45.0)
    assert refused.by_rule["like-day"].remaining == 99, "a refused request costs nothing"


def test_peek_and_reset(limiter: Any) -> None:
    quota = "2/minute; 3/hour"
    assert [limiter.peek(quota, "a").remaining for _ in range(3)] == [2, 2, 2]
    assert [limiter.hit(quota, "a", cost=2).allowed, limiter.hit(quota, "a").allowed] == [True, False]
    assert not limiter.peek(quota, "a").allowed
    assert limiter.peek(quota, "a", cost=0).allowed
    limiter.reset(quota, "b")
    limiter.reset(quota, "a", action="other")
    assert not limiter.peek(quota, "a").allowed
    limiter.reset(quota, "a")
    assert [outcome.remaining for outcome in limiter.peek(quota, "a").outcomes] == [2, 3]


def test_a_prepared_limit_is_the_limit_of_the_call(limiter: Any, clock: ManualClock) -> None:
    reply = limiter.limit("2/minute; 3/hour", action="reply", algorithm="fixed-window")
    same: dict[str, Any] = {"action": "reply", "algorithm": "fixed-window"}
    assert [reply.hit("a").remaining, limiter.hit("2/minute; 3/hour", "a", **same).remaining] == [1, 0]
    assert [reply.hit("a").allowed, reply.hit("b", cost=3).retry_after, reply.peek("c", 2).remaining] == [
        False,
        None,
        2,
    ]
    clock.advance(60)
    assert reply.reserve("a", 1)
    assert [each.remaining for each in limiter.peek("2/minute; 3/hour", "a", **same, cost=0).outcomes] == [1, 0]
    reply.reset("a")
    assert [each.remaining for each in reply.peek("a", 0).outcomes] == [2, 3]


def test_a_prepared_concurrency_is_held(mode: Any) -> None:
    with mode("memory://") as limiter:
        exports = limiter.limit("1 at once", action="export")
        assert exports.peek("a").allowed
        for wrong in (exports.hit, limiter.limit("1 at once").hit):
            with pytest.raises(QuotaError, match="use hold"):
                wrong("a")
        with pytest.raises(QuotaError, match="use hold"):
            exports.reserve("a", 1)


def test_a_prepared_limit_of_a_quota_is_not_held() -> None:
    with pytest.raises(RuleError, match="give a Concurrency"), Limiter().limit("1/minute").hold("a"):
        pass


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_quotas_of_one_rate_hold_both(limiter: Any, algorithm: str) -> None:
    """The algorithms of buckets have one budget for both. It was charged twice for each hit."""
    quota = "4 per 2 seconds; 8 per 4 seconds"
    assert [limiter.hit(quota, "a", algorithm=algorithm).allowed for _ in range(5)] == [*4 * [True], False]


def test_a_concurrency_has_no_algorithm() -> None:
    with pytest.raises(RuleError, match="a Concurrency counts without one"):
        Limiter().limit("2 at once", algorithm="gcra")


def test_usage_reads_a_ban_beside_limits_that_are_used_later(limiter: Any) -> None:
    ban = Ban(after=2, within=60, duration=60)
    (rule,) = Rule(name="login", quota="2/minute", ban=ban).terms("sliding-window")
    limiter.run(Plan(with_bans([Check(rule, identity_text("alice"), 1)])))
    limiter.hit("5/minute", "alice", action="reply")
    assert [(each.rule, each.used) for each in limiter.usage("alice")] == [("login", 1), ("reply", 1)]


@pytest.mark.parametrize("call", ["ban", "unban", "bans", "lasting"])
def test_what_is_no_ban_is_refused(call: str) -> None:
    limiter: Any = Limiter()
    arguments = {"bans": ("login",), "lasting": ("a", "login", "1 hour")}.get(call, ("a", "login"))
    with pytest.raises(RuleError, match="give the Ban object"):
        getattr(limiter, "ban" if call == "lasting" else call)(*arguments)


def test_a_prepared_limit_shows_its_quotas() -> None:
    shown = [repr(Limiter().limit(quota)) for quota in ("5/minute; 9/hour", "2 at once")]
    assert shown == ["Limit(5/minute; 9/hour)", "Limit(2 at once)"]


def test_budgets_are_apart(limiter: Any) -> None:
    ways: list[dict[str, Any]] = [
        {"identity": "a"}, {"identity": "b"}, {"identity": 1}, {"identity": "1"}, {"identity": ("a",)},
        {"identity": "a", "action": "x"}, {"identity": "a", "action": "default"},
        {"identity": "a", "action": "x" * 1000}, {"identity": "a", "action": "x" * 999},
        {"identity": "a", "action": "ü\0{}"}, {"identity": "a", "algorithm": "gcra"},
    ]  # fmt: skip
    for way in ways:
        assert limiter.hit("1/hour", **way), way
    for way in ways:
        assert not limiter.hit("1/hour", **way), way


@pytest.mark.parametrize(("first", "then", "remaining"), [("10/minute", "5/minute", 0), ("5/minute", "10/minute", 4)])
@pytest.mark.parametrize("algorithm", ["sliding-window", "sliding-log", "sliding-counter", "fixed-window"])
def test_a_limit_changed_on_live_state(limiter: Any, algorithm: str, first: str, then: str, remaining: int) -> None:
    cost = 5 if first == "5/minute" else 8
    limiter.hit(first, "a", cost=cost, algorithm=algorithm)
    assert limiter.hit(then, "a", algorithm=algorithm).remaining == remaining


def test_sync_and_async_have_the_same_names_and_arguments() -> None:
    def signatures(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(call).parameters)
            for name, call in vars(kind).items()
            if callable(call) and not name.startswith("_") and name in dir(kind())  # for users
        }

    assert signatures(Limiter) == signatures(AsyncLimiter)


def test_context_managers_close_what_they_opened(clock: ManualClock) -> None:
    class Closing(MemoryStore):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    store = Closing(clock=clock)
    with Limiter(store) as limiter:
        assert limiter.store is store
    assert store.closed == 0

    async def main() -> None:
        async with AsyncLimiter(AsyncAdapter(store)) as limiter:
            assert await limiter.is_action_allowed("a", "b", 60, 1)
        assert store.closed == 0

    asyncio.run(main())


class Called(MemoryStore):
    """A user's memory store with a `run` of its own."""

    calls = 0

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        self.calls += 1
        return super().run(plan)


class AsyncCalled(AsyncMemoryStore):
    calls = 0

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        self.calls += 1
        return await super().run(plan)


@pytest.mark.parametrize("quota", ["2/minute", "2/minute; 9/hour"])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async inside", "async"])
def test_a_store_of_the_user_is_called_for_each_hit(quota: str, prepared: bool, kind: str) -> None:
    store: Any = AsyncCalled(MemoryStore()) if kind == "async" else Called()
    given: Any = AsyncMemoryStore(store) if kind == "async inside" else store
    limiter: Any = (Limiter if kind == "sync" else AsyncLimiter)(given)
    limit = limiter.limit(quota)

    async def hit() -> Any:
        decision = limit.hit("alice") if prepared else limiter.hit(quota, "alice")
        return decision if kind == "sync" else await decision

    with asyncio.Runner() as runner:
        assert [runner.run(hit()).allowed for _ in range(4)] == [True, True, False, False]
    assert store.calls == 4


WRONG: list[tuple[dict[str, Any], type[ConfigurationError], str]] = [
    ({"store": "nowhere://"}, StoreURLError, "unknown scheme"),
    ({"store": "reddis://host"}, StoreURLError, 'unknown scheme "reddis"; did you mean "redis"'),
    ({"store": object()}, StoreURLError, "neither a URL nor a store"),
    ({"algorithm": "leaky"}, AlgorithmError, "known are|use one of"),
    ({"algorithm": None}, AlgorithmError, "not known"),
    ({"algorithm": ["gcra"]}, AlgorithmError, "not known"),
    ({"on_store_failure": "open"}, SettingsError, "use one of local, allow, deny, raise"),
    ({"deadline": 0}, SettingsError, "seconds above 0"),
    ({"deadline": 60.1}, SettingsError, "more than 60 seconds; give seconds, not milliseconds"),
    ({"deadline": 10**400}, SettingsError, "seconds above 0"),
    ({"replicas": 0}, SettingsError, "number of processes"),
    ({"deny_cache": -1}, SettingsError, "0 for none"),
    ({"on_store_change": "print"}, SettingsError, "not a plain function"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG)
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_wrong_limiter_cannot_be_made(kind: Any, options: dict[str, Any], error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        kind(**options)


CLIENT, ASYNC_CLIENT = redis.Redis(password="pass4word"), redis.asyncio.Redis(password="pass4word")
NO_STORES: list[tuple[Any, str, str | tuple[str, ...]]] = [  # what was given, the problem, what to do
    (MemoryStore, "a class, not an instance of it", "give MemoryStore(…), or a URL"),
    (AsyncMemoryStore, "a class, not an instance of it", "give AsyncMemoryStore(…), or a URL"),
    (RedisStore, "a class, not an instance of it", "give RedisStore(…), or a URL"),
    (redis.Redis, "a class, not an instance of it", "give a URL such as"),
    (sluicegate.stores.memory, "a module, not a store", "give a URL such as memory://"),
    (None, "neither a URL nor a store", "give a URL such as memory://"),
    (b"memory://", "neither a URL nor a store", "give a URL such as memory://, as text"),
    (["redis://:pass4word@localhost"], "neither a URL nor a store", "give a URL such as memory://"),
    ({"url": "redis://:pass4word@localhost"}, "neither a URL nor a store", "give a URL such as memory://"),
    # what the limiter's kind needs: this client in a store, or another client
    (CLIENT, "a client, not a store", ("give RedisStore(client), ", "give AsyncRedisStore(redis.asyncio.Redis(…)), ")),
    (ASYNC_CLIENT, "a client, not a store", ("give AsyncRedisStore(client), ", "give RedisStore(redis.Redis(…)), ")),
]


@pytest.mark.parametrize(("given", "problem", "expected"), NO_STORES, ids=range(len(NO_STORES)))
@pytest.mark.parametrize("make", [Limiter, AsyncLimiter, lambda store: Gate(Settings(store=store))])
def test_what_is_no_store_is_refused_when_the_limiter_is_made(
    make: Any, given: Any, problem: str, expected: str | tuple[str, ...]
) -> None:
    with pytest.raises(StoreURLError, match="SG004") as caught:
        make(given)
    assert caught.value.problem == problem
    assert caught.value.expected.startswith(expected)
    assert "pass4word" not in f"{caught.value} {caught.value.given!r}"


NO_CLIENTS: list[tuple[Any, Any, str]] = [  # a store over a client, what was given, the problem
    *[(RedisStore, each, "not a client of redis-py") for each in ("redis://localhost", None, redis.Redis, object())],
    *[(AsyncRedisStore, each, "not a client of redis-py") for each in ("redis://localhost", None, redis.asyncio.Redis)],
    (RedisStore, ASYNC_CLIENT, "methods are asynchronous"),
    (AsyncRedisStore, CLIENT, "methods are synchronous"),
]


@pytest.mark.parametrize(("kind", "given", "problem"), NO_CLIENTS, ids=range(len(NO_CLIENTS)))
def test_what_is_no_client_is_refused_when_the_store_is_made(kind: Any, given: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        kind(given)
    assert "pass4word" not in str(caught.value)


def test_a_sync_store_in_an_async_limiter_is_refused_and_the_reverse() -> None:
    with pytest.raises(AsyncMismatchError, match="SG009"):
        Limiter(AsyncMemoryStore(MemoryStore()))  # type: ignore[arg-type]
    with pytest.raises(AsyncMismatchError, match="SG009"):
        AsyncLimiter(MemoryStore())  # type: ignore[arg-type]


CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"quota": "10/fortnight"}, QuotaError, "fortnight"),
    ({"quota": ""}, QuotaError, "the text is empty"),
    ({"quota": " ; "}, QuotaError, "empty part"),
    ({"quota": ["5/minute", "9/hour"]}, QuotaError, 'write one text: "5/minute; 9/hour"'),
    ({"quota": []}, QuotaError, "not a quota"),
    ({"quota": "5/minute; 5/minute"}, QuotaError, "the same quota twice; leave out one"),
    ({"quota": 10}, QuotaError, "not a quota|is not text"),
    ({"quota": None}, QuotaError, "not a quota|is not text"),
    ({"quota": ()}, QuotaError, "not a quota"),
    ({"quota": "5/minute; 10/60s"}, QuotaError, "two quotas over the same period"),
    ({"cost": -1}, RuleError, "not a whole number"),
    ({"cost": 1.0}, RuleError, "not a whole number"),
    ({"cost": True}, RuleError, "not a whole number"),
    ({"cost": None}, RuleError, "not a whole number"),
    ({"algorithm": "leaky"}, AlgorithmError, "not known"),
    ({"algorithm": "Sliding_Window"}, AlgorithmError, 'did you mean "sliding-window"'),
    ({"algorithm": ["gcra"]}, AlgorithmError, "not known"),
    ({"action": 3}, RuleError, "is not text"),
    ({"action": None}, RuleError, "is not text"),
    ({"identity": None}, ConfigurationError, "SG006"),
    ({"identity": 1.5}, ConfigurationError, "SG006"),
]


@pytest.mark.parametrize(("options", "error", "text"), CALLS, ids=range(len(CALLS)))
def test_wrong_calls_say_so(options: dict[str, Any], error: type[Exception], text: str) -> None:
    call: dict[str, Any] = {"quota": "1/minute", "identity": "a", **options}
    with pytest.raises(error, match=text):
        Limiter().hit(**call)


PLAIN = [
    (0, 5),
    (-1, 5),
    (60, 0),
    (60, -1),
    (60, 1.5),
    (60, True),
    (float("nan"), 5),
    ("minute", 5),
    ([60], 5),
    (60, [5]),
    (60, "5"),
    (60, 10**15),
]


@pytest.mark.parametrize(("period", "count"), PLAIN)
def test_wrong_plain_calls_say_so(period: Any, count: Any) -> None:
    limiter = Limiter()
    limiter.is_action_allowed("a", "b", 60, 1)  # 1 == True, but only one of them is a number
    with pytest.raises(QuotaError):
        limiter.is_action_allowed("a", "b", period, count)


HOSTILE = ["x" * 1_000_000, "\0", "\n", "{}", "}{", "\ud800", "a:b", "", "' OR 1=1", b"\xff", ("a", "\udfff")]


@pytest.mark.parametrize("identity", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_identities_and_actions_are_ordinary(limiter: Any, identity: Any) -> None:
    action = identity if isinstance(identity, str) else "b"
    assert limiter.hit("1/hour", identity, action=action)
    assert not limiter.hit("1/hour", identity, action=action)


@pytest.mark.parametrize("wrap", [lambda store: store, AsyncAdapter])
def test_the_testing_stores(wrap: Any) -> None:
    def hit(store: Any, times: int = 1) -> Decision:
        if wrap is not AsyncAdapter:
            return [Limiter(store, on_store_failure="raise").hit("5/minute", "a") for _ in range(times)][-1]

        async def main() -> Decision:
            limiter = AsyncLimiter(AsyncAdapter(store), on_store_failure="raise")
            return [await limiter.hit("5/minute", "a") for _ in range(times)][-1]

        return asyncio.run(main())

    assert hit(OpenStore(), 100).remaining == 5
    shut = hit(ShutStore(retry_after=1.5))
    assert (shut.allowed, shut.remaining, shut.retry_after, shut.reset_after) == (False, 0, 1.5, 1.5)
    assert hit(ShutStore(retry_after=None)).retry_after is None
    with pytest.raises(StoreError, match="SG020"):
        hit(BrokenStore())


class _Slotted:
    """A user's own store, with only the methods that a store must have."""

    __slots__ = ("memory",)

    def __init__(self) -> None:
        self.memory = MemoryStore(clock=ManualClock())

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        return self.memory.run(plan)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        self.memory.refund(plan, outcomes)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        return self.memory.renew(plan, outcomes)

    def forget(self, rule_id: str, identity: str) -> None:
        self.memory.forget(rule_id, identity)

    def close(self) -> None: ...


def test_a_store_with_slots() -> None:
    assert Limiter(_Slotted()).hit("5/minute", "alice").remaining == 4


class _Own(_Slotted):
    """The same store, whose instance may get another `run`."""


def test_a_run_that_is_replaced_after_the_first_hit_is_called() -> None:
    store = _Own()
    limiter = Limiter(store, on_store_failure="raise")
    prepared = limiter.limit("5/minute")
    assert prepared.hit("alice")

    def lost(plan: Plan) -> tuple[Outcome, ...]:
        raise StoreError("own", "lost")

    store.run = lost  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        prepared.hit("alice")


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_event_of_a_reservation_is_delivered_in_the_task_of_its_caller(cancelled: bool) -> None:
    class Slow(AsyncAdapter):
        async def run(self, plan: Plan) -> tuple[Outcome, ...]:
            for _ in range(3):  # an eager task would end before it could be cancelled
                await asyncio.sleep(0)
            return await super().run(plan)

    tasks: list[object] = []
    limiter = AsyncLimiter(Slow(_Own()), on_decision=lambda event: tasks.append(asyncio.current_task()))

    async def main() -> None:
        task = asyncio.create_task(limiter.reserve("5/minute", "alice", cost=2))
        if cancelled:
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(20):
                await asyncio.sleep(0)
            assert tasks == []
            assert (await limiter.peek("5/minute", "alice", cost=0)).remaining == 5
        else:
            await task
            assert tasks == [task]

    asyncio.run(main())
