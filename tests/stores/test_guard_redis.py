"""The laws of `test_guard_machine` over a real server, on the way that most charges go: one command, one reply.

A relay between the limiter and the server holds or loses replies. Time is that of a ManualClock.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from sluicegate import AsyncLimiter, Decision, Limiter, ManualClock
from sluicegate.stores import StoreChange
from tests.proxies import command_of, frames_of
from tests.servers import HOST, Server
from tests.stores.places import PATIENCE, client

QUOTAS = ["4/minute", "4/minute; 9/hour"]
FULL = b"-OOM command not allowed\r\n"  # opens the circuit
CLOSED = b""  # opens none: a proxy may have closed an idle connection


class Relay:
    """Passes requests and replies. `before` is called once, before the next reply to a charge is passed on. If it
    returns bytes, the client gets these instead; if they are empty, the connection is closed.
    """

    def __init__(self, upstream: int) -> None:
        self.charges = 0  # commands that have come
        self.came = threading.Event()  # set by each of them
        self.before: Callable[[], bytes | None] | None = None
        self._upstream = upstream
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listening.accept()
                theirs = socket.create_connection((HOST, self._upstream))
                commands: deque[str] = deque()
                self._open += [ours, theirs]
                for work in (self._pass_requests, self._pass_replies):
                    threading.Thread(target=work, args=(ours, theirs, commands), daemon=True).start()

    def _pass_requests(self, ours: socket.socket, theirs: socket.socket, commands: deque[str]) -> None:
        for frame in _read(ours):
            commands.append(command_of(frame))
            if commands[-1] == "EVALSHA":
                self.charges += 1
                self.came.set()
            with suppress(OSError):
                theirs.sendall(frame)

    def _pass_replies(self, ours: socket.socket, theirs: socket.socket, commands: deque[str]) -> None:
        for frame in _read(theirs):
            before = self.before if commands.popleft() == "EVALSHA" else None
            if before is not None:
                self.before = None
                frame = frame if (other := before()) is None else other  # noqa: PLW2901
            if not frame:
                _shut(ours)
                return
            with suppress(OSError):
                ours.sendall(frame)

    def close(self) -> None:
        """Close the port and every connection."""
        for each in (self._listening, *self._open):
            _shut(each)


def _read(sock: socket.socket) -> Iterator[bytes]:
    buffer = bytearray()
    with suppress(OSError):
        while data := sock.recv(65536):
            buffer += data
            yield from frames_of(buffer)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class Talk:
    """A limiter of either kind over the relay, called without await."""

    def __init__(self, server: Server, quotas: str, *, is_async: bool) -> None:
        self.clock = ManualClock(1_760_000_000)
        self.relay = Relay(server.port)
        self.is_async = is_async
        self.changes: list[bool] = []
        options: dict[str, Any] = {"clock": self.clock, "deadline": PATIENCE, "on_store_change": self.note}
        url = f"redis://{HOST}:{self.relay.port}"
        self.limiter: Any = (AsyncLimiter if is_async else Limiter)(url, **options)
        self.limit = self.limiter.limit(quotas)
        self.direct = Limiter(server.url, clock=self.clock, deny_cache=0).limit(quotas)
        self.runner = asyncio.Runner()
        self.hit(identity="first")  # opens the connection, and loads the script
        self.hit(identity="first")

    def note(self, change: StoreChange) -> None:
        self.changes.append(change.available)

    def do(self, call: Callable[[], Any]) -> Any:
        if not self.is_async:
            return call()

        async def main() -> Any:
            return await call()

        return self.runner.run(main())

    def hit(self, cost: int = 1, *, identity: str = "alice") -> Decision:
        decision: Decision = self.do(lambda: self.limit.hit(identity, cost))
        return decision

    def is_exact(self, decision: Decision) -> bool:
        """Whether the decision is what the server would say now."""
        return not decision.degraded and decision.remaining == self.direct.peek("alice", 5).remaining

    def close(self) -> None:
        self.relay.close()
        self.do(self.limiter.close)
        self.runner.close()


@pytest.fixture(params=["sync", "async"])
def talk(request: pytest.FixtureRequest, valkey: Server, quotas: str) -> Iterator[Talk]:
    with client(valkey) as given:
        given.flushall()
    made = Talk(valkey, quotas, is_async=request.param == "async")
    yield made
    made.close()


@pytest.fixture(params=QUOTAS)
def quotas(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_refusal_is_repeated_with_less_to_wait(talk: Talk) -> None:
    """Laws 1 and 6."""
    talk.hit(3)
    refused = talk.hit(2)
    before = talk.relay.charges
    talk.clock.advance_us(400_000)
    again = talk.hit(2)
    assert talk.relay.charges == before
    pairs = list(zip(refused.outcomes, again.outcomes, strict=True))
    for first, second in pairs:
        assert second.at == first.at + 400_000
        assert second.reset_after == first.reset_after - 400_000
        assert second.retry_after == (first.retry_after and first.retry_after - 400_000)
    talk.clock.advance_us(600_000)
    talk.hit(2)
    assert talk.relay.charges == before + 1


def test_a_charge_between_a_refusal_and_its_reply(talk: Talk) -> None:
    """Law 1: the refusal is older than the charge, so it is not remembered."""
    charged: list[Any] = []

    def charge() -> None:
        if not talk.is_async:
            charged.append(talk.limit.hit("alice"))
            return
        # The connection gives replies in order, so the charge ends first only if it is cancelled.
        loop = talk.runner.get_loop()

        async def begin() -> asyncio.Task[Decision]:
            return loop.create_task(talk.limit.hit("alice"))

        async def cancel(task: asyncio.Task[Decision]) -> None:
            task.cancel()
            await asyncio.wait([task])

        talk.relay.came.clear()
        task = asyncio.run_coroutine_threadsafe(begin(), loop).result(PATIENCE)
        assert talk.relay.came.wait(PATIENCE)
        charged.append(asyncio.run_coroutine_threadsafe(cancel(task), loop).result(PATIENCE))

    talk.relay.before = charge
    refused = talk.hit(5)
    assert not refused
    assert len(charged) == 1
    before = talk.relay.charges
    assert talk.is_exact(talk.hit(5))
    assert talk.relay.charges == before + 1


@pytest.mark.parametrize("reply", [FULL, CLOSED])
def test_a_charge_that_fails(talk: Talk, reply: bytes) -> None:
    """Law 3: it may have been made, so no older refusal is repeated."""
    assert talk.hit(5).remaining == 4
    talk.relay.before = lambda: reply
    assert talk.hit().degraded
    assert talk.changes == ([False] if reply == FULL else [])
    again = talk.hit(5)
    assert again.degraded if reply == FULL else talk.is_exact(again), "not the refusal from before the charge"


def test_a_cancelled_charge(valkey: Server, quotas: str) -> None:
    """Law 3, and a cancellation is no failure."""
    talk = Talk(valkey, quotas, is_async=True)
    talk.direct.reset("alice")
    assert talk.hit(5).remaining == 4
    loop, tasks = talk.runner.get_loop(), list[asyncio.Task[Decision]]()

    def cancel() -> None:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(PATIENCE)

    async def stop() -> None:
        tasks[0].cancel()
        await asyncio.wait(tasks)

    async def charge() -> None:
        tasks.append(loop.create_task(talk.limit.hit("alice")))
        await asyncio.wait(tasks)

    talk.relay.before = cancel
    talk.runner.run(charge())
    assert tasks[0].cancelled()
    assert talk.is_exact(talk.hit(5))
    assert talk.hit(5).remaining == 3
    assert not talk.changes
    talk.close()


@pytest.mark.parametrize("talk", ["sync"], indirect=True)
def test_a_late_failure_opens_no_circuit(talk: Talk) -> None:
    """Law 2. An async connection gives replies in order, so there no failure is late."""

    seen: list[list[bool]] = []

    def open_and_close() -> bytes:
        talk.relay.before = lambda: FULL
        talk.limit.hit("bob")
        seen.append([*talk.changes])
        for _ in range(1000):  # the probe runs in a thread of its own
            if talk.changes == [False, True]:
                break
            talk.clock.advance_us(1_000_000)
            talk.limit.hit("bob")
        seen.append([*talk.changes])
        return FULL

    talk.relay.before = open_and_close
    assert talk.hit().degraded
    assert seen == [[False], [False, True]]
    assert talk.changes == [False, True]
    assert not talk.hit().degraded


def test_while_the_circuit_is_open_nothing_is_charged(talk: Talk) -> None:
    """Laws 4 and 5."""
    talk.hit()
    talk.relay.before = lambda: FULL
    assert talk.hit().remaining == 2  # the note says 3
    before = talk.relay.charges
    assert [talk.hit().remaining for _ in range(3)] == [1, 0, 0]
    assert talk.relay.charges == before


@pytest.mark.parametrize("last", ["a charge", "a refusal"])
def test_an_outage_begins_with_the_last_reply(talk: Talk, last: str) -> None:
    """Law 5."""
    talk.direct.hit("alice", 2)  # by another process
    talk.hit(1 if last == "a charge" else 5)
    left = talk.direct.peek("alice", 0).remaining
    talk.relay.before = lambda: FULL
    assert left is not None
    assert talk.hit().remaining == left - 1


def test_a_refund_reaches_the_server(talk: Talk) -> None:
    """Laws 1 and 7."""
    charged = talk.hit(3)
    talk.hit(5)
    talk.do(lambda: talk.limiter.refund(charged))
    assert talk.direct.peek("alice", 0).remaining == 4
    assert talk.is_exact(talk.hit(5))
