"""The engine and its two drivers: plan, run, conclude.

`Limiter` and `AsyncLimiter` differ by one await. This module knows rules' terms and the store protocols; it imports no
concrete store (the store table does, by URL), no HTTP and no framework.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from sluicegate.algorithms import DEFAULT, find
from sluicegate.banning import AsyncBanning, Banning
from sluicegate.cautions import check_strict
from sluicegate.clock import Clock
from sluicegate.errors import QuotaError, RuleError
from sluicegate.hidden import hide_secret, hide_store
from sluicegate.identity import Seal, digest, identity_text
from sluicegate.plan import Check, Decision, Outcome, Plan, Terms, new
from sluicegate.quota import MAX_LIMIT, Quota
from sluicegate.reservation import AsyncReserving, Reserving
from sluicegate.shadow import report
from sluicegate.stores import DEADLINE, AsyncStore, Store, StoreChange, open_async_store, open_store
from sluicegate.stores.stack import PREFIX, STALENESS, Stack, check_given
from sluicegate.terms import Quotas, QuotaSpec, make_terms, read, whole_cost

_LONGEST_ACTION: Final = 128


def conclude(plan: Plan, outcomes: tuple[Outcome, ...]) -> Decision:
    """The decision that the outcomes of a plan come to."""
    allowed, shadowed = True, False
    for outcome in outcomes:
        if not outcome.allowed:
            allowed = False
        elif outcome.retry_after != 0:  # in shadow: what would have been a refusal
            shadowed = True
    decision = new(Decision, (allowed, plan.checks, outcomes))
    if shadowed and allowed and plan.charge:
        report(decision)
    return decision


class _Engine:
    """What both limiters share: everything but the store's one await.

    `accept`, for whoever makes rules, raises a ConfigurationError for terms that the store cannot keep.
    """

    accept: Callable[[Terms], object]

    def __init__(self, *, algorithm: str, secret: str | bytes | None, strict: bool) -> None:
        find(algorithm)
        check_strict(strict)
        self._algorithm = algorithm
        self._seal = None if secret is None else Seal(secret).text
        self._strict = strict

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} holds connections and cannot be copied or pickled; make one in each process")

    def _text(self, identity: object) -> str:
        """The text of an identity as stores are told it."""
        text = identity_text(identity)
        return text if self._seal is None else self._seal(text)

    def _meet(self, store: object) -> None:
        """Ask a store what it cannot keep and what is to be said of it, if it can be asked."""
        self._opened = store
        self.accept = getattr(store, "accept", _accept_all)
        if (caution := getattr(store, "caution", None)) is not None:
            caution(strict=self._strict)

    def _plan(
        self, quota: QuotaSpec, identity: Any, *, action: str, cost: int, algorithm: str | None, charge: bool = True
    ) -> Plan:
        if type(cost) is not int or not 0 <= cost <= MAX_LIMIT:
            cost = whole_cost("cost", cost)
        text = self._text(identity)
        spec = quota if type(quota) is str or isinstance(quota, Quota) else read(quota)
        scope = "" if action == "" else _short(action)
        terms = _terms(spec, scope, self._algorithm if algorithm is None else algorithm)
        if len(terms) == 1:
            if terms[0].held and charge and cost:
                raise QuotaError("quota", quota, problem="its place has to be released", expected="use hold")
            return new(Plan, ((new(Check, (terms[0], text, cost)),), charge, False, None))
        return Plan(tuple([new(Check, (each, text, cost)) for each in terms]), charge)


@lru_cache(maxsize=4096)
def _terms(quota: Quota | str | Quotas, action: str, algorithm: str) -> tuple[Terms, ...]:
    return make_terms("default" if action == "" else action, read(quota), algorithm=algorithm, scope=action)


@lru_cache(maxsize=4096, typed=True)  # True is not 1, nor is 5.0 a whole number
def _quota(limit: int, period: float) -> Quota:
    return Quota(limit, period)


def _short(action: object) -> str:
    """An action as a scope: text of any length, kept whole only while it is short and cannot be taken for a digest."""
    if not isinstance(action, str):
        raise RuleError(
            "action", action, problem=f"a {type(action).__name__} is not text", expected='give a name like "reply"'
        )
    return action if len(action) <= _LONGEST_ACTION and action[:1] != "~" else f"~{digest(action)}"


class Limiter(_Engine, Banning, Reserving):
    """Says whether somebody may do something now, for synchronous code.

    `store` is a URL (`memory://`, `redis://…`) or a Store; `prefix` begins every key in a shared server;
    `algorithm` is used where a call names none; `clock` is a ManualClock for tests. A store made from a URL is
    closed by `close` or by leaving a `with` block; one that was handed in is not. Raises ConfigurationError when made
    wrong.

    While the store does not answer, `on_store_failure` decides: "local" (the limits hold in this process, each divided
    by `replicas`), "allow", "deny", or "raise" for a StoreError from the call. `deadline` bounds the seconds that the
    store may cost a call; `on_store_change` is told when it goes and when it is back. A refusal may be remembered for
    `deny_cache` seconds.

    `secret`, 16 bytes at least, makes what is kept of identities a keyed digest: limiters that share budgets share it.
    `strict` makes errors of what would be warnings.

    >>> limiter = Limiter()
    >>> limiter.is_action_allowed("alice", "reply", period=60, max_count=5)
    True
    >>> decision = limiter.hit("5/minute; 100/day", "alice", action="like")
    >>> decision.allowed, decision.limit, decision.remaining, decision.rule
    (True, 5, 4, 'like-minute')
    """

    def __init__(
        self,
        store: str | Store = "memory://",
        *,
        prefix: str = PREFIX,
        algorithm: str = DEFAULT,
        clock: Clock | None = None,
        on_store_failure: str = "local",
        deadline: float = DEADLINE,
        replicas: int = 1,
        deny_cache: float = STALENESS,
        on_store_change: Callable[[StoreChange], object] | None = None,
        secret: str | bytes | None = None,
        strict: bool = False,
    ) -> None:
        store, secret = hide_store(store), hide_secret(secret)
        super().__init__(algorithm=algorithm, secret=secret, strict=strict)
        stack = Stack(
            on_store_failure=on_store_failure,
            deadline=deadline,
            replicas=replicas,
            deny_cache=deny_cache,
            on_store_change=on_store_change,
            clock=clock,
        )
        if isinstance(store, str):
            opened = open_store(store, prefix=prefix, clock=clock, deadline=deadline)
            self.store: Store = stack.around(opened, owned=True)
        else:
            check_given(store, clock, prefix=prefix, colour=Store)
            opened = store
            self.store = stack.around(store, owned=False)
        self._meet(opened)
        self._closes = self.store is not store  # what was opened here, and what was put around a store that was given

    def is_action_allowed(
        self, user_id: object, action_key: str, period: float, max_count: int, *, algorithm: str | None = None
    ) -> bool:
        """Whether this user may do this action now, at most `max_count` times in any `period` seconds. Counts if so."""
        return self.hit(_quota(max_count, period), user_id, action=action_key, algorithm=algorithm).allowed

    def hit(
        self, quota: QuotaSpec, identity: object, *, action: str = "", cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """Charge `cost` units to an identity if every quota allows it, else nothing, and say how it stands.

        `identity` is text, bytes, an int, a UUID or a tuple of these; budgets are apart for each `action`.
        """
        plan = self._plan(quota, identity, action=action, cost=cost, algorithm=algorithm)
        return conclude(plan, self.store.run(plan))

    def peek(
        self, quota: QuotaSpec, identity: object, *, action: str = "", cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """What `hit` would say now, and how much is left, without charging."""
        return self.run(self._plan(quota, identity, action=action, cost=cost, algorithm=algorithm, charge=False))

    def reset(self, quota: QuotaSpec, identity: object, *, action: str = "", algorithm: str | None = None) -> None:
        """Give an identity its whole budget back."""
        for check in self._plan(quota, identity, action=action, cost=0, algorithm=algorithm).checks:
            self.store.forget(check.terms.rule_id, check.identity)

    def run(self, plan: Plan) -> Decision:
        """Decide a plan: the one call that reaches the store."""
        return conclude(plan, self.store.run(plan))

    def close(self) -> None:
        """Close what this limiter opened. A store that was handed in stays open; leased permits go back to it."""
        if self._closes:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncLimiter(_Engine, AsyncBanning, AsyncReserving):
    """Limiter for asynchronous code: the same names and arguments, awaited.

    >>> import asyncio
    >>> async def main():
    ...     async with AsyncLimiter() as limiter:
    ...         return await limiter.is_action_allowed("alice", "reply", period=60, max_count=5)
    >>> asyncio.run(main())
    True
    """

    def __init__(
        self,
        store: str | AsyncStore = "memory://",
        *,
        prefix: str = PREFIX,
        algorithm: str = DEFAULT,
        clock: Clock | None = None,
        on_store_failure: str = "local",
        deadline: float = DEADLINE,
        replicas: int = 1,
        deny_cache: float = STALENESS,
        on_store_change: Callable[[StoreChange], object] | None = None,
        secret: str | bytes | None = None,
        strict: bool = False,
    ) -> None:
        store, secret = hide_store(store), hide_secret(secret)
        super().__init__(algorithm=algorithm, secret=secret, strict=strict)
        stack = Stack(
            on_store_failure=on_store_failure,
            deadline=deadline,
            replicas=replicas,
            deny_cache=deny_cache,
            on_store_change=on_store_change,
            clock=clock,
        )
        if isinstance(store, str):
            opened = open_async_store(store, prefix=prefix, clock=clock, deadline=deadline)
            self.store: AsyncStore = stack.around_async(opened, owned=True)
        else:
            check_given(store, clock, prefix=prefix, colour=AsyncStore)
            opened = store
            self.store = stack.around_async(store, owned=False)
        self._meet(opened)
        self._closes = self.store is not store  # what was opened here, and what was put around a store that was given

    async def is_action_allowed(
        self, user_id: object, action_key: str, period: float, max_count: int, *, algorithm: str | None = None
    ) -> bool:
        """Whether this user may do this action now, at most `max_count` times in any `period` seconds. Counts if so."""
        return (await self.hit(_quota(max_count, period), user_id, action=action_key, algorithm=algorithm)).allowed

    async def hit(
        self, quota: QuotaSpec, identity: object, *, action: str = "", cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """Charge `cost` units to an identity if every quota allows it, else nothing, and say how it stands."""
        plan = self._plan(quota, identity, action=action, cost=cost, algorithm=algorithm)
        return conclude(plan, await self.store.run(plan))

    async def peek(
        self, quota: QuotaSpec, identity: object, *, action: str = "", cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """What `hit` would say now, and how much is left, without charging."""
        return await self.run(self._plan(quota, identity, action=action, cost=cost, algorithm=algorithm, charge=False))

    async def reset(
        self, quota: QuotaSpec, identity: object, *, action: str = "", algorithm: str | None = None
    ) -> None:
        """Give an identity its whole budget back."""
        for check in self._plan(quota, identity, action=action, cost=0, algorithm=algorithm).checks:
            await self.store.forget(check.terms.rule_id, check.identity)

    async def run(self, plan: Plan) -> Decision:
        """Decide a plan: the one call that reaches the store."""
        return conclude(plan, await self.store.run(plan))

    async def close(self) -> None:
        """Close what this limiter opened. A store that was handed in stays open; leased permits go back to it."""
        if self._closes:
            await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _accept_all(terms: Terms) -> None:
    """What a store says of any terms when it has no `accept` of its own."""
