"""Metrics of both libraries: what they count, under which labels, and how many series there may be."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from sluicegate import AsyncLimiter, Limiter, ManualClock, Rule, Settings, wsgi
from sluicegate.errors import ConfigurationError, SettingsError
from sluicegate.observe import measures
from sluicegate.observe.events import DecisionEvent
from sluicegate.observe.opentelemetry import PREFIX, OpenTelemetryMetrics
from sluicegate.observe.prometheus import PrometheusMetrics
from sluicegate.plan import FORBIDDEN, Check, Decision, Outcome, Terms
from sluicegate.rules.terms import make_terms, read
from tests.adapters.wsgi_client import WsgiClient

TEN: Terms = make_terms("ten", read("10/minute"), algorithm="gcra")[0]
DAY = TEN._replace(name="day")
TRIAL = TEN._replace(name="trial", shadow=True)
BAN = TEN._replace(name="out", algorithm="ban")
PASSED, LAST = Outcome(True, 10, 8, 0, 1, 1), Outcome(True, 10, 1, 0, 1, 1)
REFUSED = Outcome(False, 10, 0, 5, 1, 1)
WOULD = REFUSED._replace(allowed=True)

Sums = Counter[tuple[str, ...]]
Probe = tuple[Callable[[DecisionEvent], None], Callable[..., Sums]]


def event(*rules: tuple[Terms, Outcome], who: str = "salice", **more: Any) -> DecisionEvent:
    checks, outcomes = tuple([Check(terms, who, 1) for terms, _ in rules]), tuple([outcome for _, outcome in rules])
    decision = Decision(all([outcome.allowed for outcome in outcomes]), checks, outcomes)
    return DecisionEvent(decision, **{"application": "shop", "store_seconds": 0.001, **more})


def of_prometheus() -> Probe:
    """The handler, and a function that returns the sums of a metric, by labels."""
    registry = CollectorRegistry()

    def sums(name: str, *labels: str) -> Sums:
        found: Sums = Counter()
        for sample in [each for metric in registry.collect() for each in metric.samples]:
            if sample.name == f"sluicegate_{name}":
                found[tuple([sample.labels.get(label, "") for label in labels])] += int(sample.value)
        return found

    return PrometheusMetrics(registry=registry), sums


ATTRIBUTES = {"endpoint": "http.route", "method": "http.request.method", "rule": f"{PREFIX}.policy"}


def of_opentelemetry() -> Probe:
    """The same of OpenTelemetry, by the words of the other."""
    reader = InMemoryMetricReader()

    def sums(name: str, *labels: str) -> Sums:
        found: Sums = Counter()
        short = "duration" if name == "store_seconds_count" else name.removesuffix("_total")
        names = {f"{PREFIX}.{short}", f"{PREFIX}.store.{short}"}
        data: Any = reader.get_metrics_data()
        resources = [] if data is None else data.resource_metrics
        metrics = [each for resource in resources for scope in resource.scope_metrics for each in scope.metrics]
        for point in [each for metric in metrics if metric.name in names for each in metric.data.data_points]:
            values = [point.attributes.get(ATTRIBUTES.get(label, f"{PREFIX}.{label}"), "") for label in labels]
            found[tuple(values)] += point.count if hasattr(point, "count") else point.value
        return found

    return OpenTelemetryMetrics(meter_provider=MeterProvider([reader])), sums


@pytest.fixture(params=[of_prometheus, of_opentelemetry])
def probe(request: pytest.FixtureRequest) -> Probe:
    made: Probe = request.param()
    return made


def test_decisions_are_counted_by_endpoint_and_outcomes_by_rule(probe: Probe) -> None:
    handle, sums = probe
    for each in (
        event((TEN, PASSED), (DAY, LAST), endpoint="/buy", method="POST"),
        event((TEN, PASSED), (DAY, LAST), endpoint="/buy", method="POST"),
        event((TEN, REFUSED), (DAY, PASSED), endpoint="/buy", method="POST", store_seconds=None),
        event((TRIAL, WOULD), endpoint="/buy", method="GET"),
        event((TRIAL, WOULD), (TRIAL, WOULD), (DAY, PASSED), endpoint="/try", method="GET"),
        event((TRIAL, WOULD), (TEN, REFUSED), endpoint="/try", method="GET"),  # it is refused in any case
        event((TEN, REFUSED), (BAN, REFUSED), application=""),
        event((TEN, PASSED._replace(source="local")), (DAY, PASSED._replace(source="policy"))),
        DecisionEvent(FORBIDDEN, application="shop", endpoint="/buy", method="GET"),
    ):
        handle(each)
    assert sums("decisions_total", "application", "endpoint", "method", "result") == {
        ("shop", "/buy", "POST", "allowed"): 2,
        ("shop", "/buy", "POST", "refused"): 1,
        ("shop", "/buy", "GET", "allowed"): 1,
        ("shop", "/try", "GET", "allowed"): 1,
        ("shop", "/try", "GET", "refused"): 1,
        ("shop", "/buy", "GET", "forbidden"): 1,
        ("shop", "", "", "allowed"): 1,
        ("", "", "", "refused"): 1,
    }
    assert sums("outcomes_total", "rule", "result", "source") == {
        ("ten", "allowed", "store"): 2,
        ("day", "allowed", "store"): 3,
        ("ten", "refused", "cache"): 1,
        ("day", "allowed", "cache"): 1,
        ("trial", "shadow", "store"): 4,
        ("ten", "refused", "store"): 2,
        ("out", "banned", "store"): 1,
        ("ten", "allowed", "local"): 1,
        ("day", "allowed", "policy"): 1,
    }
    assert sums("shadow_refusals_total", "application", "endpoint", "method") == {
        ("shop", "/buy", "GET"): 1,
        ("shop", "/try", "GET"): 1,
    }
    assert sums("near_limit_total", "application", "rule") == {("shop", "day"): 2}
    assert sums("degraded_decisions_total", "application") == {("shop",): 1}
    assert sums("store_seconds_count").total() == 7  # not the cached refusal, and not the deny list


@pytest.mark.slow
def test_identities_make_no_series(probe: Probe) -> None:
    handle, sums = probe
    for number in range(10**5):
        handle(event((TEN, REFUSED if number % 3 else PASSED), who=f"s{number}", endpoint="/buy", method="GET"))
    labels = "application", "endpoint", "method", "rule", "result", "source"
    assert len(sums("decisions_total", *labels)) == len(sums("outcomes_total", *labels)) == 2
    assert sums("outcomes_total", "result") == {("allowed",): 33334, ("refused",): 66666}
    assert sums("store_seconds_count", *labels).total() == 10**5


def test_a_name_that_is_made_from_data_makes_no_series_without_end(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "MOST", 5)
    handle, sums = probe
    for number in range(100):
        handle(event((TEN._replace(name=f"reply-{number}"), LAST), endpoint=f"/{number}", method="GET"))
    for name, label in (("outcomes_total", "rule"), ("near_limit_total", "rule"), ("decisions_total", "endpoint")):
        found = sums(name, label)
        assert (len(found), found["other",], found.total()) == (6, 95, 100)


@pytest.fixture
def stores() -> Iterator[list[Limiter]]:
    made: list[Limiter] = []
    yield made
    for limiter in made:
        limiter.close()


@pytest.mark.slow
def test_the_stores_of_the_process_are_read_at_a_scrape(probe: Probe, stores: list[Limiter]) -> None:
    gc.collect()  # the limiters of other tests
    _, sums = probe
    names = "entries", "evictions_total", "degraded_allowed_total", "open_circuits"
    url = "redis://127.0.0.1:1/0"  # no server listens there
    before = {name: sums(name, "store") for name in names}
    stores += [Limiter("memory://?max_keys=10"), Limiter(), Limiter(url, clock=ManualClock())]
    full, other, down = stores
    for number in range(25):
        full.hit("5/minute", str(number))
    other.hit("5/minute", "alice")
    assert [down.hit("2/minute", "alice").allowed for _ in range(3)] == [True, True, False]
    found = {name: sums(name, "store") - before[name] for name in names}
    assert (found["entries"]["memory://",], found["evictions_total"]["memory://",]) == (11, 15)
    assert found["degraded_allowed_total"] == {(url,): 2}
    assert found["open_circuits"] == {(url,): 1}


def test_slots_are_counted_while_they_are_held(probe: Probe, stores: list[Limiter]) -> None:
    handle, sums = probe
    limiter = Limiter(on_decision=handle)
    stores.append(limiter)
    seen: list[Sums] = []

    def view(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(sums("slots", "store", "rule"))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"done"]

    rule = Rule(name="export", quota="5 at once", key="ip", cost=2)
    limited = wsgi.RateLimitMiddleware(view, rules=[rule], on_decision=handle)
    assert WsgiClient(limited).request("GET", "/export").status == 200
    with limiter.hold("2 at once", "alice", action="report"), limiter.hold("2 at once", "bob", action="report") as slot:
        seen.append(sums("slots", "store", "rule"))
        slot.release()
        seen.append(sums("slots", "store", "rule"))
        with limiter.hold("1 at once", "bob", action="other"), limiter.hold("1 at once", "bob", action="other") as none:
            assert not none
            seen.append(sums("slots", "store", "rule"))
    seen.append(sums("slots", "store", "rule"))
    limited.close()
    report, other, export = ("memory://", "report"), ("memory://", "other"), ("memory://", "export")
    # Other tests may leave slots of their own stores.
    ours = [{name: count for name, count in each.items() if count and name[0] == "memory://"} for each in seen]
    assert ours == [
        {export: 2},
        {report: 2},
        {report: 1},
        {report: 1, other: 1},
        {},
    ]
    assert {name for name in seen[-1] if name[0] == "memory://"} == {report, other, export}


def test_bans_are_counted_until_they_end(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, sums = probe
    lasting, over = REFUSED._replace(retry_after=10**9), REFUSED._replace(retry_after=0)
    for who, outcome in (("salice", lasting), ("salice", lasting), ("sbob", lasting), ("scarol", over)):
        handle(event((TEN, REFUSED), (BAN, outcome), who=who))
    assert sums("bans", "application", "rule") == {("shop", "out"): 2}
    handle(event((TEN, PASSED), (BAN, PASSED), who="sbob"))
    assert sums("bans", "application", "rule") == {("shop", "out"): 1}
    monkeypatch.setattr(measures, "MOST_BANS", 20)
    for number in range(100):
        handle(event((BAN, lasting), who=f"s{number}"))
    assert sums("bans", "application", "rule") == {("shop", "out"): 20}


@pytest.mark.parametrize(
    ("rules", "attributes"),
    [
        ([(TEN, PASSED)], {}),
        ([(TEN, PASSED), (TRIAL, WOULD)], {"would_refuse": ("trial",)}),
        ([(TEN, REFUSED), (DAY, PASSED), (BAN, REFUSED)], {"result": "refused", "refused_by": ("ten", "out")}),
        ([(TEN, PASSED._replace(source="local"))], {"degraded": True}),
    ],
)
def test_the_current_span_says_what_is_not_usual(rules: Any, attributes: dict[str, Any]) -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    handle, _ = of_opentelemetry()
    with tracers.get_tracer("test").start_as_current_span("request"):
        handle(event(*rules))
        handle(event((TEN, PASSED)))  # a later decision about the same request hides nothing
    handle(event((TEN, REFUSED)))  # outside of any span
    (span,) = exporter.get_finished_spans()
    assert span.attributes == {f"{PREFIX}.{name}": value for name, value in attributes.items()}


def test_a_second_object_of_one_registry_is_refused_and_leaves_the_first_alone() -> None:
    registry = CollectorRegistry()
    first = PrometheusMetrics(registry=registry)
    with pytest.raises(ConfigurationError, match="make one object for all limiters"):
        PrometheusMetrics(registry=registry)
    first(event((TEN, PASSED)))
    assert b'result="allowed"' in generate_latest(registry)


@pytest.mark.parametrize("application", ["\ud800x", "a\nb", "\x1b[31m", 5])
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter, Settings])
def test_a_name_that_no_metrics_could_show_is_refused(kind: Any, application: Any) -> None:
    with pytest.raises(SettingsError, match="application"):
        kind(application=application)
