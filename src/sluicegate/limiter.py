"""The limiters: they make a plan, run it in a store, and conclude a decision.

`Limiter` and `AsyncLimiter` differ only by one await.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import lru_cache, partial
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Never, NoReturn, Self, TypeVar, cast, get_args
from weakref import WeakValueDictionary

from sluicegate.algorithms import DEFAULT, AlgorithmName, find
from sluicegate.clock import MICROSECOND, Clock, calendar_us
from sluicegate.errors import (
    AsyncMismatchError,
    ConfigurationError,
    QuotaError,
    RuleError,
    SettingsError,
    StoreError,
    check_flag,
    check_labels,
    shows_half_made,
    unknown_option,
)
from sluicegate.identity import Seal, digest, identity_text
from sluicegate.observe.usage import Budget, budgets_of
from sluicegate.plan import (
    BAN,
    Check,
    Checks,
    Decision,
    Handlers,
    Network,
    Outcome,
    Outcomes,
    Plan,
    RateLimitExceeded,
    Terms,
    new,
    uncharged,
)
from sluicegate.quota import MAX_LIMIT, Quota
from sluicegate.reservation import AsyncReservation, AsyncSlot, Reservation, Slot
from sluicegate.rules.terms import Quotas, QuotaSpec, is_dated, make_terms, present, read, whole_cost
from sluicegate.runtime.hidden import hide_secret, hide_store
from sluicegate.stores import (
    DEADLINE,
    AsyncRun,
    AsyncStore,
    Mode,
    Run,
    Store,
    StoreChange,
    compiled,
    mode_of,
    open_async_store,
    open_store,
    terms_of,
)
from sluicegate.stores.timed import timed, timed_async
from sluicegate.stores.wrappers import (
    PREFIX,
    STALENESS,
    LimiterFailurePolicy,
    StoreOptions,
    check_given,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from sluicegate.observe.events import Delivery
    from sluicegate.observe.status import Status
    from sluicegate.overrides.write import AsyncOverrides, Overrides
    from sluicegate.rules.ban import Ban

_LONGEST_ACTION: Final = 128  # characters of an action in a key; of a longer one the key has the digest
_ONE: Final = 1  # the usual cost, which is compared by object identity: so no bool, float or subclass is taken for it


_NO_CHECKS: Final[Checks] = ()
_MOST_RUNS: Final = 4096  # before all are compiled again: rules made for each request would grow the table without end
_ALLOWED: Final = itemgetter(0)
"""Whether an outcome is allowed. A function of C costs less for one outcome than a loop."""


_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)
_AnyLimiter = TypeVar("_AnyLimiter", bound="_Engine[Any]")
_EXISTING: Final[WeakValueDictionary[int, _Engine[Any]]] = WeakValueDictionary()  # `valuerefs` copies it in one step


class _Engine(Generic[_AnyStore]):
    """The common part of both limiters: the constructor, and everything except the await of the store."""

    _store: _AnyStore
    _asynchronous: ClassVar[bool]
    _timed: Any  # timed or timed_async
    _open: ClassVar[Callable[..., Any]]
    _wrap: ClassVar[Callable[..., Any]]
    events: Delivery | None = None
    """Delivers the decisions to `on_decision`. If it is None, a decision runs no code for events."""
    on_made: ClassVar[Callable[[Any], None] | None] = None
    """Called with each new limiter, if a test sets it: see `use`."""

    def __init__(
        self,
        store: str | _AnyStore = "memory://",
        *,
        prefix: str = PREFIX,
        algorithm: AlgorithmName = DEFAULT,
        clock: Clock | None = None,
        on_store_failure: LimiterFailurePolicy = "local",
        deadline: float = DEADLINE,
        replicas: int = 1,
        deny_cache: float = STALENESS,
        on_store_change: Callable[[StoreChange], object] | None = None,
        secret: str | bytes | None = None,
        on_decision: Handlers | None = None,
        show_identities: bool = False,
        application: str = "",
        strict: bool = False,
        **unknown: Never,
    ) -> None:
        # First: an error that is raised below may be shown with all variables.
        store, secret = hide_store(store), hide_secret(secret)
        for name in unknown:
            raise unknown_option(type(self).__name__, name, ("store", *OPTIONS), error=SettingsError)
        find(algorithm)
        check_flag("strict", strict)
        check_labels(application, show_identities=show_identities)
        self._algorithm = algorithm
        self.text = _text(None if secret is None else Seal(secret))
        self._options = StoreOptions(
            on_store_failure=on_store_failure,
            deadline=deadline,
            replicas=replicas,
            deny_cache=deny_cache,
            on_store_change=on_store_change,
            clock=clock,
            strict=strict,
        )
        if on_decision is not None:
            from sluicegate.observe.events import Delivery

            self.events = Delivery(on_decision, application=application, show_identities=show_identities)
            self._options.measured = True
        opened: Any = store
        if isinstance(store, str):
            opened = self._open(store, prefix=prefix, clock=clock, deadline=deadline)
        else:
            check_given(store, clock, prefix=prefix, asynchronous=self._asynchronous)
        self.own = self.opened = opened
        self._owned = opened is not store
        self.store = self._wrap(self._options, opened, owned=self._owned)
        self._closes = self.store is not store  # the store was opened here, or is a wrapper made here
        _EXISTING[id(self)] = self
        if (warn := getattr(opened, "warn", None)) is not None:
            warn(strict=strict)
        if self.on_made is not None:
            self.on_made()

    @classmethod
    def existing(cls) -> list[Self]:
        """Return the limiters of this class that exist in this process."""
        return [limiter for found in _EXISTING.valuerefs() if isinstance(limiter := found(), cls)]

    def use(self, store: _AnyStore) -> None:
        """Decide in this store from now on, inside new wrappers. `own` is the first store. The fixtures of
        `sluicegate.testing` give each test a store of its own.
        """
        self.opened = store
        self.store = self._wrap(self._options, store, owned=self._owned)

    @property
    def store(self) -> _AnyStore:
        """The store, inside its wrappers."""
        return self._store

    @store.setter
    def store(self, store: _AnyStore) -> None:
        self._store = store
        # The guard measures inside of itself: a refusal that it remembers takes no time of the store.
        measure = self._timed if self.events is not None and store is self.opened else None
        self.runs: dict[Mode, Runs] = {mode: Runs(store, mode, measure) for mode in get_args(Mode)}
        """What decides checks of these terms in this mode: compiled once."""

    def accept(self, terms: Terms) -> None:
        """Raise ConfigurationError for terms of a rule that the store cannot keep.

        The gate calls this when it makes a rule ready.
        """
        if (accept := getattr(self.opened, "accept", None)) is not None:
            accept(terms)

    def present(self, terms: tuple[Terms, ...]) -> tuple[Terms, ...]:
        """Return the terms of now, in place of those whose windows end with the calendar."""
        return present(terms, *calendar_us(self._options.clock_of(self.opened)))

    def _remembered(self, text: str) -> set[str]:
        """Return the ids of the rules under which the wrappers remember something of an identity."""
        remembered: Callable[[str], set[str]] | None = getattr(self._store, "remembered", None)
        return set() if remembered is None else remembered(text)

    def check_loop(self) -> None:
        """Raise AsyncMismatchError if the store works only on asyncio, and another event loop such as trio runs."""
        if getattr(self.opened, "needs_asyncio", False):
            from sluicegate.stores.completion import running_loop

            if running_loop() is None:
                problem = "it works only on asyncio, and no event loop of asyncio runs here"
                expected = 'run the application on asyncio, or use "memory://"'
                raise AsyncMismatchError("store", self.opened, problem=problem, expected=expected)

    def _known(self) -> Status:
        """Return what this process knows of the store."""
        from sluicegate.observe.status import describe, percentiles

        known = describe(self._store)
        # The round trips are those of decisions, if there were any.
        times = None if self.events is None else percentiles(tuple(self.events.last))
        return known if times is None else known._replace(round_trip=times)

    def __dir__(self) -> list[str]:
        """Return the names for users. The gates, the exams and the fixtures use the others."""
        return [name for name in super().__dir__() if name not in _INSIDE]

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} holds connections and cannot be copied or pickled; make one in each process")

    def _terms(self, quota: QuotaSpec, action: str, algorithm: str | None) -> tuple[Terms, ...]:
        """Return the terms of a quota. Equal arguments return the same objects."""
        spec = quota if type(quota) is str or isinstance(quota, Quota) else read(quota)
        scope = "" if action == "" else _short(action)
        if algorithm is not None and type(algorithm) is not str:
            find(algorithm)  # raises, also for what the cache could not hash
        found = _terms(spec, scope, self._algorithm if algorithm is None else algorithm)
        if found[0].held and algorithm is not None:
            raise RuleError("algorithm", algorithm, problem="a Concurrency counts without one", expected="leave it out")
        return found


class Runs(dict[tuple[Terms, ...], Any]):
    """The compiled Runs of a store in one mode, by their terms. It does not refer to the limiter."""

    def __init__(self, store: object, mode: Mode, measure: Callable[[Any], Any] | None) -> None:
        super().__init__()
        self._compile, self._measure = partial(compiled, store, mode=mode), measure

    def __missing__(self, terms: tuple[Terms, ...]) -> Any:
        """Compile a Run."""
        run = self._compile(terms)
        if len(self) >= _MOST_RUNS:
            self.clear()
        run = self[terms] = run if self._measure is None else self._measure(run)
        return run


_INSIDE: Final = frozenset(  # not for users: `dir` leaves these out
    {"accept", "check_loop", "decide", "events", "existing", "on_made", "opened", "own", "present", "run", "runs"}
    | {"store", "take", "text", "use"}
)
OPTIONS: Final = tuple(_Engine.__init__.__kwdefaults__ or ())
"""The names of a limiter's options. Settings have each of them under the same name."""


def _text(seal: Seal | None) -> Callable[[object], str]:
    """Return the function that makes the text of an identity, in the form that stores get."""
    return identity_text if seal is None else lambda identity: seal.text(identity_text(identity))


@lru_cache(maxsize=4096)
def _terms(quota: Quota | str | Quotas, action: str, algorithm: str) -> tuple[Terms, ...]:
    found = make_terms("default" if action == "" else action, read(quota), algorithm=algorithm, scope=action)
    if len(found) == 1:
        return found
    # A bucket has one budget for two quotas of one rate. It is charged once, by the stricter.
    stricter = {each.rule_id: each for each in sorted(found, key=lambda each: -each.limit)}
    return tuple([each for each in found if stricter[each.rule_id] is each])


_cached_quota = lru_cache(maxsize=4096, typed=True)(Quota)  # True is not 1, and 5.0 is not a whole number


def _quota(limit: int, period: float) -> Quota:
    try:
        return _cached_quota(limit, period)
    except TypeError:  # of an unhashable argument, which is no number
        return Quota(limit, period)


def _short(action: object) -> str:
    """Return the scope of an action: the text if it is short and does not look like a digest, else its digest."""
    if not isinstance(action, str):
        raise RuleError("action", action, problem="it is not text", expected='give a name like "reply"')
    return action if len(action) <= _LONGEST_ACTION and action[:1] != "~" else f"~{digest(action)}"


class Limiter(_Engine[Store]):
    """Decides whether a user may do something now, for synchronous code.

    `store` is a URL (`memory://`, `redis://…`) or a Store; `prefix` begins every key in a shared server; `algorithm` is
    used if a call names no algorithm; `clock` is a ManualClock for tests. A store made from a URL is closed by `close`
    or at the end of a `with` block; a given store stays open. Raises ConfigurationError for wrong arguments.

    While the store is unavailable, `on_store_failure` decides: "local" (the limits hold in this process, each divided
    by `replicas`), "allow", "deny", or "raise" for a StoreError from the call. `deadline` is how many seconds a
    call waits for a silent server; while the server answers or a connection opens, it may wait longer (up to a second).
    `on_store_change` is called when the store becomes unavailable and when it is available again. A refusal may be
    cached for `deny_cache` seconds.

    With `secret`, at least 16 bytes, stores keep identities as keyed digests. Limiters that share budgets need the same
    secret. `on_decision` is a function, or several, called with a DecisionEvent after each decision. The event has the
    name of the `application`, and identities as digests unless `show_identities`. `strict` turns warnings into errors.

    >>> limiter = Limiter()
    >>> limiter.is_action_allowed("alice", "reply", period=60, max_count=5)
    True
    >>> decision = limiter.hit("5/minute; 100/day", "alice", action="like")
    >>> decision.allowed, decision.limit, decision.remaining, decision.rule
    (True, 5, 4, 'like-minute')
    """

    _asynchronous = False
    _open = staticmethod(open_store)
    _wrap = staticmethod(StoreOptions.wrap)
    _timed = staticmethod(timed)

    @property
    def overrides(self) -> Overrides:
        """What holds instead of rules, to read and to write. The applications with this store and prefix follow it."""
        from sluicegate.overrides.write import Overrides  # here: most processes write none

        return Overrides(self.opened, self.text)

    def is_action_allowed(
        self, user_id: object, action_key: str, period: float, max_count: int, *, algorithm: AlgorithmName | None = None
    ) -> bool:
        """True if this user may do this action now: at most `max_count` times in any `period` seconds. If True, the
        action is counted.
        """
        return self.hit(_quota(max_count, period), user_id, action=action_key, algorithm=algorithm).allowed

    def limit(self, quota: QuotaSpec, *, action: str = "", algorithm: AlgorithmName | None = None) -> Limit:
        """Prepare a limit that is used often: what depends only on these arguments is done once.

        >>> reply = Limiter().limit("5/minute", action="reply")
        >>> reply.hit("alice").remaining, reply.hit("alice", cost=2).remaining
        (4, 2)
        """
        return Limit(self, self._terms(quota, action, algorithm))

    def hit(
        self,
        quota: QuotaSpec,
        identity: object,
        *,
        action: str = "",
        cost: int = 1,
        algorithm: AlgorithmName | None = None,
    ) -> Decision:
        """Charge `cost` units to an identity if every quota allows them, or else charge nothing. Return the decision.

        `identity` is text, bytes, an int, a UUID or a tuple of these. Each `action` has separate budgets. The first hit
        of an action is slow, and the last 4,096 actions are kept ready: put what a client chooses into the identity.
        """
        return self.limit(quota, action=action, algorithm=algorithm).hit(identity, cost)

    def peek(
        self,
        quota: QuotaSpec,
        identity: object,
        *,
        action: str = "",
        cost: int = 1,
        algorithm: AlgorithmName | None = None,
    ) -> Decision:
        """Say whether a hit would pass now, and what is left. Charges nothing."""
        return self.limit(quota, action=action, algorithm=algorithm).peek(identity, cost)

    def reset(
        self, quota: QuotaSpec, identity: object, *, action: str = "", algorithm: AlgorithmName | None = None
    ) -> None:
        """Give an identity its whole budget back: forget all its charges."""
        self.limit(quota, action=action, algorithm=algorithm).reset(identity)

    def reset_all(self, identity: object) -> int:
        """Give an identity everything back: forget all its budgets under every rule and action, its slots, its strikes
        and its bans. Return how many budgets were forgotten.

        The call scans every key of the store in small steps. Raises ConfigurationError if the store cannot list the
        budgets, and StoreError if it is unavailable. Other processes may cache a refusal for `deny_cache` seconds.

        >>> limiter = Limiter()
        >>> limiter.hit("5/minute; 100/day", "alice", action="like").remaining
        4
        >>> limiter.reset_all("alice")
        2
        """
        text = self.text(identity)
        found = _lister(self.opened, "rule_ids", "budgets")(text) | self._remembered(text)
        for rule_id in found:
            self.store.forget(rule_id, text)
        return len(found)

    def usage(self, identity: object) -> tuple[Budget, ...]:
        """Return what an identity has used under the limits that this limiter has decided or peeked in this process,
        only where something is used. Charges nothing.

        An action that had several quotas over one period is left out: which of them this identity has is not known
        here. `peek` it with its quota and `cost=0`.

        >>> limiter = Limiter()
        >>> _ = limiter.hit("5/minute", "alice", action="reply")
        >>> [(each.rule, each.used, each.limit) for each in limiter.usage("alice")]
        [('reply', 1, 5)]
        """
        return tuple([each for each in budgets_of(self.run(_all_of(self, self.text(identity)))) if each.used])

    def run(self, plan: Plan) -> Decision:
        """Decide a plan. It has no event."""
        run = self.runs[mode_of(plan)][terms_of(plan.checks)]
        return self.decide(run, plan.checks, plan.network, noted=False)

    def decide(
        self, run: Run, checks: Checks, network: Network = None, caller: object = None, *, noted: bool = True
    ) -> Decision:
        """Decide checks by their Run. Deliver the event if the decision is `noted`."""
        events = self.events
        if events is None or not noted:
            outcomes = run(checks, network)
            return new(Decision, (all(map(_ALLOWED, outcomes)), checks, outcomes))
        time = events.measure()
        return events.note(self.decide(run, checks, network, noted=False), time.stop(), caller)

    def reserve(
        self, quota: QuotaSpec, identity: object, *, cost: int, action: str = "", algorithm: AlgorithmName | None = None
    ) -> Reservation:
        """Charge an estimated `cost`, as `hit` does. Settle it when the actual cost is known.

        >>> from sluicegate import Limiter
        >>> limiter = Limiter()
        >>> tokens = limiter.reserve("1000/minute", "alice", cost=300)
        >>> tokens.settle(120)
        >>> limiter.peek("1000/minute", "alice", cost=0).remaining
        880
        """
        return self.limit(quota, action=action, algorithm=algorithm).reserve(identity, cost)

    def refund(self, decision: Decision) -> None:
        """Give back what a decision of this limiter has charged, to the windows that were charged. Call it once.

        A refused decision has charged nothing, and nothing is given back. Nor is it when the window has passed.

        >>> limiter = Limiter()
        >>> limiter.refund(limiter.hit("5/minute", "alice"))
        >>> limiter.peek("5/minute", "alice").remaining
        5
        """
        self.store.refund(*_charges(decision))

    def hold(
        self, concurrency: QuotaSpec, identity: object, *, action: str = "", cost: int = 1, refuse: bool = False
    ) -> AbstractContextManager[Slot]:
        """Hold a concurrency slot during a `with` block. The slot is released at the end of the block.

        If no slot is free, `refuse=True` raises RateLimitExceeded, so the block does not run. Without it the block runs
        and the slot is false.

        `concurrency` is a Concurrency or its text; `cost` is a number of slots. Raises RuleError for a quota per time.

        >>> from sluicegate import Concurrency, Limiter
        >>> limiter = Limiter()
        >>> with limiter.hold(Concurrency(1), "alice") as first, limiter.hold("1 at once", "alice") as second:
        ...     bool(first), bool(second)
        (True, False)
        """
        return self.limit(concurrency, action=action).hold(identity, cost, refuse=refuse)

    def take(self, plan: Plan) -> Decision:
        """Decide a plan that the caller settles. If an interrupt finds it charged, refund it: nobody would settle."""
        outcomes: Outcomes = ()
        run = self.runs["charge"][terms_of(plan.checks)]

        def kept(checks: Checks, network: Network) -> Outcomes:
            nonlocal outcomes
            outcomes = run(checks, network)
            return outcomes

        try:
            return self.decide(kept, plan.checks)
        except BaseException:
            if outcomes:
                self.store.refund(plan, outcomes)
            raise

    def ban(self, identity: object, ban: Ban, duration: float | str | timedelta | None = None) -> None:
        """Ban an identity from now on, whether it is banned already or not.

        The ban lasts for `duration` (seconds, a timedelta, or words like "1 day"), or else for as long as the
        identity's next ban would last. Like any other ban, it makes the next ban longer. Raises StoreError if the store
        is unavailable.
        """
        _check_kept(self.run(_manual_ban(self.text(identity), ban, duration)).outcomes)

    def unban(self, identity: object, ban: Ban) -> None:
        """End a ban, and forget earlier strikes and bans. Other processes may cache a ban for `deny_cache` seconds."""
        self.store.forget(_terms_of(ban).rule_id, self.text(identity))

    def bans(self, ban: Ban) -> dict[str, float]:
        """Return the banned identities, and for each the number of seconds until its ban ends.

        Identities are shown as digests, because a store has only digests. The call scans every key of the store in
        small steps. Raises ConfigurationError if the store cannot list them.
        """
        return _in_seconds(_lister(self.opened, "bans", "bans")(_terms_of(ban)))

    def status(self) -> Status:
        """Return the status: the store, its circuits and its server, and what this process has counted.

        The call charges nothing, and raises nothing if the store is down. It waits for a silent server at most
        `deadline`. While the circuit is open, it does not call the store.

        >>> Limiter().status().available
        True
        """
        known, ask = self._known(), getattr(self.opened, "ask", None)
        if ask is None or not known.available:
            return known
        try:
            ask()
        except StoreError as error:
            return known.failed(error)
        return self._known()

    def close(self) -> None:
        """Close the store if this limiter opened it. A given store stays open."""
        if self._closes:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncLimiter(_Engine[AsyncStore]):
    """The Limiter for asynchronous code: the same methods and arguments, but the methods are awaited.

    >>> import asyncio
    >>> async def main():
    ...     async with AsyncLimiter() as limiter:
    ...         return await limiter.is_action_allowed("alice", "reply", period=60, max_count=5)
    >>> asyncio.run(main())
    True
    """

    _asynchronous = True
    _open = staticmethod(open_async_store)
    _wrap = staticmethod(StoreOptions.wrap_async)
    _timed = staticmethod(timed_async)

    @property
    def overrides(self) -> AsyncOverrides:
        """What holds instead of rules, to read and to write. The applications with this store and prefix follow it."""
        from sluicegate.overrides.write import AsyncOverrides

        return AsyncOverrides(self.opened, self.text)

    async def is_action_allowed(
        self, user_id: object, action_key: str, period: float, max_count: int, *, algorithm: AlgorithmName | None = None
    ) -> bool:
        """True if this user may do this action now: at most `max_count` times in any `period` seconds. If True, the
        action is counted.
        """
        return (await self.hit(_quota(max_count, period), user_id, action=action_key, algorithm=algorithm)).allowed

    def limit(self, quota: QuotaSpec, *, action: str = "", algorithm: AlgorithmName | None = None) -> AsyncLimit:
        """Prepare a limit that is used often: what depends only on these arguments is done once."""
        return AsyncLimit(self, self._terms(quota, action, algorithm))

    async def hit(
        self,
        quota: QuotaSpec,
        identity: object,
        *,
        action: str = "",
        cost: int = 1,
        algorithm: AlgorithmName | None = None,
    ) -> Decision:
        """Charge `cost` units to an identity if every quota allows them, else charge nothing. Return the decision."""
        return await self.limit(quota, action=action, algorithm=algorithm).hit(identity, cost)

    async def peek(
        self,
        quota: QuotaSpec,
        identity: object,
        *,
        action: str = "",
        cost: int = 1,
        algorithm: AlgorithmName | None = None,
    ) -> Decision:
        """Say whether a hit would pass now, and what is left. Charges nothing."""
        return await self.limit(quota, action=action, algorithm=algorithm).peek(identity, cost)

    async def reset(
        self, quota: QuotaSpec, identity: object, *, action: str = "", algorithm: AlgorithmName | None = None
    ) -> None:
        """Give an identity its whole budget back: forget all its charges."""
        await self.limit(quota, action=action, algorithm=algorithm).reset(identity)

    async def reset_all(self, identity: object) -> int:
        """Forget all budgets, slots, strikes and bans of an identity. Return how many budgets were forgotten."""
        self.check_loop()
        text = self.text(identity)
        found = await _lister(self.opened, "rule_ids", "budgets")(text) | self._remembered(text)
        for rule_id in found:
            await self.store.forget(rule_id, text)
        return len(found)

    async def usage(self, identity: object) -> tuple[Budget, ...]:
        """Return what an identity has used, as `Limiter.usage`."""
        return tuple([each for each in budgets_of(await self.run(_all_of(self, self.text(identity)))) if each.used])

    async def run(self, plan: Plan) -> Decision:
        """Decide a plan. It has no event."""
        run = self.runs[mode_of(plan)][terms_of(plan.checks)]
        made = self.decide(run, plan.checks, plan.network, noted=False)
        return made if isinstance(made, Decision) else await made

    def decide(
        self,
        run: AsyncRun,
        checks: Checks,
        network: Network = None,
        caller: object = None,
        *,
        noted: bool = True,
        undo: Callable[[Decision], Awaitable[object]] | None = None,
    ) -> Decision | Coroutine[Any, Any, Decision]:
        """Decide checks by their Run. A store in memory needs no await, and without events neither does this.

        If the caller is cancelled while the store is asked, `undo` gets the decision later.
        """
        if self.events is not None and noted:
            return self._noted(run, checks, network, caller=caller, undo=undo)
        found: Any = run(checks, network)
        if type(found) is tuple:
            return new(Decision, (all(map(_ALLOWED, found)), checks, found))
        later = self._later(checks, found)
        if undo is None:
            return later
        # Imported here: asyncio is half the time to import sluicegate, and a Limiter does not need it.
        from sluicegate.stores.completion import complete

        return complete(later, undo)

    async def _later(self, checks: Checks, found: Awaitable[Outcomes]) -> Decision:
        """Await the outcomes. Raises AsyncMismatchError on an event loop that the store cannot use."""
        try:
            outcomes = await found
        except RuntimeError:  # perhaps because there is no loop of asyncio: then our own error says so
            self.check_loop()
            raise
        return new(Decision, (all(map(_ALLOWED, outcomes)), checks, outcomes))

    async def _noted(
        self,
        run: AsyncRun,
        checks: Checks,
        network: Network,
        *,
        caller: object,
        undo: Callable[[Decision], Awaitable[object]] | None,
    ) -> Decision:
        """Decide checks, and deliver the event in the caller's task: none if the caller was cancelled."""
        events = cast("Delivery", self.events)
        time, made = events.measure(), self.decide(run, checks, network, noted=False, undo=undo)
        return events.note(made if isinstance(made, Decision) else await made, time.stop(), caller)

    async def reserve(
        self, quota: QuotaSpec, identity: object, *, cost: int, action: str = "", algorithm: AlgorithmName | None = None
    ) -> AsyncReservation:
        """Charge an estimated `cost`, as `hit` does. Settle it when the actual cost is known."""
        return await self.limit(quota, action=action, algorithm=algorithm).reserve(identity, cost)

    async def refund(self, decision: Decision) -> None:
        """Give back what a decision of this limiter has charged. Call it once. Once started, it completes even if its
        task is cancelled.
        """
        from sluicegate.stores.completion import complete

        await complete(self.store.refund(*_charges(decision)))

    def hold(
        self, concurrency: QuotaSpec, identity: object, *, action: str = "", cost: int = 1, refuse: bool = False
    ) -> AbstractAsyncContextManager[AsyncSlot]:
        """Hold a concurrency slot during an `async with` block, as `Limiter.hold` does."""
        return self.limit(concurrency, action=action).hold(identity, cost, refuse=refuse)

    async def take(self, plan: Plan) -> Decision:
        """Decide a plan that the caller settles. If the caller is cancelled meanwhile, refund it."""

        def undo(made: Decision) -> Awaitable[object]:
            return self.store.refund(Plan(made.checks), made.outcomes)

        made = self.decide(self.runs["charge"][terms_of(plan.checks)], plan.checks, undo=undo)
        return made if isinstance(made, Decision) else await made

    async def ban(self, identity: object, ban: Ban, duration: float | str | timedelta | None = None) -> None:
        """Ban an identity from now on, whether it is banned already or not."""
        self.check_loop()
        _check_kept((await self.run(_manual_ban(self.text(identity), ban, duration))).outcomes)

    async def unban(self, identity: object, ban: Ban) -> None:
        """End a ban, and forget the earlier strikes and bans."""
        self.check_loop()
        await self.store.forget(_terms_of(ban).rule_id, self.text(identity))

    async def bans(self, ban: Ban) -> dict[str, float]:
        """Return the banned identities as digests, and for each the number of seconds until its ban ends."""
        self.check_loop()
        return _in_seconds(await _lister(self.opened, "bans", "bans")(_terms_of(ban)))

    async def status(self) -> Status:
        """Return the status. Charges nothing, raises nothing if the store is down, and waits for a silent server no
        longer than `deadline`.
        """
        self.check_loop()
        known, ask = self._known(), getattr(self.opened, "ask", None)
        if ask is None or not known.available:
            return known
        try:
            await ask()
        except StoreError as error:
            return known.failed(error)
        return self._known()

    async def close(self) -> None:
        """Close the store that this limiter opened. A store object that was given stays open. Refunds that
        cancelled callers have left under way come first, for at most a second.
        """
        from sluicegate.stores.completion import wait_for_the_rest

        await wait_for_the_rest()
        if self._closes:
            await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


@shows_half_made
class _Limit(Generic[_AnyLimiter]):
    """The common part of both prepared limits."""

    __slots__ = ("_dated", "_held", "_limiter", "_terms")

    def __init__(self, limiter: _AnyLimiter, terms: tuple[Terms, ...]) -> None:
        self._limiter = limiter
        self._terms = terms
        self._held = terms[0].held
        self._dated = is_dated(terms)

    def __call__(self, view: object, *_: object, **__: object) -> NoReturn:
        """Raise RuleError: in other libraries the limit of a limiter is a decorator."""
        problem, expected = "a prepared limit is no decorator", "use limit of sluicegate.flask, .django or .starlette"
        raise RuleError("limit on", getattr(view, "__qualname__", type(view)), problem=problem, expected=expected)

    def __repr__(self) -> str:
        name, terms = type(self).__name__, self._terms
        return f"{name}({'; '.join([f'{each.limit} at once' if each.held else str(each.quota) for each in terms])})"

    def _checks(self, identity: object, cost: int, *, slots: bool = False) -> Checks:
        """Return the checks of an identity and a cost, as the user gives them. A Concurrency has only `slots`."""
        if cost is not _ONE and (type(cost) is not int or not 0 <= cost <= MAX_LIMIT):
            cost = whole_cost("cost", cost)
        if self._held and cost and not slots:
            given, problem = f"{self._terms[0].limit} at once", "a Concurrency, whose slot must be released"
            raise QuotaError("quota", given, problem=problem, expected="use hold")
        text, checks = self._limiter.text(identity), _NO_CHECKS
        for terms in self._limiter.present(self._terms) if self._dated else self._terms:
            checks += (new(Check, (terms, text, cost)),)
        return checks

    def _slots(self, identity: object, cost: int) -> Plan:
        """Return the plan that takes slots."""
        if cost == 0 and isinstance(cost, int):
            raise RuleError("cost", cost, problem="it holds no slot", expected="give 1 or more")
        if not self._held:
            given, problem = "; ".join([str(each.quota) for each in self._terms]), "a quota per time, no Concurrency"
            raise RuleError("concurrency", given, problem=problem, expected='give a Concurrency or "10 at once"')
        return Plan(self._checks(identity, cost, slots=True))


class Limit(_Limit[Limiter]):
    """A prepared limit of a Limiter: its methods do the same as those of the limiter, with one quota and one action.

    `Limiter.limit` makes it.
    """

    __slots__ = ()

    def hit(self, identity: object, cost: int = 1) -> Decision:
        """Charge `cost` units to an identity if every quota allows them, or else charge nothing."""
        limiter, checks = self._limiter, self._checks(identity, cost)
        return limiter.decide(limiter.runs["charge"][terms_of(checks) if self._dated else self._terms], checks)

    def peek(self, identity: object, cost: int = 1) -> Decision:
        """Say whether a hit would pass now, and what is left. Charges nothing."""
        return uncharged(self._limiter.run(Plan(self._checks(identity, cost, slots=True), charge=False)))

    def reset(self, identity: object) -> None:
        """Give an identity its whole budget back: forget all its charges."""
        text = self._limiter.text(identity)
        for terms in self._terms:
            self._limiter.store.forget(terms.rule_id, text)

    def reserve(self, identity: object, cost: int) -> Reservation:
        """Charge an estimated `cost`, as `hit` does. Settle it when the actual cost is known."""
        return Reservation(self._limiter.store, self._limiter.take(Plan(self._checks(identity, cost))))

    @contextmanager
    def hold(self, identity: object, cost: int = 1, *, refuse: bool = False) -> Generator[Slot]:
        """Hold a concurrency slot during a `with` block, as `Limiter.hold` does."""
        slot = None
        try:
            slot = Slot(self._limiter.store, self._limiter.take(self._slots(identity, cost)))
            if refuse and not slot:
                raise RateLimitExceeded(slot.decision)
            yield slot
        finally:
            if slot is not None:
                slot.release()


class AsyncLimit(_Limit[AsyncLimiter]):
    """A prepared limit of an AsyncLimiter: the same methods, which are awaited."""

    __slots__ = ()

    async def hit(self, identity: object, cost: int = 1) -> Decision:
        """Charge `cost` units to an identity if every quota allows them, or else charge nothing."""
        limiter, checks = self._limiter, self._checks(identity, cost)
        made = limiter.decide(limiter.runs["charge"][terms_of(checks) if self._dated else self._terms], checks)
        return made if type(made) is Decision else await made

    async def peek(self, identity: object, cost: int = 1) -> Decision:
        """Say whether a hit would pass now, and what is left. Charges nothing."""
        return uncharged(await self._limiter.run(Plan(self._checks(identity, cost, slots=True), charge=False)))

    async def reset(self, identity: object) -> None:
        """Give an identity its whole budget back: forget all its charges."""
        self._limiter.check_loop()
        text = self._limiter.text(identity)
        for terms in self._terms:
            await self._limiter.store.forget(terms.rule_id, text)

    async def reserve(self, identity: object, cost: int) -> AsyncReservation:
        """Charge an estimated `cost`, as `hit` does. Settle it when the actual cost is known."""
        return AsyncReservation(self._limiter.store, await self._limiter.take(Plan(self._checks(identity, cost))))

    @asynccontextmanager
    async def hold(self, identity: object, cost: int = 1, *, refuse: bool = False) -> AsyncGenerator[AsyncSlot]:
        """Hold a concurrency slot during an `async with` block, as `Limiter.hold` does."""
        slot = AsyncSlot(self._limiter.store, await self._limiter.take(self._slots(identity, cost)))
        try:
            if refuse and not slot:
                raise RateLimitExceeded(slot.decision)
            yield slot
        finally:
            await slot.release()


def _charges(decision: Decision) -> tuple[Plan, tuple[Outcome, ...]]:
    """Return the arguments of a store's `refund`. The store leaves out what was not charged."""
    if not isinstance(decision, Decision):
        expected = "give the decision that hit returned; a Reservation and a Slot give back themselves"
        raise RuleError("refund", decision, problem="not a decision", expected=expected)
    return Plan(decision.checks), decision.outcomes


def _all_of(limiter: _Engine[Any], text: str) -> Plan:
    """Return a plan that reads the budgets of an identity under all limits that were decided or peeked. A budget that
    had several quotas is not among them: each may be that of another identity.
    """
    known: dict[str, dict[Quota, Terms]] = {}
    for each in [each for of in limiter.runs.values() for terms in [*of] for each in terms]:
        known.setdefault(each.rule_id, {})[each.quota] = each
    sure = [each for quotas in known.values() if len(quotas) == 1 for each in quotas.values()]
    bans_last = sorted(sure, key=lambda each: each.algorithm == BAN)  # as in every plan: see `Plan`
    return Plan(tuple([Check(each, text, 0) for each in limiter.present(tuple(bans_last))]), charge=False)


def _terms_of(ban: Ban) -> Terms:
    terms = getattr(ban, "terms", None)
    if isinstance(terms, Terms):
        return terms
    raise RuleError("ban", ban, problem="not a Ban", expected="give the Ban object that the rules have")


def _manual_ban(text: str, ban: Ban, duration: float | str | timedelta | None) -> Plan:
    """Make a plan with as many strikes as a ban needs to begin."""
    terms = _terms_of(ban)
    terms = terms if duration is None else ban.lasting(duration)
    return Plan((Check(terms, text, ban.after),))


def _check_kept(outcomes: tuple[Outcome, ...]) -> None:
    """Raise StoreError if only this process knows of the ban."""
    if any([outcome.source != "store" for outcome in outcomes]):
        raise StoreError(
            "of this limiter",
            "unavailable, so the ban holds only in this process; ban again when the store is available",
        )


def _lister(store: Any, method: str, what: str) -> Any:
    found = getattr(store, method, None)
    if found is None:
        problem, expected = f"this store cannot list {what}", "keep them in a memory:// or redis:// store"
        raise ConfigurationError("store", store, problem=problem, expected=expected)
    return found


def _in_seconds(found: dict[str, int]) -> dict[str, float]:
    return {name: left / MICROSECOND for name, left in found.items()}
