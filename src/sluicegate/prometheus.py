"""Prometheus metrics of decisions and stores, by prometheus-client.

Every metric is of that library's own kinds. So its multiprocess mode, in which processes share values by files, loses
nothing. There a scrape reads only the files, so each process writes the numbers of its stores when it counts events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluicegate.clock import monotonic
from sluicegate.errors import ConfigurationError
from sluicegate.events import DecisionEvent
from sluicegate.extras import needs
from sluicegate.measures import DEGRADED, HELP, SECONDS, Series, Stores, result

with needs("prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric

BY_ENDPOINT: Final = ("application", "endpoint", "method", "result")
BY_RULE: Final = ("application", "rule", "result", "source")
READ_EVERY: Final = 1.0
"""Seconds after which an event reads the numbers of the stores again."""


class PrometheusMetrics:
    """Counts decisions for Prometheus. Give it as `on_decision`: one object to all limiters of a process.

    - `sluicegate_decisions_total`, by `application`, `endpoint`, `method` and `result`.
    - `sluicegate_outcomes_total`: what each rule said, by `application`, `rule`, `result` and `source`.
    - `sluicegate_near_limit_total`: outcomes that left at most a tenth of the limit, by `application` and `rule`.
    - `sluicegate_degraded_decisions_total`: decisions without the store, by `application`.
    - `sluicegate_store_seconds`: a histogram, by `application`.
    - `sluicegate_open_circuits`, `sluicegate_entries`, `sluicegate_evictions_total` and
      `sluicegate_degraded_allowed_total`: of all limiters of the process, by `store`.

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

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, *labels: str) -> Series[Counter]:
            made = Counter(f"sluicegate_{name}", HELP[name], labels, registry=registry)
            return Series(lambda values: made.labels(*values))

        def gauge(name: str) -> Series[Gauge]:
            labels = ("store",)
            made = Gauge(f"sluicegate_{name}", HELP[name], labels, registry=registry, multiprocess_mode="livesum")
            return Series(lambda values: made.labels(*values))

        registry.register(self)  # first, because a registry collects in the order of registration
        try:
            self._decisions = counter("decisions", *BY_ENDPOINT)
        except ValueError as error:  # the registry has metrics of this name
            registry.unregister(self)
            problem = "it has the metrics of another PrometheusMetrics"
            expected = "make one object for all limiters of a process; in tests give each a CollectorRegistry()"
            raise ConfigurationError(
                "PrometheusMetrics: registry", registry, problem=problem, expected=expected
            ) from error
        self._outcomes = counter("outcomes", *BY_RULE)
        self._near = counter("near_limit", "application", "rule")
        self._degraded = counter("degraded_decisions", "application")
        name, labels = "store_seconds", ("application",)
        seconds = Histogram(f"sluicegate_{name}", HELP[name], labels, registry=registry, buckets=SECONDS)
        self._seconds = Series(lambda values: seconds.labels(*values))
        self._open, self._entries = gauge("open_circuits"), gauge("entries")
        self._evictions = counter("evictions", "store")
        self._allowed = counter("degraded_allowed", "store")
        self._stores, self._read_at = Stores(), 0.0

    def __call__(self, event: DecisionEvent) -> None:
        """Count one decision."""
        application, degraded = event.application, False
        self._decisions[application, event.endpoint, event.method, result(event)].inc()
        for rule, said, source, near in event.tally:
            self._outcomes[application, rule, said, source].inc()
            if near:
                self._near[application, rule].inc()
            if source in DEGRADED:
                degraded = True
        if degraded:
            self._degraded[application,].inc()
        if event.store_seconds is not None:
            self._seconds[application,].observe(event.store_seconds)
        if monotonic() >= self._read_at:
            self.collect()

    def collect(self) -> Iterable[Metric]:
        """Read the numbers of the stores. A registry calls this at each scrape, before it collects the metrics."""
        self._read_at = monotonic() + READ_EVERY
        for store, numbers in self._stores.read().items():
            self._open[store,].set(numbers.open_circuits)
            self._entries[store,].set(numbers.entries)
            self._evictions[store,].inc(numbers.evictions)
            self._allowed[store,].inc(numbers.degraded_allowed)
        return ()

    def describe(self) -> Iterable[Metric]:
        """Return no metrics: those that a registry collects are registered themselves."""
        return ()
