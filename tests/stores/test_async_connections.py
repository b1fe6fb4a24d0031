"""The asyncio connection by a loop and a server that the test moves: stalls, openings, closing and the loop's end."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from sluicegate import AsyncLimiter, StoreError
from sluicegate.stores import open_async_store
from sluicegate.stores.redis.steps import NoReplyError
from tests.servers import Server, free_port
from tests.stores.modes import PATIENCE
from tests.stores.scripted import DEADLINE, Ask, ManualLoop, Peer, Scripted, check, command


class Bench:
    """A loop, a scripted server and the connections between."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.servers = Scripted()
        self.driver = self.servers.driver()

    def ask(self, number: int) -> Ask:
        """Ask; the command is written if a connection is open."""
        ask = self.ask_only(number)
        self.loop.settle()
        return ask

    def ask_only(self, number: int) -> Ask:
        """Ask, and stop the loop before the write."""
        ask = Ask(self.loop, self.driver, command(number))
        self.loop.turn()
        return ask

    def accept(self) -> Peer:
        """Open the connection that waits for it."""
        self.servers.opening[-1].opened.set_result(None)
        self.loop.settle()
        return self.servers.peers[-1]

    def connected(self) -> Peer:
        """The server's end of an idle connection."""
        first = self.ask(0)
        peer = self.accept()
        assert self.answer(peer) == [0]
        assert first.reply == 0
        return peer

    def answer(self, peer: Peer) -> list[int]:
        """Reply to every command with its number."""
        numbers = [int(words[1]) for words in peer.read()]
        peer.write(b"".join([b":%d\r\n" % number for number in numbers]))
        self.loop.settle()
        return numbers

    def close(self) -> Any:
        closing = self.loop.create_task(self.driver.close())
        self.loop.settle()
        return closing.result()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.loop.end()
    left = [peer for peer in bench.servers.peers if not (peer.read(), peer.closed)[1]]
    for peer in bench.servers.peers:
        peer.close()
    assert not left, "the loop's end left a connection open"


def failed(ask: Ask) -> tuple[bool, str]:
    """Return whether the command was sent, and what the error concerns."""
    assert isinstance(ask.reply, NoReplyError)
    return ask.reply.sent, ask.reply.concerns


def test_the_time_of_a_busy_loop_before_the_write_is_not_the_servers(bench: Bench) -> None:
    peer = bench.connected()
    ask = bench.ask_only(1)
    bench.loop.now += 1.5 * DEADLINE  # another task computes
    bench.loop.settle()
    assert bench.answer(peer) == [1]
    assert ask.reply == 1
    late = bench.ask_only(2)
    bench.loop.now += 1.5 * DEADLINE
    bench.loop.settle()
    bench.loop.pass_time(1.1 * DEADLINE)
    assert failed(late) == (True, "server"), "the deadline counts from the write"


def test_a_reply_that_lies_in_the_socket_is_an_answer(bench: Bench) -> None:
    peer = bench.connected()
    ask = bench.ask(1)
    bench.loop.eyes.blind = True  # as on uvloop, which runs its timers before it reads
    assert bench.answer(peer) == [1]
    bench.loop.now += 2 * DEADLINE
    bench.loop.turn()
    bench.loop.eyes.blind = False
    bench.loop.settle()
    assert ask.reply == 1
    assert not peer.read()
    assert not peer.closed


def test_every_command_has_its_own_last_look_into_the_socket(bench: Bench) -> None:
    peer = bench.connected()
    for number in (1, 2):  # no time passes between: the timer of the first look is due in the second stall
        ask = bench.ask(number)
        bench.loop.eyes.blind = True
        assert bench.answer(peer) == [number]
        bench.loop.now += 2 * DEADLINE
        bench.loop.turn()
        bench.loop.eyes.blind = False
        bench.loop.settle()
        assert ask.reply == number


def test_a_stall_of_the_loop_says_nothing_about_the_server(bench: Bench) -> None:
    peer = bench.connected()
    ask = bench.ask(1)
    bench.loop.now += 2 * DEADLINE
    bench.loop.settle()
    assert not ask.done, "a stall is one look"
    assert bench.answer(peer) == [1]
    assert ask.reply == 1


def test_a_deadline_is_kept_that_begins_while_the_timer_fires(bench: Bench) -> None:
    bench.connected()
    bench.loop.now += DEADLINE  # the timer of the first command is due when the second one is asked
    ask = bench.ask_only(1)
    bench.loop.pass_time(1.1 * DEADLINE)
    assert ask.done


@pytest.mark.parametrize("answers", [True, False])
def test_a_connection_that_closes_after_an_unknown_script_has_not_answered(bench: Bench, answers: bool) -> None:
    """The script is sent then. A proxy that closes each connection on it never lets a charge pass."""
    peer = bench.connected() if answers else None
    asks = [Ask(bench.loop, bench.driver, check(number)) for number in range(2)]
    bench.loop.settle()
    peer = peer or bench.accept()
    peer.read()
    peer.write(b"-NOSCRIPT no\r\n")
    bench.loop.settle()
    assert b"EVAL" in peer.read()[0]
    peer.close()
    bench.loop.settle()
    assert list(map(failed, asks)) == [(True, "connection" if answers else "server")] * 2


def test_a_batch_whose_script_is_refused_is_not_sent_for_ever(bench: Bench) -> None:
    """A broken proxy says NOSCRIPT to everything."""
    peer = bench.connected()
    asks = [Ask(bench.loop, bench.driver, check(number)) for number in range(2)]
    for _ in range(2):
        bench.loop.settle()
        peer.read()
        peer.write(b"-NOSCRIPT no\r\n")
    bench.loop.settle()
    assert [str(ask.reply) for ask in asks] == ["NOSCRIPT no"] * 2


def test_an_opening_goes_on_behind_the_deadline_and_is_kept(bench: Bench) -> None:
    first = bench.ask(1)
    bench.loop.pass_time(1.1 * DEADLINE)
    assert failed(first) == (False, "server")
    second = bench.ask(2)
    peer = bench.accept()
    assert bench.answer(peer) == [2], "a command was sent behind its deadline"
    assert second.reply == 2
    assert len(bench.servers.connections) == 1


def test_the_time_of_an_opening_is_not_the_servers(bench: Bench) -> None:
    first = bench.ask(1)
    bench.loop.pass_time(0.7 * DEADLINE)
    second = bench.ask(2)
    peer = bench.accept()
    bench.loop.pass_time(0.7 * DEADLINE)
    assert bench.answer(peer) == [1, 2]
    assert (first.reply, second.reply) == (1, 2)


def test_an_opening_that_hangs_has_another_beside_it(bench: Bench) -> None:
    bench.ask(1)
    bench.loop.pass_time(1.5)
    ask = bench.ask(2)
    hung, quick = bench.servers.opening
    quick.opened.set_result(None)
    bench.loop.settle()
    assert bench.answer(bench.servers.peers[0]) == [2]
    assert ask.reply == 2
    assert hung.opened.cancelled()


def test_an_opening_ends_after_its_own_time(bench: Bench) -> None:
    ask = bench.ask(1)
    bench.loop.pass_time(5.1, step=0.05)
    assert failed(ask) == (False, "server")
    assert bench.servers.connections[0].opened.cancelled()


def test_a_command_that_was_cancelled_before_the_write_is_not_written(bench: Bench) -> None:
    asks = [Ask(bench.loop, bench.driver, command(number)) for number in range(3)]
    bench.loop.settle()
    asks[1].task.cancel()
    peer = bench.accept()
    assert bench.answer(peer) == [0, 2]
    asks = [Ask(bench.loop, bench.driver, command(number)) for number in range(3)]
    bench.loop.turn()
    asks[0].task.cancel()
    bench.loop.settle()
    assert bench.answer(peer) == [1, 2]


def test_to_close_while_it_opens_is_an_error_without_a_reply(bench: Bench) -> None:
    ask = bench.ask(1)
    bench.close()
    assert failed(ask) == (False, "plan")
    assert bench.servers.connections[0].opened.cancelled()


def test_to_close_while_commands_wait(bench: Bench) -> None:
    peer = bench.connected()
    sent, unsent = bench.ask(1), Ask(bench.loop, bench.driver, command(2))
    bench.close()  # in the same turn
    assert [failed(sent), failed(unsent)] == [(True, "plan"), (False, "plan")]
    assert [words[1] for words in peer.read()] == [b"1"]


def test_a_call_after_close_leaves_nothing_open(bench: Bench) -> None:
    bench.connected()
    bench.close()
    ask = bench.ask(1)
    peer = bench.accept()
    bench.answer(peer)
    assert ask.reply == 1
    peer.read()
    assert peer.closed


def test_to_close_after_the_first_call_was_cancelled_leaves_nothing_open(bench: Bench) -> None:
    ask = bench.ask(1)
    ask.task.cancel()
    bench.loop.settle()
    peer = bench.accept()
    bench.close()
    peer.read()
    assert peer.closed
    assert peer.commands == []


def test_a_server_that_is_slow_for_one_command_answers_those_with_time_left(bench: Bench) -> None:
    peer = bench.connected()
    first = bench.ask(1)
    bench.loop.pass_time(0.6 * DEADLINE)
    second = bench.ask(2)
    bench.loop.pass_time(0.6 * DEADLINE)
    assert failed(first) == (True, "server")
    assert not second.done
    assert bench.answer(peer) == [1, 2]
    assert second.reply == 2
    peer.read()
    assert peer.closed, "a connection was kept that had missed a deadline"


@pytest.mark.slow
def test_a_store_that_is_dropped_closes_its_connections(bench: Bench) -> None:
    peer = bench.connected()
    bench.driver = bench.servers.driver()
    gc.collect()
    bench.loop.settle()
    gc.collect()
    bench.loop.settle()
    peer.read()
    assert peer.closed


def descriptors() -> int:
    """Return how many descriptors this process has, after the openings that other tests have left behind have ended."""
    for thread in threading.enumerate():
        if thread.name == "sluicegate-opening":
            thread.join(PATIENCE)
    return len(os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else os.listdir("/dev/fd"))  # noqa: PTH208


@contextmanager
def module_limiter(server: Server) -> Iterator[tuple[Callable[[], Coroutine[Any, Any, None]], int]]:
    """A limiter that one event loop has used: a function that uses it in another one, and the descriptors before that.
    Nothing is collected in the block.
    """
    limiter = AsyncLimiter(server.url, deadline=PATIENCE)

    async def hit() -> None:
        assert not (await limiter.hit("1000000/day", "alice", action="runs")).degraded

    asyncio.run(hit())
    gc.collect()
    before = descriptors()
    gc.disable()
    try:
        yield hit, before
    finally:
        gc.enable()


def test_a_limiter_of_a_module_leaves_no_descriptor_in_any_run(server: Server) -> None:
    with module_limiter(server) as (hit, before):
        for _ in range(300):
            asyncio.run(hit())
        assert descriptors() == before


def test_a_connection_keeps_nothing_of_the_request_that_opened_it(server: Server) -> None:
    class Request:
        """What an application keeps in a context variable."""

    request: ContextVar[Request] = ContextVar("request")

    async def main() -> None:
        async with AsyncLimiter(server.url, deadline=PATIENCE) as limiter:

            async def serve() -> weakref.ref[Request]:
                request.set(Request())
                assert (await limiter.hit("5/minute", "alice")).outcomes[0].source == "store"
                return weakref.ref(request.get())

            served = await asyncio.create_task(serve())
            await limiter.hit("5/minute", "bob")
            gc.collect()
            assert served() is None

    asyncio.run(main())


def test_the_next_loop_closes_the_sockets_of_loops_that_just_vanished(server: Server) -> None:
    # asyncio warns of such a loop.
    with module_limiter(server) as (hit, before), warnings.catch_warnings(action="ignore"):
        for _ in range(20):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(hit())
            loop.close()
        assert descriptors() <= before + 1
        asyncio.run(hit())
        assert descriptors() == before
        gc.collect()


@pytest.mark.parametrize("turns", range(0, 240, 20))
def test_a_first_call_that_is_cancelled_anywhere_leaves_nothing_open(server: Server, turns: int) -> None:
    async def main() -> None:
        limiter = AsyncLimiter(server.url, deadline=PATIENCE)
        call = asyncio.ensure_future(limiter.hit("5/day", "alice"))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        if turns % 40:
            await limiter.close()

    gc.collect()
    before = descriptors()
    asyncio.run(main())
    assert descriptors() == before


def test_a_slot_that_is_released_after_close_leaves_nothing_open(server: Server) -> None:
    async def main() -> None:
        limiter = AsyncLimiter(server.url, deadline=PATIENCE)
        async with limiter.hold("1 at once", "alice", action="late") as slot:
            assert slot
            await limiter.close()
        async with limiter.hold("1 at once", "alice", action="late") as slot:
            assert slot, "the slot was not released"

    gc.collect()
    before = descriptors()
    asyncio.run(main())
    assert descriptors() == before


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks begin with Python 3.12")
def test_eager_tasks_find_a_server_again_that_was_down_at_first(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
        limiter = AsyncLimiter(f"unix://{path}", deadline=PATIENCE)
        assert (await limiter.hit("5/day", "alice")).degraded
        path.symlink_to(server.socket)
        async with asyncio.timeout(PATIENCE):
            while (await asyncio.gather(limiter.hit("5/day", "alice"), asyncio.sleep(0)))[0].degraded:
                pass  # a probe is a task: it needs turns of the loop
        await limiter.close()

    asyncio.run(main())


def test_a_close_beside_a_first_call_is_a_store_error() -> None:
    async def main() -> None:
        came, left = asyncio.Event(), asyncio.Event()

        async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            with suppress(OSError):
                while await reader.read(100):
                    pass
            writer.close()
            left.set()

        silent = await asyncio.start_server(never_answer, "127.0.0.1", port := free_port())
        store = open_async_store(f"redis://127.0.0.1:{port}", prefix="p", deadline=PATIENCE)
        call = asyncio.ensure_future(store.forget("rule", "alice"))
        await came.wait()
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await call
        await left.wait()
        silent.close()

    asyncio.run(main())
