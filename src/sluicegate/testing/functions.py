"""Part of AdapterExam: options that are functions of the request, and shadow rules.

It uses only public names of sluicegate, and no framework or test runner.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.rules.tiers import Tiers
from sluicegate.testing.client import AdapterLaws


class FunctionLaws(AdapterLaws):
    """Tests of quotas, tiers, costs and conditions that are functions, and of limits that are only counted."""

    def test_functions_of_the_request(self) -> None:
        rule = {"name": "tier", "key": "ip", "quota": _quota, "cost": _cost, "when": plan_of}
        client = self.client(rules=[rule], clock=ManualClock())

        def ask(plan: str) -> int:
            return client.request("GET", "/open", headers=[("X-Plan", plan)] if plan else []).status

        assert [ask("free"), ask("free"), ask("paid"), ask("")] == [200, 429, 200, 200]
        tiers = Tiers({"free": "1/minute", "paid": "2/minute", "staff": None}, by=plan_of, default="free")
        client = self.client(rules=[{"name": "tier", "quota": tiers, "key": "ip"}], clock=ManualClock())
        asked = [ask(plan) for plan in ("paid", "paid", "paid", "free", "other", "", "staff")]
        assert asked == [200, 200, 429, 429, 429, 429, 200]

    def test_a_key_function_is_called_once_per_request(self) -> None:
        calls: list[str] = []

        def key(request: object) -> str:
            calls.append("key")
            return "alice"

        rules = [
            {"name": "own", "quota": "9/minute", "key": key},
            {"name": "tuple", "quota": "9/minute", "key": ("ip", key)},
        ]
        options = {"default_limits": ["9/minute", "9/day"], "key": key, "deny": ["bob"], "rules": rules}
        client = self.client(**options, clock=ManualClock())
        answers = [client.request("GET", "/limited").status for _ in range(3)]
        assert (answers, len(calls)) == ([200, 200, 429], 3)

    def test_a_shadow_rule_refuses_nobody_and_is_not_in_the_response(self) -> None:
        trial = {"name": "trial", "quota": "1/minute", "mode": "shadow"}
        seen = []
        for rules in ([], [trial]):
            client = self.client(default_limits=["2/minute"], rules=rules, clock=ManualClock())
            answers = [client.request("GET", "/open") for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 200, 429]
            seen.append([(answer.body, {*answer.headers} - {("date", answer.one("date"))}) for answer in answers])
        assert seen[0] == seen[1]

    def test_a_cost_that_never_fits(self) -> None:
        client = self.client(
            rules=[{"name": "dear", "quota": "2/minute", "cost": partial(_always, 3)}], clock=ManualClock()
        )
        refused = client.request("GET", "/open")
        assert (refused.status, refused.one("retry-after"), refused.one("ratelimit")) == (429, None, '"dear";r=2')
        problem = json.loads(refused.body)
        assert problem["detail"] == "This request costs more than its limit, so it can never pass."
        assert client.request("GET", "/open", headers=[("Accept", "text/html")]).one("retry-after") is None
        assert client.calls == []

    def test_a_wrong_result_of_a_function_lets_no_request_pass(self) -> None:
        costs = [-1, 1.5, float("nan"), float("inf"), True, "1", None, 10**400]
        quotas = ["", "5/fortnight", 5, ("5/minute",), "5/minute;" * 400]
        for option, results in (("cost", costs), ("quota", quotas)):
            for result in results:
                rule = {"name": "wrong", "quota": "5/minute", option: partial(_always, result)}
                client = self.client(rules=[rule])
                try:
                    status = client.request("GET", "/open").status
                except ConfigurationError:  # the server under test raised it instead of sending a 500
                    status = 500
                assert (status, client.calls) == (500, []), f"{option} {result!r}"


def _quota(request: object) -> str | None:
    return "2/minute" if plan_of(request) == "free" else None


def _always(result: object, request: object) -> object:
    return result


def _cost(request: object) -> int:
    return 2 if plan_of(request) == "free" else 1


def plan_of(request: Any) -> str:
    """Return the header X-Plan of a request of any framework."""
    if isinstance(request, dict):  # a scope, or an environ
        lines = [value.decode() for key, value in request.get("headers", ()) if key == b"x-plan"]
        return lines[0] if lines else str(request.get("HTTP_X_PLAN", ""))
    return str(request.headers.get("X-Plan", ""))
