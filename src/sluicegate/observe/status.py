"""The status of a limiter: its store, the circuit breakers, the server and what this process has counted. Values only.

A store and each of its wrappers may have `describe()`, which returns what this process knows, without I/O. A wrapper
adds its part to that of the store inside. Before that, the limiter calls `ask()` of the store, which asks the server.
No part of a status names an identity or shows a password.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

from sluicegate.errors import StoreError, cause_text

TopologyName = Literal["memory", "single", "sentinel", "cluster", "embedded", "other"]
CircuitState = Literal["closed", "open", "probing"]


class CircuitStatus(NamedTuple):
    """A circuit breaker: of the whole store, or of one node of it. It says what requests have found.

    While it is "open", requests do not call the store. "probing" means that the server has answered a probe, and that
    the next request closes the circuit or opens it again.
    """

    part: str  # host:port of a node; "" for the whole store
    state: CircuitState
    since: float  # seconds since 1970, when it last opened or closed; at first, when the limiter was made
    error: str | None  # why it is not closed


class Status(NamedTuple):
    """What an operator wants to know about a limiter. The counts are of this process since its start.

    If a circuit is open, the store is not available. If the store is not available and no circuit is open, the server
    did not answer `status()` (`last_error` says why), and no request has failed yet: the next one will call the store.
    """

    store: str  # without the password
    available: bool = True  # no circuit is open, and the server has answered this call of `status()`
    circuits: tuple[CircuitStatus, ...] = ()
    server: str | None = None  # "valkey 9.0.0"; None in memory, or if the server did not say it
    topology: TopologyName = "other"
    round_trip: tuple[float, float] | None = None  # seconds: the median and the 99th percentile of the last ones
    entries: int | None = None  # budgets in the memory of this process
    max_entries: int | None = None
    evictions: int = 0  # budgets that were evicted from the memory of this process because it was full
    degraded_decisions: int = 0  # made without the store, by the failure policy
    degraded_allowed: int = 0  # of these, allowed: at most so many too many
    cached_refusals: int = 0  # refusals from the deny cache
    last_error: str | None = None  # of the store, also if the circuit is closed again

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**self._asdict(), "circuits": [circuit._asdict() for circuit in self.circuits]}

    def failed(self, error: StoreError) -> Status:
        """Return the status if the server has not answered just now."""
        return self._replace(available=False, last_error=cause_text(error.cause))


def describe(store: object) -> Status:
    """Return what this process knows of a store, without I/O."""
    found: Callable[[], Status] | None = getattr(store, "describe", None)
    return Status(store=type(store).__name__) if found is None else found()


def percentiles(seconds: Collection[float]) -> tuple[float, float] | None:
    """Return the median and the 99th percentile. None if there is no value.

    >>> percentiles([0.003, 0.001, 0.002])
    (0.002, 0.003)
    """
    ordered = sorted(seconds)
    return (ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]) if ordered else None
