"""Tiers, quotas and costs that are functions of the request: what they may answer, what they cost, what is refused."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

import pytest

from sluicegate import ManualClock, Quota, Rule, Tiers
from sluicegate.errors import AlgorithmError, ColourError, ConfigurationError, QuotaError, RuleError
from sluicegate.gate import AsyncGate, Gate
from sluicegate.http import denial
from sluicegate.limiter import Limiter
from sluicegate.marks import make_mark
from sluicegate.passage import NOWHERE
from sluicegate.plan import Check, Plan
from sluicegate.quota import MAX_LIMIT
from sluicegate.settings import Settings
from sluicegate.stores.entries import KINDS, SHARED
from sluicegate.stores.memory import MemoryStore
from sluicegate.terms import _read, make_terms
from tests import test_gate
from tests.test_gate import Ask, Visitor, names, settings

ask = test_gate.ask

FREE, PAID = (Quota(1, 60),), (Quota(2, 60), Quota(5, 86_400))
TABLE: dict[Any, Any] = {"free": "1/minute", "paid": "2/minute; 5/day", "staff": None}


class Plans(Enum):
    FREE = "free"
    PAID = "paid"


def plan_of(visitor: Visitor) -> Any:
    return visitor.path


async def plan_later(visitor: Visitor) -> Any:
    await asyncio.sleep(0)
    return visitor.path


def statuses(decisions: list[Any]) -> list[bool | None]:
    return [None if decision is None else decision.allowed for decision in decisions]


# The table


@pytest.mark.parametrize(
    ("tier", "expected"),
    [("free", FREE), ("paid", PAID), ("staff", None), ("gold", PAID), (None, PAID), ([], PAID), ({"free"}, PAID)],
)
def test_each_tier_has_its_quotas(tier: Any, expected: Any) -> None:
    tiers = Tiers(TABLE, by=lambda request: tier, default="paid")
    assert tiers(None) == expected
    assert repr(tiers) == "Tiers('free', 'paid', 'staff')"


def test_a_tier_may_be_any_value() -> None:
    tiers = Tiers({Plans.FREE: "1/minute", 2: Quota(2, 60)}, by=lambda request: request)
    assert (tiers(Plans.FREE), tiers(2)) == (FREE, PAID[:1])


@pytest.mark.parametrize("tier", ["gold", None, [], "x" * 10_000])
def test_without_a_default_an_unknown_tier_is_an_error(ask: Ask, tier: Any) -> None:
    """Not the strictest, which no program can tell of two quotas; and not no limit, for that would be a slip."""
    rule = Rule(name="r", quota=Tiers(TABLE, by=lambda visitor: tier))
    with pytest.raises(RuleError, match="not in the table; return one of free, paid, staff") as caught:
        ask(settings(rules=[rule]), NOWHERE.place, Visitor())
    assert len(str(caught.value)) < 500


WRONG: list[tuple[Any, dict[str, Any], type[ConfigurationError], str]] = [
    ({}, {}, RuleError, "not a table of quotas"),
    ("10/minute", {}, RuleError, "not a table of quotas"),
    ([("free", "1/minute")], {}, RuleError, "not a table of quotas"),
    ({"free": "1/fortnight"}, {}, QuotaError, "unknown unit"),
    ({"free": 5}, {}, QuotaError, "not a quota"),
    ({None: "1/minute"}, {}, RuleError, "not the name of a tier"),
    (TABLE, {"by": "plan"}, RuleError, "not a function"),
    (TABLE, {"default": "gold"}, RuleError, "no such tier; use one of free, paid, staff"),
    (TABLE, {"default": []}, RuleError, "no such tier"),
]


@pytest.mark.parametrize(("table", "options", "kind", "problem"), WRONG)
def test_what_is_refused(table: Any, options: dict[str, Any], kind: type[ConfigurationError], problem: str) -> None:
    with pytest.raises(kind, match=problem):
        Tiers(table, **{"by": str, **options})


def test_a_table_cannot_be_changed() -> None:
    table = dict(TABLE)
    tiers = Tiers(table, by=lambda request: "free")
    table["free"] = "9/minute"
    with pytest.raises(AttributeError, match="cannot be changed"):
        tiers.default = "paid"
    with pytest.raises(TypeError):
        tiers.table["free"] = None  # type: ignore[index]
    assert tiers(None) == FREE


# In a gate


def test_a_rule_of_tiers(ask: Ask) -> None:
    rule = Rule(name="r", quota=Tiers(TABLE, by=plan_of, default="free"), key="ip")
    visitors = [Visitor(path=path) for path in ("paid", "paid", "paid", "free", "gold", "staff")]
    decisions = ask(settings(rules=[rule]), NOWHERE.place, *visitors)
    assert statuses(decisions) == [True, True, False, False, False, None]
    assert [names(decision) for decision in decisions[2:]] == [["r-minute", "r-day"], ["r"], ["r"], []]


QUOTAS = ["2/minute", Quota(2, 60), (Quota(2, 60), Quota(9, 3600)), "2/minute; 9/hour", None]


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
@pytest.mark.parametrize("later", [False, True])
def test_what_a_quota_function_may_answer(quota: Any, later: bool) -> None:
    async def answer_later(visitor: Visitor) -> Any:
        await asyncio.sleep(0)
        return quota

    async def decide() -> list[Any]:
        gate = AsyncGate(settings(rules=[Rule(name="r", quota=answer_later if later else lambda visitor: quota)]))
        return [await gate.decide(Visitor(), gate.bind(NOWHERE.place)) for _ in range(3)]

    assert statuses(asyncio.run(decide())) == ([None] * 3 if quota is None else [True, True, False])


@pytest.mark.parametrize("option", ["quota", "tiers", "cost"])
def test_asynchronous_functions_in_either_colour(option: str) -> None:
    """An asynchronous application awaits them; a synchronous one says at start-up that it cannot."""
    rules = {
        "quota": Rule(name="r", quota=plan_later),
        "tiers": Rule(name="r", quota=Tiers({"2/minute": "2/minute"}, by=plan_later)),
        "cost": Rule(name="r", quota="2/minute", cost=_cost_later),
    }
    made = settings(rules=[rules[option]])
    with pytest.raises(ColourError, match="give a plain function"):
        Gate(made)

    async def decide() -> list[Any]:
        gate = AsyncGate(made)
        return [await gate.decide(Visitor(path="2/minute"), gate.bind(NOWHERE.place)) for _ in range(3)]

    assert statuses(asyncio.run(decide())) == [True, True, False]


class Later:
    def __await__(self) -> Any:
        yield from ()


async def _cost_later(visitor: Visitor) -> int:
    await asyncio.sleep(0)
    return 1


def test_what_cannot_be_seen_at_start_up_is_an_error_at_once() -> None:
    made = settings(rules=[Rule(name="r", quota=Tiers(TABLE, by=lambda visitor: Later()))])
    gate = Gate(made)
    with pytest.raises(ColourError, match="called synchronously"):
        gate.decide(Visitor(path="free"), gate.bind(NOWHERE.place))


@pytest.mark.parametrize("gate", [Gate, AsyncGate])
def test_a_store_is_asked_about_every_tier_at_start_up(gate: Any) -> None:
    rule = Rule(name="r", quota=Tiers({"slow": "5/minute", "fast": "7000000/second"}, by=str), algorithm="gcra")
    with pytest.raises(AlgorithmError, match=r"CL\.THROTTLE"):
        gate(Settings(rules=[rule], store="redis+cell://127.0.0.1:1"))
    gate(Settings(rules=[rule]))


# What a request may make of them


def test_texts_that_are_made_for_each_request_fill_no_memory() -> None:
    gate, numbers = Gate(settings(store="memory://?max_keys=10")), iter(range(1, 10**9))
    mark = make_mark(lambda visitor: visitor.path)
    [bound] = gate.bind_own(test_gate.place(), [mark])
    for _ in range(5_000):
        gate.decide(Visitor(path=f"{next(numbers)}/day"), [bound])
    for cache in (_read, make_terms):
        info = cache.cache_info()
        assert info.maxsize is not None
        assert info.currsize <= info.maxsize


def test_newcomers_to_a_full_store_share_no_more_than_so_many_budgets() -> None:
    store = MemoryStore(max_keys=1, clock=ManualClock())
    one = make_terms("one", (Quota(1, 60),), algorithm="gcra")[0]
    for _ in range(2):  # refused, so it makes room for nobody
        store.run(Plan((Check(one, "a", 1),)))
    for limit in range(1, 2 * SHARED):
        terms = make_terms("more", (Quota(limit, 60),), algorithm="sliding-window")[0]
        for _ in range(2):
            store.run(Plan((Check(terms, str(limit), 1),)))
    entries = store._entries
    assert (len(store), len(entries._shared), len(entries._common)) == (1, SHARED, KINDS)


@pytest.mark.parametrize("length", [1_000, 1_001, 1_000_000])
def test_a_text_without_end_is_not_read(length: int) -> None:
    text = "5/minute".ljust(length)
    if length > 1_000:
        with pytest.raises(QuotaError, match=f"{length} characters; give at most 1000"):
            Quota.parse_all(text)
    else:
        assert Quota.parse_all(text) == (Quota(5, 60),)


# Costs


COSTS = [-1, 1.5, 1.0, float("nan"), float("inf"), True, False, "1", None, (), MAX_LIMIT + 1, 10**5000]


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: type(cost).__name__)
def test_what_a_cost_function_may_not_answer(ask: Ask, cost: Any) -> None:
    with pytest.raises(RuleError, match="rule 'r': cost"):
        ask(settings(rules=[Rule(name="r", quota="5/minute", cost=lambda visitor: cost)]), NOWHERE.place, Visitor())
    with pytest.raises(RuleError, match=r"^cost"):
        Limiter().hit("5/minute", "a", cost=cost)


@pytest.mark.parametrize("algorithm", ["sliding-window", "gcra"])
@pytest.mark.parametrize("cost", [6, MAX_LIMIT])
def test_a_cost_that_never_fits(ask: Ask, algorithm: str, cost: int) -> None:
    """429, for it is this client's quota that it would exceed; no Retry-After, for there is no time to tell."""
    rules = [Rule(name="dear", quota="5/minute", cost=lambda visitor: cost, algorithm=algorithm)]
    rules += [Rule(name="all", quota="9/minute", algorithm=algorithm)]
    made = settings(rules=rules, default_limits=["1/minute"])
    for decision in ask(made, NOWHERE.place, Visitor(), Visitor()):
        assert decision is not None
        assert (decision.allowed, decision.rule, decision.limit, decision.remaining) == (False, "dear", 5, 5)
        assert (decision.retry_after, decision.outcomes["all"].remaining) == (None, 9), "the others cost nothing"
        answer = denial(decision, "draft-11", epoch=0)
        fields = dict(answer.fields)
        assert (answer.status, fields.get("Retry-After"), fields["RateLimit"]) == (429, None, '"dear";r=5')
        assert b'"violated-policies": ["dear"]' in answer.body
        assert b"can never pass" in denial(decision, "draft-11", epoch=0, accept="text/html").body


def test_a_number_of_another_kind_is_a_number(ask: Ask) -> None:
    class Units(int):
        pass

    rule = Rule(name="r", quota="5/minute", cost=lambda visitor: Units(3))
    [decision] = ask(settings(rules=[rule]), NOWHERE.place, Visitor())
    assert decision is not None
    assert type(decision.checks[0].cost) is int
