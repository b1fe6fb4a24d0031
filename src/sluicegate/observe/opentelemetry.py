"""OpenTelemetry metrics and span attributes of decisions, by opentelemetry-api.

The names follow `aspnetcore.rate_limiting.*`, the stable conventions for a rate limiter, under a namespace of our own:
`policy` is the name of a rule, as in the header field RateLimit-Policy.

A counter of the SDK takes 6 µs for each `add`. So decisions are counted here; the SDK reads the sums when it exports.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Final

from sluicegate.errors import needs
from sluicegate.observe.events import DecisionEvent, Labels
from sluicegate.observe.measures import GROWING, HELP, SECONDS, Bans, Kinds, Names, Series, Slots, StoreNumbers, Stores
from sluicegate.runtime import fork

with needs("opentelemetry"):
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
    from opentelemetry.trace import get_current_span

PREFIX: Final = "sluicegate.rate_limiting"
_STORE: Final = f"{PREFIX}.store"
_APPLICATION: Final = f"{PREFIX}.application"
_POLICY: Final = f"{PREFIX}.policy"
_RESULT: Final = f"{PREFIX}.result"
_SOURCE: Final = f"{PREFIX}.source"
_BY_POLICY: Final = (_POLICY, _RESULT, _SOURCE)
_BY_ROUTE: Final = ("http.route", "http.request.method", _RESULT)
_UNITS: Final = ("{circuit}", "{entry}", "{entry}", "{decision}")  # of StoreNumbers

_Reader = Callable[[CallbackOptions], Iterable[Observation]]


class OpenTelemetryMetrics:
    """Counts decisions for OpenTelemetry. Give it as `on_decision`: one object to all limiters of a process.

    - `sluicegate.rate_limiting.decisions`, by `http.route`, `http.request.method` and `…result`.
    - `sluicegate.rate_limiting.outcomes`: what each rule said, by `…policy` (the rule), `…result` and `…source`.
    - `sluicegate.rate_limiting.shadow_refusals`: allowed decisions that rules in shadow would have refused, by
      `http.route` and `http.request.method`.
    - `sluicegate.rate_limiting.near_limit`: outcomes that left at most a tenth of the limit, by `…policy`.
    - `sluicegate.rate_limiting.degraded_decisions`: decisions without the store.
    - `sluicegate.rate_limiting.store.duration`: a histogram of seconds, without attributes.
    - `sluicegate.rate_limiting.store.open_circuits`, `….entries`, `….evictions` and `….degraded_allowed`:
      of all limiters of the process, by `…store`.
    - `sluicegate.rate_limiting.slots`: concurrency slots that are held now, by `…store` and `…policy`.
    - `sluicegate.rate_limiting.bans`: identities under a ban that this process has refused, by `…policy`.

    The counters of decisions also have `…application`, if it has a name. An empty attribute is left out.
    No attribute has an identity. Without `meter_provider` the global one is used, also if it is set later.

    A decision that did not simply allow sets attributes of the current span, if that is still recording: `…result`,
    `…refused_by`, `…would_refuse` (rules in shadow) and `…degraded`.
    """

    decides = False

    def __init__(self, *, meter_provider: MeterProvider | None = None) -> None:
        meter = get_meter("sluicegate", version("sluicegate"), meter_provider)

        def counter(name: str, unit: str, *attributes: str) -> Series[_Count]:
            made: Series[_Count] = Series(lambda values: _Count(_attributes((_APPLICATION, *attributes), values)))
            self._series.append(made)
            observe(name, self._reader(made), unit=unit)
            return made

        def observe(name: str, read: _Reader, *, unit: str, rises: bool = True) -> None:
            make = meter.create_observable_counter if rises else meter.create_observable_up_down_counter
            make(f"{PREFIX}.{name}", [read], unit=unit, description=HELP[name.removeprefix("store.")])

        self._lock = threading.RLock()  # a finalizer may deliver an event in a thread that holds it
        self._series: list[Series[_Count]] = []
        seconds = meter.create_histogram(
            f"{_STORE}.duration", "s", HELP["store_seconds"], explicit_bucket_boundaries_advisory=SECONDS
        )
        self._kinds = Kinds(
            decisions=counter("decisions", "{decision}", *_BY_ROUTE),
            outcomes=counter("outcomes", "{outcome}", *_BY_POLICY),
            shadow=counter("shadow_refusals", "{decision}", *_BY_ROUTE[:-1]),
            near=counter("near_limit", "{outcome}", _POLICY),
            degraded=counter("degraded_decisions", "{decision}"),
            observe=lambda _: seconds.record,  # without attributes, which would double the time of a call
        )
        self._stores = Stores()
        self._totals: dict[str, StoreNumbers] = {}
        for name, unit in zip(StoreNumbers._fields, _UNITS, strict=True):
            observe(f"store.{name}", self._store_reader(name), unit=unit, rises=name in GROWING)
        self._banned, held = Bans(), Slots()
        observe("slots", self._sums_reader(held.read, _STORE, _POLICY), unit="{slot}", rises=False)
        banned = self._sums_reader(self._banned.read, _APPLICATION, _POLICY)
        meter.create_observable_gauge(f"{PREFIX}.bans", [banned], unit="{identity}", description=HELP["bans"])
        fork.renew(self)

    def after_fork(self) -> None:
        """Count from zero in the child: the parent exports what it has counted."""
        self._lock = threading.RLock()
        self._kinds.clear()
        self._banned.clear()
        for series in self._series:
            series.clear()
        self._totals.clear()

    def __call__(self, event: DecisionEvent) -> None:
        """Count one decision."""
        labels = event.labels()
        with self._lock:
            kind = self._kinds[labels]
            kind.count += 1
            if self._banned.until or not kind.is_usual:
                self._banned.note(event, labels[4])
        # Outside of the lock: the SDK calls our readers, which take this lock, while it holds a lock of its own.
        if event.elapsed is not None:
            kind.observe(event.elapsed)
        if not kind.is_usual:
            _mark_span(labels, degraded=kind.is_degraded)

    def _reader(self, series: Series[_Count]) -> _Reader:
        def read(options: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                self._kinds.flush()
                return [Observation(count.value, count.attributes) for count in series.values()]

        return read

    def _sums_reader(self, read: Callable[[], dict[Names, int]], *attributes: str) -> _Reader:
        def reader(options: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                return [Observation(count, _attributes(attributes, names)) for names, count in read().items()]

        return reader

    def _store_reader(self, field: str) -> _Reader:
        def read(options: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                for store, numbers in self._stores.read().items():
                    before = self._totals.get(store, StoreNumbers())
                    grown = {name: getattr(before, name) + getattr(numbers, name) for name in GROWING}
                    self._totals[store] = numbers._replace(**grown)
                return [Observation(getattr(total, field), {_STORE: store}) for store, total in self._totals.items()]

        return read


class _Count:
    """A number of decisions, with the attributes under which it is exported."""

    __slots__ = ("attributes", "value")

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self.value = 0

    def __call__(self, count: int) -> None:
        """Add to the number."""
        self.value += count


def _attributes(names: Iterable[str], values: Iterable[str]) -> dict[str, str]:
    """Return the attributes that are not empty. The conventions have a word of their own for an unknown method."""
    found = {name: value for name, value in zip(names, values, strict=True) if value}
    if found.get("http.request.method") == "other":
        found["http.request.method"] = "_OTHER"
    return found


def _mark_span(labels: Labels, *, degraded: bool) -> None:
    """Set attributes of the current span. An allowing decision sets no result: it could replace the refusal of another
    decision about the same request.
    """
    span = get_current_span()
    if not span.is_recording():
        return
    _, _, _, said, lines = labels
    if said != "allowed":
        span.set_attribute(_RESULT, said)
        refused = [rule for rule, its, _, _ in lines if its in {"refused", "banned"}]
        span.set_attribute(f"{PREFIX}.refused_by", refused)
    shadowed = [rule for rule, its, _, _ in lines if its == "shadow"]
    if shadowed:
        span.set_attribute(f"{PREFIX}.would_refuse", shadowed)
    if degraded:
        span.set_attribute(f"{PREFIX}.degraded", degraded)
