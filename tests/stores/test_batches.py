"""Plans of one rule in one turn of an event loop are sent as a batch. Each gets its own outcomes."""

from __future__ import annotations

import asyncio
import random
import re
import shlex
from contextlib import closing
from hashlib import sha1
from pathlib import Path

import hiredis
import pytest
import redis

from sluicegate import StoreError
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.stores import mode_of, open_async_store, open_store
from sluicegate.stores.redis.async_connections import AsyncConnection
from sluicegate.stores.redis.commands import Command, SingleCheck, batch, split_reply
from sluicegate.stores.redis.encoding import Encoder
from sluicegate.testing.store import NAMES, terms
from tests.servers import Server
from tests.stores.modes import PATIENCE

TASKS = 50
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def identity() -> str:
    return f"{random.SystemRandom().random()}"


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of plans in each sent command."""
    sent: list[int] = []
    read = AsyncConnection.data_received

    def watched(link: AsyncConnection, data: bytes) -> None:
        sent.extend(len(each.answers) for each in link._waiting)
        read(link, data)

    monkeypatch.setattr(AsyncConnection, "data_received", watched)
    return sent


def at_once(server: Server, plans: list[Plan], *, before: str = "") -> list[Outcome | BaseException]:
    """The outcomes of plans that come in one turn. `before` is a command for the server."""

    async def main() -> list[Outcome | BaseException]:
        store = open_async_store(server.url, prefix="together", deadline=PATIENCE)
        await store.run(Plan((plans[0].checks[0]._replace(identity="", cost=0),)))  # opens the connection
        if before:
            with closing(redis.Redis(port=server.port)) as client:
                client.execute_command(*before.split())
        results = await asyncio.gather(*[store.run(plan) for plan in plans], return_exceptions=True)
        await store.close()
        return [each if isinstance(each, BaseException) else each[0] for each in results]

    return asyncio.run(main())


def hits(rule: Terms, *identities: str) -> list[Plan]:
    return [Plan((Check(rule, identity, 1),)) for identity in identities]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", ["", "SCRIPT FLUSH"], ids=["known", "a server that lost its scripts"])
def test_exactly_the_limit_passes(server: Server, frames: list[int], identity: str, name: str, before: str) -> None:
    rule = terms(name, "20/day", scope="exactly")
    results = at_once(server, hits(rule, *[identity] * TASKS), before=before)
    passed = [each.remaining for each in results if isinstance(each, Outcome) and each.allowed]
    assert passed == list(range(19, -1, -1))
    refused = [each.retry_after for each in results if isinstance(each, Outcome) and not each.allowed]
    assert len(refused) == TASKS - 20
    assert all(refused)
    assert max(frames) > 1


@pytest.mark.parametrize("name", NAMES)
def test_each_plan_gets_the_numbers_of_its_own_budget(
    server: Server, frames: list[int], identity: str, name: str
) -> None:
    rule = terms(name, "1000/day", scope="own")
    with closing(open_store(server.url, prefix="together", deadline=PATIENCE)) as store:
        for number in range(1, TASKS):
            store.run(Plan((Check(rule, f"{identity}-{number}", number),)))
    results = at_once(server, hits(rule, *[f"{identity}-{number}" for number in range(TASKS)]))
    assert [each.remaining for each in results if isinstance(each, Outcome)] == [999 - used for used in range(TASKS)]
    assert max(frames) > 1


def test_only_plans_of_one_rule_are_in_a_batch(server: Server, frames: list[int], identity: str) -> None:
    rules = [terms("gcra", "1000/day", scope=f"one of {n}") for n in range(3)]
    results = at_once(server, [plan for rule in rules for plan in hits(rule, *[f"{identity}-{n}" for n in range(8)])])
    assert [each.remaining for each in results if isinstance(each, Outcome)] == [999] * 24
    assert max(frames) == 8


def test_an_error_of_a_batch_is_an_error_of_each_plan(server: Server, frames: list[int], identity: str) -> None:
    rule = terms("gcra", "1000/day", scope="fails")
    with closing(redis.Redis(port=server.port)) as client:
        client.sadd(Encoder(prefix="together", clock=None, split=False).key(rule.rule_id, identity), "not a budget")
    results = at_once(server, hits(rule, *[identity] * 8))
    assert [type(each) for each in results] == [StoreError] * 8
    assert max(frames) == 8


def test_a_cancelled_caller_gets_no_reply_and_the_others_do(server: Server, identity: str) -> None:
    rule = terms("fixed-window", "1000/day", scope="cancelled")
    chance = random.Random(7)

    async def main() -> None:
        store = open_async_store(server.url, prefix="together", deadline=PATIENCE)
        for turn in range(20):
            plans = hits(rule, *[f"{identity}-{turn}-{n}" for n in range(TASKS) for _ in range(2)])
            tasks = [asyncio.ensure_future(store.run(plan)) for plan in plans]
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            for task in tasks:
                if chance.random() < 0.3:
                    task.cancel()
            for task, other in zip(tasks[::2], tasks[1::2], strict=True):
                results = await asyncio.gather(task, other, return_exceptions=True)
                # In any order: the batches of a lost script are sent again, after what was sent meanwhile.
                left = sorted([each[0].remaining for each in results if isinstance(each, tuple)])
                assert left in ([998, 999], [999], [998], [])
        await store.close()

    asyncio.run(main())


def test_batches_work_with_the_permissions_that_the_docs_list(server: Server, identity: str) -> None:
    """The first batch brings the script. No later one does, and nothing is rejected."""
    (permissions,) = re.findall(r"^ACL SETUSER .+$", (DOCS / "redis.md").read_text("utf-8"), re.MULTILINE)
    rule = terms("gcra", "1000/day", scope=identity)

    async def main(url: str) -> None:
        store = open_async_store(url, prefix="sg", deadline=PATIENCE)
        await store.run(hits(rule, identity)[0])
        admin.execute_command("SCRIPT FLUSH")
        admin.execute_command("CONFIG RESETSTAT")
        for turn in range(20):
            results = await asyncio.gather(
                *[store.run(plan) for plan in hits(rule, *[f"{turn} {n}" for n in range(8)])]
            )
            assert [outcome.remaining for (outcome,) in results] == [999] * 8
        await store.close()

    with closing(redis.Redis(port=server.port)) as admin:
        admin.execute_command(*shlex.split(permissions))
        try:
            asyncio.run(main(server.url.replace("://", "://sluicegate:secret@")))
            counts = admin.info("commandstats")
        finally:
            admin.execute_command("ACL DELUSER sluicegate")
    sent = {name: facts["calls"] for name, facts in counts.items() if "eval" in name or "script" in name}
    assert sent == {"cmdstat_eval": 1, "cmdstat_evalsha": 20}
    assert all([facts["rejected_calls"] == 0 for facts in counts.values()])


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
def test_which_plans_can_be_in_a_batch(
    split: bool, count_denied: bool, cost: int, charge: bool, go_together: bool
) -> None:
    encoder = Encoder(prefix="p", clock=None, split=split, batches=True)
    rule = terms("gcra", "10/day")._replace(count_denied=count_denied)
    plan = Plan((Check(rule, "x", cost),), charge)
    assert isinstance(encoder.compile((rule,), mode_of(plan))(plan.checks), SingleCheck) is go_together


def test_the_frame_of_a_batch_and_its_reply() -> None:
    encoder = Encoder(prefix="p", clock=None, split=False, batches=True)
    rule = terms("sliding-window", "10/day")
    make = encoder.compile((rule,), "charge")
    commands = [
        command for identity in "abc" if isinstance(command := make(hits(rule, identity)[0].checks), SingleCheck)
    ]
    assert len(commands) == 3
    whole = batch(commands[0].shape, [command.digest for command in commands], commands[0].tag)
    name, _, number, *words = unpacked(whole)[0]
    assert (name, number) == (b"EVALSHA", b"3")
    assert words[:3] == [encoder.key(rule.rule_id, identity).encode() for identity in "abc"]
    assert words[3:] == [b"%d" % commands[0].tag, *[b"%d" % number for number in rule.params[:2]]]
    [[name, text, *rest]] = unpacked(whole.with_text())
    assert name == b"EVAL"
    assert [sha1(text, usedforsecurity=False).hexdigest().encode(), *rest] == unpacked(whole)[0][1:]
    error = hiredis.ReplyError("WRONGTYPE")
    assert split_reply([b"7 8 9 ", b"=0", error, b"x" * 60], 3, commands[0].shape.read) == [
        b"7 8 9 =0",
        error,
        b"7 8 9 " + b"x" * 60,
    ]
    (passed,) = split_reply([b"7 8 9 ", b""], 1, commands[0].shape.read)
    assert isinstance(passed, Outcome)
    assert (passed.allowed, passed.remaining, passed.at) == (True, 9, 8_000_009)


def unpacked(command: Command) -> list[list[bytes]]:
    reader = hiredis.Reader()
    reader.feed(command.frame)
    return [reader.gets() for _ in range(command.replies)]
