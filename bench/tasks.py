"""Checks a second on a server, from many tasks of one event loop with one limiter."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

import redis.asyncio

from bench.budgets import NOTHING
from bench.figures import Figure
from bench.memory import role_of
from bench.peers import PROOF, AsyncGate, async_makers, prove_async
from bench.race import Contender, Course, Turn
from bench.redis import RULES, names
from tests.servers import valkey_server

TASKS = (1, 16, 64, 256)

Hit = Callable[[str], Awaitable[object]]


def measure(course: Course) -> list[Figure]:
    """Measure on one event loop. Only one contender runs on it at a time."""
    figures = []
    with valkey_server() as server, asyncio.Runner() as runner:
        gates = {NOTHING: AsyncGate(runner.run(_floor(server.url)))}
        for name, maker in async_makers(server.url).items():
            runner.run(prove_async(maker(PROOF), name))
            gates[name] = maker(RULES[:1])
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


def _turn(course: Course, runner: asyncio.Runner, gate: AsyncGate, *, tasks: int) -> Turn:
    def turn(number: int) -> dict[str, float]:
        keys = names(number, course.effort.checks)
        runner.run(_check_all(gate, keys[:tasks], tasks=tasks))  # each task has its connection before the timing starts
        gc.disable()
        try:
            began = time.perf_counter()
            runner.run(_check_all(gate, keys, tasks=tasks))
            took = time.perf_counter() - began
        finally:
            gc.enable()
        if not runner.run(_allows(gate, keys[0])):
            course.trouble(f"{tasks} tasks: a check is refused, or answered without the server, in round {number}")
        return {"rate": len(keys) / took}

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
