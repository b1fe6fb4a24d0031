"""Shadow rules in the wrappers, in stores for tests, and in commands. The exam has the law itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import pytest

from sluicegate import Limiter, ManualClock, Quota
from sluicegate.plan import Check, Outcome, Plan, charged
from sluicegate.rules.rollout import shadows
from sluicegate.rules.terms import make_terms
from sluicegate.stores import open_async_store, open_store
from sluicegate.stores.deny_cache import Refusals
from sluicegate.stores.local_fallback import LocalFallback
from sluicegate.stores.redis.encoding import Encoder
from sluicegate.testing import BrokenStore, OpenStore, ShutStore
from sluicegate.testing.store import terms
from tests.servers import Server
from tests.stores.breakable import Breakable, Mode
from tests.stores.guards import CACHES
from tests.stores.modes import PATIENCE
from tests.stores.test_fallback import around

REFUSED = Outcome(True, 1, 0, 5, 5, 5)
PASSED = Outcome(True, 1, 0, 0, 5, 5)


@pytest.mark.parametrize(("outcome", "expected"), [(PASSED, 2), (REFUSED, 1), (PASSED._replace(source="local"), 1)])
def test_only_what_was_charged_is_refunded(outcome: Outcome, expected: int) -> None:
    plan = Plan((Check(terms("gcra", "1/minute"), "a", 1), Check(terms("gcra", "1/minute", shadow=True), "a", 1)))
    assert len(charged(plan, (PASSED, outcome))) == expected


def pair(**options: Any) -> tuple[Check, Check]:
    shadow, rule = (
        make_terms(name, (Quota(limit, 60),), algorithm="sliding-window", **options)
        for name, limit in (("shadow", 1), ("rule", 3))
    )
    return Check(shadows(shadow)[0], "a", 1), Check(rule[0], "a", 1)


QUOTAS = (Quota(5, 60), Quota(20, 3600))


@pytest.mark.parametrize("where", ["memory://", "valkey"])
@pytest.mark.parametrize("algorithm", ["sliding-window", "gcra"])
def test_a_rule_of_several_quotas_reports_what_enforcement_refuses(
    request: pytest.FixtureRequest, clock: ManualClock, where: str, algorithm: str
) -> None:
    url = request.getfixturevalue("valkey").url if where == "valkey" else where
    store = open_store(url, prefix=uuid4().hex, clock=clock, deadline=PATIENCE)
    enforced = make_terms("guess", QUOTAS, algorithm=algorithm)
    plans = [Plan(tuple([Check(each, "alice", 1) for each in rule])) for rule in (enforced, shadows(enforced))]
    reports = []
    for _ in range(80):
        refused, shadowed = [store.run(plan) for plan in plans]
        assert [each.retry_after for each in shadowed] == [each.retry_after for each in refused]
        assert [each.remaining for each in shadowed] == [each.remaining for each in refused]
        reports.append(any([each.retry_after != 0 for each in shadowed]))
        clock.advance(7)
    assert 0 < sum(reports) < 80
    store.close()


def test_the_quotas_of_each_rule_and_identity_are_one_group() -> None:
    rules = [shadows(make_terms(name, QUOTAS, algorithm="gcra")) for name in ("one", "two")]
    checks = [Check(each, who, 1) for who in "ab" for rule in rules for each in rule]
    command = Encoder(prefix="t", clock=None, split=False).run(Plan((*checks, pair()[1])))
    words = command.frame.split(b"\r\n")
    found = [words[at + 2] for at, word in enumerate(words) if word in {b"gcra", b"sliding-window"}]
    assert found == [b"00", b"00", b"02", b"02", b"04", b"04", b"06", b"06", b"0"]


def say(outcomes: Iterable[Outcome]) -> list[tuple[bool, bool, str]]:
    return [(outcome.allowed, outcome.retry_after == 0, outcome.source) for outcome in outcomes]


def test_the_deny_cache_repeats_outcomes_of_shadow_rules(mode: Mode, clock: ManualClock) -> None:
    inside = Breakable(clock)
    store = mode.around(inside, CACHES, refusals=Refusals(staleness=9, clock=clock))
    passing = [store.run(*pair()) for _ in range(3)]
    assert [say(outcomes)[0][1] for outcomes in passing] == [True, False, False]
    assert inside.calls == 3, "a refusal by a shadow rule is not remembered: the request passes"
    first = store.run(*pair())
    clock.advance(1)
    second = store.run(*pair())
    assert inside.calls == 4
    assert say(first) == say(second) == [(True, False, "store"), (False, False, "store")]
    assert (second[0].retry_after, second[1].retry_after) == (59_000_000, 59_000_000)


@pytest.mark.parametrize(
    ("policy", "shadow"),
    [("local", [True, False]), ("allow", [True, True]), ("deny", [True, True])],
)
@pytest.mark.parametrize("of_the_rule", ["local", "allow", "deny"])
def test_without_the_store_a_shadow_rule_refuses_no_request(
    mode: Mode, clock: ManualClock, policy: str, shadow: list[bool], of_the_rule: str
) -> None:
    inside = Breakable(clock)
    inside.down = True
    store = around(inside, mode, clock)
    checks = pair(on_store_failure=policy)[0], pair(on_store_failure=of_the_rule)[1]
    answers = [store.run(*checks) for _ in range(2)]
    assert [outcomes[1].allowed for outcomes in answers] == [of_the_rule != "deny"] * 2
    assert [outcomes[0].allowed for outcomes in answers] == [True, True]
    if of_the_rule != "deny":  # a refused plan is charged nowhere
        assert [outcomes[0].retry_after == 0 for outcomes in answers] == shadow


def test_a_shadow_rule_does_not_raise_while_the_store_is_down() -> None:
    local_fallback = LocalFallback(policy="raise")
    shadow, _ = pair()
    [outcome] = local_fallback.answer(Plan((shadow,)), error=None)  # type: ignore[arg-type]
    assert (outcome.allowed, outcome.source) == (True, "policy")


@pytest.mark.parametrize(
    ("store", "would"),
    [(OpenStore(), ()), (ShutStore(), ("exam",)), (ShutStore(retry_after=None), ("exam",)), (BrokenStore(), ())],
)
def test_stores_for_tests(store: Any, would: tuple[str, ...]) -> None:
    limiter = Limiter(store, on_store_failure="deny")
    decision = limiter.run(Plan((Check(terms("gcra", "1/minute", shadow=True), "a", 1),)))
    assert (decision.allowed, decision.would_refuse) == (True, would)


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_the_arguments_of_a_shadow_check(shadow: bool, counted: bool) -> None:
    encoder = Encoder(prefix="t", clock=None, split=False)
    plan = Plan((Check(terms("gcra", "1/minute", shadow=shadow, counted=counted), "a", 1),))
    frame = Encoder(prefix="t", clock=None, split=False, decoded=True).run(plan).frame
    word = {(False, False): b"0", (False, True): b"1", (True, False): b"00", (True, True): b"10"}[shadow, counted]
    assert b"$4\r\ngcra\r\n$%d\r\n%s\r\n$1\r\n1\r\n" % (len(word), word) in frame
    assert (encoder.run(plan).frame == frame) is counted, "a hit counts no refusals"


def test_equal_shadow_plans_of_one_turn_each_get_an_outcome(valkey: Server) -> None:
    """They are in a batch, as those of enforced rules. Each reply becomes an outcome of a shadow rule."""
    plan = Plan((Check(terms("gcra", "1/hour", scope=uuid4().hex, shadow=True), "a", 1),))

    async def main() -> list[tuple[Outcome, ...]]:
        store = open_async_store(valkey.url, prefix="exam", deadline=PATIENCE)
        try:
            first = await store.run(plan)
            return [first, *await asyncio.gather(*[store.run(plan) for _ in range(40)])]
        finally:
            await store.close()

    outcomes = [outcome for [outcome] in asyncio.run(main())]
    assert [outcome.retry_after == 0 for outcome in outcomes] == [True] + [False] * 40
    assert all(outcome.allowed for outcome in outcomes)
