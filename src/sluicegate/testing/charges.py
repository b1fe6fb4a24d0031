"""Part of AdapterExam: charges that depend on the response, and slots that are held until the response has ended.

It uses only public names of sluicegate, and no framework or test runner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluicegate.clock import MICROSECOND, Clock, ManualClock
from sluicegate.plan import Outcome, Plan
from sluicegate.rules.cost import Ended
from sluicegate.rules.response import Response
from sluicegate.rules.rule import Rule
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from sluicegate.testing.client import AdapterLaws


def wrong(response: Response) -> bool:
    """The `charge_when` of the exam's `/guess/<word>`: only wrong guesses are charged."""
    return response.status_code == 401


class AfterLaws(AdapterLaws):
    """Tests of charges after the response. `AdapterExam` lists the routes that the application needs."""

    def test_only_wrong_guesses_are_charged(self) -> None:
        client = self.client(clock=ManualClock())
        words = ["wrong", "right", "right", "right", "wrong", "wrong", "right"]
        assert [client.request("GET", f"/guess/{word}").status for word in words] == [401, 200, 200, 200, 401, 429, 429]
        assert client.calls == words[:5]

    def test_the_fields_include_what_was_refunded(self) -> None:
        client = self.client(clock=ManualClock())
        fields = [client.request("GET", f"/guess/{word}").one("ratelimit") for word in ("right", "wrong", "right")]
        assert fields == ['"guess";r=2', '"guess";r=1;t=60', '"guess";r=1;t=60']

    def test_every_response_can_refund_its_charge(self) -> None:
        for path, status in (("/open", 200), ("/slow", 200), ("/redirect", 302), ("/nowhere", 404), ("/boom", 500)):
            for refunded, expect in ((status, [status] * 3), (418, [status, 429, 429])):
                rule = Rule(name="each", quota="1/minute", path=path, refund_when=_with_status(refunded))
                client = self.client(rules=[rule], clock=ManualClock())
                assert [client.request("GET", path).status for _ in range(3)] == expect, (path, refunded)

    def test_predicates_read_headers_and_may_be_dotted_names(self) -> None:
        rule = {"name": "away", "quota": "1/minute", "refund_when": "sluicegate.testing.charges.leads_to_open"}
        client = self.client(rules=[rule], clock=ManualClock())
        statuses = [client.request("GET", path).status for path in ("/redirect", "/redirect", "/open", "/redirect")]
        assert statuses == [302, 302, 200, 429]

    def test_a_predicate_that_fails_changes_no_response(self) -> None:
        rule = Rule(name="failing", quota="1/minute", refund_when=fails)
        client = self.client(rules=[rule], clock=ManualClock())
        assert [client.request("GET", "/open").status for _ in range(2)] == [200, 429]

    def test_every_response_settles_its_cost(self) -> None:
        ended: list[Ended] = []
        for path in ("/open", "/slow", "/stream", "/redirect", "/nowhere", "/boom"):
            for cost, left in ((3, 87), (10, 80), (40, 50), (250, None)):
                client = self.client(rules=[_costing(path, cost, ended)], clock=ManualClock())
                answers = [client.request("GET", path) for _ in range(2)]
                if left is None:
                    assert answers[1].status == 429, path
                elif path not in ("/redirect", "/boom"):  # these may have no fields
                    assert f'"costing";r={left};t=3600' in (answers[1].one("ratelimit") or ""), (path, cost)
                assert ended[-1].status_code == answers[0].status
                assert ended[-1].tail in (answers[0].body, b""), "only of an error it may be missing"
        client = self.client(rules=[_costing("/slow", 3, ended)], clock=ManualClock())
        assert client.request("GET", "/slow").body == b"onetwothree"
        assert (ended[-1].head, ended[-1].size, ended[-1].complete) == (b"onetwothree", 11, True)

    def test_an_estimate_or_a_cost_that_is_wrong_changes_no_response(self) -> None:
        for cost in (None, -1, 1.5, "3", True, 10**16, fails):
            for rule, left in ((_costing("/open", cost, []), 80), (_costing("/open", 1, [], estimate=cost), 98)):
                client = self.client(rules=[rule], clock=ManualClock())
                answers = [client.request("GET", "/open") for _ in range(2)]
                assert [each.body for each in answers] == [b"open"] * 2, cost
                assert answers[1].one("ratelimit") == f'"costing";r={left};t=3600', cost

    def test_every_response_releases_its_slot_once(self) -> None:
        store = Watched(ManualClock())
        held = Rule(name="held", quota="1 at once for 1 hour")
        client = self.client(rules=[held], store=store.for_mode(is_async=self.is_async))
        asked = [("GET", "/open"), ("GET", "/redirect"), ("GET", "/boom"), ("GET", "/nowhere"), ("GET", "/stream")]
        asked += [("HEAD", "/limited"), ("GET", "/guess/wrong"), ("GET", "/open")]
        statuses = [client.request(method, path).status for method, path in asked]
        assert statuses == [200, 302, 500, 404, 200, 200, 401, 200]
        assert [name for name, _ in store.log] == ["run", "release"] * len(asked)

    def test_a_slot_is_renewed_while_the_response_is_sent_and_released_after_it(self) -> None:
        clock = Progress()
        store = Watched(clock)
        client = self.client(rules=[Rule(name="held", quota="1 at once")], store=store.for_mode(is_async=self.is_async))
        clock.calls = store.calls = client.calls
        assert client.request("GET", "/slow").body == b"onetwothree"
        assert store.log == [("run", 0), ("renew", 1), ("renew", 2), ("renew", 3), ("release", 3)]
        assert client.request("GET", "/open").status == 200


def fails(response: Response) -> bool:
    """A predicate that always raises LookupError."""
    raise LookupError(response.status_code)


def _costing(path: str, cost: object, ended: list[Ended], *, estimate: object = 10) -> Rule:
    """A rule with an estimate and a cost, which may be wrong. It lists the responses that have ended."""

    def tell(response: Ended) -> Any:
        ended.append(response)
        return cost(response) if callable(cost) else cost

    def guess(request: object) -> Any:
        return estimate(request) if callable(estimate) else estimate

    return Rule(name="costing", quota="100/hour", path=path, estimate=guess, cost_after=tell)


def leads_to_open(response: Response) -> bool:
    """True if this is the exam's redirect."""
    return response.headers.get("LOCATION", "").endswith("/open")


def _with_status(status: int) -> Callable[[Response], bool]:
    def has(response: Response) -> bool:
        return response.status_code == status

    return has


class Progress:
    """A clock that moves by 25 seconds with each entry of `calls`."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def now_us(self) -> int:
        """Return the time: 25 seconds later for each entry of `calls`."""
        return (1_000_000 + 25 * len(self.calls)) * MICROSECOND


class Watched(MemoryStore):
    """A store that logs each operation, with the number of entries in the application's `calls` at that moment."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.calls: list[str] = []
        self.log: list[tuple[str, int]] = []

    def for_mode(self, *, is_async: bool) -> Watched | AsyncMemoryStore:
        """Return this store, or an async store over it."""
        return _AsyncWatched(self) if is_async else self

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        self.log.append(("run", len(self.calls)))
        return super().run(plan)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        if any([check.terms.held for check in plan.checks]):
            self.log.append(("release", len(self.calls)))
        super().refund(plan, outcomes)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        self.log.append(("renew", len(self.calls)))
        return super().renew(plan, outcomes)


class _AsyncWatched(AsyncMemoryStore):
    def __init__(self, store: Watched) -> None:
        super().__init__(store)
        self.clock = store.clock
