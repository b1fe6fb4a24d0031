"""Charges that depend on the response, and the options that make them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sluicegate import Limiter, ManualClock, Rule
from sluicegate.errors import AsyncMismatchError, RuleError, SettingsError
from sluicegate.plan import Check, Decision, Outcome, Plan, Terms
from sluicegate.rules.response import Headers, Response, login_failed, when_to_refund
from sluicegate.rules.rollout import shadows
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis.cell import RedisCellStore
from sluicegate.testing.charges import wrong
from sluicegate.web.charges import due, held, owed, refundable, without
from sluicegate.web.marks import make_mark
from sluicegate.web.settings import Settings
from tests.decided import conclude


def is_fine(response: Response) -> bool:
    return response.status_code < 400


def deny(self: object, request: object, decision: object) -> None: ...


async def is_fine_async(response: Response) -> bool:
    return is_fine(response)


def terms(name: str = "login", **options: Any) -> Terms:
    fields = {option: options.pop(option) for option in ("held", "shadow") if option in options}
    (found,) = Rule(name=name, quota="5/minute", **options).terms("sliding-window")
    return found._replace(**fields) if fields else found


def decide(*each: Terms, cost: int = 1, store: MemoryStore | None = None) -> Decision:
    plan = Plan(tuple([Check(one, "alice", cost) for one in each]))
    return conclude(plan.checks, (MemoryStore(clock=ManualClock()) if store is None else store).run(plan))


# ---- the response of a predicate ------------------------------------------------------------------------------------


def test_headers_are_found_in_any_case_and_cannot_be_changed() -> None:
    headers = Headers([("Content-Type", "text/html"), ("Set-Cookie", "a=1"), ("set-cookie", "b=2")])
    assert (headers["CONTENT-TYPE"], headers["Set-Cookie"], "Content-type" in headers) == (
        "text/html",
        "a=1, b=2",
        True,
    )
    assert (list(headers), len(headers), headers.get("x")) == (["content-type", "set-cookie"], 2, None)
    with pytest.raises(TypeError):
        headers["x"] = "y"  # type: ignore[index]
    with pytest.raises(AttributeError):
        Response(200).status_code = 201  # type: ignore[misc]


# ---- the options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"charge_when": wrong, "refund_when": wrong}, RuleError, "keep one"),
        ({"charge_when": 401}, RuleError, "plain function"),
        ({"refund_when": "later"}, RuleError, "plain function"),
        ({"refund_when": type("Unhashable", (), {"__call__": is_fine, "__hash__": None})()}, RuleError, "has no hash"),
        ({"on_denied": type("Unhashable", (), {"__call__": deny, "__hash__": None})()}, RuleError, "has no hash"),
        ({"charge_when": is_fine_async}, AsyncMismatchError, "plain function"),
        ({"refund_when": type("Later", (), {"__call__": is_fine_async})()}, AsyncMismatchError, "plain function"),
    ],
)
def test_wrong_options_are_errors_in_every_way_to_make_a_rule(options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Rule(name="login", quota="5/minute", **options)
    with pytest.raises(error, match=says):
        make_mark("5/minute", **options)
    with pytest.raises(error, match=says):
        Settings(rules=[{"name": "login", "quota": "5/minute", **options}])


def test_in_mappings_they_may_be_dotted_names() -> None:
    (rule,) = list(
        Settings(rules=[{"name": "a", "quota": "1/s", "charge_when": "sluicegate.testing.charges.wrong"}]).rules
    )
    assert isinstance(rule, Rule)
    assert rule.charge_when is wrong
    with pytest.raises(SettingsError, match="cannot be imported"):
        Settings(rules=[{"name": "a", "quota": "1/s", "refund_when": "sluicegate.testing.charges.wring"}])


def test_one_is_the_opposite_of_the_other() -> None:
    refunds, charges = when_to_refund(None, wrong), when_to_refund(wrong, None)
    assert refunds is not None
    assert charges is not None
    for status in (200, 401):
        assert refunds(Response(status)) is wrong(Response(status))
        assert charges(Response(status)) is not wrong(Response(status))
    assert when_to_refund(None, None) is None


def test_the_same_options_make_the_same_terms() -> None:
    """What a store caches by terms is found again, even if the quota is a function of the request."""
    assert terms(charge_when=wrong) is terms(charge_when=wrong)
    assert terms(charge_when=wrong) is not terms(refund_when=wrong)


def test_a_store_that_cannot_refund_refuses_the_rule() -> None:
    (found,) = Rule(name="login", quota="5/minute", algorithm="gcra", charge_when=wrong).terms("gcra")
    with pytest.raises(RuleError, match="cannot refund a charge"):
        RedisCellStore.accept(None, found)  # type: ignore[arg-type]  # it needs no connection


# ---- owed charges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("each", "cost", "names"),
    [
        ([terms()], 1, []),
        ([terms(charge_when=wrong)], 1, ["login"]),
        ([terms(charge_when=wrong)], 0, []),
        ([terms(held=True)], 1, ["login"]),
        ([terms("a"), terms("b", refund_when=wrong), terms("c", held=True)], 2, ["b", "c"]),
    ],
)
def test_charges_that_depend_on_the_response_are_owed(each: list[Terms], cost: int, names: list[str]) -> None:
    assert [check.terms.name for check, _ in owed(decide(*each, cost=cost))] == names


@pytest.mark.parametrize(
    ("changes", "owes"),
    [
        ({}, True),
        ({"source": "local"}, True),  # the local fallback refunds it
        ({"source": "policy"}, False),
        ({"allowed": False, "retry_after": 7}, False),
    ],
)
def test_a_check_that_was_not_charged_is_not_owed(changes: dict[str, Any], owes: bool) -> None:
    check = Check(terms(charge_when=wrong), "alice", 1)
    outcome = Outcome(True, 5, 4, 0, 60, 60)._replace(**changes)
    assert bool(owed(Decision(outcome.allowed, (check,), (outcome,)))) is owes


def test_a_shadow_rule_that_would_have_refused_owes_nothing() -> None:
    quotas = Rule(name="guess", quota="5/minute; 2/hour", mode="shadow", charge_when=wrong).terms("sliding-window")
    store, rule = MemoryStore(clock=ManualClock()), shadows(quotas)
    decisions = [decide(*rule, store=store) for _ in range(3)]
    assert [(decision.would_refuse, len(owed(decision))) for decision in decisions] == [
        ((), 2),
        ((), 2),
        (("guess-hour",), 0),
    ]


def test_a_counted_refusal_owes_nothing() -> None:
    store, counting = MemoryStore(clock=ManualClock()), terms(charge_when=wrong, count_denied=True)
    decisions = [decide(counting, store=store) for _ in range(6)]
    assert [bool(owed(decision)) for decision in decisions] == [True] * 5 + [False]


@pytest.mark.parametrize(("status", "given", "kept"), [(200, ["a"], ["c"]), (401, ["b"], ["c"])])
def test_the_response_refunds_and_held_charges_wait(status: int, given: list[str], kept: list[str]) -> None:
    charges = owed(decide(terms("a", charge_when=wrong), terms("b", refund_when=wrong), terms("c", held=True)))
    assert [check.terms.name for check, _ in refundable(charges, Response(status))] == given
    assert [check.terms.name for check, _ in held(charges)] == kept


def test_a_failing_predicate_is_logged_once_a_rule_and_keeps_the_charge(caplog: pytest.LogCaptureFixture) -> None:
    def fail(response: Response) -> bool:
        raise KeyError("session")

    charges = owed(decide(terms("fails-a", refund_when=fail), terms("fails-b", charge_when=fail)))
    with caplog.at_level(logging.ERROR, "sluicegate.charges"):
        assert [refundable(charges, Response(200)) for _ in range(3)] == [[], [], []]
    assert [record.args for record in caplog.records] == [("fails-a",), ("fails-b",)]
    assert "alice" not in caplog.text


@pytest.mark.parametrize(
    ("hits", "cost", "remaining", "waits"),
    [(1, 1, 5, (0, 0)), (3, 1, 3, (60_000_000, 60_000_000)), (1, 3, 5, (0, 0))],
)
def test_a_refunded_decision_equals_the_store(hits: int, cost: int, remaining: int, waits: tuple[int, int]) -> None:
    store = MemoryStore(clock=ManualClock())
    for _ in range(hits):
        decision = decide(terms(charge_when=wrong), terms("other"), cost=cost, store=store)
    charges = refundable(owed(decision), Response(200))
    (first, other) = without(decision, charges).outcomes
    assert (first.remaining, first.reset_after, first.next_after) == (remaining, *waits)
    assert other == decision.outcomes[1]
    store.refund(*due(charges))
    outcome = store.run(Plan((Check(charges[0][0].terms, "alice", 0),)))[0]
    assert (outcome.remaining, outcome.reset_after, outcome.next_after) == (remaining, *waits)


def test_a_decision_of_a_limiter_owes_nothing() -> None:
    assert owed(Limiter().hit("5/minute", "alice")) == []


@pytest.mark.parametrize(
    ("status", "media", "failed"),
    [
        (200, "text/html; charset=utf-8", True),  # Django's LoginView, its admin, allauth: the form again
        (200, "Text/HTML", True),
        (200, "application/json", False),  # a token of REST framework
        (200, None, False),
        (204, None, False),
        (302, "text/html", False),  # LoginView: signed in
        (400, "application/json", True),  # REST framework's obtain_auth_token, dj-rest-auth, allauth with AJAX
        (401, "application/json", True),
        (403, "application/json", True),
        (404, "text/html", False),
        (429, "text/html", False),
        (500, "text/html", False),
    ],
)
def test_the_response_to_a_failed_login(status: int, media: str | None, failed: bool) -> None:
    """Issue 26."""
    headers = Headers([] if media is None else [("Content-Type", media)])
    assert login_failed(Response(status, headers)) is failed
    assert login_failed(Response(status, headers, login_failed=True))
