"""The 38 known errors of rate limiters (collected from the field, with sources), each under its number.

Every test here is named `test_<number>_<what went wrong elsewhere>` and runs in memory, on Valkey 9 and on Redis 6.2.
ELSEWHERE lists those that do not concern the engine; a test at the end counts to 38.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any, Final, get_args

import pytest
from redis.crc import key_slot

from sluicegate import AsyncLimiter, Limiter, ManualClock, Quota
from sluicegate.algorithms import AlgorithmName
from sluicegate.plan import Check, Plan
from sluicegate.testing.store import NAMES, terms
from tests.servers import MAKERS, Server, valkey_server
from tests.stores.places import client

ELSEWHERE: Final = {
    23: "NOSCRIPT: tests/stores/test_redis.py, test_scripts_may_be_flushed_between_calls and a restart",
    24: "a retry after a timeout counts twice: tests/stores/test_redis.py, test_a_lost_reply_is_charged_once",
    26: "replica reads: with Cluster and Sentinel, in their own issue; a single server's client reads no replica",
    29: "keys without bound in memory: tests/stores/test_memory.py",
    30: "a preflight is counted: the adapters' exam",
    31: "spoofed X-Forwarded-For, IPv6 rotation: tests/test_address.py and the adapters' exam",
    32: "a stream leaks its lease: with concurrency limits, in their own issue",
    33: "a refund in the wrong window: with reserve and settle, in their own issue",
    35: "a shadow rule influences enforcement: with dry runs, in their own issue",
    37: "a negative number in a header: tests/test_http.py; here 27",
    38: "a store's failure reported as 429: tests/test_gate.py and the adapters' exam",
}
ALGORITHMS = pytest.mark.parametrize("algorithm", NAMES)


@pytest.fixture
def clock() -> ManualClock:
    """Starts at a moment of 16 digits in microseconds, as clocks do since 2001."""
    return ManualClock(1_760_000_000.123457)


@pytest.fixture(params=["memory", *MAKERS])
def limiter(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Limiter]:
    where = "memory://"
    if request.param != "memory":
        server = request.getfixturevalue(request.param)
        server.flush()
        where = server.url
    with Limiter(where, clock=clock, deadline=10) as made:
        yield made


@pytest.fixture
def connection(server: Server) -> Iterator[Any]:
    server.flush()
    with client(server, decode_responses=True) as plain:
        yield plain


@ALGORITHMS
def test_01_refusals_are_charged(limiter: Limiter, clock: ManualClock, algorithm: Any) -> None:
    limiter.hit("2/minute", "a", cost=2, algorithm=algorithm)
    wait = limiter.peek("2/minute", "a", algorithm=algorithm).retry_after
    assert wait
    for _ in range(9):
        clock.advance(wait / 10)
        assert not limiter.hit("2/minute", "a", algorithm=algorithm)
    clock.advance(wait / 10)
    assert limiter.hit("2/minute", "a", algorithm=algorithm)


@ALGORITHMS
def test_02_duplicates_of_one_instant_are_lost(limiter: Limiter, algorithm: Any) -> None:
    assert [limiter.hit("3/minute", "a", algorithm=algorithm).remaining for _ in range(3)] == [2, 1, 0]
    assert not limiter.hit("3/minute", "a", algorithm=algorithm)


def test_03_a_hit_pushes_the_end_of_the_window_away(limiter: Limiter, clock: ManualClock) -> None:
    ends = []
    for _ in range(5):
        ends.append(limiter.hit("10/minute", "a", algorithm="fixed-window").reset_after)
        clock.advance(10)
    assert ends == [60, 50, 40, 30, 20]


@ALGORITHMS
def test_04_a_key_without_expiry(server: Server, connection: Any, algorithm: Any) -> None:
    """State and expiry are written by one script: no crash can come between."""
    with Limiter(server.url, deadline=10, algorithm=algorithm) as limiter:
        for cost in (1, 1, 2):
            limiter.hit("3/minute; 5/hour", "a", cost=cost)
            assert [connection.pttl(key) > 0 for key in connection.scan_iter()] == [True, True]


@ALGORITHMS
@pytest.mark.parametrize(
    "text", ["3/microsecond", "3 per 999 microseconds", "3 per 1001 microseconds", "3/second", "3/minute"]
)
def test_05_an_expiry_of_zero_or_shorter_than_the_state(
    server: Server, connection: Any, algorithm: Any, text: str
) -> None:
    with Limiter(server.url, deadline=10, algorithm=algorithm) as limiter:
        whole = limiter.hit(text, "a", cost=3).reset_after
        (left,) = [connection.pttl(key) for key in connection.scan_iter()] or [0]
        assert left >= whole * 1000 - 1000  # less the time between the two calls


@pytest.mark.parametrize("start", [1_000_000_000.000001, 1_760_000_000.999999, 4_102_444_800.000001])
def test_06_floats_lose_the_last_microsecond(server: Server, start: float) -> None:
    clock = ManualClock(start)
    with Limiter(server.url, deadline=10, clock=clock) as limiter:
        for algorithm in get_args(AlgorithmName):
            clock.advance_us(1)
            identity = f"{start} {server.name} {algorithm}"
            assert limiter.hit("1/second", identity, algorithm=algorithm)
            wait = limiter.peek("1/second", identity, algorithm=algorithm).retry_after
            assert wait is not None
            clock.advance_us(round(wait * 1e6) - 1)
            assert limiter.peek("1/second", identity, algorithm=algorithm).retry_after == 0.000001
            clock.advance_us(1)
            assert limiter.hit("1/second", identity, algorithm=algorithm)


@ALGORITHMS
def test_07_tostring_keeps_fourteen_digits(server: Server, connection: Any, clock: ManualClock, algorithm: Any) -> None:
    with Limiter(server.url, deadline=10, clock=clock, algorithm=algorithm) as limiter:
        limiter.hit("5/minute", "a")
        (key,) = connection.scan_iter()
        with client(server) as raw:
            read = {"list": raw.lrange, "string": lambda *all: [raw.getrange(*all)], "zset": raw.zrange}[
                connection.type(key)
            ]
            kept = b"".join(read(key, 0, -1))
    assert b"e+" not in kept
    moment = 1760000000123457
    assert (moment.to_bytes(7, "little") if algorithm == "gcra" else str(moment).encode()) in kept


@ALGORITHMS
def test_08_and_09_replies_are_cut_at_a_float_or_a_nil(limiter: Limiter, clock: ManualClock, algorithm: Any) -> None:
    rules = [terms(algorithm, Quota(3, 0.0000033 * 7), scope="thirds"), terms(algorithm, "2/minute", scope="two")]
    outcomes = limiter.store.run(Plan(tuple(Check(rule, "a", 3) for rule in rules)))
    assert len(outcomes) == 2
    assert [outcome.retry_after for outcome in outcomes] == [0, None]
    assert all(type(number) is int for outcome in outcomes for number in (outcome.remaining, outcome.reset_after))


@ALGORITHMS
def test_10_numbers_are_compared_as_text(limiter: Limiter, algorithm: Any) -> None:
    """ "9" > "10": a cost of 9 against a limit of 10."""
    assert limiter.hit("10/minute", "a", cost=9, algorithm=algorithm).remaining == 1
    assert not limiter.hit("10/minute", "a", cost=2, algorithm=algorithm)
    assert limiter.hit("100/minute", "b", cost=20, algorithm=algorithm).remaining == 80


@ALGORITHMS
@pytest.mark.parametrize("period", [0.000001, 0.0005, 0.0015, 1 / 3])
def test_11_a_fractional_expiry_is_an_error_of_the_server(limiter: Limiter, algorithm: Any, period: float) -> None:
    assert limiter.hit(Quota(3, period), "a", algorithm=algorithm)


# 12, a clock that goes back, also has tests/stores/test_clock_back.py and law 8 of the algorithms' exam.
@ALGORITHMS
def test_12_a_clock_that_goes_back_frees_or_freezes(algorithm: Any) -> None:
    from sluicegate.algorithms import find

    module = find(algorithm)
    params = module.params(Quota(2, 60))
    now = 1_760_000_000_123_457
    _, state = module.decide(None, now, 2, params)
    assert not module.decide(state, now - 1_000_000, 1, params)[0].allowed
    assert module.decide(state, now - 3_600_000_000, 1, params)[0].allowed


@ALGORITHMS
def test_13_the_boundary_instant_is_on_another_side_in_each_store(
    limiter: Limiter, clock: ManualClock, algorithm: Any
) -> None:
    limiter.hit("4/minute", "a", cost=4, algorithm=algorithm)
    wait = {"sliding-counter": 75, "gcra": 15}.get(algorithm, 60)
    clock.advance_us(wait * 1_000_000 - 1)
    assert not limiter.hit("4/minute", "a", algorithm=algorithm)
    clock.advance_us(1)
    assert limiter.hit("4/minute", "a", algorithm=algorithm)


@ALGORITHMS
def test_14_a_cost_above_what_is_left_is_applied_in_part(limiter: Limiter, algorithm: Any) -> None:
    limiter.hit("10/minute", "a", cost=6, algorithm=algorithm)
    assert [limiter.hit("10/minute", "a", cost=5, algorithm=algorithm).remaining for _ in range(3)] == [4, 4, 4]
    assert limiter.hit("10/minute", "a", cost=4, algorithm=algorithm).remaining == 0


@ALGORITHMS
def test_15_a_cost_above_the_limit_has_a_time_to_retry(limiter: Limiter, algorithm: Any) -> None:
    for _ in range(2):
        assert limiter.hit("10/minute", "a", cost=11, algorithm=algorithm).retry_after is None
        assert limiter.hit("10/minute", "a", cost=1, algorithm=algorithm)


@pytest.mark.parametrize(
    ("algorithm", "wait"),
    [("sliding-window", 50), ("sliding-log", 50), ("gcra", 15), ("fixed-window", 30), ("sliding-counter", 75)],
)
def test_16_and_17_retry_after_is_for_cost_1_or_the_reset(
    limiter: Limiter, clock: ManualClock, algorithm: Any, wait: int
) -> None:
    for cost in (1, 1, 2):  # at 0, 10 and 20 s; 4 of 4 are used, and 3 are wanted
        assert limiter.hit("4/minute", "a", cost=cost, algorithm=algorithm)
        clock.advance(10)
    refused = limiter.hit("4/minute", "a", cost=3, algorithm=algorithm)
    assert (refused.allowed, refused.retry_after) == (False, wait)
    clock.advance_us(wait * 1_000_000 - 1)
    assert not limiter.peek("4/minute", "a", cost=3, algorithm=algorithm)
    clock.advance_us(1)
    assert limiter.hit("4/minute", "a", cost=3, algorithm=algorithm)


@ALGORITHMS
def test_18_and_28_seconds_are_floored(limiter: Limiter, clock: ManualClock, algorithm: Any) -> None:
    quota = Quota(1, 0.25)
    assert limiter.hit(quota, "a", algorithm=algorithm)
    wait = limiter.hit(quota, "a", algorithm=algorithm).retry_after
    assert wait == (0.5 if algorithm == "sliding-counter" else 0.25)
    clock.advance(wait)
    assert limiter.hit(quota, "a", algorithm=algorithm)


@ALGORITHMS
def test_19_several_limits_are_charged_in_part(limiter: Limiter, algorithm: Any) -> None:
    limiter.hit("1/hour", "a", algorithm=algorithm)
    for quota in ("1/hour; 5/day; 9/week", "9/week; 5/day; 1/hour"):
        decision = limiter.hit(quota, "a", algorithm=algorithm)
        assert not decision
        assert sorted(outcome.remaining for outcome in decision.outcomes) == [0, 5, 9]


def test_20_the_first_limit_that_matches_ends_the_search(limiter: Limiter) -> None:
    decision = limiter.hit("1/hour; 1/day; 1/week", "a")
    assert [outcome.remaining for outcome in decision.outcomes] == [0, 0, 0]
    assert [outcome.allowed for outcome in limiter.hit("1/hour; 1/day; 1/week", "a").outcomes] == [False] * 3


@ALGORITHMS
def test_21_two_limits_share_a_key(limiter: Limiter, algorithm: Any) -> None:
    quotas = ["1/second", "1 per 1000001 microseconds", "1/minute", "1 per 60 days", "1 per 60 milliseconds"]
    for quota in quotas:
        assert limiter.hit(quota, "a", algorithm=algorithm), quota


def test_22_the_keys_of_a_plan_lie_in_several_slots(server: Server, connection: Any) -> None:
    with Limiter(server.url, deadline=10) as limiter:
        for identity in ("a", "{b}", "}{", "c{d}e", "\0"):
            connection.flushall()
            limiter.hit("1/second; 2/minute; 3/hour; 4/day", identity, action="{x}y")
            keys = list(connection.scan_iter())
            assert len(keys) == 4
            assert len({key_slot(key.encode()) for key in keys}) == 1


def test_25_a_cancelled_call_leaves_its_reply_to_the_next() -> None:
    async def main(server: Server) -> None:
        async with AsyncLimiter(f"{server.url}?max_connections=1", deadline=10) as limiter:
            await limiter.hit("7/hour", "first")
            server.pause()
            task = asyncio.create_task(limiter.hit("7/hour", "first", cost=5))
            for _ in range(20):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            server.resume()
            for remaining in (99, 98):
                decision = await limiter.hit("100/day", "second")
                assert (decision.limit, decision.remaining) == (100, remaining)

    with valkey_server() as server:
        asyncio.run(main(server))


@ALGORITHMS
def test_27_a_lowered_limit_makes_remaining_negative(limiter: Limiter, algorithm: Any) -> None:
    wide, narrow = ("10/minute burst 10", "10/minute burst 3") if algorithm == "gcra" else ("10/minute", "3/minute")
    limiter.hit(wide, "a", cost=8, algorithm=algorithm)
    for ask in (limiter.peek, limiter.hit):
        decision = ask(narrow, "a", algorithm=algorithm)
        assert (decision.allowed, decision.limit, decision.remaining) == (False, 3, 0)
        assert decision.retry_after


@ALGORITHMS
def test_34_what_was_reset_or_raised_is_still_refused(limiter: Limiter, algorithm: Any) -> None:
    limiter.hit("2/minute", "a", cost=2, algorithm=algorithm)
    assert not limiter.hit("2/minute", "a", algorithm=algorithm)
    limiter.reset("2/minute", "a", algorithm=algorithm)
    assert limiter.hit("2/minute", "a", cost=2, algorithm=algorithm)
    assert not limiter.hit("2/minute", "a", algorithm=algorithm)
    assert limiter.hit("5/minute", "a", algorithm=algorithm)


def test_36_the_window_before_dies_too_soon(limiter: Limiter, clock: ManualClock) -> None:
    limiter.hit("4/minute", "a", cost=4, algorithm="sliding-counter")
    clock.advance(60)
    assert limiter.peek("4/minute", "a", algorithm="sliding-counter").remaining == 0
    clock.advance(30)
    assert limiter.peek("4/minute", "a", algorithm="sliding-counter").remaining == 2


def test_36_its_key_lives_for_two_windows(server: Server, connection: Any) -> None:
    with Limiter(server.url, deadline=10, algorithm="sliding-counter") as limiter:
        limiter.hit("4/minute", "a")
        assert [connection.pttl(key) > 110_000 for key in connection.scan_iter()] == [True]


def test_every_known_error_is_somewhere() -> None:
    names = [name for name in globals() if name.startswith("test_")]
    numbers = {int(number) for name in names for number in re.findall(r"(?<=_)\d\d(?=_)", name)}
    assert numbers | set(ELSEWHERE) == set(range(1, 39))
    assert not numbers & set(ELSEWHERE)
