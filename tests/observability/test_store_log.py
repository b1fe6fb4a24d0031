"""The log lines of a store's transitions: one for each, with fields."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sluicegate import Limiter, ManualClock
from sluicegate.errors import StoreError
from sluicegate.plan import Plan
from sluicegate.stores.breaker import Breaker


def fields(record: Any) -> dict[str, Any]:
    found = {name.removeprefix("sluicegate_"): value for name, value in vars(record).items() if "sluicegate_" in name}
    return {"level": record.levelname, **found}


def test_a_transition_of_a_circuit_is_one_line_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluicegate")
    breaker = Breaker(deadline=0.1, clock=ManualClock())
    error = StoreError("db:6379", ConnectionError("refused"))
    for _ in range(2):
        breaker.failed(error, closed=1)
    for _ in range(2):
        breaker.recovered()
    facts = {"store": "db:6379", "error": "ConnectionError: refused"}
    assert [fields(record) for record in caplog.records] == [
        {"level": "WARNING", "event": "circuit_opened", **facts},
        {"level": "INFO", "event": "circuit_closed", **facts},
    ]


class Unfit:
    """A store that has no room for a rule."""

    def run(self, plan: Plan) -> Any:
        raise StoreError("db:6379", "script too long", concerns="rule")

    def unused(self, *arguments: Any) -> Any: ...

    refund = renew = forget = close = unused


def test_a_check_that_fails_alone_names_its_rule(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter(Unfit())
    for _ in range(2):
        limiter.hit("5/minute", "alice", action="reply")
    (record,) = caplog.records
    facts = {"rule": "reply", "store": "db:6379", "error": "script too long"}
    assert fields(record) == {"level": "WARNING", "event": "check_failed", **facts}
