"""What an adapter does with functions of the request and with rules in shadow: a part of AdapterExam.

The module knows sluicegate's public names and nothing of any framework or test runner.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.tiers import Tiers

if TYPE_CHECKING:
    from sluicegate.testing.adapter import AdapterClient


class FunctionLaws:
    """Quotas, tiers, costs and conditions that are functions, and limits that are only counted."""

    def client(self, **options: Any) -> AdapterClient:
        """The application, limited by the adapter with these options."""
        raise NotImplementedError

    def test_functions_of_the_request(self) -> None:
        rule = {
            "name": "tier",
            "key": "ip",
            "quota": _quota,
            "cost": _cost,
            "when": plan_of,
        }
        client = self.client(rules=[rule], clock=ManualClock())

        def ask(plan: str) -> int:
            return client.request("GET", "/open", headers=[("X-Plan", plan)] if plan else []).status

        assert [ask("free"), ask("free"), ask("paid"), ask("")] == [200, 429, 200, 200]
        tiers = Tiers({"free": "1/minute", "paid": "2/minute", "staff": None}, by=plan_of, default="free")
        client = self.client(rules=[{"name": "tier", "quota": tiers, "key": "ip"}], clock=ManualClock())
        asked = [ask(plan) for plan in ("paid", "paid", "paid", "free", "other", "", "staff")]
        assert asked == [200, 200, 429, 429, 429, 429, 200]

    def test_a_rule_in_shadow_refuses_nobody_and_is_not_told(self) -> None:
        trial = {"name": "trial", "quota": "1/minute", "mode": "shadow"}
        told = []
        for rules in ([], [trial]):
            client = self.client(default_limits=["2/minute"], rules=rules, clock=ManualClock())
            answers = [client.request("GET", "/open") for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 200, 429]
            told.append([(answer.body, {*answer.headers} - {("date", answer.one("date"))}) for answer in answers])
        assert told[0] == told[1]

    def test_a_cost_that_never_fits(self) -> None:
        client = self.client(
            rules=[{"name": "dear", "quota": "2/minute", "cost": partial(_answer, 3)}], clock=ManualClock()
        )
        refused = client.request("GET", "/open")
        assert (refused.status, refused.one("retry-after"), refused.one("ratelimit")) == (429, None, '"dear";r=2')
        problem = json.loads(refused.body)
        assert problem["detail"] == "This request costs more than its limit, so it can never pass."
        assert client.request("GET", "/open", headers=[("Accept", "text/html")]).one("retry-after") is None
        assert client.calls == []

    def test_what_functions_may_not_answer_lets_nobody_pass(self) -> None:
        costs = [-1, 1.5, float("nan"), float("inf"), True, "1", None, 10**400]
        quotas = ["", "5/fortnight", 5, ("5/minute",), "5/minute;" * 400]
        for option, answers in (("cost", costs), ("quota", quotas)):
            for answer in answers:
                rule = {"name": "wrong", "quota": "5/minute", option: partial(_answer, answer)}
                client = self.client(rules=[rule])
                try:
                    status = client.request("GET", "/open").status
                except ConfigurationError:  # a server's business
                    status = 500
                assert (status, client.calls) == (500, []), f"{option} {answer!r}"


def _quota(request: Any) -> str | None:
    return "2/minute" if plan_of(request) == "free" else None


def _answer(answer: Any, request: Any) -> Any:
    return answer


def _cost(request: Any) -> int:
    return 2 if plan_of(request) == "free" else 1


def plan_of(request: Any) -> str:
    """A header of any framework's request."""
    if isinstance(request, dict):  # a scope, or an environ
        lines = [value.decode() for key, value in request.get("headers", ()) if key == b"x-plan"]
        return lines[0] if lines else str(request.get("HTTP_X_PLAN", ""))
    return str(request.headers.get("X-Plan", ""))
