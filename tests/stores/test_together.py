"""Plans of one rule that leave in one turn of a loop go together in one run: each is still answered for itself."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing

import hiredis
import pytest
import redis

from sluicegate import StoreError
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.stores import open_async_store, open_store
from sluicegate.stores.redis.commands import Lone, Together, parts, together
from sluicegate.stores.redis.shared import SharedLink
from sluicegate.stores.redis.wire import Wire
from sluicegate.testing.store import NAMES, terms
from tests.servers import Server
from tests.stores.colours import PATIENCE

TASKS = 50


@pytest.fixture
def who() -> str:
    return f"{random.SystemRandom().random()}"


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many plans each command carried that was sent."""
    sent: list[int] = []
    read = SharedLink.data_received

    def watched(link: SharedLink, data: bytes) -> None:
        sent.extend(len(each.answers) for each in link._waiting)
        read(link, data)

    monkeypatch.setattr(SharedLink, "data_received", watched)
    return sent


def at_once(server: Server, plans: list[Plan], *, before: str = "") -> list[Outcome | BaseException]:
    """What the plans are told when they all come in one turn. `before` is a command for the server."""

    async def main() -> list[Outcome | BaseException]:
        store = open_async_store(server.url, prefix="together", deadline=PATIENCE)
        await store.run(Plan((plans[0].checks[0]._replace(identity="", cost=0),)))  # the connection is there
        if before:
            with closing(redis.Redis(port=server.port)) as client:
                client.execute_command(*before.split())
        told = await asyncio.gather(*[store.run(plan) for plan in plans], return_exceptions=True)
        await store.close()
        return [each if isinstance(each, BaseException) else each[0] for each in told]

    return asyncio.run(main())


def hits(rule: Terms, *identities: str) -> list[Plan]:
    return [Plan((Check(rule, identity, 1),)) for identity in identities]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", ["", "SCRIPT FLUSH"], ids=["known", "a server that lost its scripts"])
def test_exactly_the_limit_passes(server: Server, frames: list[int], who: str, name: str, before: str) -> None:
    rule = terms(name, "20/day", scope="exactly")
    told = at_once(server, hits(rule, *[who] * TASKS), before=before)
    passed = [each.remaining for each in told if isinstance(each, Outcome) and each.allowed]
    assert passed == list(range(19, -1, -1))
    refused = [each.retry_after for each in told if isinstance(each, Outcome) and not each.allowed]
    assert len(refused) == TASKS - 20
    assert all(refused)
    assert max(frames) > 1


@pytest.mark.parametrize("name", NAMES)
def test_each_is_told_of_its_own_budget(server: Server, frames: list[int], who: str, name: str) -> None:
    rule = terms(name, "1000/day", scope="own")
    with closing(open_store(server.url, prefix="together", deadline=PATIENCE)) as store:
        for number in range(1, TASKS):
            store.run(Plan((Check(rule, f"{who}-{number}", number),)))
    told = at_once(server, hits(rule, *[f"{who}-{number}" for number in range(TASKS)]))
    assert [each.remaining for each in told if isinstance(each, Outcome)] == [999 - used for used in range(TASKS)]
    assert max(frames) > 1


def test_only_plans_of_one_rule_go_together(server: Server, frames: list[int], who: str) -> None:
    rules = [terms("gcra", "1000/day", scope=f"one of {n}") for n in range(3)]
    told = at_once(server, [plan for rule in rules for plan in hits(rule, *[f"{who}-{n}" for n in range(8)])])
    assert [each.remaining for each in told if isinstance(each, Outcome)] == [999] * 24
    assert max(frames) == 8


def test_what_fails_for_all_is_an_error_for_each(server: Server, frames: list[int], who: str) -> None:
    rule = terms("gcra", "1000/day", scope="fails")
    with closing(redis.Redis(port=server.port)) as client:
        client.sadd(Wire(prefix="together", clock=None, split=False).key(rule.rule_id, who), "not a budget")
    told = at_once(server, hits(rule, *[who] * 8))
    assert [type(each) for each in told] == [StoreError] * 8
    assert max(frames) == 8


def test_who_is_cancelled_is_left_out(server: Server, who: str) -> None:
    rule = terms("fixed-window", "1000/day", scope="cancelled")
    chance = random.Random(7)

    async def main() -> None:
        store = open_async_store(server.url, prefix="together", deadline=PATIENCE)
        for turn in range(20):
            plans = hits(rule, *[f"{who}-{turn}-{n}" for n in range(TASKS) for _ in range(2)])
            tasks = [asyncio.ensure_future(store.run(plan)) for plan in plans]
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            for task in tasks:
                if chance.random() < 0.3:
                    task.cancel()
            for task, other in zip(tasks[::2], tasks[1::2], strict=True):
                told = await asyncio.gather(task, other, return_exceptions=True)
                left = [each[0].remaining for each in told if isinstance(each, tuple)]
                assert left in ([999, 998], [999], [998], [])
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("split", "count_denied", "cost", "charge", "go_together"),
    [
        (False, False, 1, True, True),
        (True, False, 1, True, False),  # their keys may be on different servers
        (False, True, 1, True, False),
        (False, False, 2, True, False),
        (False, False, 1, False, False),
    ],
)
def test_which_plans_can(split: bool, count_denied: bool, cost: int, charge: bool, go_together: bool) -> None:
    wire = Wire(prefix="p", clock=None, split=split)
    rule = terms("gcra", "10/day")._replace(count_denied=count_denied)
    plan = Plan((Check(rule, "x", cost),), charge)
    command = [wire.run(plan) for _ in range(2)][1]  # the second time the rule is known
    assert (isinstance(command, Lone) and command.shape.many is not None) is go_together


def test_a_frame_of_many_and_its_answer() -> None:
    wire = Wire(prefix="p", clock=None, split=False)
    rule = terms("sliding-window", "10/day")
    commands = [command for who in "xabc" if isinstance(command := wire.run(hits(rule, who)[0]), Lone)]
    assert len(commands) == 3
    whole = together(commands)
    name, _, number, *words = unpacked(whole)[0]
    assert (name, number) == (b"EVALSHA", b"3")
    assert words[:3] == [wire.key(rule.rule_id, who).encode() for who in "abc"]
    assert words[3:] == [b"", b"%d" % whole.tag, *[b"%d" % number for number in rule.params]]
    assert [command[:2] for command in unpacked(whole.with_text())] == [[b"SCRIPT", b"LOAD"], unpacked(whole)[0][:2]]
    assert parts([7, 8, *range(10)]) == [[7, 8, 0, 1, 2, 3, 4], [7, 8, 5, 6, 7, 8, 9]]


def unpacked(command: Together) -> list[list[bytes]]:
    reader = hiredis.Reader()
    reader.feed(command.frame)
    return [reader.gets() for _ in range(command.replies)]
