"""The stack: what stands around the store that an application names, told by five options.

From the outside in: what it has refused lately (deny_cache), permits taken in advance (leases), and what happens when
it does not answer (fallback, breaker). A memory store needs none of them and is returned as it is.
This module knows values and the stores beside it; nothing of rules, HTTP or frameworks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isfinite
from types import ModuleType
from typing import TYPE_CHECKING, Final

from sluicegate.clock import Clock
from sluicegate.errors import ColourError, ConfigurationError, SettingsError, StoreURLError
from sluicegate.hidden import Concealed
from sluicegate.plan import FAILURE_POLICIES
from sluicegate.stores import DEADLINE, AsyncStore, Store, StoreChange
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore

if TYPE_CHECKING:  # a memory store needs nothing of this, nor asyncio, which they import
    from sluicegate.stores.breaker import Breakers
    from sluicegate.stores.standin import Standin

PREFIX: Final = "sg"
_URL: Final = "give a URL such as memory://, as text"
STALENESS: Final = 1.0  # seconds for which a refusal may be remembered
FAILURE_OPTIONS: Final = ("on_store_failure", "deadline", "replicas", "deny_cache", "on_store_change")


class Stack:
    """The options, which settings and limiters have under the same names; SettingsError says what cannot work."""

    def __init__(
        self,
        *,
        on_store_failure: str = "local",
        deadline: float = DEADLINE,
        replicas: int = 1,
        deny_cache: float = STALENESS,
        on_store_change: Callable[[StoreChange], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.on_store_failure = on_store_failure
        self.deadline = deadline
        self.replicas = replicas
        self.deny_cache = deny_cache
        self.on_store_change = on_store_change
        self.clock = clock
        self._check()

    def _check(self) -> None:
        policies = (*FAILURE_POLICIES, "raise")
        if self.on_store_failure not in policies:
            raise _error("on_store_failure", self.on_store_failure, "not known", f"use one of {', '.join(policies)}")
        if not _seconds(self.deadline) or self.deadline <= 0:
            raise _error("deadline", self.deadline, "not a number of seconds above 0", f"give seconds, as {DEADLINE}")
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
        from sluicegate.awaiting import answers_later  # it imports inspect, a quarter of the time to import sluicegate

        if not callable(hook) or answers_later(hook):
            raise _error("on_store_change", hook, "not a plain function", "give a function of a StoreChange")

    def around(self, store: Store, *, owned: bool) -> Store:
        """The store with everything around it; closing that closes the store itself only if `owned`."""
        if isinstance(store, MemoryStore):
            return store
        from sluicegate.stores.deny_cache import DenyCache, Refusals
        from sluicegate.stores.fallback import Fallback
        from sluicegate.stores.leases import Leases

        clock = self._clock_of(store)
        breakers, standin = self._guards(store, clock)
        fallback = Fallback(store, breakers=breakers, standin=standin, owned=owned)
        if not self.deny_cache:
            return Leases(fallback, clock=clock)
        refusals = Refusals(staleness=self.deny_cache, clock=clock)
        return DenyCache(Leases(fallback, clock=clock, on_return=refusals.changed), refusals)

    def around_async(self, store: AsyncStore, *, owned: bool) -> AsyncStore:
        """The same for an asynchronous store."""
        if isinstance(store, AsyncMemoryStore):
            return store
        from sluicegate.stores.deny_cache import AsyncDenyCache, Refusals
        from sluicegate.stores.fallback import AsyncFallback
        from sluicegate.stores.leases import AsyncLeases

        clock = self._clock_of(store)
        breakers, standin = self._guards(store, clock)
        fallback = AsyncFallback(store, breakers=breakers, standin=standin, deadline=self.deadline, owned=owned)
        if not self.deny_cache:
            return AsyncLeases(fallback, clock=clock)
        refusals = Refusals(staleness=self.deny_cache, clock=clock)
        return AsyncDenyCache(AsyncLeases(fallback, clock=clock, on_return=refusals.changed), refusals)

    def _guards(self, store: object, clock: Clock | None) -> tuple[Breakers, Standin]:
        from sluicegate.stores.breaker import Breaker, Breakers
        from sluicegate.stores.standin import Standin

        make = partial(Breaker, deadline=self.deadline, clock=clock, on_change=self.on_store_change)
        breakers = Breakers(make, parts=getattr(store, "parts", None))
        return breakers, Standin(policy=self.on_store_failure, replicas=self.replicas, clock=clock)

    def _clock_of(self, store: object) -> Clock | None:
        """The clock to go by: one that was given, to the store if not here, for what is put around it must agree."""
        return getattr(store, "clock", None) if self.clock is None else self.clock


def check_given(store: object, clock: Clock | None, *, prefix: str, colour: type) -> None:
    """Refuse what is no store, a store of the other colour, and a clock or prefix that the store would not heed."""
    if isinstance(store, type) or not isinstance(store, Store):
        raise _no_store(store)
    from inspect import iscoroutinefunction  # a quarter of the time to import sluicegate

    if iscoroutinefunction(store.run) is not (colour is AsyncStore):
        other = "AsyncLimiter" if colour is Store else "Limiter, or the async twin of the store"
        raise ColourError("store", store, problem="its calls are of the other colour", expected=f"use {other}")
    if clock is not None:
        raise ConfigurationError(
            "clock",
            clock,
            problem="a store that was made already keeps its own clock",
            expected="give the clock to the store",
        )
    if prefix != PREFIX:
        raise ConfigurationError(
            "prefix",
            prefix,
            problem="a store that was made already keeps its own prefix",
            expected="give the prefix to the store",
        )


def _no_store(given: object) -> StoreURLError:
    """What is wrong with something that is no store. It is told by its type: its repr may show a password."""
    given = given.value if isinstance(given, Concealed) else given
    kind = type(given)
    shown, problem, expected = f"{kind.__module__}.{kind.__qualname__}", "neither a URL nor a store", _URL
    if isinstance(given, type):
        shown, problem = f"{given.__module__}.{given.__qualname__}", "a class, not a store made of it"
        expected = f"give {given.__name__}(…), or a URL" if hasattr(given, "forget") else _URL
    elif isinstance(given, ModuleType):
        shown, problem = given.__name__, "a module, not a store"
    elif hasattr(given, "execute_command"):
        problem, wrapper = "a client, not a store", "AsyncRedisStore" if "asyncio" in kind.__module__ else "RedisStore"
        expected = f"give {wrapper}(client), from sluicegate.stores.redis"
    return StoreURLError("store", shown, problem=problem, expected=expected)


def _seconds(given: object) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and isfinite(given)


def _error(option: str, given: object, problem: str, expected: str) -> SettingsError:
    return SettingsError(option, given, problem=problem, expected=expected)
