"""The store over `CL.THROTTLE`, a command of the module redis-cell for Redis and Valkey, built in on Dragonfly.

The command is the algorithm, so only rules of `gcra` can be kept here. Terms with an option that the command does not
have are refused.

The command replies in whole seconds. Older releases of redis-cell round down, newer ones and Dragonfly round up. So a
second is added, and no wait is ever too short. The reply also has the whole units that are free, which often says more.
The highest level of the bucket that agrees with both is used, and `gcra` computes the outcome from it.

One check is one CL.THROTTLE. Several checks are one script. The script reads every bucket with a quantity of 0. If all
enforced checks have room, the script charges their buckets, and those of each shadow rule whose own checks all have
room. A forced plan charges each as far as it has room. One check of a fast rule is a script too, because the reply of a
bucket before the charge is more exact. The server's clock is the only clock. There is no refund: a negative quantity is
an error on Dragonfly, and on redis-cell it can leave a key that never expires.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import lru_cache
from math import gcd
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

from sluicegate.algorithms import gcra
from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.errors import AlgorithmError, RuleError, StoreURLError, shows_half_made
from sluicegate.identity import digest
from sluicegate.observe.status import Status
from sluicegate.plan import Check, Outcome, Plan, Terms, in_shadow
from sluicegate.quota import MAX_PERIOD_US
from sluicegate.runtime.hidden import hide_store, shown_url
from sluicegate.stores import DEADLINE, valid_prefix
from sluicegate.stores.redis.async_connections import AsyncConnections
from sluicegate.stores.redis.commands import Command, pack
from sluicegate.stores.redis.connections import Connections
from sluicegate.stores.redis.failures import store_error
from sluicegate.stores.redis.steps import NoReplyError, Send
from sluicegate.stores.redis.url import servers

T = TypeVar("T")

_COARSE: Final = 2 * MICROSECOND  # the largest error of a reply
_HOUR: Final = 3600 * MICROSECOND  # a longer interval is in whole seconds: `_bucket` says why
_ELSEWHERE: Final = "or keep it in a redis:// or memory:// store"

# ARGV: 0 for a peek, 1 to charge, 2 if forced; then six words for each check, in the order of `_words`.
_ALL_OR_NONE: Final = """\
local refused, replies = {[''] = ARGV[1] == '0'}, {}
for n, key in ipairs(KEYS) do
  local at = 6 * n - 4
  replies[n] = redis.call('CL.THROTTLE', key, ARGV[at], ARGV[at + 1], ARGV[at + 2], 0)
  if replies[n][3] < tonumber(ARGV[at + 4]) then refused[ARGV[at + 5]] = true end
end
for n, key in ipairs(KEYS) do
  local at = 6 * n - 4
  local cost, taken = ARGV[at + 3], not (refused[''] or refused[ARGV[at + 5]])
  if ARGV[1] == '2' then cost = math.min(cost, replies[n][3]) end
  if taken or ARGV[1] == '2' then
    replies[n] = redis.call('CL.THROTTLE', key, ARGV[at], ARGV[at + 1], ARGV[at + 2], cost)
  end
  replies[n][6] = taken and 1 or 0
end
return replies
"""


class _Bucket(NamedTuple):
    """The terms of a rule as arguments of the command."""

    burst: int
    interval: int  # microseconds until one unit is free again
    words: tuple[int, int, int]  # max_burst, count and period


@lru_cache(maxsize=4096)  # bounded, because quotas that are made per request would grow without bound
def _bucket(terms: Terms) -> _Bucket:
    """Make the arguments of the command for these terms. Raises AlgorithmError or RuleError for terms that the command
    cannot express.

    The interval of one unit is in whole microseconds, and above an hour in whole seconds: redis-cell counts the free
    time in microseconds, and panics, with its server, on a period of more than 2^63 nanoseconds. The interval is
    rounded up, so that the limit is never exceeded.
    """
    what = f"rule {terms.name!r}: "
    if terms.held:
        problem, expected = "CL.THROTTLE cannot release a slot", "keep it in a redis:// or memory:// store"
        raise RuleError(f"{what}quota", f"{terms.limit} at once", problem=problem, expected=expected)
    if terms.algorithm != gcra.NAMES[0]:
        expected = f'use "gcra", "token-bucket" or "leaky-bucket", {_ELSEWHERE}'
        raise AlgorithmError(f"{what}algorithm", terms.algorithm, problem="not that of CL.THROTTLE", expected=expected)
    for option, given, problem in (
        ("count_denied", terms.count_denied, "does not charge what it refuses"),
        ("ban", terms.ban and terms.ban.name, "does not count refusals"),
        ("once_per", terms.once and terms.once.per, "cannot refund the charge of a retry"),
        ("estimate or cost_after", terms.cost_after, "cannot refund a charge, and a later cost may be less"),
        ("charge_when or refund_when", terms.refund_when, "cannot refund a charge, and both options need refunds"),
    ):
        if given:
            expected = f"leave it out, {_ELSEWHERE}"
            raise RuleError(f"{what}{option}", given, problem=f"CL.THROTTLE {problem}", expected=expected)
    burst, unit, leak = terms.params
    interval = -(-unit // leak)
    if interval > _HOUR:
        interval = -(-interval // MICROSECOND) * MICROSECOND
    if 100 * interval * leak > 101 * unit:
        problem = "CL.THROTTLE, with its interval in whole microseconds, would be more than 1 % slower"
        expected = f"give a limit that divides the period, or at most 10,000 per second, {_ELSEWHERE}"
        raise AlgorithmError(f"{what}quota", str(terms.quota), problem=problem, expected=expected)
    if burst * interval > MAX_PERIOD_US:
        problem, expected = "its burst takes more than 100 years to come back", f"give a smaller burst, {_ELSEWHERE}"
        raise AlgorithmError(f"{what}quota", str(terms.quota), problem=problem, expected=expected)
    shared = gcd(interval, MICROSECOND)
    return _Bucket(burst, interval, (burst - 1, MICROSECOND // shared, interval // shared))


def _native(plan: Plan) -> bool:
    """True if the plan is one CL.THROTTLE."""
    return len(plan.checks) == 1 and not plan.forced and _bucket(plan.checks[0].terms).interval > _COARSE


def _charges(plan: Plan) -> bool:
    """True if the server may charge: not if an enforced check can never pass."""
    return plan.charge and all([terms.shadow or cost <= _bucket(terms).burst for terms, _, cost in plan.checks])


def _quantity(check: Check) -> int:
    """Return the quantity to charge. A cost that can never pass is not sent: the server multiplies it unchecked."""
    return check.cost if check.cost <= _bucket(check.terms).burst else 0


@shows_half_made
class _CellStore:
    """What the sync and the async store share: everything but the calls of the server."""

    _connect: ClassVar[Callable[..., Any]]

    def __init__(self, url: str, *, prefix: str = "sg", deadline: float = DEADLINE) -> None:
        url = hide_store(url)
        found = servers(url)
        self._shown, self._prefix = shown_url(url), valid_prefix(prefix)
        self._address, self._clock = found.seeds[0], SystemClock()
        self._connections = self._connect(found, deadline=deadline)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"

    def accept(self, terms: Terms) -> None:
        """Raise AlgorithmError or RuleError for terms that this store cannot keep."""
        _bucket(terms)

    def describe(self) -> Status:
        return Status(self._shown, topology="single")

    def separate(self, name: str, *, clock: Clock | None = None) -> Self:
        """Return a store on the same connections whose keys have this name after the prefix. Raises StoreURLError for a
        clock.
        """
        _refuse(clock)
        other = copy(self)
        other._prefix = f"{self._prefix}:{name}"
        return other

    def _send(self, *words: str | int) -> Any:
        """Send a command. Return its reply, or an awaitable of it."""
        return self._connections.send(Send(self._address, Command(pack(*words))), self._connections.patience.looks)

    def _key(self, rule_id: str, identity: str) -> str:
        """Return the key of a budget. It differs from the key in a redis:// store, which stores another value."""
        return f"{self._prefix}:{{{digest(identity)}}}:{rule_id}:cell"

    def _words(self, plan: Plan) -> list[str | int]:
        """Return the words of the one command that runs the plan."""
        checks, charges = plan.checks, _charges(plan)
        keys = [self._key(check.terms.rule_id, check.identity) for check in checks]
        if _native(plan):
            return ["CL.THROTTLE", keys[0], *_bucket(checks[0].terms).words, _quantity(checks[0]) if charges else 0]
        words: list[str | int] = ["EVAL", _ALL_OR_NONE, len(keys), *keys, charges + (charges and plan.forced)]
        groups = [check.group for check in checks]
        for check in checks:
            group = groups.index(check.group) if check.terms.shadow else ""
            words += (*_bucket(check.terms).words, _quantity(check), check.cost, group)
        return words

    def _outcomes(self, plan: Plan, reply: Any) -> tuple[Outcome, ...]:
        """Return one outcome for each check, from one reply of CL.THROTTLE for each, and whether it was charged."""
        reply = self._checked(reply)
        answers = [[*reply, _charges(plan)]] if _native(plan) else reply
        now = self._clock.now_us()
        outcomes: list[Outcome] = []
        for (terms, _, cost), (limited, _, free, _, reset, charged) in zip(plan.checks, answers, strict=True):
            burst, interval, _ = _bucket(terms)
            level = (reset + 1) * MICROSECOND
            if free or not limited:  # else the limit may have been lowered, and the level is unknown
                level = min(level, max(0, burst - free) * interval)
            passed = cost <= free or (charged and not limited and cost <= burst)
            outcome, _ = gcra.decide((level, 0), 0, 0 if passed else cost, (burst, interval, 1))
            outcome = in_shadow(outcome, passed=passed) if terms.shadow else outcome
            outcomes.append(outcome._replace(at=now))
        return tuple(outcomes)

    def _checked(self, reply: T) -> T:
        """Return the reply. Raises StoreError for an error, StoreURLError if the server does not have the command."""
        if not isinstance(reply, Exception):
            return reply
        text = str(reply).lower()
        if "unknown" in text and "command" in text and not isinstance(reply, NoReplyError):
            expected = "load the module redis-cell there, use Dragonfly, or change the URL to redis://"
            raise StoreURLError("store", self._shown, problem="its server has no CL.THROTTLE", expected=expected)
        raise store_error(self._shown, reply)


class RedisCellStore(_CellStore):
    """A store for rules of `gcra`, `token-bucket` and `leaky-bucket` on a server that has CL.THROTTLE.

    `url` is `redis+cell://…` or `rediss+cell://…`; connects when first used. `prefix` begins every key; `deadline` is
    in seconds. Raises StoreURLError, from `run` also when the server does not have the command.
    """

    _connect = Connections

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none. Raises StoreError if the server does not reply."""
        return self._outcomes(plan, self._send(*self._words(plan))) if plan.checks else ()

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Do nothing, because the command cannot refund."""

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Return the outcomes unchanged: the command cannot refund, so this store accepts no slots."""
        return outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        self._checked(self._send("DEL", self._key(rule_id, identity)))

    def close(self) -> None:
        self._connections.close()


class AsyncRedisCellStore(_CellStore):
    """RedisCellStore for asynchronous code, one connection for each event loop. `close` closes the running loop's."""

    needs_asyncio = True

    _connect = AsyncConnections

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        return self._outcomes(plan, await self._send(*self._words(plan))) if plan.checks else ()

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Do nothing, because the command cannot refund."""

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        return outcomes

    async def forget(self, rule_id: str, identity: str) -> None:
        self._checked(await self._send("DEL", self._key(rule_id, identity)))

    async def close(self) -> None:
        """Close the running loop's connections."""
        await self._connections.close()


def open_sync(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> RedisCellStore:
    """Return a store for `redis+cell://` or `rediss+cell://`. Raises StoreURLError for a clock: the server has one."""
    _refuse(clock)
    return RedisCellStore(url, prefix=prefix, deadline=deadline)


def open_async(url: str, *, prefix: str, clock: Clock | None, deadline: float) -> AsyncRedisCellStore:
    _refuse(clock)
    return AsyncRedisCellStore(url, prefix=prefix, deadline=deadline)


def _refuse(clock: Clock | None) -> None:
    if clock is not None:
        problem = "CL.THROTTLE uses only the server's clock"
        raise StoreURLError("clock", clock, problem=problem, expected="test with memory:// or redis://")
