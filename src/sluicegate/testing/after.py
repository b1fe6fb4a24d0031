"""The laws of what comes after: charges that depend on the response, and charges that are held until it has ended.

Part of the exam for adapters. The module knows sluicegate's public names and nothing of any framework or test runner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sluicegate.after import Response
from sluicegate.clock import MICROSECOND, ManualClock
from sluicegate.plan import Outcome, Plan
from sluicegate.rule import Rule
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore

if TYPE_CHECKING:
    from sluicegate.testing.adapter import AdapterClient


def wrong(response: Response) -> bool:
    """What the exam's `/guess/<word>` is charged for."""
    return response.status_code == 401


class AfterLaws:
    """What the exam's application needs for these is said in `AdapterExam`."""

    later = False
    """Whether the adapter is asynchronous, and takes an asynchronous store."""

    def client(self, **options: Any) -> AdapterClient:
        """The application, limited by the adapter with these options."""
        raise NotImplementedError

    def test_only_wrong_guesses_are_charged(self) -> None:
        client = self.client(clock=ManualClock())
        words = ["wrong", "right", "right", "right", "wrong", "wrong", "right"]
        assert [client.request("GET", f"/guess/{word}").status for word in words] == [401, 200, 200, 200, 401, 429, 429]
        assert client.calls == words[:5]

    def test_the_fields_tell_what_was_given_back(self) -> None:
        client = self.client(clock=ManualClock())
        told = [client.request("GET", f"/guess/{word}").one("ratelimit") for word in ("right", "wrong", "right")]
        assert told == ['"guess";r=2', '"guess";r=1;t=60', '"guess";r=1;t=60']

    def test_every_response_can_give_its_charge_back(self) -> None:
        for path, status in (("/open", 200), ("/slow", 200), ("/redirect", 302), ("/nowhere", 404), ("/boom", 500)):
            for refunded, expect in ((status, [status] * 3), (418, [status, 429, 429])):
                rule = Rule(name="each", quota="1/minute", path=path, refund_when=_with_status(refunded))
                client = self.client(rules=[rule], clock=ManualClock())
                assert [client.request("GET", path).status for _ in range(3)] == expect, (path, refunded)

    def test_predicates_see_headers_and_may_be_named(self) -> None:
        rule = {"name": "away", "quota": "1/minute", "refund_when": "sluicegate.testing.after.leads_to_open"}
        client = self.client(rules=[rule], clock=ManualClock())
        statuses = [client.request("GET", path).status for path in ("/redirect", "/redirect", "/open", "/redirect")]
        assert statuses == [302, 302, 200, 429]

    def test_a_predicate_that_fails_changes_no_answer(self) -> None:
        rule = Rule(name="failing", quota="1/minute", refund_when=fails)
        client = self.client(rules=[rule], clock=ManualClock())
        assert [client.request("GET", "/open").status for _ in range(2)] == [200, 429]

    def test_what_is_held_is_released_once_whatever_the_response(self) -> None:
        store = Watched(ManualClock())
        held = Rule(name="held", quota="1 at once for 1 hour")
        client = self.client(rules=[held], store=store.of_colour(later=self.later))
        asked = [("GET", "/open"), ("GET", "/redirect"), ("GET", "/boom"), ("GET", "/nowhere"), ("GET", "/stream")]
        asked += [("HEAD", "/limited"), ("GET", "/guess/wrong"), ("GET", "/open")]
        statuses = [client.request(method, path).status for method, path in asked]
        assert statuses == [200, 302, 500, 404, 200, 200, 401, 200]
        assert [name for name, _ in store.log] == ["run", "release"] * len(asked)

    def test_what_is_held_is_renewed_while_a_response_is_sent_and_released_after_it(self) -> None:
        clock = Progress()
        store = Watched(clock)
        client = self.client(rules=[Rule(name="held", quota="1 at once")], store=store.of_colour(later=self.later))
        clock.calls = store.calls = client.calls
        assert client.request("GET", "/slow").body == b"onetwothree"
        assert store.log == [("run", 0), ("renew", 1), ("renew", 2), ("renew", 3), ("release", 3)]
        assert client.request("GET", "/open").status == 200


def fails(response: Response) -> bool:
    """A predicate that cannot answer."""
    raise LookupError(response.status_code)


def leads_to_open(response: Response) -> bool:
    """Whether this is the exam's redirect."""
    return response.headers.get("LOCATION", "").endswith("/open")


def _with_status(status: int) -> Callable[[Response], bool]:
    def has(response: Response) -> bool:
        return response.status_code == status

    return has


class Progress:
    """A clock that moves by 25 seconds with each call that the application notes."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def now_us(self) -> int:
        """Later, the more was noted."""
        return (1_000_000 + 25 * len(self.calls)) * MICROSECOND


class Watched(MemoryStore):
    """A store that notes what is asked of it, and how many calls the application had noted then."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.calls: list[str] = []
        self.log: list[tuple[str, int]] = []

    def of_colour(self, *, later: bool) -> Any:
        """Itself, or its twin for asynchronous code."""
        return _WatchedLater(self) if later else self

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge, and note it."""
        self.log.append(("run", len(self.calls)))
        return super().run(plan)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give back, and note it, if it is of a charge that was held."""
        if any([check.terms.held for check in plan.checks]):
            self.log.append(("release", len(self.calls)))
        super().refund(plan, outcomes)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Charge anew, and note it."""
        self.log.append(("renew", len(self.calls)))
        return super().renew(plan, outcomes)


class _WatchedLater(AsyncMemoryStore):
    def __init__(self, store: Watched) -> None:
        super().__init__(store)
        self.clock = store.clock
