"""Bans in the stores: the laws on every store against a model by history, and in the wrappers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple
from uuid import uuid4

import fakeredis
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluicegate import AsyncLimiter, Ban, ConfigurationError, Limiter, ManualClock, StoreError
from sluicegate.algorithms import find
from sluicegate.clock import MICROSECOND, Clock
from sluicegate.errors import AlgorithmError, RuleError
from sluicegate.identity import digest, identity_text
from sluicegate.plan import BAN, Check, Outcome, Plan
from sluicegate.rules.ban import with_bans
from sluicegate.stores import Store
from sluicegate.stores.deny_cache import Refusals
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.redis.cell import RedisCellStore
from sluicegate.stores.redis.encoding import script
from sluicegate.stores.wrappers import StoreOptions
from sluicegate.testing import AsyncAdapter
from sluicegate.testing.driver import Driver
from sluicegate.testing.scenarios import examples
from tests.algorithms.model import ModelStore
from tests.cluster import Cluster
from tests.servers import MAKERS, Server
from tests.stores.breakable import Breakable, Called, Mode
from tests.stores.breakable import check as plain
from tests.stores.guards import CACHES
from tests.stores.modes import MODES, PATIENCE
from tests.stores.places import PLACES, Place, client, monitored, sent_by_clients, url

SECOND, HOUR = MICROSECOND, 3600 * MICROSECOND
BANNED = Ban(after=3, within="10 minutes", duration="1 hour", factor=2, longest="3 hours")


def checks(*rules: Check) -> tuple[Check, ...]:
    """The checks of a request, as a gate makes them."""
    return with_bans(list(rules))


def check(quota: str = "1/minute", identity: str = "a", *, ban: Ban | None = BANNED, **more: Any) -> Check:
    return plain(quota, identity, ban=None if ban is None else ban.terms, **more)


# The model: the whole history, and the outcomes that follow from it.


class History:
    """Strikes and bans of one identity."""

    def __init__(self) -> None:
        self.strikes: list[int] = []  # since the first strike, or since the last ban
        self.bans: list[tuple[int, int]] = []  # the end of each, and its number in the series

    def ends(self, now: int) -> int | None:
        return self.bans[-1][0] if self.bans and now < self.bans[-1][0] else None

    def series(self, now: int, longest: int) -> int:
        """How many bans make the next one longer."""
        return self.bans[-1][1] if self.bans and now < self.bans[-1][0] + longest else 0

    def counted(self, now: int, within: int) -> list[int]:
        return self.strikes if self.strikes and now < self.strikes[0] + within else []

    def strike(self, now: int, ban: Ban, count: int) -> None:
        self.strikes = [*self.counted(now, us(ban.within)), *[now] * count]
        if len(self.strikes) >= ban.after:
            longest = us(ban.duration if ban.longest is None else ban.longest)
            series = self.series(now, longest)
            length = min(longest, us(ban.duration) * ban.factor**series)
            self.bans.append((now + length, series + 1 if length < longest else series))
            self.strikes = []


def us(seconds: Any) -> int:
    return round(seconds * SECOND)


class Model:
    """Rules by the exact model, bans by their history."""

    def __init__(self, clock: Clock, *bans: Ban) -> None:
        self._clock = clock
        self._rules = ModelStore(clock)
        self._bans = {ban.terms: ban for ban in bans}
        self._histories: dict[tuple[str, str], History] = {}

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        now = self._clock.now_us()
        rules = tuple(each for each in plan.checks if each.terms.algorithm != BAN)
        bans = [each for each in plan.checks if each.terms.algorithm == BAN]
        if any(each.cost for each in bans):
            for each in bans:
                self._history(each).strike(now, self._bans[each.terms], each.cost)
            return tuple(self._outcome(each, now) for each in bans)
        held = any(self._history(each).ends(now) for each in bans)
        blocked = (*rules, plain("1/minute", scope="blocked", cost=2)) if held else rules
        results = self._rules.run(plan._replace(checks=blocked))[: len(rules)]
        for each in bans:
            naming = [(rule, outcome) for rule, outcome in zip(rules, results, strict=True) if rule.terms.ban]
            struck = [
                rule.terms.ban is each.terms and rule.identity == each.identity and not outcome.allowed
                for rule, outcome in naming
            ]
            if plan.charge and any(struck) and not self._history(each).ends(now):
                self._history(each).strike(now, self._bans[each.terms], 1)
        return (*results, *[self._outcome(each, now) for each in bans])

    def forget(self, rule_id: str, identity: str) -> None:
        self._histories.pop((rule_id, identity), None)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        raise NotImplementedError

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        raise NotImplementedError

    def close(self) -> None:
        self._histories.clear()

    def _history(self, ban: Check) -> History:
        return self._histories.setdefault((ban.terms.rule_id, ban.identity), History())

    def _outcome(self, ban: Check, now: int) -> Outcome:
        history, said = self._history(ban), self._bans[ban.terms]
        ends, counted = history.ends(now), history.counted(now, us(said.within))
        longest = us(said.duration if said.longest is None else said.longest)
        following = 0 if ends is None else ends - now
        if ends is None and counted:
            following = counted[0] + us(said.within) - now
        remembered = history.bans[-1][0] + longest - now if history.series(now, longest) else 0
        passed = ends is None or ban.cost > 0
        remaining = 0 if ends is not None else said.after - len(counted)
        wait = 0 if passed or ends is None else ends - now
        return Outcome(passed, said.after, remaining, wait, max(following, remembered), following, now)


class Act(NamedTuple):
    """Wait, then run a plan with these costs; or ban, or unban."""

    wait: str
    more: int
    costs: tuple[int, int]
    kind: str


BANS = st.builds(
    Ban,
    after=st.integers(1, 4),
    within=st.sampled_from([1, 30, 600]),
    duration=st.sampled_from([0.000001, 2, 60]),
    factor=st.integers(2, 4),
    longest=st.sampled_from([60, 200]),
    name=st.sampled_from(["ban", "a ban of {x} *"]),
)
PLAIN_BANS = st.builds(Ban, after=st.integers(1, 3), within=st.just(7), duration=st.just("90 seconds"))
ACTS = st.builds(
    Act,
    st.sampled_from(["now", "now", "now", "retry", "reset", "next"]),
    st.sampled_from([-1, 0, 0, 1, SECOND, 40 * SECOND]),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.sampled_from(["hit"] * 9 + ["peek", "ban", "unban"]),
)


class TestLaws:
    """Every store, sync and async, gets the same acts as the model."""

    place: Place
    runner: asyncio.Runner

    @pytest.fixture(autouse=True, scope="class", params=PLACES)
    @classmethod
    def _place(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        with request.param(request) as cls.place, asyncio.Runner() as cls.runner:
            yield

    def test_every_outcome_is_that_of_the_model(self) -> None:
        @examples(self.place.examples)
        @given(
            bans=st.tuples(BANS, PLAIN_BANS),
            second=st.sampled_from([0, 1, None]),
            counted=st.booleans(),
            identities=st.sampled_from(["aa", "ab"]),
            acts=st.lists(ACTS, min_size=5, max_size=30),
        )
        def run_story(
            bans: tuple[Ban, Ban], second: int | None, counted: bool, identities: str, acts: Sequence[Act]
        ) -> None:
            other = None if second is None else bans[second].terms
            rules = [
                plain("1 per 10 seconds", identities[0], algorithm="fixed-window", ban=bans[0].terms),
                plain("2/minute", identities[1], scope="other", ban=other, counted=counted),
            ]
            if bans[0].name == bans[1].name:  # a gate refuses that
                return
            clock = ManualClock(1_760_000_000)
            store = Driver(self.place.make(clock), self.runner)
            with closing(store):
                perform(acts, rules, (store, Driver(Model(clock, *bans), self.runner)), clock=clock)

        run_story()


def perform(acts: Sequence[Act], rules: list[Check], stores: tuple[Driver, Driver], *, clock: ManualClock) -> None:
    """Do the same acts on both stores, and compare every outcome."""
    last: tuple[Outcome, ...] = ()
    for act in acts:
        waits: dict[str, list[int]] = {"now": [], "retry": [], "reset": [], "next": []}
        for outcome in last:
            waits["retry"].append(outcome.retry_after or 0)
            waits["reset"].append(outcome.reset_after)
            waits["next"].append(outcome.next_after)
        clock.advance_us(max(0, max(waits[act.wait], default=0) + act.more))
        chosen = checks(*[rule._replace(cost=cost) for rule, cost in zip(rules, act.costs, strict=True)])
        if act.kind == "unban":
            for store in stores:
                store.forget(chosen[2].terms.rule_id, chosen[2].identity)
        plan = Plan(chosen, charge=act.kind != "peek")
        if act.kind == "ban":
            plan = Plan((chosen[2]._replace(cost=chosen[2].terms.params[0]),))
        results, expected = [store.run(plan) for store in stores]
        assert results == expected
        last = results


# By example, with a clock that is moved by hand.


@pytest.fixture(params=["memory", "fakeredis"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Store:
    if request.param == "memory":
        return MemoryStore(clock=clock)
    return RedisStore(fakeredis.FakeRedis(socket_timeout=10), clock=clock)


def overstep(store: Store, clock: ManualClock, *, times: int, identity: str = "a") -> list[int | None]:
    """Send requests until one is refused, then more. Returns what is left of the ban after each refusal, or None."""
    plan = Plan(checks(check(identity=identity)))
    while all(outcome.allowed for outcome in store.run(plan)):
        pass
    left: list[int | None] = []
    for _ in range(times - 1):
        (_, ban) = store.run(plan)
        left.append(None if ban.allowed else ban.retry_after)
    return left


def test_a_ban_begins_with_the_last_strike_and_ends_to_the_microsecond(store: Store, clock: ManualClock) -> None:
    plan = Plan(checks(check()))
    assert [all(outcome.allowed for outcome in store.run(plan)) for _ in range(3)] == [True, False, False]
    rule, ban = store.run(plan)
    assert (rule.allowed, ban.allowed, ban.retry_after) == (False, False, HOUR)
    clock.advance_us(HOUR - 1)
    rule, ban = store.run(plan)
    assert (rule.allowed, ban.allowed, ban.retry_after) == (True, False, 1)
    clock.advance_us(1)
    assert [outcome.allowed for outcome in store.run(plan)] == [True, True]


def test_each_ban_is_longer_up_to_the_longest_and_then_the_series_ends(store: Store, clock: ManualClock) -> None:
    lengths = []
    for _ in range(4):
        lengths.append(overstep(store, clock, times=3)[-1])
        clock.advance_us(lengths[-1] or 0)
    assert lengths == [HOUR, 2 * HOUR, 3 * HOUR, 3 * HOUR]
    clock.advance_us(3 * HOUR - 2)
    assert overstep(store, clock, times=3)[-1] == 3 * HOUR, "remembered to the last microsecond"
    clock.advance_us(3 * HOUR + 3 * HOUR)
    assert overstep(store, clock, times=3)[-1] == HOUR


def test_strikes_are_counted_from_the_first_one_within_the_time(store: Store, clock: ManualClock) -> None:
    assert overstep(store, clock, times=2) == [None]
    clock.advance_us(600 * SECOND - 60 * SECOND)
    store.run(Plan(checks(check())))  # passes: the minute is over
    clock.advance_us(60 * SECOND)  # ten minutes after the first strike
    assert overstep(store, clock, times=3) == [None, HOUR]


def test_while_banned_nothing_is_counted(store: Store, clock: ManualClock) -> None:
    overstep(store, clock, times=3)
    for _ in range(10):
        clock.advance(1)
        store.run(Plan(checks(check())))
    assert store.run(Plan(checks(check())))[1].retry_after == HOUR - 10 * SECOND


def test_a_banned_identity_is_refused_by_every_rule_that_names_the_ban_and_by_no_other(
    store: Store, clock: ManualClock
) -> None:
    overstep(store, clock, times=3)
    for one, allowed in [
        (check("100/day", scope="elsewhere"), False),
        (check("100/day", "b", scope="elsewhere"), True),
        (check("100/day", scope="free", ban=None), True),
    ]:
        assert all(outcome.allowed for outcome in store.run(Plan(checks(one)))) is allowed
    (rule, _) = store.run(Plan(checks(check("100/day", scope="elsewhere"))))
    assert rule[:3] == (True, 100, 100), "refused, so nothing was taken"


def test_an_allowed_plan_leaves_no_ban_state(clock: ManualClock) -> None:
    memory = MemoryStore(clock=clock)
    memory.run(Plan(checks(check())))
    assert len(memory) == 1
    with fakeredis.FakeRedis(socket_timeout=10) as given:
        RedisStore(given, clock=clock).run(Plan(checks(check())))
        assert given.keys("*:ban") == []


# The memory store is bounded.


def test_a_flood_of_new_identities_evicts_no_banned_one(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=100, clock=clock)
    overstep(store, clock, times=3)
    clock.advance(120)  # the rule alone would let it pass
    for number in range(2000):
        clock.advance_us(1)
        store.run(Plan(checks(check(identity=str(number)))))
        assert len(store) <= 100
    assert not store.run(Plan(checks(check())))[1].allowed


def test_a_refused_identity_keeps_its_strikes(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=100, clock=clock)
    assert overstep(store, clock, times=2) == [None]
    for number in range(1000):
        store.run(Plan(checks(check(identity=str(number)))))
    assert store.run(Plan(checks(check())))[1].retry_after == HOUR


def test_in_a_full_store_no_identity_is_banned_for_the_refusals_of_others(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=10, clock=clock)
    for number in range(5):
        overstep(store, clock, times=3, identity=str(number))
    assert len(store) == 10
    for number in range(50):
        results = store.run(Plan(checks(check(identity=f"newcomer {number}"))))
        assert results[1].allowed, "banned for what others did"
    assert len(store) == 10
    limiter = Limiter(store)
    limiter.ban("by hand", BANNED)
    assert digest(identity_text("by hand")) in limiter.bans(BANNED)


# Commands.


@pytest.fixture(params=MODES)
def limiters(request: pytest.FixtureRequest) -> Any:
    return MODES[request.param]


def test_a_refusal_is_counted_in_the_round_trip_that_refuses(server: Server, limiters: Any) -> None:
    plan = Plan(checks(check(identity=uuid4().hex)))
    with limiters(url(server)) as limiter:
        limiter.run(plan)
        limiter.run(plan)
        with monitored(server) as seen:
            decisions = [limiter.run(plan) for _ in range(2)]
    assert sent_by_clients(seen) == ["EVALSHA"] * 2
    assert [decision.banned for decision in decisions] == [False, True]


def test_every_key_of_a_ban_expires_and_not_before_its_state(server: Server, clock: ManualClock) -> None:
    identity = uuid4().hex
    key = f"sg:{{{digest(identity)}}}:{BANNED.terms.rule_id}"
    with closing(RedisStore.from_url(url(server), deadline=PATIENCE)) as store, client(server) as connection:
        for _ in range(4):
            results = store.run(Plan(checks(check(identity=identity))))[1]
            left = connection.pttl(key) * 1000 if connection.exists(key) else 0
            assert results.reset_after - 5 * SECOND <= left <= results.reset_after + 5000
        assert left > HOUR


def test_a_plan_without_bans_is_sent_without_them() -> None:
    alone, several = script("run", frozenset({"gcra"})), script("run", frozenset({"gcra", "fixed-window"}))
    assert "strike_bans()" not in alone.replace("--@BANNED allowed = strike_bans()", "")
    assert "strikes" not in several


def test_no_rule_can_choose_the_ban_algorithm() -> None:
    with pytest.raises(AlgorithmError):
        find(BAN)


# By hand.


@pytest.fixture(params=["memory", *MAKERS, "cluster", "sentinels"])
def where(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else str(request.getfixturevalue(request.param).url)


def results(ban: Ban) -> Ban:
    """The same ban under a new name."""
    return Ban(
        after=ban.after, within=ban.within, duration=ban.duration, factor=2, longest=ban.longest, name=uuid4().hex
    )


def test_ban_unban_and_bans(where: str) -> None:
    ban, identities = results(BANNED), [f"{number}:{uuid4().hex}" for number in range(150)]
    with Limiter(where, deadline=PATIENCE) as limiter:
        for identity in identities:
            limiter.ban(identity, ban)
        found = limiter.bans(ban)
        assert set(found) == {digest(identity_text(identity)) for identity in identities}
        assert all(3000 < left <= 3600 for left in found.values())
        limiter.ban(identities[0], ban, "10 seconds")
        assert limiter.bans(ban)[digest(identity_text(identities[0]))] <= 10
        plan = Plan(checks(check(identity=identity_text(identities[1]), ban=ban)))
        assert limiter.run(plan).banned
        for identity in identities:
            limiter.unban(identity, ban)
        assert limiter.run(plan).allowed
        assert limiter.bans(ban) == {}


def test_ban_unban_and_bans_awaited(where: str) -> None:
    ban = Ban(after=1, within=60, duration=60, name=uuid4().hex)  # cost 1, so that the plan can be in a batch
    identities = [f"{number}:{uuid4().hex}" for number in range(40)]

    async def main() -> None:
        async with AsyncLimiter(where, deadline=PATIENCE) as limiter:
            await asyncio.gather(*[limiter.ban(identity, ban) for identity in identities])
            found = await limiter.bans(ban)
            assert set(found) == {digest(identity_text(identity)) for identity in identities}
            assert all(40 < left <= 60 for left in found.values())
            plan = Plan(checks(check(identity=identity_text(identities[1]), ban=ban)))
            assert (await limiter.run(plan)).banned
            await asyncio.gather(*[limiter.unban(identity, ban) for identity in identities])
            assert (await limiter.run(plan)).allowed
            assert await limiter.bans(ban) == {}

    asyncio.run(main())


def test_a_ban_by_hand_makes_the_next_one_longer(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    limiter = Limiter(store)
    limiter.ban("b", BANNED, "5 minutes")
    limiter.ban("b", BANNED, "1 minute")  # the last call holds, also if it shortens a ban
    assert limiter.bans(BANNED) == {digest(identity_text("b")): 60}
    clock.advance(60)
    limiter.ban("b", BANNED)
    assert limiter.bans(BANNED) == {digest(identity_text("b")): 3 * 3600}


def test_bans_ignores_the_keys_of_others(server: Server) -> None:
    """A prefix and a name with pattern characters match only their own keys."""
    ban = Ban(after=1, within=60, duration=60, name="b?n*")
    with client(server) as given:
        for prefix in ("a*b", "axb", "a[x]b"):
            Limiter(RedisStore(given, prefix=prefix)).ban(prefix, ban)
        limiter = Limiter(RedisStore(given, prefix="a*b"))
        assert set(limiter.bans(ban)) == {digest(identity_text("a*b"))}
        limiter.unban("a*b", ban)


def test_a_client_of_a_cluster_cannot_list(each_cluster: Cluster) -> None:
    options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": PATIENCE}
    with redis.RedisCluster(host="127.0.0.1", port=each_cluster.masters[0].port, **options) as given:
        limiter = Limiter(RedisStore(given))
        limiter.ban("a", BANNED)
        limiter.unban("a", BANNED)
        with pytest.raises(ConfigurationError, match=r"redis\+cluster"):
            limiter.bans(BANNED)


def test_a_store_that_cannot_list_says_so(clock: ManualClock) -> None:
    with pytest.raises(ConfigurationError, match="cannot list bans"):
        Limiter(Breakable(clock)).bans(BANNED)


# Through the wrappers.


def stacked(mode: Mode, inside: Any, **options: Any) -> Called:
    wrappers = StoreOptions(clock=inside.clock, **options)
    if mode.is_async:
        return mode.called(wrappers.wrap_async(AsyncAdapter(inside), owned=False))
    return mode.called(wrappers.wrap(inside, owned=False))


def test_refusals_that_are_strikes_reach_the_store_and_a_ban_is_remembered(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = mode.around(inside, CACHES, refusals=Refusals(staleness=1, clock=clock))
    both = checks(check())
    for number in range(4):  # one passes, and three are strikes
        store.run(*both)
        assert inside.calls == number + 1
    for _ in range(20):  # soon: the cache measures the staleness with the real clock too
        (_, ban) = store.run(*both)
        assert (ban.allowed, ban.retry_after) == (False, HOUR)
    assert inside.calls == 4
    clock.advance(0.25)
    assert store.run(*both)[1].retry_after == HOUR - SECOND // 4
    assert inside.calls == 4
    clock.advance(1)
    store.run(*both)
    assert inside.calls == 5


def test_unban_drops_the_remembered_refusals(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = mode.around(inside, CACHES, refusals=Refusals(staleness=100, clock=clock))
    for _ in range(5):
        store.run(*checks(check()))
    clock.advance(90)
    assert not store.run(*checks(check()))[1].allowed
    store.forget(BANNED.terms.rule_id, "a")
    assert [outcome.allowed for outcome in store.run(*checks(check()))] == [True, True]


def test_while_the_store_is_down_bans_hold_and_begin_here(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = stacked(mode, inside, deny_cache=0)
    for identity, times in (("banned", 4), ("struck", 3)):
        for _ in range(times):
            store.run(*checks(check(identity=identity)))
    inside.down = True
    clock.advance(61)  # the rule itself would let both pass
    rule, ban = store.run(*checks(check(identity="banned")))
    assert (rule.source, ban.source, ban.allowed) == ("local", "local", False)
    assert ban.retry_after == HOUR - (inside.clock.now_us() - 1_760_000_000 * SECOND)  # type: ignore[union-attr]
    results = [store.run(*checks(check(identity="struck"))) for _ in range(2)]
    assert [(rule.allowed, ban.allowed) for rule, ban in results] == [(True, True), (False, False)]
    results = [store.run(*checks(check(identity="new"))) for _ in range(4)]
    assert [ban.allowed for _, ban in results] == [True, True, True, False]


@pytest.mark.parametrize(("policy", "passes"), [("allow", True), ("deny", False)])
def test_a_ban_follows_the_policy_of_its_rules(mode: Mode, clock: ManualClock, policy: str, passes: bool) -> None:
    inside = Breakable(clock)
    inside.down = True
    store = stacked(mode, inside, on_store_failure="deny" if passes else "allow")
    for _ in range(9):
        rule, ban = store.run(*checks(check(on_store_failure=policy)))
        assert (rule.allowed, ban.allowed, ban.source) == (passes, True, "policy")


def test_a_ban_by_hand_that_only_this_process_would_know_is_an_error(clock: ManualClock) -> None:
    inside = Breakable(clock)
    inside.down = True
    for policy in ("local", "allow", "deny"):
        with pytest.raises(StoreError):
            Limiter(inside, on_store_failure=policy).ban("a", BANNED)


def test_a_store_that_cannot_count_refusals_can_have_no_ban() -> None:
    with pytest.raises(RuleError, match=r"ban|refusals"):
        RedisCellStore("redis+cell://localhost").accept(check(algorithm="gcra").terms)


# On a cluster.


def test_a_ban_and_its_rules_are_one_script(each_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[bytes] = []
    store = RedisStore.from_url(each_cluster.url, deadline=PATIENCE)
    with closing(store):
        identity = uuid4().hex
        plan = Plan(checks(check(identity=identity), check("9/day", identity, scope="b")))
        store.run(plan)  # loads the script and the map of the cluster
        send = store._connections.send

        def noted(one: Any, until: float) -> Any:
            frames.append(one.command.frame)
            return send(one, until)

        monkeypatch.setattr(store._connections, "send", noted)
        results = [store.run(plan) for _ in range(3)]
    assert len(frames) == 3
    assert [each[2].allowed for each in results] == [True, True, False]


def test_each_identity_is_struck_by_its_own_refusals(each_cluster: Cluster) -> None:
    with closing(RedisStore.from_url(each_cluster.url, deadline=PATIENCE)) as store:
        one, two = uuid4().hex, uuid4().hex
        plan = Plan(checks(check(identity=one), check("100/day", two, scope="b")))
        results = [store.run(plan) for _ in range(4)]
        assert [[outcome.allowed for outcome in each[2:]] for each in results] == [[True, True]] * 3 + [[False, True]]
        assert [each[1].remaining for each in results] == [99] * 4, "what was taken elsewhere has been given back"
