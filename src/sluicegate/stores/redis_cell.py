"""The store over `CL.THROTTLE`, which the module redis-cell brings to Redis and Valkey, and Dragonfly has built in.

The server's own command is the algorithm, so only rules of `gcra` can be kept here, and their terms are refused where
they say what the command cannot carry. This module has the connections of the Redis store, and knows values, `gcra`
and the digest; nothing of rules, HTTP or frameworks.

The command answers in whole seconds, which older releases of redis-cell round down, newer ones and Dragonfly up. So a
second is added: no wait is ever too short. It also says how many whole units are free, which often says more. The
highest level of the bucket that both allow is taken for true, and `gcra` itself makes the outcome of it.

One check is one CL.THROTTLE. Several are one script: it asks every bucket with a quantity of 0, and charges them only
if all that can refuse have room; when forced, as far as they have. So is one of a fast rule, for what a bucket says
before it is charged is more exact.
The server's clock is the only one, and there is no way to give anything back: a negative quantity is an error on
Dragonfly, and on redis-cell can leave a key that never expires.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any, Final, NamedTuple

from sluicegate.algorithms import gcra
from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.errors import AlgorithmError, RuleError, StoreError, StoreURLError
from sluicegate.hidden import hide_store, shown_url
from sluicegate.identity import digest
from sluicegate.plan import Check, Outcome, Plan, Terms, in_shadow
from sluicegate.quota import MAX_PERIOD_US
from sluicegate.stores import DEADLINE, valid_prefix
from sluicegate.stores.redis.asks import Ask, LinkError
from sluicegate.stores.redis.commands import Command, pack
from sluicegate.stores.redis.links import Links
from sluicegate.stores.redis.servers import servers
from sluicegate.stores.redis.shared import SharedLinks

_COARSE: Final = 2 * MICROSECOND  # by so much the answer may be off
_HOUR: Final = 3600 * MICROSECOND
_ELSEWHERE: Final = "or keep it in a redis:// or memory:// store"

_ALL_OR_NONE: Final = """\
local free, told = ARGV[1] ~= '0', {}
for n, key in ipairs(KEYS) do
  local at = 5 * n - 3
  told[n] = redis.call('CL.THROTTLE', key, ARGV[at], ARGV[at + 1], ARGV[at + 2], 0)
  free = free and told[n][3] >= tonumber(ARGV[at + 4])
end
if free or ARGV[1] == '2' then
  for n, key in ipairs(KEYS) do
    local at = 5 * n - 3
    local cost = ARGV[at + 3]
    if ARGV[1] == '2' then cost = math.min(cost, told[n][3]) end
    told[n] = redis.call('CL.THROTTLE', key, ARGV[at], ARGV[at + 1], ARGV[at + 2], cost)
  end
end
return {free and 1 or 0, told}
"""


class _Meter(NamedTuple):
    """The terms of a rule as the command takes them."""

    burst: int
    interval: int  # microseconds until one unit is free again
    words: tuple[int, int, int]  # max_burst, count and period


@lru_cache(maxsize=4096)  # by the identity of the terms; those of a quota that is made per request have no end
def _meter(terms: Terms) -> _Meter:
    """AlgorithmError or RuleError for terms that the command cannot carry.

    The interval of one unit is told in whole microseconds, and above an hour in whole seconds: redis-cell counts
    what is free in microseconds, and panics, with its server, on a period of more than 2^63 nanoseconds. It is rounded
    up, so that a limit is never exceeded for it.
    """
    what = f"rule {terms.name!r}: "
    if terms.held:
        problem, expected = "CL.THROTTLE gives nothing back", "keep it in a redis:// or memory:// store"
        raise RuleError(f"{what}quota", f"{terms.params[0]} at once", problem=problem, expected=expected)
    if terms.algorithm != gcra.NAMES[0]:
        expected = f'use "gcra", "token-bucket" or "leaky-bucket", {_ELSEWHERE}'
        raise AlgorithmError(f"{what}algorithm", terms.algorithm, problem="not that of CL.THROTTLE", expected=expected)
    if terms.count_denied:
        problem = "CL.THROTTLE does not charge what it refuses"
        raise RuleError(
            f"{what}count_denied", terms.count_denied, problem=problem, expected=f"leave it out, {_ELSEWHERE}"
        )
    if terms.ban is not None:
        problem = "CL.THROTTLE does not count refusals"
        raise RuleError(f"{what}ban", terms.ban.name, problem=problem, expected=f"leave it out, {_ELSEWHERE}")
    if terms.refund_when is not None:
        problem, expected = "CL.THROTTLE cannot give a charge back", f"leave it out, {_ELSEWHERE}"
        raise RuleError(f"{what}charge_when or refund_when", terms.refund_when, problem=problem, expected=expected)
    burst, unit, leak = terms.params
    interval = -(-unit // leak)
    if interval > _HOUR:
        interval = -(-interval // MICROSECOND) * MICROSECOND
    if 100 * interval * leak > 101 * unit:
        problem = "CL.THROTTLE, told in whole microseconds, would be more than 1 % slower"
        expected = f"give a limit that divides the period, or at most 10,000 per second, {_ELSEWHERE}"
        raise AlgorithmError(f"{what}quota", str(terms.quota), problem=problem, expected=expected)
    if burst * interval > MAX_PERIOD_US:
        problem = "its burst takes more than 100 years to come back"
        raise AlgorithmError(
            f"{what}quota", str(terms.quota), problem=problem, expected=f"give a smaller burst, {_ELSEWHERE}"
        )
    shared = gcd(interval, MICROSECOND)
    return _Meter(burst, interval, (burst - 1, MICROSECOND // shared, interval // shared))


class _Talk:
    """How a plan is told to the server, and what its answers mean: what both colours share."""

    def __init__(self, url: str, *, prefix: str) -> None:
        self.url = shown_url(url)
        self.servers = servers(url)
        self._prefix = valid_prefix(prefix)
        self._clock = SystemClock()

    def key(self, rule_id: str, identity: str) -> str:
        """Where a budget is kept: not where a redis:// store keeps it, which stores it differently."""
        return f"{self._prefix}:{{{digest(identity)}}}:{rule_id}:cell"

    def forget(self, rule_id: str, identity: str) -> Ask:
        """What drops a budget."""
        return self._ask("DEL", self.key(rule_id, identity))

    def run(self, plan: Plan) -> Ask:
        """The one command that runs the plan."""
        checks, charges = plan.checks, _charges(plan)
        keys = [self.key(check.terms.rule_id, check.identity) for check in checks]
        if _native(plan):
            return self._ask("CL.THROTTLE", keys[0], *_meter(checks[0].terms).words, _sent(checks[0]) if charges else 0)
        words: list[Any] = ["EVAL", _ALL_OR_NONE, len(keys), *keys, charges + (charges and plan.forced)]
        for check in checks:
            words += (*_meter(check.terms).words, _sent(check), 0 if check.terms.shadow else check.cost)
        return self._ask(*words)

    def outcomes(self, plan: Plan, reply: Any) -> tuple[Outcome, ...]:
        """One outcome for each check, from one answer of CL.THROTTLE for each."""
        charged, answers = (_charges(plan), [reply]) if _native(plan) else reply
        now = self._clock.now_us()
        outcomes = []
        for (terms, _, cost), (limited, _, free, _, reset) in zip(plan.checks, answers, strict=True):
            burst, interval, _ = _meter(terms)
            level = (reset + 1) * MICROSECOND
            if free or not limited:  # else the limit may have been lowered, and the level be anywhere above it
                level = min(level, max(0, burst - free) * interval)
            passed = cost <= free or (charged and not limited and cost <= burst)
            outcome = gcra.check((level, 0), 0, 0 if passed else cost, (burst, interval, 1))
            outcome = in_shadow(outcome, passed=passed) if terms.shadow else outcome
            outcomes.append(outcome._replace(at=now))
        return tuple(outcomes)

    def answer(self, reply: Any) -> Any:
        """The reply, unless it is an error. A server without the command is no failure that may pass by itself."""
        if not isinstance(reply, Exception):
            return reply
        text = str(reply).lower()
        if isinstance(reply, LinkError):
            raise StoreError(self.url, reply.cause) from reply
        if "unknown" in text and "command" in text:
            expected = "load the module redis-cell there, use Dragonfly, or change the URL to redis://"
            raise StoreURLError("store", self.url, problem="its server has no CL.THROTTLE", expected=expected)
        raise StoreError(self.url, str(reply))

    def _ask(self, *words: Any) -> Ask:
        return Ask(self.servers.seeds[0], Command(pack(*words)))


def _native(plan: Plan) -> bool:
    """Whether the plan is one CL.THROTTLE."""
    return len(plan.checks) == 1 and not plan.forced and _meter(plan.checks[0].terms).interval > _COARSE


def _charges(plan: Plan) -> bool:
    """Whether the server may charge: not if one that can refuse can never pass."""
    return plan.charge and all([terms.shadow or cost <= _meter(terms).burst for terms, _, cost in plan.checks])


def _sent(check: Check) -> int:
    """The quantity to charge. The server multiplies it unseen, so one that can never pass is not sent."""
    return check.cost if check.cost <= _meter(check.terms).burst else 0


class RedisCellStore:
    """A store for rules of `gcra`, `token-bucket` and `leaky-bucket` on a server that has CL.THROTTLE.

    `url` is `redis+cell://…` or `rediss+cell://…`; connects when first used. `prefix` begins every key; `deadline` is
    in seconds. Raises StoreURLError, from `run` also when the server does not have the command.
    """

    def __init__(self, url: str, *, prefix: str = "sg", deadline: float = DEADLINE) -> None:
        url = hide_store(url)
        self._talk = _Talk(url, prefix=prefix)
        self._links = Links(self._talk.servers, deadline=deadline)

    def __repr__(self) -> str:
        return f"RedisCellStore({self._talk.url})"

    def accept(self, terms: Terms) -> None:
        """AlgorithmError or RuleError for the terms of a rule that cannot be kept here."""
        _meter(terms)

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none. StoreError when the server does not answer."""
        return self._talk.outcomes(plan, self._send(self._talk.run(plan))) if plan.checks else ()

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give nothing back: the command cannot."""

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Leave it as it is, for what cannot be given back is not held."""
        return outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop what is known of one identity under one rule."""
        self._send(self._talk.forget(rule_id, identity))

    def close(self) -> None:
        """Close the connections."""
        self._links.close()

    def _send(self, ask: Ask) -> Any:
        return self._talk.answer(self._links.ask(ask, self._links.until()))


class AsyncRedisCellStore:
    """RedisCellStore, awaited. It has a connection for each loop that uses it; `close` closes that of its own."""

    def __init__(self, url: str, *, prefix: str = "sg", deadline: float = DEADLINE) -> None:
        url = hide_store(url)
        self._talk = _Talk(url, prefix=prefix)
        self._links = SharedLinks(self._talk.servers, deadline=deadline)

    def __repr__(self) -> str:
        return f"AsyncRedisCellStore({self._talk.url})"

    def accept(self, terms: Terms) -> None:
        """AlgorithmError or RuleError for the terms of a rule that cannot be kept here."""
        _meter(terms)

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none. StoreError when the server does not answer."""
        return self._talk.outcomes(plan, await self._send(self._talk.run(plan))) if plan.checks else ()

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give nothing back: the command cannot."""

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Leave it as it is, for what cannot be given back is not held."""
        return outcomes

    async def forget(self, rule_id: str, identity: str) -> None:
        """Drop what is known of one identity under one rule."""
        await self._send(self._talk.forget(rule_id, identity))

    async def close(self) -> None:
        """Close the running loop's connections."""
        await self._links.close()

    async def _send(self, ask: Ask) -> Any:
        return self._talk.answer(await self._links.ask(ask, self._links.until()))


def open_sync(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> RedisCellStore:
    """A store for `redis+cell://` or `rediss+cell://`. StoreURLError with a clock: the command knows only its own."""
    _refuse(clock)
    return RedisCellStore(url, prefix=prefix, deadline=deadline)


def open_async(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> AsyncRedisCellStore:
    """The same for an AsyncLimiter."""
    _refuse(clock)
    return AsyncRedisCellStore(url, prefix=prefix, deadline=deadline)


def _refuse(clock: Clock | None) -> None:
    if clock is not None:
        problem = "CL.THROTTLE tells the time by its server's clock alone"
        raise StoreURLError("clock", clock, problem=problem, expected="test with memory:// or redis://")
