"""Connections: each caller gets its own reply, under threads, tasks, cancellation, loss and too few connections."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock, StoreError
from sluicegate.plan import Check, Plan, Terms
from sluicegate.stores import AsyncStore, Store, open_async_store, open_store
from sluicegate.stores.redis.async_connections import AsyncConnection
from sluicegate.stores.redis.commands import AnyCommand, Command, bulk, pack
from sluicegate.stores.redis.connections import Connection
from sluicegate.stores.redis.encoding import Encoder
from sluicegate.stores.redis.patience import Patience
from sluicegate.stores.redis.steps import Address, Send
from sluicegate.stores.redis.url import servers
from sluicegate.testing.scenarios import examples
from sluicegate.testing.store import NAMES, terms
from tests.proxies import Proxy
from tests.servers import HOST, Server, wait_until
from tests.stores.modes import PATIENCE

RULE = terms("fixed-window", "1000000/day", scope="links")
USERS = 50


def plan_of(user: int, *, cost: int = 0, tag: str = "") -> Plan:
    return Plan((Check(RULE, f"{tag}{user}", cost),))


@pytest.fixture
def tag(server: Server) -> str:
    """New identities, each with as many used units as its number."""
    tag = f"{random.SystemRandom().random()}-"
    with closing(open_store(server.url, prefix="links", deadline=PATIENCE)) as store:
        for user in range(USERS):
            store.run(plan_of(user, cost=user, tag=tag))
    return tag


def left(user: int) -> int:
    return 1_000_000 - user


@pytest.fixture(params=["", "?max_connections=2"], ids=["50 connections", "2 connections"])
def store(request: pytest.FixtureRequest, server: Server) -> Iterator[Store]:
    with closing(open_store(server.url + request.param, prefix="links", deadline=PATIENCE)) as store:
        yield store


def test_threads_get_their_own_replies(store: Store, tag: str) -> None:
    def ask(first: int) -> list[tuple[int, int]]:
        order = [(first + n) % USERS for n in range(100)]
        return [(user, store.run(plan_of(user, tag=tag))[0].remaining) for user in order]

    with ThreadPoolExecutor(16) as threads:
        results = [pair for pairs in threads.map(ask, range(16)) for pair in pairs]
    assert len(results) == 1600
    assert all(remaining == left(user) for user, remaining in results)


def test_too_few_connections_are_a_store_error_within_the_deadline(server: Server, tag: str) -> None:
    with closing(open_store(f"{server.url}?max_connections=1", prefix="links", deadline=0.3)) as store:

        def answers() -> bool:
            with suppress(StoreError):  # on a busy machine
                return store.run(plan_of(3, tag=tag))[0].remaining == left(3)
            return False

        wait_until("the store answers", answers)
        server.pause()
        try:
            with ThreadPoolExecutor(3) as threads:
                began = time.monotonic()
                failed = [threads.submit(store.run, plan_of(1, tag=tag)).exception(5) for _ in range(3)]
                took = time.monotonic() - began
        finally:
            server.resume()
        assert all(isinstance(error, StoreError) for error in failed)
        assert took < 3
        wait_until("the store answers again", answers)


@pytest.mark.parametrize("overlapping", [False, True])
def test_connections_that_a_firewall_has_forgotten_cost_one_deadline(
    server: Server, tag: str, overlapping: bool
) -> None:
    """One request finds it out. Else each idle connection costs a deadline, and the circuit stays open for so long."""
    together = threading.Barrier(8)

    def ask(user: int) -> bool:
        together.wait()
        return links.run(plan_of(user, tag=tag))[0].remaining == left(user)

    with Proxy(server.port) as proxy, closing(open_store(proxy.url, prefix="links", deadline=0.5)) as links:
        store: Any = links
        for _ in range(2):  # the first time, the connections may open too late
            proxy.delay(0.2)
            with ThreadPoolExecutor(8) as threads, suppress(StoreError):
                assert all(threads.map(ask, range(8)))
            proxy.heal()
        (pool,) = store._connections.pools.values()
        assert len([each for each in pool._idle if each.used > 0]) > 4
        for age, each in enumerate(pool._idle if overlapping else ()):  # the call that began first has ended last
            each.used -= age
        proxy.forget()
        unanswered = 0
        while True:
            try:
                assert links.run(plan_of(1, tag=tag))[0].remaining == left(1)
                break
            except StoreError as error:
                unanswered += "no answer" in str(error)
        assert unanswered in (1, 2), "2 on a busy machine"


@asynccontextmanager
async def opened(url: str, *, deadline: float = PATIENCE) -> AsyncIterator[AsyncStore]:
    store = open_async_store(url, prefix="links", deadline=deadline)
    try:
        yield store
    finally:
        await store.close()


def test_commands_of_one_turn_are_sent_in_few_writes(server: Server, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    send = AsyncConnection._flush

    def counted(link: AsyncConnection) -> None:
        writes.append(sum([len(each.answers) for each in link.unsent.values()]))
        send(link)

    monkeypatch.setattr(AsyncConnection, "_flush", counted)

    async def main() -> None:
        async with opened(server.url) as store:
            await store.run(plan_of(0, tag=tag))
            writes.clear()
            results = await asyncio.gather(*[store.run(plan_of(user, tag=tag)) for user in range(USERS)])
            assert [outcome.remaining for (outcome,) in results] == list(map(left, range(USERS)))

    asyncio.run(main())
    assert [number for number in writes if number] == [8, 32, 10]


def test_a_cancelled_task_takes_no_reply_of_others(server: Server, tag: str) -> None:
    chance = random.Random(4)

    async def main() -> int:
        answered = 0
        async with opened(server.url) as store:
            for _ in range(30):
                tasks = {asyncio.ensure_future(store.run(plan_of(user, tag=tag))): user for user in range(USERS)}
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                for task in list(tasks):
                    if chance.random() < 0.4:
                        task.cancel()
                for task, user in tasks.items():
                    with suppress(asyncio.CancelledError):
                        assert (await task)[0].remaining == left(user)
                        answered += 1
        return answered

    assert asyncio.run(main()) > 300


def test_loops_one_after_the_other_and_side_by_side(server: Server, tag: str) -> None:
    store = open_async_store(server.url, prefix="links", deadline=PATIENCE)

    async def main(user: int) -> int:
        for _ in range(20):
            (outcome,) = await store.run(plan_of(user, tag=tag))
        await store.close()
        return outcome.remaining

    assert [asyncio.run(main(user)) for user in (3, 4)] == [left(3), left(4)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda user: asyncio.run(main(user)), range(4))) == list(map(left, range(4)))


class Muddler:
    """A faulty server that replies to every script with the reply to the one before."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        parser, before = hiredis.Reader(), b"000000"
        while data := await reader.read(65536):
            parser.feed(data)
            while (words := parser.gets()) is not False:
                if words[0] == b"EVALSHA":
                    writer.write(bulk(b"%s 1 1 " % before))
                    before = words[4]
                else:
                    writer.write(b"+OK\r\n")
            await writer.drain()
        writer.close()


@pytest.fixture
def muddled() -> Iterator[tuple[str, Muddler]]:
    muddler, done = Muddler(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    async def main() -> None:
        async with await asyncio.start_server(muddler.serve, sock=listener):
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}", muddler
    done.set()
    thread.join()


def test_a_reply_to_another_command_is_given_to_no_caller(muddled: tuple[str, Muddler]) -> None:
    url, muddler = muddled
    with closing(open_store(url, prefix="links", deadline=2)) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match="another command"):
                store.run(plan_of(1))
    assert muddler.connections == 2, "a connection was used after the error"

    async def main() -> None:
        async with opened(url, deadline=2) as store:
            results = await asyncio.gather(*[store.run(plan_of(1)) for _ in range(5)], return_exceptions=True)
            assert [type(answer) for answer in results] == [StoreError] * 5

    asyncio.run(main())


WORDS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), min_size=1, max_size=3)


def unpacked(command: AnyCommand) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(command.whole.frame)
    words: list[bytes] = reader.gets()
    assert reader.gets() is False
    assert pack(*words) == command.whole.frame
    return words


@examples(60)
@given(WORDS, st.booleans(), st.booleans())
def test_a_frame_has_every_word_of_its_plan(drawn: list[tuple[str, int]], refused: bool, charge: bool) -> None:
    clock = ManualClock(5)
    rules = [terms(name, "7/hour", scope=f"s{n}") for n, (name, _) in enumerate(drawn)]
    plan = Plan(tuple(Check(rule, "ä", cost) for rule, (_, cost) in zip(rules, drawn, strict=True)), charge)
    for given_clock in (clock, None):
        encoder = Encoder(prefix="p", clock=given_clock, split=False)
        for _ in range(2):  # the second time from the cache
            command = encoder.run(plan, refused=refused)
            name, sha, number, *words = unpacked(command)
            keys, words = words[: int(number)], words[int(number) :]
            assert (name, len(sha)) == (b"EVALSHA", 40)
            assert [key.decode() for key in keys] == [encoder.key(rule.rule_id, "ä") for rule in rules]
            whole = unpacked(command.with_text())
            assert whole[0] == b"EVAL"
            assert whole[2:] == [number, *keys, *words]
            if charge and not refused:
                assert int(words[0]) == command.tag
                expected: list[Any] = [word for rule in rules for word in sent(rule)]
                costs = [cost for _, cost in drawn]
                if given_clock or set(costs) != {1}:
                    expected += [*costs, *([5000000] if given_clock else [])]
                assert words[1:] == [str(word).encode() for word in expected]
                continue
            now, how, tag, *rest = words
            assert now == (b"5000000" if given_clock else b"")
            assert how == (b"2" if refused else b"0")
            assert int(tag) == command.tag
            for n, (rule, (_, cost)) in enumerate(zip(rules, drawn, strict=True)):
                params = [*rule.params, 0, 0][:3]
                expected = [rule.algorithm, 0, cost, *params]
                assert rest[6 * n : 6 * n + 6] == [str(word).encode() for word in expected]


def sent(rule: Terms) -> list[int]:
    """The parameters that a script reads for this rule."""
    return [*rule.params, 0][: 2 if rule.algorithm in {"fixed-window", "sliding-window", "sliding-log"} else 3]


def test_a_frame_for_a_closed_socket_goes_into_no_other_file(server: Server, tmp_path: Path) -> None:
    """The number of the closed socket's file is taken by the next file that is opened."""
    step = Send(Address(HOST, server.port), Command(pack("PING")))
    connection: Any = Connection(servers(server.url), step, Patience(PATIENCE), seconds=PATIENCE, progress=list)
    assert connection.exchange(step.command, 20.0) == b"PONG"
    number = connection._socket.fileno()
    connection.close()
    with (tmp_path / "other").open("wb") as other:
        os.dup2(other.fileno(), number)
        with pytest.raises(OSError, match="Bad file descriptor"):
            connection.exchange(step.command, 20.0)
        if other.fileno() != number:
            os.close(number)
    assert (tmp_path / "other").read_bytes() == b""
