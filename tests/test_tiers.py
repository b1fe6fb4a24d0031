"""Tiers, quotas and costs that are functions of the request: what they may return, what they cost, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from sluicegate import ManualClock, Quota, Rule, Tiers
from sluicegate.errors import AlgorithmError, AsyncMismatchError, ConfigurationError, QuotaError, RuleError
from sluicegate.limiter import Limiter
from sluicegate.plan import Check, Plan
from sluicegate.quota import MAX_LIMIT
from sluicegate.rules.terms import _parsed, make_terms
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.memory_table import KINDS, SHARED
from sluicegate.web.bound import Bounds
from sluicegate.web.endpoint import NOWHERE
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.http import denial
from sluicegate.web.marks import make_mark
from sluicegate.web.settings import Settings
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


async def plan_async(visitor: Visitor) -> Any:
    await asyncio.sleep(0)
    return visitor.path


def statuses(decisions: list[Any]) -> list[bool | None]:
    return [None if decision is None else decision.allowed for decision in decisions]


# The table


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ("free", FREE),
        ("paid", PAID),
        ("staff", None),
        ("gold", PAID),
        (None, PAID),
        ([], PAID),
        ({"free"}, PAID),
        (("x", [1]), PAID),
    ],
)
def test_each_tier_has_its_quotas(tier: Any, expected: Any) -> None:
    tiers = Tiers(TABLE, by=lambda request: tier, default="paid")
    assert tiers(None) == expected
    assert repr(tiers) == "Tiers('free', 'paid', 'staff')"


def test_a_tier_may_be_any_value() -> None:
    tiers = Tiers({Plans.FREE: "1/minute", 2: Quota(2, 60)}, by=lambda request: request)
    assert (tiers(Plans.FREE), tiers(2)) == (FREE, PAID[:1])


class Pairs(Mapping[Any, Any]):
    """A table whose keys a dict takes for one."""

    def __iter__(self) -> Any:
        return iter([True, 1])

    def __len__(self) -> int:
        return 2

    def __contains__(self, tier: object) -> bool:
        return tier in (True, 1)

    def __getitem__(self, tier: object) -> str:
        return "1/minute" if tier is True else "2/minute"


def test_true_and_1_are_two_tiers() -> None:
    """A dict takes them for one, so a table cannot have both."""
    staff, first = [Tiers({name: "1/minute"}, by=lambda request: request) for name in (True, 1)]
    assert (staff(True), first(1), first(1.0)) == (FREE, FREE, FREE)
    for tiers, tier in ((staff, 1), (staff, 1.0), (first, True)):
        with pytest.raises(RuleError, match="not in the table"):
            tiers(tier)
    with pytest.raises(RuleError, match="no such tier"):
        Tiers({True: "1/minute"}, by=str, default=1)
    with pytest.raises(RuleError, match="two names that are equal for Python"):
        Tiers(Pairs(), by=str)


@pytest.mark.parametrize("tier", ["gold", None, [], ("x", [1]), "x" * 10_000])
def test_without_a_default_an_unknown_tier_is_an_error(ask: Ask, tier: Any) -> None:
    """Not the strictest tier, because two quotas may have no order; and not unlimited: that would hide a mistake."""
    rule = Rule(name="r", quota=Tiers(TABLE, by=lambda visitor: tier))
    with pytest.raises(RuleError, match="not in the table; return one of free, paid, staff") as caught:
        ask(settings(rules=[rule]), NOWHERE.endpoint, Visitor())
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
    (TABLE, {"default": ("x", [1])}, RuleError, "no such tier"),
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
    decisions = ask(settings(rules=[rule]), NOWHERE.endpoint, *visitors)
    assert statuses(decisions) == [True, True, False, False, False, None]
    assert [names(decision) for decision in decisions[2:]] == [["r-minute", "r-day"], ["r"], ["r"], []]


QUOTAS = ["2/minute", Quota(2, 60), (Quota(2, 60), Quota(9, 3600)), "2/minute; 9/hour", None]


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_quota_function_may_return(quota: Any, is_async: bool) -> None:
    async def answer_async(visitor: Visitor) -> Any:
        await asyncio.sleep(0)
        return quota

    async def decide() -> list[Any]:
        gate = AsyncGate(settings(rules=[Rule(name="r", quota=answer_async if is_async else lambda visitor: quota)]))
        return [await gate.decide(Visitor(), gate.bind(NOWHERE.endpoint)) for _ in range(3)]

    assert statuses(asyncio.run(decide())) == ([None] * 3 if quota is None else [True, True, False])


@pytest.mark.parametrize("option", ["quota", "tiers", "cost"])
def test_asynchronous_functions_in_sync_and_async_gates(option: str) -> None:
    """An asynchronous application awaits them; a synchronous one raises an error at start-up."""
    rules = {
        "quota": Rule(name="r", quota=plan_async),
        "tiers": Rule(name="r", quota=Tiers({"2/minute": "2/minute"}, by=plan_async)),
        "cost": Rule(name="r", quota="2/minute", cost=_cost_async),
    }
    made = settings(rules=[rules[option]])
    with pytest.raises(AsyncMismatchError, match="give a plain function"):
        Gate(made)

    async def decide() -> list[Any]:
        gate = AsyncGate(made)
        return [await gate.decide(Visitor(path="2/minute"), gate.bind(NOWHERE.endpoint)) for _ in range(3)]

    assert statuses(asyncio.run(decide())) == [True, True, False]


class Later:
    def __await__(self) -> Any:
        yield from ()


async def _cost_async(visitor: Visitor) -> int:
    await asyncio.sleep(0)
    return 1


def test_what_cannot_be_seen_at_start_up_is_an_error_at_once() -> None:
    made = settings(rules=[Rule(name="r", quota=Tiers(TABLE, by=lambda visitor: Later()))])
    gate = Gate(made)
    with pytest.raises(AsyncMismatchError, match="called synchronously"):
        gate.decide(Visitor(path="free"), gate.bind(NOWHERE.endpoint))


@pytest.mark.parametrize("gate", [Gate, AsyncGate])
def test_a_store_checks_every_tier_at_start_up(gate: Any) -> None:
    rule = Rule(name="r", quota=Tiers({"slow": "5/minute", "fast": "7000000/second"}, by=str), algorithm="gcra")
    with pytest.raises(AlgorithmError, match=r"CL\.THROTTLE"):
        gate(Settings(rules=[rule], store="redis+cell://127.0.0.1:1"))
    gate(Settings(rules=[rule]))


# What a request may make of them


@pytest.mark.slow
def test_texts_that_are_made_for_each_request_fill_no_memory() -> None:
    gate, numbers = Gate(settings(store="memory://?max_keys=10")), iter(range(1, 10**9))
    mark = make_mark(lambda visitor: visitor.path)
    [bound] = gate.bind_own(test_gate.place(), [mark])
    for _ in range(5_000):
        gate.decide(Visitor(path=f"{next(numbers)}/day"), Bounds([bound]))
    for cache in (_parsed, make_terms):
        info = cache.cache_info()
        assert info.maxsize is not None
        assert info.currsize <= info.maxsize


@pytest.mark.slow
def test_new_identities_in_a_full_store_have_a_fixed_number_of_budgets() -> None:
    store = MemoryStore(max_keys=1, clock=ManualClock())
    one = make_terms("one", (Quota(1, 60),), algorithm="gcra")[0]
    for _ in range(2):  # refused, so no other entry is evicted for it
        store.run(Plan((Check(one, "a", 1),)))
    for limit in range(1, 2 * SHARED):
        terms = make_terms("more", (Quota(limit, 60),), algorithm="sliding-window")[0]
        for _ in range(2):
            store.run(Plan((Check(terms, str(limit), 1),)))
    entries = store._table
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
def test_what_a_cost_function_may_not_return(ask: Ask, cost: Any) -> None:
    with pytest.raises(RuleError, match="rule 'r': cost"):
        ask(settings(rules=[Rule(name="r", quota="5/minute", cost=lambda visitor: cost)]), NOWHERE.endpoint, Visitor())
    with pytest.raises(RuleError, match=r"^cost"):
        Limiter().hit("5/minute", "a", cost=cost)


@pytest.mark.parametrize("algorithm", ["sliding-window", "gcra"])
@pytest.mark.parametrize("cost", [6, MAX_LIMIT])
def test_a_cost_that_never_fits(ask: Ask, algorithm: Any, cost: int) -> None:
    """429, because it would exceed this client's quota; no Retry-After, because no wait helps."""
    rules = [Rule(name="dear", quota="5/minute", cost=lambda visitor: cost, algorithm=algorithm)]
    rules += [Rule(name="all", quota="9/minute", algorithm=algorithm)]
    made = settings(rules=rules, default_limits=["1/minute"])
    for decision in ask(made, NOWHERE.endpoint, Visitor(), Visitor()):
        assert decision is not None
        assert (decision.allowed, decision.rule, decision.limit, decision.remaining) == (False, "dear", 5, 5)
        assert (decision.retry_after, decision.by_rule["all"].remaining) == (None, 9), "the others cost nothing"
        answer = denial(decision, "draft-11", epoch=0)
        fields = dict(answer.fields)
        assert (answer.status, fields.get("Retry-After"), fields["RateLimit"]) == (429, None, '"dear";r=5')
        assert b'"violated-policies": ["dear"]' in answer.body
        assert b"can never pass" in denial(decision, "draft-11", epoch=0, accept="text/html").body


def test_a_number_of_another_kind_is_a_number(ask: Ask) -> None:
    class Units(int):
        pass

    rule = Rule(name="r", quota="5/minute", cost=lambda visitor: Units(3))
    [decision] = ask(settings(rules=[rule]), NOWHERE.endpoint, Visitor())
    assert decision is not None
    assert type(decision.checks[0].cost) is int
