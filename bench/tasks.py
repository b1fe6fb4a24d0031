"""Checks a second on a server, from many tasks of one event loop with one limiter.

"rate" is by the clock. "pace" is for one second of this process's CPU: the rate of a client that never waits, for a
server and for other processes.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio

from bench.budgets import NOTHING, QUEUE
from bench.figures import Figure
from bench.memory import role_of
from bench.peers import PROOF, AsyncGate, Limit, async_makers, prove_async
from bench.race import Contender, Course, Turn
from tests.servers import valkey_server

TASKS = (1, 16, 64, 256)
IDENTITIES = 1_000
PLENTY = (Limit(10_000, "day"),)

Hit = Callable[[str], Awaitable[object]]


def measure(course: Course) -> list[Figure]:
    """Measure on one event loop. Only one contender runs on it at a time."""
    figures = []
    with valkey_server() as server, asyncio.Runner() as runner:
        floors = {NOTHING: _floor(server.url), QUEUE: BareQueue.connect(server.port)}
        gates = {name: AsyncGate(runner.run(floor)) for name, floor in floors.items()}
        for name, maker in async_makers(server.url).items():
            runner.run(prove_async(maker(PROOF), name))
            gates[name] = maker(PLENTY)
        for tasks in TASKS:
            topic = f"Redis, asyncio, {tasks} task{'s' * (tasks > 1)}"
            contenders = [
                Contender(topic, name, role_of(name), _turn(course, runner, gate, tasks=tasks))
                for name, gate in gates.items()
            ]
            figures += course.race(contenders)
    return figures


async def _floor(url: str) -> Hit:
    client = redis.asyncio.Redis.from_url(url)
    nothing = str(await client.script_load("return 1"))
    return lambda key: client.evalsha(nothing, 1, key)


class BareQueue:
    """The least that many tasks need on one connection: one write for each turn of the loop, and a queue of futures."""

    def __init__(self, connection: Any, script: str) -> None:
        self._connection, self._script = connection, script
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._reading = self._loop.create_task(self._read())

    @classmethod
    async def connect(cls, port: int) -> Hit:
        connection: Any = redis.asyncio.Connection(port=port)
        await connection.send_command("SCRIPT", "LOAD", "return 1")
        return cls(connection, await connection.read_response()).hit

    def hit(self, key: str) -> asyncio.Future[Any]:
        if not self._unsent:
            self._loop.call_soon(self._write)
        self._unsent.extend(self._connection.pack_command("EVALSHA", self._script, 1, key))
        self._waiting.append(future := self._loop.create_future())
        return future

    def _write(self) -> None:
        self._connection._writer.write(b"".join(self._unsent))  # the public calls wait
        self._unsent.clear()

    async def _read(self) -> None:
        while True:
            reply = await self._connection.read_response()
            self._waiting.popleft().set_result(reply)


def _turn(course: Course, runner: asyncio.Runner, gate: AsyncGate, *, tasks: int) -> Turn:
    def turn(number: int) -> dict[str, float]:
        count = course.effort.checks
        keys = [f"user:{each % IDENTITIES}" for each in range(number * count, (number + 1) * count)]
        runner.run(_check_all(gate, keys[:tasks], tasks=tasks))  # each task has its connection before the timing starts
        gc.disable()
        try:
            began, before = time.perf_counter(), time.process_time()
            runner.run(_check_all(gate, keys, tasks=tasks))
            took, used = time.perf_counter() - began, time.process_time() - before
        finally:
            gc.enable()
        if not runner.run(_allows(gate, keys[0])):
            course.trouble(f"{tasks} tasks: a check is refused, or answered without the server, in round {number}")
        return {"rate": len(keys) / took, "pace": len(keys) / used}

    return turn


async def _allows(gate: AsyncGate, key: str) -> bool:
    return gate.allowed(await gate.hit(key))


async def _check_all(gate: AsyncGate, keys: list[str], *, tasks: int) -> None:
    """Check all keys; each key is checked by the next free task."""
    left, hit = iter(keys), gate.hit

    async def work() -> None:
        for key in left:
            await hit(key)

    await asyncio.gather(*[work() for _ in range(tasks)])
