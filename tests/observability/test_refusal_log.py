"""The refusal log: what it writes, and that it stays small whatever clients do."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sluicegate import ConfigurationError, ManualClock
from sluicegate.identity import digest
from sluicegate.observe.refusal_log import RefusalLog
from sluicegate.web.bound import NO_BOUNDS
from sluicegate.web.gate import Gate
from sluicegate.web.settings import Settings
from tests.observability.test_metrics import BAN, DAY, PASSED, REFUSED, TEN, TRIAL, WOULD, event
from tests.test_access import Visitor

ALICE, BOB = digest("salice"), digest("sbob")


WHOSE = " (sluicegate whois DIGEST access.log says who that is; show_identities=True shows it here)"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluicegate.refusals")


def test_the_first_refusal_is_a_line_and_then_counts_are(caplog: pytest.LogCaptureFixture, clock: ManualClock) -> None:
    handle = RefusalLog(clock=clock)
    refused = event((TEN, REFUSED._replace(retry_after=1_500_000)), (DAY, PASSED))
    handle(event((TEN, PASSED)))
    assert not caplog.records
    for _ in range(4):
        handle(refused)
    handle(event((TEN, REFUSED._replace(retry_after=None)), who="sbob"))
    assert caplog.messages == [
        f"rule 'ten' refused identity {ALICE}: it passes after 1.5 s{WHOSE}",
        f"rule 'ten' refused identity {BOB}: it never passes",
    ]
    caplog.clear()
    clock.advance(60)
    handle(event((TEN, PASSED)))  # any event ends periods
    assert caplog.messages == [f"rule 'ten' refused identity {ALICE} again: 3 refusals in 60 s"]
    caplog.clear()
    handle(refused)  # follows on
    clock.advance(60)
    handle(refused)
    assert caplog.messages == [f"rule 'ten' refused identity {ALICE} again: 1 refusals in 60 s"]
    caplog.clear()
    clock.advance(60)
    handle(event((TEN, PASSED)))
    clock.advance(60)
    handle(event((TEN, PASSED)))  # a period without a refusal ends it
    handle(refused)
    assert caplog.messages == [
        f"rule 'ten' refused identity {ALICE} again: 1 refusals in 60 s",
        f"rule 'ten' refused identity {ALICE}: it passes after 1.5 s",
    ]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ((TEN, REFUSED), "rule 'ten' refused"),
        ((BAN, REFUSED), "ban 'out' refused"),
        ((TRIAL, WOULD), "rule 'trial' would have refused"),
    ],
)
def test_every_kind_of_refusal_is_logged(rule: Any, message: str, caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog()(event(rule))
    assert caplog.messages == [f"{message} identity {ALICE}: it passes after 0.0 s{WHOSE}"]


def test_the_fields_of_a_line(caplog: pytest.LogCaptureFixture, clock: ManualClock) -> None:
    handle = RefusalLog(clock=clock, level=logging.WARNING)
    refused = event((TEN, REFUSED._replace(retry_after=1_500_000)), endpoint="/buy", method="POST")
    handle(refused)
    handle(refused)
    clock.advance(60)
    handle(refused)
    first, again = [
        {name.removeprefix("sluicegate_"): value for name, value in vars(record).items() if "sluicegate_" in name}
        for record in caplog.records
    ]
    common = {"application": "shop", "rule": "ten", "result": "refused", "identity": ALICE}
    numbers = {"endpoint": "/buy", "method": "POST", "limit": 10, "cost": 1, "retry_after": 1.5, "source": "store"}
    assert first == {"event": "refused", **common, **numbers}
    assert again == {"event": "refused_again", **common, "count": 1, "period": 60.0}
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_refusals_by_the_list_are_counted_together(caplog: pytest.LogCaptureFixture, clock: ManualClock) -> None:
    handle = RefusalLog(clock=clock, identities=1)
    gate = Gate(Settings(deny=["192.0.2.0/24"], application="shop", on_decision=handle))
    for number in range(4):
        decision = gate.decide(Visitor(f"192.0.2.{number}"), NO_BOUNDS)
        assert decision is not None
        assert decision.forbidden
    assert caplog.messages == ["list 'deny' refused a request"]
    clock.advance(60)
    handle(event((TEN, PASSED)))
    assert caplog.messages[1:] == ["list 'deny' refused again: 3 refusals in 60 s"]
    first, again = [vars(record) for record in caplog.records]
    for line in (first, again):
        found = [line[f"sluicegate_{name}"] for name in ("application", "list", "result", "identity")]
        assert found == ["shop", "deny", "forbidden", ""]
        assert "sluicegate_rule" not in line
    assert (first["sluicegate_event"], again["sluicegate_event"]) == ("refused", "refused_again")
    assert (again["sluicegate_count"], again["sluicegate_period"]) == (3, 60.0)


@pytest.mark.parametrize("rules", [1, 500])
def test_many_identities_write_few_lines(rules: int, caplog: pytest.LogCaptureFixture, clock: ManualClock) -> None:
    handle = RefusalLog(clock=clock, identities=10)
    terms = [TEN._replace(name=f"rule-{number}") for number in range(rules)]
    for number in range(2000):
        handle(event((terms[number % rules], REFUSED), who=f"s{number}"))
    assert len(caplog.messages) == 10
    caplog.clear()
    clock.advance(60)
    handle(event((TEN, PASSED)))
    assert len(caplog.messages) <= 11  # a name of its own for 10 rules, and one for the others
    assert sum(vars(record)["sluicegate_count"] for record in caplog.records) == 1990
    if rules == 1:
        assert caplog.messages == ["rule 'rule-0' refused other identities: 1990 refusals in 60 s"]
    for _ in range(10):
        handle(event((TEN, PASSED)))
    assert not handle._followed, "an event ends two periods at most, and ten end all"


def test_a_shown_identity_stays_in_its_line(caplog: pytest.LogCaptureFixture) -> None:
    handle = RefusalLog()
    forged = "salice\nERROR root: hacked\u2028"
    handle(event((TEN, REFUSED), who=forged, show_identities=True))
    (message,) = caplog.messages
    assert "whois" not in message, "nothing is to be found out"
    assert message.splitlines() == [message]
    assert vars(caplog.records[0])["sluicegate_identity"] == r"salice\nERROR root: hacked\u2028"


@pytest.mark.parametrize("option", [{"period": 0}, {"period": "60"}, {"identities": 0}, {"identities": True}])
def test_wrong_options_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="not a number above 0"):
        RefusalLog(**option)


@pytest.mark.parametrize("level", ["x", None, True, 20.0])
def test_a_level_that_logging_does_not_know(level: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a level of logging"):
        RefusalLog(level=level)


def test_a_level_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog(level="WARNING")(event((TEN, REFUSED)))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
