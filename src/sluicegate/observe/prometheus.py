"""Prometheus metrics of decisions and stores, by prometheus-client.

Every metric is of that library's own kinds. So its multiprocess mode, in which processes share values by files, loses
nothing. There a scrape reads only the files, so each process writes the numbers of its stores when it counts events.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final, Literal

from sluicegate.clock import monotonic
from sluicegate.errors import ConfigurationError, needs
from sluicegate.observe.events import DecisionEvent
from sluicegate.observe.measures import GROWING, HELP, SECONDS, Add, Bans, Kinds, Series, Slots, StoreNumbers, Stores
from sluicegate.runtime import fork

with needs("prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
    from prometheus_client.core import HistogramMetricFamily
    from prometheus_client.values import ValueClass

BY_ENDPOINT: Final = ("application", "endpoint", "method", "result")
BY_RULE: Final = ("application", "rule", "result", "source")
_SECONDS: Final = "store_seconds"
_NAMES: Final = (*map(str, SECONDS), "+Inf")  # of the buckets
READ_EVERY: Final = 1.0
"""Seconds after which an event reads the numbers of the stores again."""


class PrometheusMetrics:
    """Counts decisions for Prometheus. Give it as `on_decision`: one object to all limiters of a process.

    - `sluicegate_decisions_total`, by `application`, `endpoint`, `method` and `result`.
    - `sluicegate_outcomes_total`: what each rule said, by `application`, `rule`, `result` and `source`.
    - `sluicegate_shadow_refusals_total`: allowed decisions that rules in shadow would have refused, by `application`,
      `endpoint` and `method`.
    - `sluicegate_near_limit_total`: outcomes that left at most a tenth of the limit, by `application` and `rule`.
    - `sluicegate_degraded_decisions_total`: decisions without the store, by `application`.
    - `sluicegate_store_seconds`: a histogram, by `application`.
    - `sluicegate_open_circuits`, `sluicegate_entries`, `sluicegate_evictions_total` and
      `sluicegate_degraded_allowed_total`: of all limiters of the process, by `store`.
    - `sluicegate_slots`: concurrency slots that are held now, by `store` and `rule`.
    - `sluicegate_bans`: identities under a ban that this process has refused, by `application` and `rule`.

    No label has an identity. A registry takes one object of this class; a second one raises
    ConfigurationError.

    >>> from prometheus_client import CollectorRegistry
    >>> from sluicegate import Limiter
    >>> registry = CollectorRegistry()
    >>> limiter = Limiter(on_decision=PrometheusMetrics(registry=registry))
    >>> [limiter.hit("2/minute", "alice", action="reply").allowed for _ in range(3)]
    [True, True, False]
    >>> labels = {"application": "", "rule": "reply", "result": "refused", "source": "store"}
    >>> registry.get_sample_value("sluicegate_outcomes_total", labels)
    1.0
    """

    decides = False

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, *labels: str) -> Series[Add]:
            made = Counter(f"sluicegate_{name}", HELP[name], labels, registry=registry)
            return Series(lambda values: made.labels(*values).inc)

        def gauge(name: str, *labels: str, mode: Literal["livesum", "livemax"] = "livesum") -> Series[Add]:
            made = Gauge(f"sluicegate_{name}", HELP[name], labels, registry=registry, multiprocess_mode=mode)
            return Series(lambda values: made.labels(*values).set)

        self._lock = threading.RLock()  # a finalizer may deliver an event in a thread that holds it
        self._shared = getattr(ValueClass, "_multiprocess", True)  # another process may be scraped
        try:
            registry.register(self)  # first, because a registry collects in the order of registration
            decisions = counter("decisions", *BY_ENDPOINT)
        except ValueError as error:  # the registry has metrics of this name
            with suppress(KeyError):
                registry.unregister(self)
            problem = "it has the metrics of another PrometheusMetrics"
            expected = "make one object for all limiters of a process; in tests give each a CollectorRegistry()"
            raise ConfigurationError(
                "PrometheusMetrics: registry", registry, problem=problem, expected=expected
            ) from error
        self._seconds = self._histogram(registry)
        self._kinds = Kinds(
            decisions=decisions,
            outcomes=counter("outcomes", *BY_RULE),
            shadow=counter("shadow_refusals", *BY_ENDPOINT[:-1]),
            near=counter("near_limit", "application", "rule"),
            degraded=counter("degraded_decisions", "application"),
            observe=lambda application: self._seconds[application].observe,
        )
        fields = StoreNumbers._fields
        self._of_stores = [(counter if name in GROWING else gauge)(name, "store") for name in fields]
        self._slots, self._held = gauge("slots", "store", "rule"), Slots()
        # Each process counts the clients that come to it, so one client may be in the number of each.
        self._bans, self._banned = gauge("bans", "application", "rule", mode="livemax"), Bans()
        self._stores, self._read_at = Stores(), 0.0
        fork.renew(self)

    def after_fork(self) -> None:
        """Renew the lock. The child counts on from the numbers of its parent, as prometheus-client does."""
        self._lock = threading.RLock()

    def __call__(self, event: DecisionEvent) -> None:
        """Count one decision."""
        labels, seconds, banned = event.labels(), event.elapsed, self._banned
        with self._lock:
            kind = self._kinds[labels]
            kind.count += 1
            if seconds is not None:
                kind.observe(seconds)
            if self._shared:
                kind.flush()
            if banned.until or not kind.is_usual:
                banned.note(event, labels[4])
        if self._shared and monotonic() >= self._read_at:
            self.collect()

    def collect(self) -> Iterable[Metric]:
        """Add what was counted, and read the numbers of the stores. A registry calls this at each scrape, before it
        collects the other metrics.
        """
        self._read_at = monotonic() + READ_EVERY
        with self._lock:
            self._kinds.flush()
            for series, sums in ((self._slots, self._held.read()), (self._bans, self._banned.read())):
                for labels, count in sums.items():
                    series[labels](count)
        for store, numbers in self._stores.read().items():
            for series, number in zip(self._of_stores, numbers, strict=True):
                series[store,](number)
        families = self.describe()
        for family in families:
            with self._lock:
                for application, buckets in self._seconds.items():
                    family.add_metric(application, [*zip(_NAMES, accumulate(buckets.counts), strict=True)], buckets.sum)
        return families

    def describe(self) -> list[HistogramMetricFamily]:
        """Return the histogram of this process, without values. The other metrics are registered themselves."""
        if self._shared:
            return []
        return [HistogramMetricFamily(f"sluicegate_{_SECONDS}", HELP[_SECONDS], labels=("application",))]

    def _histogram(self, registry: CollectorRegistry) -> Series[Any]:
        """Return the histograms by application: those of prometheus-client if processes share them. One process has its
        own: the lock in those of the library is not reentrant, and a finalizer may deliver an event in a thread that
        holds it.
        """
        if not self._shared:
            return Series(lambda _: _Buckets())
        made = Histogram(f"sluicegate_{_SECONDS}", HELP[_SECONDS], ("application",), registry=registry, buckets=SECONDS)
        return Series(lambda labels: made.labels(*labels))


class _Buckets:
    """The seconds of one application: how many are in each bucket, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Add a value to its bucket."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds
