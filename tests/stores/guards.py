"""Guards with one part that matters: the deny cache alone, or the circuit and the local fallback alone."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sluicegate import ManualClock
from sluicegate.stores import AsyncStore, Store
from sluicegate.stores.breaker import Breaker, Breakers
from sluicegate.stores.deny_cache import Refusals
from sluicegate.stores.guard import AsyncGuardedStore, GuardedStore
from sluicegate.stores.local_fallback import LocalFallback
from tests.stores.breakable import DEADLINE

Fallback: Final = partial(GuardedStore, refusals=Refusals(staleness=0))
AsyncFallback: Final = partial(AsyncGuardedStore, refusals=Refusals(staleness=0))
FALLBACKS: Final = (Fallback, AsyncFallback)


def _parts(refusals: Refusals) -> dict[str, Any]:
    """Return the parts of a guard that raises what the store raises."""
    breakers = Breakers(partial(Breaker, deadline=DEADLINE, clock=ManualClock()))
    return {"refusals": refusals, "breakers": breakers, "local_fallback": LocalFallback(policy="raise")}


def cached(store: Store, refusals: Refusals) -> GuardedStore:
    """Return a store that repeats the refusals of the store inside."""
    return GuardedStore(store, **_parts(refusals))


def async_cached(store: AsyncStore, refusals: Refusals, *, deadline: float = DEADLINE) -> AsyncGuardedStore:
    """The same for asynchronous code."""
    return AsyncGuardedStore(store, deadline=deadline, **_parts(refusals))


CACHES: Final = (cached, async_cached)
