"""The bounds of the memory store: no scan, and no refused identity is evicted."""

from __future__ import annotations

import dis
import gc
import itertools
import sys
import threading
import tracemalloc
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from types import FrameType
from typing import Any

import pytest

from sluicegate import ConfigurationError, Limiter, ManualClock, Quota
from sluicegate.algorithms import KEPT
from sluicegate.clock import MICROSECOND
from sluicegate.errors import AsyncMismatchError, StoreURLError
from sluicegate.plan import Check, Plan, Terms
from sluicegate.stores import memory, memory_table, open_async_store, open_store
from sluicegate.stores.memory import MAX_KEYS, MemoryStore
from sluicegate.stores.memory_table import BUCKETS, KINDS, SHARED, SHARING, USERS, Entry
from sluicegate.testing.store import NAMES, terms

ALGORITHMS = pytest.mark.parametrize("algorithm", NAMES)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def hitter(
    store: MemoryStore, algorithm: str = "sliding-window", quota: str = "2/hour", *, network: str = "203.0.113.0"
) -> Callable[..., bool]:
    """Hits of any identity from one network."""
    rule = terms(algorithm, quota)
    return lambda identity, cost=1, network=network: (
        store.run(Plan((Check(rule, str(identity), cost),), network=lambda: network))[0].allowed
    )


@ALGORITHMS
def test_ten_times_as_many_identities_as_it_holds(clock: ManualClock, algorithm: str) -> None:
    store = MemoryStore(max_keys=100, clock=clock)
    hit = hitter(store, algorithm)
    assert [hit("blocked") for _ in range(3)] == [True, True, False]
    for number in range(1000):
        clock.advance_us(1)
        hit(number)
        assert len(store) <= 100
    assert not hit("blocked"), "a flood of new identities evicted a refused one"


@ALGORITHMS
def test_when_all_are_refused_new_identities_from_one_network_share_one_budget(
    clock: ManualClock, algorithm: str
) -> None:
    store = MemoryStore(max_keys=10, clock=clock)
    hit = hitter(store, algorithm)
    for number in range(10):
        assert [hit(number), hit(number), hit(number)] == [True, True, False]
    assert [hit(f"newcomer {number}") for number in range(5)] == [True, True, False, False, False]
    assert [hit(number) for number in range(10)] == [False] * 10
    assert len(store) == 10
    clock.advance(7200)
    assert hit("newcomer 9")
    assert hit(3)


def test_the_shared_budgets_are_bounded_too(clock: ManualClock) -> None:
    limiter = Limiter(MemoryStore(max_keys=1, clock=clock))
    limiter.hit("1/hour", "blocked")
    for number in range(1000):
        limiter.hit("1/hour", "newcomer", action=f"reply:{number}")
    assert len(limiter.store._table._shared) == 1  # type: ignore[attr-defined]


@ALGORITHMS
def test_a_user_of_the_shared_budget_keeps_it(clock: ManualClock, algorithm: str) -> None:
    """An own entry later would be a second budget for an identity that was charged in the first."""
    store = MemoryStore(max_keys=10, clock=clock)
    hit = hitter(store, algorithm, "4/hour")
    long = hitter(store, algorithm, "1/day")
    for number in range(10):
        assert [long(number), long(number)] == [True, False]
    assert [hit("user"), hit("user"), hit("other")] == [True, True, True]
    for number in range(10):
        store.forget(terms(algorithm, "1/day").rule_id, f"{number}")  # now the table has room
    assert hit("new", 4), "an identity that was not charged there has its own budget"
    assert [hit("user"), hit("user"), hit("other")] == [True, False, False]
    clock.advance(7200)
    assert hit("user", 4)


@pytest.mark.slow
def test_users_of_shared_budgets_are_bounded(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=1, clock=clock)
    hit = hitter(store, "fixed-window", "1000000/hour")
    hitter(store, "fixed-window", "1/day")("blocked")
    for number in range(USERS + 100):
        assert hit(number)
    [shared] = store._table._shared.values()
    assert len(shared.users) == len(store._table._budget_of) == USERS
    for number in range(2 * SHARING):
        hit(number, network=f"10.{number >> 8}.{number & 255}.0")
    assert len(store._table._budget_of) == SHARING
    assert store._table._budget_of == {key: host for host in store._table._shared.values() for key in host.users}
    clock.advance(7200)
    store.forget(terms("fixed-window", "1/day").rule_id, "blocked")
    clock.advance(86_400)
    for number in range(BUCKETS):
        hit(number)  # there is room for one at a time
    assert not store._table._budget_of


@pytest.mark.slow
def test_one_network_uses_up_one_shared_budget(clock: ManualClock) -> None:
    """It invents 10,000 identities. New ones from 200 other networks share its budget with a chance of 1 in 1,024.

    That would be 0.2 of them; more than 6 in one of twenty million runs.
    """
    store = MemoryStore(max_keys=100, clock=clock)
    full, hit = hitter(store, quota="1/day"), hitter(store, quota="10/minute")
    for number in range(100):
        assert [full(number), full(number)] == [True, False]
    assert sum([hit(f"invented {number}") for number in range(10_000)]) == 10
    affected = sum([not hit(f"newcomer {number}", network=f"198.51.{number}.0") for number in range(200)])
    assert affected <= 6
    assert not any([full(number) for number in range(100)]), "a refused identity was evicted"
    assert not hit("invented 0")
    clock.advance(60)
    assert hit("invented 0")


@pytest.mark.slow
def test_without_a_network_identities_are_spread_over_the_shared_budgets(clock: ManualClock) -> None:
    limiter = Limiter(MemoryStore(max_keys=1, clock=clock))
    assert [limiter.hit("1/day", "blocked").allowed for _ in range(2)] == [True, False]
    assert sum([limiter.hit("1/hour", f"newcomer {number}").allowed for number in range(100)]) >= 80
    assert sum([limiter.hit("1/hour", f"newcomer {number}").allowed for number in range(100_000)]) <= BUCKETS


def test_each_store_spreads_by_its_own_secret(clock: ManualClock) -> None:
    stores = [MemoryStore(clock=clock) for _ in range(20)]
    assert len({store._table._bucket_of("203.0.113.0") for store in stores}) > 10


def test_the_network_is_read_only_when_the_table_is_full(clock: ManualClock) -> None:
    store, rule, looked_up = MemoryStore(max_keys=1, clock=clock), terms("gcra", "1/hour"), list[str]()

    def network(name: str) -> Callable[[], str]:
        return lambda: looked_up.append(name) or name  # type: ignore[func-returns-value]

    for identity in ("known", "known", "newcomer"):
        store.run(Plan((Check(rule, identity, 1),), network=network(identity)))
    assert set(looked_up) == {"newcomer"}


@pytest.mark.slow
def test_any_number_of_kinds_of_rules_share_bounded_budgets(clock: ManualClock) -> None:
    """When all shared budgets are in use, each further kind has one common budget, and no identity loses its budget."""
    store = MemoryStore(max_keys=1, clock=clock)
    assert [hitter(store, quota="1/day")("blocked") for _ in range(2)] == [True, False]
    first = hitter(store, "gcra", "1/hour")
    assert [first("newcomer"), first("newcomer")] == [True, False]
    for limit in range(2, SHARED + 2 * KINDS):
        hit = hitter(store, "gcra", f"{limit}/hour")
        assert hit("new", limit)
        assert not hit("other")
    entries = store._table
    assert (len(entries._shared), len(entries._common)) == (SHARED, KINDS)
    assert not first("newcomer")
    assert not hit("one more", network="198.51.100.0"), "all networks share it"
    clock.advance(7200)
    for limit in range(2, 1000):
        assert hitter(store, "gcra", f"{limit}/second")("newcomer", limit)
        clock.advance(2)
    assert hitter(store, "gcra", "5000/second")("somebody", 5000, "198.51.100.0")
    assert hitter(store, "gcra", "5000/second")("newcomer", 5000) or store._table._bucket_of("198.51.100.0") == (
        store._table._bucket_of("203.0.113.0")
    ), "networks have separate budgets again"
    assert len(entries._shared) < SHARED - 900


def test_the_identities_of_one_plan_are_charged_in_their_shared_budgets(clock: ManualClock) -> None:
    """Of two rules of one plan, the shared budget of the second evicts that of the first, which is not charged yet."""
    store = MemoryStore(max_keys=1, clock=clock)
    assert [hitter(store, quota="1/day")("blocked") for _ in range(2)] == [True, False]
    rules = [terms("gcra", f"{limit}/hour", scope=f"{limit}") for limit in range(1, 9)]
    plan = Plan(tuple(Check(rule, "newcomer", 1) for rule in rules), network=lambda: "203.0.113.0")
    assert all([outcome.allowed for outcome in store.run(plan)])
    results = store.run(plan._replace(charge=False))
    assert [outcome.allowed for outcome in results] == [False] + [True] * 7
    assert [outcome.remaining for outcome in results] == list(range(8))


@pytest.mark.slow
@ALGORITHMS
def test_a_flood_does_not_evict_an_identity_that_has_used_more(clock: ManualClock, algorithm: str) -> None:
    """Without this an attacker makes four guesses of five, floods the table with invented keys, and guesses again."""
    store = MemoryStore(max_keys=100, clock=clock)
    login, api = hitter(store, algorithm, "5/hour"), hitter(store, algorithm, "1000/day")
    assert [login("victim") for _ in range(4)] == [True] * 4
    for number in range(10_000):
        api(number)
    assert [login("victim"), login("victim")] == [True, False]


@ALGORITHMS
def test_a_peek_evicts_no_entry(clock: ManualClock, algorithm: str) -> None:
    store = MemoryStore(max_keys=10, clock=clock)
    rule = terms(algorithm, "2/hour")
    hit = hitter(store, algorithm)
    for number in range(10):
        hit(number)
    before = list(store._table._queue)
    for number in range(1000):
        look = Plan((Check(rule, f"other {number}", 1),), charge=False)
        assert store.run(look)[0].remaining == 2
        hit(f"other {number}", 0)
        hit(f"other {number}", 3)
    assert list(store._table._queue) == before


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """Turn the garbage collector off: there are no cycles, and it takes half the time with so many tuples."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("_no_collector")
def test_three_times_as_many_identities_as_keys(
    clock: ManualClock, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that an attacker invents, under three rules in turn: bounded, fast, and refused identities stay refused."""
    count, step = 3 * MAX_KEYS, MAX_KEYS // 2
    store = MemoryStore(clock=clock)
    rules = [terms("sliding-window", quota, scope=quota) for quota in ("10/minute", "1000/day", "5/hour")]
    refused = [hitter(store, quota=quota) for quota in ("2/hour", "1/day")]
    assert [[hit("refused") for _ in range(3)] for hit in refused] == [[True, True, False], [True, False, False]]
    looks: list[int] = []
    inspected, inspect = itertools.count(), Entry.inspect
    monkeypatch.setattr(Entry, "inspect", lambda entry, now: (next(inspected), inspect(entry, now))[1])
    begun = perf_counter()
    for start in range(0, count, step):
        before = next(inspected)
        for number in range(start, start + step):
            store.run(Plan((Check(rules[number % 3], f"s{number}", 1),)))
        if start in (3 * step, count - step):  # when the table has just become full, and at the end
            looks.append(next(inspected) - before)
        clock.advance(0.5)
        assert len(store) == min(start + step + 2, MAX_KEYS)
        assert not any(hit("refused") for hit in refused)
    with capsys.disabled():
        print(f"\nmemory: {count:,} identities, {(perf_counter() - begun) / count * 1e6:.1f} µs each")
    first, last = [each / step for each in looks]
    assert first == pytest.approx(last, rel=0.01)
    assert last <= 16


@ALGORITHMS
def test_expired_entries_are_removed(clock: ManualClock, algorithm: str) -> None:
    store = MemoryStore(clock=clock)
    hit = hitter(store, algorithm, "2/second")
    for number in range(1000):
        hit(number)
    assert len(store) == 1000
    clock.advance(3)
    for number in range(1000, 1500):
        hit(number)
    assert len(store) == 500


def test_no_check_of_a_plan_evicts_the_entry_of_another(clock: ManualClock) -> None:
    """Regression: an entry that another check of the plan evicted was charged and then lost."""
    rules = [terms("fixed-window", "1/second", scope=scope) for scope in "abcd"]
    for limit in (3, 4, 100):
        store = MemoryStore(max_keys=limit, clock=clock)
        store.run(Plan((Check(rules[3], "x", 1),)))
        clock.advance(1)  # the entry of d has expired and is removed while a, b and c are admitted
        plan = Plan(tuple(Check(rule, "x", 1) for rule in rules))
        assert [outcome.allowed for outcome in store.run(plan)] == [True] * 4
        if limit >= 4:
            assert [outcome.allowed for outcome in store.run(plan)] == [False] * 4


def test_a_budget_named_twice_is_charged_twice(clock: ManualClock) -> None:
    """A plan should not do this. Regression: it was a KeyError some requests later."""
    store = MemoryStore(max_keys=3, clock=clock)
    once = terms("fixed-window", "5/second")
    for number in range(20):
        clock.advance(0.4)
        plan = Plan((Check(once, f"{number % 6}", 1), Check(once, f"{number % 6}", 1)))
        store.run(plan)
        assert store.run(plan._replace(charge=False))[0].remaining == 3
    assert len(store) <= 3


def test_any_number_of_rules() -> None:
    """As many as a function that calls itself for each rule could not decide."""
    with Limiter() as limiter:
        left = [limiter.hit([Quota(9, period) for period in range(60, 1260)], "alice").remaining for _ in range(3)]
    assert left == [8, 7, 6]


def test_rules_without_identities_are_forgotten_and_a_compiled_run_finds_the_next_entry(clock: ManualClock) -> None:
    """Rules that are made for each request must not fill the memory."""
    store = MemoryStore(clock=clock)
    rule, other = terms("gcra", "3/second"), hitter(store)
    run, charge = store.compile((rule,), "charge"), hitter(store, "gcra", "3/second")
    for number in range(1000):
        clock.advance(7200)
        assert charge("alice")
        assert run((Check(rule, "alice", 1),), None)[0].remaining == 1
        assert hitter(store, quota=f"1/{number + 1} seconds")("alice")
        clock.advance(7200)
        assert [other(each) for each in range(4)] == [True] * 4
        assert len(store._table.by_rule) == 1, "only the last rule has identities"
    store.close()
    assert [run((Check(rule, f"{each}", 1),), None)[0].remaining for each in range(4)] == [2] * 4


def test_forget_and_a_new_hit_leave_one_key_in_the_queue(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    hit, rule = hitter(store), terms("sliding-window", "2/hour")
    for _ in range(100):
        assert [hit("a"), hit("a"), hit("a")] == [True, True, False]
        store.forget(rule.rule_id, "a")
        store.forget(rule.rule_id, "nobody")
    assert len(store._table._queue) == len(store) == 1


@ALGORITHMS
def test_a_full_refund_leaves_an_expired_entry(clock: ManualClock, algorithm: str) -> None:
    store = MemoryStore(max_keys=2, clock=clock)
    plan = Plan((Check(terms(algorithm, "1/hour"), "a", 1),))
    results = store.run(plan)
    store.refund(plan, results)
    assert store._table._queue[0].state is None
    store.refund(plan, results)
    for number in range(2):
        assert store.run(Plan((Check(plan.checks[0].terms, f"{number}", 1),)))[0].allowed
    store.refund(plan, results)  # of an evicted budget
    assert len(store) == 2


def test_peeks_and_refusals_take_no_key(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    for number in range(100):
        limiter.peek("1/hour", number)
        limiter.hit("1/hour", number, cost=0)
        limiter.hit("1/hour", number, cost=2)
    assert len(limiter.store) == 0  # type: ignore[arg-type]


def test_close_drops_all_budgets(clock: ManualClock) -> None:
    with Limiter(clock=clock) as limiter:
        assert limiter.hit("1/hour", "a")
        assert not limiter.hit("1/hour", "a")
    assert limiter.hit("1/hour", "a")


def test_no_thread_and_no_timer() -> None:
    before = threading.active_count()
    limiter = Limiter("memory://?max_keys=10")
    for number in range(100):
        limiter.hit("1/minute", number)
    assert threading.active_count() == before


@pytest.mark.slow
@ALGORITHMS
@pytest.mark.parametrize("seconds", [1, 30], ids=["new", "inspected"])  # since 6 s: what is left is noted beside it
def test_bytes_per_key(algorithm: str, seconds: int, clock: ManualClock, capsys: Any) -> None:
    count = 20_000
    hit = hitter(MemoryStore(max_keys=count, clock=clock), algorithm, "10/minute")
    step = seconds * MICROSECOND // count
    gc.collect()
    tracemalloc.start()
    for number in range(count):
        hit(f"s10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}")
        clock.advance_us(step)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    with capsys.disabled():
        print(f"\nmemory: {algorithm}, 10/minute, one hit: {size:.0f} bytes a key")
    assert size <= 420


@pytest.mark.parametrize("url", ["memory://", "memory:///", "MEMORY://", "memory://?max_keys=3"])
def test_urls(url: str) -> None:
    store = open_store(url, prefix="x")
    assert isinstance(store, MemoryStore)
    assert repr(store) == f"MemoryStore(max_keys={3 if '3' in url else 100_000})"
    assert repr(open_async_store(url, prefix="x")) == f"AsyncMemoryStore(max_keys={3 if '3' in url else 100_000})"


@pytest.mark.parametrize(
    "url",
    ["memory://localhost", "memory://x/y", "memory://?max_keys=0", "memory://?max_keys=-1", "memory://?max_keys=",
     "memory://?max_keys=١", "memory://?max_key=3", "memory://?max_keys=1.5"],
)  # fmt: skip
def test_wrong_urls(url: str) -> None:
    with pytest.raises(StoreURLError, match="SG004"):
        Limiter(url)


@pytest.mark.parametrize("max_keys", [0, -1, 1.5, True, "10", None])
def test_wrong_max_keys(max_keys: Any) -> None:
    with pytest.raises(StoreURLError, match="max_keys"):
        MemoryStore(max_keys=max_keys)


def test_a_store_object_has_its_own_clock_and_prefix_and_is_sync_or_async(clock: ManualClock) -> None:
    with pytest.raises(ConfigurationError, match="clock"):
        Limiter(MemoryStore(), clock=clock)
    with pytest.raises(ConfigurationError, match="prefix"):
        Limiter(MemoryStore(), prefix="shop")
    with pytest.raises(AsyncMismatchError, match="SG009"):
        Limiter(open_async_store("memory://", prefix="x"))  # type: ignore[arg-type]


class Collecting(ManualClock):
    """A clock that runs the garbage collector, as any allocation may. The store reads it under its lock."""

    def now_us(self) -> int:
        gc.collect()
        return super().now_us()


@pytest.mark.slow
def test_a_generator_that_is_collected_under_the_lock_releases_its_slot() -> None:
    with Limiter(MemoryStore(clock=Collecting())) as limiter:

        def body() -> Iterator[bytes]:
            with limiter.hold("1 at once", "alice"):
                yield b"part"

        chunks = body()
        next(chunks)
        cycle: list[object] = [chunks]
        cycle.append(cycle)
        del chunks, cycle  # only the garbage collector finds it
        assert limiter.hit("5/minute", "bob")
        with limiter.hold("1 at once", "alice") as slot:
            assert slot


def test_a_signal_handler_may_decide_while_an_entry_is_evicted(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(max_keys=10, clock=clock)
    hit = hitter(store)
    for number in range(10):
        assert hit(f"old {number}")
    inspect, handled = Entry.inspect, [f"nested {number}" for number in range(12)]

    def interrupted(self: Entry, now: int) -> None:
        if handled:
            assert hit(handled.pop())
        inspect(self, now)

    monkeypatch.setattr(Entry, "inspect", interrupted)
    for number in range(30):
        assert hit(f"new {number}")
    assert not handled
    assert len(store) == 10


@pytest.mark.parametrize("change", ["hit", "forget", "close"])
def test_a_signal_handler_may_change_an_entry_that_is_charged(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The entry that is charged had expired. The handler's new key removes it, or the handler drops its budget."""
    store = MemoryStore(clock=clock)
    hit, rule = hitter(store, quota="1/hour"), terms("sliding-window", "1/hour")
    assert hit("alice")
    assert hit("carol")
    clock.advance(3600)
    module: Any = KEPT["sliding-window"]
    decide, handled = module.decide, [1]

    def interrupted(*arguments: Any, **more: Any) -> Any:
        made = decide(*arguments, **more)
        if handled:
            handled.pop()
            if change == "hit":
                assert hit("bob")
            elif change == "forget":
                store.forget(rule.rule_id, "alice")
            else:
                store.close()
        return made

    monkeypatch.setattr(module, "decide", interrupted)
    hit = hitter(store, quota="1/hour")
    assert [hit("alice"), hit("alice"), hit("bob")] == [True, False, change != "hit"]
    assert not hit("bob")


@ALGORITHMS
@pytest.mark.parametrize("quota", ["1/hour", "2/hour"])
def test_a_signal_handler_that_decides_between_a_check_and_its_charge_admits_nobody_more(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, algorithm: str, quota: str
) -> None:
    module: Any = KEPT[algorithm]
    decide, handled = module.decide, list[str]()

    def interrupted(*arguments: Any, **more: Any) -> Any:
        made = decide(*arguments, **more)
        if handled:
            hits.append(hit(handled.pop()))
        return made

    monkeypatch.setattr(module, "decide", interrupted)
    hits, hit = list[bool](), hitter(MemoryStore(clock=clock), algorithm, quota)
    for _ in range(3):
        handled.append("alice")
        hits.append(hit("alice"))
    assert sum(hits) == int(quota[0])


def test_a_signal_handler_may_empty_the_table_of_a_rule_before_a_new_entry_is_in_it(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(clock=clock)
    hit, other = hitter(store, quota="1/hour"), hitter(store, quota="1/day")
    assert hit("alice")
    clock.advance(3500)
    made, handled = Entry.__init__, ["bob"]

    def interrupted(self: Entry, *given: Any) -> None:
        made(self, *given)
        if handled:
            clock.advance(200)
            assert other(handled.pop())  # removes the only entry of the rule

    monkeypatch.setattr(Entry, "__init__", interrupted)
    assert [hit("carol"), hit("carol")] == [True, False]
    clock.advance(86_400)
    assert other("dave")
    assert other("erin")
    assert len(store) == 2


class Interruption(BaseException):
    """What a signal handler may raise."""


@contextmanager
def interrupted(
    at: int, handler: Callable[[], object], files: tuple[str, ...] = (memory_table.__file__,)
) -> Generator[list[int]]:
    """Run a handler at one of the moments at which Python may run one, within the functions of these files. Returns a
    `with` block; it gets the list of the moments until then. They are after a call and at the begin of a function or
    of a round of a loop.
    """
    moments: list[int] = []
    before: dict[FrameType, str] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            name = before.get(frame, "")
            before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if name == "RESUME" or name.startswith("CALL") or "JUMP_BACKWARD" in name:
                moments.append(frame.f_lineno)
                if len(moments) == at:
                    handler()
        return trace

    outside = sys.gettrace()
    sys.settrace(trace)
    try:
        yield moments
    finally:
        sys.settrace(outside)


@pytest.mark.slow
@pytest.mark.parametrize("raises", [False, True], ids=["decides", "raises"])
def test_a_signal_handler_may_do_anything_at_any_moment(monkeypatch: pytest.MonkeyPatch, *, raises: bool) -> None:
    for name, bound in {"SHARED": 1, "KINDS": 1, "USERS": 2, "SHARING": 3}.items():
        monkeypatch.setattr(memory_table, name, bound)
    kinds = [terms("sliding-window", quota) for quota in ("1/minute", "2/minute", "3/minute")]

    def story(at: int) -> int:
        clock = ManualClock()
        store = MemoryStore(max_keys=2, clock=clock)

        def hit(number: int, identity: str) -> bool:
            check = Check(kinds[number % 3], identity, 1)
            return store.run(Plan((check,), network=lambda: identity))[0].allowed

        def handle() -> None:
            if raises:
                raise Interruption
            clock.advance(61)
            for number in range(6):
                hit(number, f"the handler's {number % 4}")

        with interrupted(at, handle) as moments:
            for number in range(24):
                with suppress(Interruption):
                    hit(number, f"client {number % 7}")
                clock.advance((1, 1, 1, 1, 30, 61)[number % 6])
        table = store._table
        assert sum(map(len, table.by_rule.values())) == len(store) <= 2 + 6  # a handler adds its own keys
        assert all(key in budget.users for key, budget in table._budget_of.items())
        clock.advance(3600)
        for number in range(30):
            assert hit(number, f"later {number}")
            clock.advance(61)
        assert sum(map(len, table.by_rule.values())) == len(store) <= 2
        assert len(table._shared) <= 1
        return len(moments)

    moments = story(0)
    assert moments > 200
    for at in range(1, moments + 1):
        story(at)


SHADOW = terms("sliding-window", "1/minute", scope="shadow")._replace(shadow=True, group="shadow")
COUNTED = terms("sliding-window", "3/minute", scope="counted")._replace(count_denied=True)
FOUR, MANY = terms("sliding-window", "4/minute", scope="four"), terms("sliding-window", "1000/minute", scope="many")


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True], ids=["room", "full"])
@pytest.mark.parametrize(
    "rules",
    [(FOUR, MANY), (SHADOW, FOUR, MANY), (FOUR, MANY, MANY), (FOUR, COUNTED)],
    ids=["usual", "shadow", "named twice", "counted"],
)
def test_a_signal_handler_that_decides_at_any_moment_does_not_exceed_the_limit(
    rules: tuple[Terms, ...], *, full: bool
) -> None:
    limit = 3 if COUNTED in rules else 4
    plan = Plan(tuple(Check(rule, "alice", 1) for rule in rules), network=lambda: "203.0.113.0")

    def story(at: int) -> int:
        store = MemoryStore(max_keys=2 if full else 100, clock=ManualClock())
        for number in range(2 if full else 0):
            assert hitter(store, quota="1/hour")(f"blocked {number}")
        allowed: list[bool] = []

        def decide() -> None:
            allowed.append(all([outcome.allowed for outcome in store.run(plan)]))

        with interrupted(at, decide, (memory.__file__, memory_table.__file__)) as moments:
            for _ in range(6):
                decide()
        assert sum(allowed) == limit, (at, moments[at - 1])
        return len(moments)

    for at in range(1, story(0) + 1):
        story(at)


@pytest.mark.parametrize("first", ["a higher limit", "in shadow"])
def test_a_flood_does_not_evict_who_has_used_up_the_lower_of_two_limits(clock: ManualClock, first: str) -> None:
    """A tier or a rollout that changes: the terms of the last charge count, whatever those of the others were."""
    store, rule = MemoryStore(max_keys=50, clock=clock), terms("sliding-window", "5/hour")
    former = (
        terms("sliding-window", "1000/hour") if first == "a higher limit" else rule._replace(shadow=True, group="g")
    )
    assert former.rule_id == rule.rule_id
    hit = hitter(store, quota="5/hour")
    for order in ((former, rule), (rule, former)):
        identity = f"victim of {order[0].limit}{order[0].shadow}"
        costs = (1, 4) if order[0] is former else (5, 1)
        for each, cost in zip(order, costs, strict=True):
            store.run(Plan((Check(each, identity, cost),)))
        for number in range(300):
            hit(f"{identity} {number}")
        assert not hit(identity)


@ALGORITHMS
def test_a_hit_of_cost_0_writes_nothing(algorithm: str) -> None:
    """Regression: at a time long before, the state counted as empty, and the hit wrote that."""
    clock = ManualClock()
    present = [clock.now_us()]
    clock.now_us = lambda: present[0]  # type: ignore[method-assign]
    hit = hitter(MemoryStore(clock=clock), algorithm, "2/minute")
    assert hit("alice", 2)
    present[0] -= 200_000_000
    assert hit("alice", 0)
    present[0] += 200_000_000
    assert not hit("alice")


def test_keys_that_are_renewed_together_are_all_kept(clock: ManualClock) -> None:
    """They were dropped before. Each new one looks at others that have not been charged yet."""
    store = MemoryStore(clock=clock)
    rules = [terms("fixed-window", "2/minute", scope=scope) for scope in "abcd"]
    plan = Plan(tuple(Check(rule, "alice", 1) for rule in rules))
    outcomes = store.run(plan)
    store._table.clear()
    store.renew(plan, outcomes)
    assert [outcome.remaining for outcome in store.run(plan._replace(charge=False))] == [1] * 4


def test_a_new_identity_that_is_refused_takes_no_look_at_all_others(clock: ManualClock) -> None:
    class Bounded(deque[Entry]):
        def remove(self, entry: Entry) -> None:
            assert entry in itertools.islice(self, 10)
            super().remove(entry)

    store = MemoryStore(clock=clock)
    store._table._queue = Bounded()
    hit, others = hitter(store), [terms("gcra", "1/hour", scope=scope) for scope in "abc"]
    for number in range(100):
        hit(number)
    assert hit("blocked", 2)
    for number in range(10):
        checks = [Check(terms("sliding-window", "2/hour"), "blocked", 1)]
        checks += [Check(rule, f"new {number}", 1) for rule in others]
        assert not store.run(Plan(tuple(checks)))[0].allowed
        assert not hit(f"never {number}", 3)
    assert len(store) == 101


def test_a_table_in_which_a_signal_handler_adds_keys_is_soon_as_small_as_before(clock: ManualClock) -> None:
    """The handler takes the room that was made for another key. The next new key makes it again."""

    def story(at: int) -> int:
        store = MemoryStore(max_keys=10, clock=clock)
        hit = hitter(store)
        for number in range(10):
            hit(number)
        with interrupted(at, lambda: [hit(f"the handler's {number}") for number in range(20)]) as moments:
            hit("new")
        hit("the next")
        assert len(store) == 10
        return len(moments)

    for at in range(1, story(0) + 1):
        story(at)
