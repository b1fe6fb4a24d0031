"""One check of each library: a factory that turns limits and a storage URL into a function of a key.

Every library gets the storage and the options that its own documentation recommends, and does not wait for capacity.
`prove` tests it before it is timed: three hits are allowed, the fourth is refused, another key is allowed. Several
limits are one call if the library has such a call, else one call after the other until one refuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import pyrate_limiter
import redis
import throttled
import throttled.asyncio

from bench.budgets import FIXED_STATS
from sluicegate import AsyncLimiter, Decision, Limiter

SLUICEGATE = ("sliding-window", "fixed-window", "gcra", "sliding-counter", "sliding-log")
LIMITS = {
    "fixed-window": "FixedWindowRateLimiter",
    "moving-window": "MovingWindowRateLimiter",
    "sliding-counter": "SlidingWindowCounterRateLimiter",
}
THROTTLED = ("fixed_window", "sliding_window", "gcra", "token_bucket")  # the last is its default
PATIENCE = 5.0  # seconds: on a busy machine no check may miss its deadline, because a local fallback looks fast
ROOM = 300_000  # keys that a store in memory must hold
SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}


class Limit(NamedTuple):
    """A number of requests per second, minute, hour or day."""

    count: int
    unit: str

    @property
    def text(self) -> str:
        return f"{self.count}/{self.unit}"

    @property
    def seconds(self) -> int:
        return SECONDS[self.unit]


class Gate(NamedTuple):
    """A check: a function of a key, and a function that says whether its result is allowed."""

    hit: Callable[[str], Any]
    allowed: Callable[[Any], bool] = bool


class AsyncGate(NamedTuple):
    """An async check."""

    hit: Callable[[str], Awaitable[Any]]
    allowed: Callable[[Any], bool] = bool


Maker = Callable[[Sequence[Limit]], Gate]
AsyncMaker = Callable[[Sequence[Limit]], AsyncGate]


def sluicegate(store: str, algorithm: str) -> Maker:
    """sluicegate. Each gate has its own store, on the same server if the URL names one."""

    def make(wanted: Sequence[Limit]) -> Gate:
        return Gate(prepared(Limiter(store, algorithm=algorithm, deadline=PATIENCE), wanted), _by_the_store)

    return make


def prepared(limiter: Any, wanted: Sequence[Limit]) -> Callable[[str], Any]:
    """The `hit` of a limiter for these limits, prepared once."""
    hit: Callable[[str], Any] = limiter.limit("; ".join(limit.text for limit in wanted)).hit
    return hit


def of_limits(uri: str, strategy: str, *, stats: bool = False) -> Maker:
    """`limits`, which hits one limit after the other, as Flask-Limiter and slowapi do.

    A hit returns only whether it is allowed. With `stats` it also asks what remains and when the window ends.
    """

    def make(wanted: Sequence[Limit]) -> Gate:
        # One prefix for each: limits uses the same key for all strategies, but with different types.
        storage = limits.storage.storage_from_string(uri, key_prefix=f"{strategy}{stats:d}")
        limiter = getattr(limits.strategies, LIMITS[strategy])(storage)
        items = [limits.parse(limit.text) for limit in wanted]
        if stats:
            (item,) = items
            return Gate(lambda key: (limiter.hit(item, key), limiter.get_window_stats(item, key)), itemgetter(0))
        return Gate(_one_after_the_other([partial(limiter.hit, item) for item in items]))

    return make


def of_throttled(url: str, using: str) -> Maker:
    """`throttled-py`, which has one quota for each object."""

    def make(wanted: Sequence[Limit]) -> Gate:
        store: Any = (
            throttled.MemoryStore(options={"MAX_SIZE": ROOM})
            if url == "memory://"
            else throttled.RedisStore(server=url)
        )
        hits = [throttled.Throttled(using=using, quota=_throttled(each), store=store).limit for each in wanted]
        if len(hits) == 1:
            return Gate(hits[0], _not_limited)
        return Gate(_one_after_the_other([partial(_unlimited, hit) for hit in hits]))

    return make


def of_pyrate(url: str) -> Maker:
    """`pyrate-limiter` with a bucket for each key, which the user has to write. Several rates are one call."""

    def make(wanted: Sequence[Limit]) -> Gate:
        rates = [pyrate_limiter.Rate(each.count, pyrate_limiter.Duration[each.unit.upper()]) for each in wanted]
        limiter = pyrate_limiter.Limiter(PerKey(rates, url))
        return Gate(partial(limiter.try_acquire, blocking=False))

    return make


class PerKey(pyrate_limiter.BucketFactory):
    """A bucket for each name."""

    def __init__(self, rates: list[pyrate_limiter.Rate], url: str) -> None:
        self._rates = rates
        self._buckets: dict[str, pyrate_limiter.AbstractBucket] = {}
        self._client: Any = None if url == "memory://" else redis.Redis.from_url(url)
        if self._client is not None:
            self._script = self._client.script_load(pyrate_limiter.buckets.redis_bucket.LuaScript.PUT_ITEM)
            self._clock = pyrate_limiter.buckets.redis_bucket.RedisBucket(rates, self._client, "", self._script)
        else:
            self._clock = pyrate_limiter.InMemoryBucket(rates)

    def wrap_item(self, name: str, weight: int = 1) -> pyrate_limiter.RateItem:
        return pyrate_limiter.RateItem(name, self._clock.now(), weight=weight)

    def get(self, item: pyrate_limiter.RateItem) -> pyrate_limiter.AbstractBucket:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._bucket(item.name)
        return bucket

    def _bucket(self, name: str) -> pyrate_limiter.AbstractBucket:
        if self._client is None:
            return pyrate_limiter.InMemoryBucket(self._rates)
        return pyrate_limiter.RedisBucket(self._rates, self._client, f"pyrate:{name}", self._script)


def memory_makers() -> dict[str, Maker]:
    """Every library with its store in memory."""
    return _makers("memory://", room=f"memory://?max_keys={ROOM}")


def redis_makers(url: str) -> dict[str, Maker]:
    """Every library on this server."""
    return _makers(url, room=url)


def _makers(url: str, *, room: str) -> dict[str, Maker]:
    found = {ours(algorithm): sluicegate(room, algorithm) for algorithm in SLUICEGATE}
    found |= {f"limits {strategy}": of_limits(url, strategy) for strategy in LIMITS}
    found |= {f"throttled-py {using.replace('_', '-')}": of_throttled(url, using) for using in THROTTLED}
    return {**found, "pyrate-limiter log": of_pyrate(url)}


def with_stats(url: str) -> dict[str, Maker]:
    """limits with what sluicegate's decisions contain: what remains, and the time to wait."""
    return {FIXED_STATS: of_limits(url, "fixed-window", stats=True)}


def async_makers(url: str) -> dict[str, AsyncMaker]:
    """Every library with an asyncio client for Redis; limits has two."""

    def ours_async(wanted: Sequence[Limit]) -> AsyncGate:
        return AsyncGate(prepared(AsyncLimiter(url, deadline=PATIENCE), wanted), _by_the_store)

    def of_limits_async(implementation: Any, wanted: Sequence[Limit]) -> AsyncGate:
        storage = limits.aio.storage.RedisStorage(
            f"async+{url}", implementation=implementation, key_prefix=implementation
        )
        limiter = limits.aio.strategies.FixedWindowRateLimiter(storage)
        return AsyncGate(partial(limiter.hit, limits.parse(wanted[0].text)))

    def of_throttled_async(wanted: Sequence[Limit]) -> AsyncGate:
        store = throttled.asyncio.RedisStore(server=url)
        made = throttled.asyncio.Throttled(using="fixed_window", quota=_throttled(wanted[0]), store=store)
        return AsyncGate(made.limit, _not_limited)

    return {
        "sluicegate": ours_async,
        "limits (redis-py)": partial(of_limits_async, "redispy"),
        "limits (coredis)": partial(of_limits_async, "coredis"),
        "throttled-py": of_throttled_async,
    }


def ours(algorithm: str) -> str:
    """The name of sluicegate with this algorithm. The default algorithm is not named."""
    return "sluicegate" if algorithm == SLUICEGATE[0] else f"sluicegate {algorithm}"


def prove(gate: Gate, name: str) -> None:
    """Raise unless a gate with 3/hour allows three of four hits, and then another key."""
    answers = [gate.allowed(gate.hit("somebody")) for _ in range(4)] + [gate.allowed(gate.hit("another"))]
    _expect(answers, name)


async def prove_async(gate: AsyncGate, name: str) -> None:
    """`prove` for an async gate."""
    answers = [gate.allowed(await gate.hit("somebody")) for _ in range(4)] + [gate.allowed(await gate.hit("another"))]
    _expect(answers, name)


def _expect(answers: list[bool], name: str) -> None:
    if answers != [True, True, True, False, True]:
        raise RuntimeError(f"{name} does not limit as it should: {answers}")


PROOF = (Limit(3, "hour"),)


def _one_after_the_other(hits: Sequence[Callable[[str], bool]]) -> Callable[[str], bool]:
    if len(hits) == 1:
        return hits[0]
    return lambda key: all([hit(key) for hit in hits])


def _throttled(limit: Limit) -> str:
    return f"{limit.count}/{limit.unit[0]}"


def _by_the_store(decision: Decision) -> bool:
    """Allowed by the store, not by the local fallback: a store that misses its deadline would look fast."""
    return decision.allowed and not decision.degraded


def _not_limited(result: Any) -> bool:
    return not result.limited


def _unlimited(hit: Callable[[str], Any], key: str) -> bool:
    return not hit(key).limited
