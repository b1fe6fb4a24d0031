"""What a decision leaves to be done after, and which options say so."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sluicegate import Limiter, ManualClock, Rule
from sluicegate.after import Headers, Response, due, held, owed, refundable, regained, when_to_refund
from sluicegate.errors import ColourError, RuleError, SettingsError
from sluicegate.limiter import conclude
from sluicegate.marks import make_mark
from sluicegate.plan import Check, Decision, Outcome, Plan, Terms
from sluicegate.settings import Settings
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis_cell import RedisCellStore
from sluicegate.testing.after import wrong


def is_fine(response: Response) -> bool:
    return response.status_code < 400


async def is_fine_later(response: Response) -> bool:
    return is_fine(response)


def terms(name: str = "login", **options: Any) -> Terms:
    fields = {option: options.pop(option) for option in ("held", "shadow") if option in options}
    (found,) = Rule(name=name, quota="5/minute", **options).terms("sliding-window")
    return found._replace(**fields) if fields else found


def decide(*each: Terms, cost: int = 1, store: MemoryStore | None = None) -> Decision:
    plan = Plan(tuple([Check(one, "alice", cost) for one in each]))
    return conclude(plan, (MemoryStore(clock=ManualClock()) if store is None else store).run(plan))


# ---- the view of a response --------------------------------------------------------------------------------------


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


# ---- the options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"charge_when": wrong, "refund_when": wrong}, RuleError, "keep one"),
        ({"charge_when": 401}, RuleError, "plain function"),
        ({"refund_when": "later"}, RuleError, "plain function"),
        ({"refund_when": type("Unhashable", (), {"__call__": is_fine, "__hash__": None})()}, RuleError, "plain"),
        ({"charge_when": is_fine_later}, ColourError, "plain function"),
        ({"refund_when": type("Later", (), {"__call__": is_fine_later})()}, ColourError, "plain function"),
    ],
)
def test_wrong_options_are_errors_wherever_a_rule_is_made(options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Rule(name="login", quota="5/minute", **options)
    with pytest.raises(error, match=says):
        make_mark("5/minute", **options)
    with pytest.raises(error, match=says):
        Settings(rules=[{"name": "login", "quota": "5/minute", **options}])


def test_in_mappings_they_may_be_dotted_names() -> None:
    (rule,) = Settings(rules=[{"name": "a", "quota": "1/s", "charge_when": "sluicegate.testing.after.wrong"}]).rules
    assert isinstance(rule, Rule)
    assert rule.charge_when is wrong
    with pytest.raises(SettingsError, match="cannot be imported"):
        Settings(rules=[{"name": "a", "quota": "1/s", "refund_when": "sluicegate.testing.after.wring"}])


def test_one_is_the_opposite_of_the_other() -> None:
    for status in (200, 401):
        assert when_to_refund("a", None, wrong)(Response(status)) is wrong(Response(status))
        assert when_to_refund("a", wrong, None)(Response(status)) is not wrong(Response(status))
    assert when_to_refund("a", None, None) is None


def test_the_same_options_make_the_same_terms() -> None:
    """What a store remembers under terms is found again, though the quota be a function of the request."""
    assert terms(charge_when=wrong) is terms(charge_when=wrong)
    assert terms(charge_when=wrong) is not terms(refund_when=wrong)


def test_a_store_that_cannot_give_back_refuses_the_rule() -> None:
    (found,) = Rule(name="login", quota="5/minute", algorithm="gcra", charge_when=wrong).terms("gcra")
    with pytest.raises(RuleError, match="cannot give a charge back"):
        RedisCellStore.accept(None, found)  # type: ignore[arg-type]  # it needs no connection


# ---- what is owed ------------------------------------------------------------------------------------------------


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
def test_a_decision_owes_what_waits_for_the_response_or_its_end(each: list[Terms], cost: int, names: list[str]) -> None:
    assert [check.terms.name for check, _ in owed(decide(*each, cost=cost))] == names


@pytest.mark.parametrize(
    ("changes", "owes"),
    [
        ({}, True),
        ({"source": "local"}, True),  # the stand-in gives it back
        ({"source": "policy"}, False),
        ({"retry_after": 7}, False),  # a shadow rule that would have refused has counted nothing
        ({"allowed": False, "retry_after": 7}, False),
    ],
)
def test_what_was_not_counted_is_not_owed(changes: dict[str, Any], owes: bool) -> None:
    check = Check(terms(charge_when=wrong), "alice", 1)
    outcome = Outcome(True, 5, 4, 0, 60, 60)._replace(**changes)
    assert bool(owed(Decision(outcome.allowed, (check,), (outcome,)))) is owes


def test_a_refusal_owes_nothing_though_it_be_counted() -> None:
    store, counting = MemoryStore(clock=ManualClock()), terms(charge_when=wrong, count_denied=True)
    decisions = [decide(counting, store=store) for _ in range(6)]
    assert [bool(owed(decision)) for decision in decisions] == [True] * 5 + [False]


@pytest.mark.parametrize(("status", "given", "kept"), [(200, ["a"], ["c"]), (401, ["b"], ["c"])])
def test_the_response_decides_and_what_is_held_waits(status: int, given: list[str], kept: list[str]) -> None:
    charges = owed(decide(terms("a", charge_when=wrong), terms("b", refund_when=wrong), terms("c", held=True)))
    assert [check.terms.name for check, _ in refundable(charges, Response(status))] == given
    assert [check.terms.name for check, _ in held(charges)] == kept


def test_a_failing_predicate_is_told_once_for_each_rule_and_keeps_the_charge(caplog: pytest.LogCaptureFixture) -> None:
    def fail(response: Response) -> bool:
        raise KeyError("session")

    charges = owed(decide(terms("fails-a", refund_when=fail), terms("fails-b", charge_when=fail)))
    with caplog.at_level(logging.ERROR, "sluicegate.after"):
        assert [refundable(charges, Response(200)) for _ in range(3)] == [[], [], []]
    assert [record.args for record in caplog.records] == [("fails-a",), ("fails-b",)]
    assert "alice" not in caplog.text


@pytest.mark.parametrize(
    ("hits", "cost", "remaining", "waits"),
    [(1, 1, 5, (0, 0)), (3, 1, 3, (60_000_000, 60_000_000)), (1, 3, 5, (0, 0))],
)
def test_a_decision_tells_what_was_given_back(hits: int, cost: int, remaining: int, waits: tuple[int, int]) -> None:
    store = MemoryStore(clock=ManualClock())
    for _ in range(hits):
        decision = decide(terms(charge_when=wrong), terms("other"), cost=cost, store=store)
    charges = refundable(owed(decision), Response(200))
    (first, other) = regained(decision, charges).results
    assert (first.remaining, first.reset_after, first.next_after) == (remaining, *waits)
    assert other == decision.results[1]
    store.refund(*due(charges))
    stands = store.run(Plan((Check(charges[0][0].terms, "alice", 0),)))[0]
    assert (stands.remaining, stands.reset_after, stands.next_after) == (remaining, *waits)


def test_nothing_of_it_is_known_to_a_limiter() -> None:
    assert owed(Limiter().hit("5/minute", "alice")) == []
