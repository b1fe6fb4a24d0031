"""The options of a store, and the guard that is made from them. A memory store needs none and is returned as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isfinite
from types import ModuleType
from typing import Any, Final, Literal, cast

from sluicegate.clock import Clock
from sluicegate.errors import AsyncMismatchError, ConfigurationError, SettingsError, StoreURLError, warn
from sluicegate.plan import FAILURE_POLICIES, FailurePolicy
from sluicegate.stores import DEADLINE, AsyncStore, Store, StoreChange
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore

LimiterFailurePolicy = FailurePolicy | Literal["raise"]
"""The policies of a limiter. An adapter has no one to raise to."""

PREFIX: Final = "sg"  # short, because every key in a server begins with it
_URL: Final = "give a URL such as memory://, as text"
_LONG, _LONGEST = 5, 60  # seconds of a deadline: with a warning, and at most: more may be milliseconds
STALENESS: Final = 1.0  # seconds for which a refusal may be remembered


class StoreOptions:
    """The store options: settings and limiters have the same names. Raises SettingsError for a wrong value."""

    measured = False  # whether the calls of the store are measured

    def __init__(
        self,
        *,
        on_store_failure: LimiterFailurePolicy = "local",
        deadline: float = DEADLINE,
        replicas: int = 1,
        deny_cache: float = STALENESS,
        on_store_change: Callable[[StoreChange], object] | None = None,
        clock: Clock | None = None,
        strict: bool = False,
    ) -> None:
        self.on_store_failure = on_store_failure
        self.deadline = deadline
        self.replicas = replicas
        self.deny_cache = deny_cache
        self.on_store_change = on_store_change
        self.clock = clock
        self.strict = strict
        self._check()

    def _check(self) -> None:
        policies = (*FAILURE_POLICIES, "raise")
        if self.on_store_failure not in policies:
            raise _error("on_store_failure", self.on_store_failure, "not known", f"use one of {', '.join(policies)}")
        if not _seconds(self.deadline) or self.deadline <= 0:
            expected = f"give seconds, for example {DEADLINE}"
            raise _error("deadline", self.deadline, "not a number of seconds above 0", expected)
        if self.deadline > _LONGEST:
            expected = f"give seconds, not milliseconds, for example {DEADLINE}"
            raise _error("deadline", self.deadline, f"more than {_LONGEST} seconds", expected)
        if self.deadline > _LONG:
            warn("SG113", self.deadline, strict=self.strict)
        if not isinstance(self.replicas, int) or isinstance(self.replicas, bool) or self.replicas < 1:
            raise _error("replicas", self.replicas, "not a whole number above 0", "give the number of processes")
        if not _seconds(self.deny_cache) or self.deny_cache < 0:
            raise _error("deny_cache", self.deny_cache, "not a number of seconds", "give seconds, or 0 for none")
        clock = self.clock
        if clock is not None and (isinstance(clock, type) or not callable(getattr(clock, "now_us", None))):
            raise _error("clock", clock, "not a clock", "give a ManualClock, or leave it out")
        hook = self.on_store_change
        if hook is None:
            return
        # Here: it imports inspect, a quarter of the time to import sluicegate.
        from sluicegate.runtime.awaiting import check_call, is_async

        if not callable(hook) or is_async(hook):
            raise _error("on_store_change", hook, "not a plain function", "give a function of a StoreChange")
        check_call("on_store_change", hook, takes=("change",), error=SettingsError)

    def wrap(self, store: Store, *, owned: bool) -> Store:
        """Return the store inside its wrappers. `close` of the result closes the store too if it is `owned`."""
        return cast("Store", self._wrapped(store, owned=owned, asynchronous=False))

    def wrap_async(self, store: AsyncStore, *, owned: bool) -> AsyncStore:
        """Put an async store inside its wrappers."""
        return cast("AsyncStore", self._wrapped(store, owned=owned, asynchronous=True))

    def _wrapped(self, store: Any, *, owned: bool, asynchronous: bool) -> object:
        if isinstance(store, (MemoryStore, AsyncMemoryStore)):
            return store
        from sluicegate.stores.breaker import Breaker, Breakers
        from sluicegate.stores.deny_cache import Refusals
        from sluicegate.stores.guard import AsyncGuardedStore, GuardedStore
        from sluicegate.stores.local_fallback import LocalFallback

        clock = self.clock_of(store)
        make = partial(Breaker, deadline=self.deadline, clock=clock, on_change=self.on_store_change)
        kind: Any = partial(AsyncGuardedStore, deadline=self.deadline) if asynchronous else GuardedStore
        return kind(
            store,
            refusals=Refusals(staleness=self.deny_cache, clock=clock),
            breakers=Breakers(make, parts=getattr(store, "parts", None), serving=getattr(store, "serving", None)),
            local_fallback=LocalFallback(policy=self.on_store_failure, replicas=self.replicas, clock=clock),
            owned=owned,
            measured=self.measured,
        )

    def clock_of(self, store: object) -> Clock | None:
        """Return the clock of the wrappers: the one given here or to the store, because all of them must agree."""
        return getattr(store, "clock", None) if self.clock is None else self.clock


def check_given(store: object, clock: Clock | None, *, prefix: str, asynchronous: bool) -> None:
    """Raise an error for an object that is not a store, for a sync store in async code or the reverse, and for a clock
    or prefix beside a store object.
    """
    if isinstance(store, type) or not isinstance(store, Store):
        raise _no_store(store, asynchronous=asynchronous)
    from inspect import iscoroutinefunction  # a quarter of the time to import sluicegate

    if iscoroutinefunction(store.run) is not asynchronous:
        problem, expected = "its methods are asynchronous", "use AsyncLimiter"
        if asynchronous:
            problem = "its methods are synchronous"
            expected = "use Limiter, the async class of the store such as AsyncRedisStore, or AsyncAdapter"
        raise AsyncMismatchError("store", store, problem=problem, expected=expected)
    for option, given, usual in (("clock", clock, None), ("prefix", prefix, PREFIX)):
        if given != usual:
            problem, expected = f"a store object has its own {option}", f"give the {option} to the store"
            raise ConfigurationError(option, given, problem=problem, expected=expected)


def _no_store(given: object, *, asynchronous: bool) -> StoreURLError:
    """Return the error for an object that is no store. It names only the type, because the repr may show a password."""
    kind = type(given)
    shown, problem, expected = f"{kind.__module__}.{kind.__qualname__}", "neither a URL nor a store", _URL
    if isinstance(given, type):
        shown, problem = f"{given.__module__}.{given.__qualname__}", "a class, not an instance of it"
        expected = f"give {given.__name__}(…), or a URL" if hasattr(given, "forget") else _URL
    elif isinstance(given, ModuleType):
        shown, problem = given.__name__, "a module, not a store"
    elif hasattr(given, "execute_command"):
        problem, fits = "a client, not a store", ("asyncio" in kind.__module__) is asynchronous
        wrapper, wanted = ("AsyncRedisStore", "redis.asyncio") if asynchronous else ("RedisStore", "redis")
        expected = f"give {wrapper}({'client' if fits else f'{wanted}.Redis(…)'}), from sluicegate.stores.redis"
    return StoreURLError("store", shown, problem=problem, expected=expected)


def _seconds(given: object) -> bool:
    if not isinstance(given, (int, float)) or isinstance(given, bool):
        return False
    try:
        return isfinite(given)
    except OverflowError:  # an int that is too large for a float
        return False


def _error(option: str, given: object, problem: str, expected: str) -> SettingsError:
    return SettingsError(option, given, problem=problem, expected=expected)
