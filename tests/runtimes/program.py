"""A program on one runtime: `python -m tests.runtimes.program RUNTIME URL LAW`. Prints what it has seen, as JSON.

A runtime is a function from a URL and a deadline to answers: for each call whether it was allowed, whether it was
degraded, and how many seconds it took. It runs CALLS calls at a time or one after the other, under one identity.
"""

from __future__ import annotations

import sys

if sys.argv[1:2] == ["gevent"]:
    from gevent import monkey

    monkey.patch_all()

import asyncio
import json
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

from sluicegate import AsyncLimiter, Limiter

LIMIT = 40
CALLS = 100
WORKERS = 4
QUOTA = f"{LIMIT}/day"

Answer = tuple[bool, bool, float]
Answers = list[Answer]


def ask(limiter: Limiter) -> Answer:
    began = monotonic()
    decision = limiter.hit(QUOTA, "alice")
    return decision.allowed, decision.degraded, monotonic() - began


async def ask_later(limiter: AsyncLimiter) -> Answer:
    began = monotonic()
    decision = await limiter.hit(QUOTA, "alice")
    return decision.allowed, decision.degraded, monotonic() - began


def threads(url: str, deadline: float) -> Answers:
    with Limiter(url, deadline=deadline) as limiter, ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: ask(limiter), range(CALLS)))


def greenlets(url: str, deadline: float) -> Answers:
    import gevent

    with Limiter(url, deadline=deadline) as limiter:
        jobs = [gevent.spawn(ask, limiter) for _ in range(CALLS)]
        gevent.joinall(jobs)
        return [job.get() for job in jobs]


async def close(limiter: AsyncLimiter, url: str) -> None:
    """Close this loop's connections. A memory store has none, and would drop the budgets of the other loops."""
    if not url.startswith("memory"):
        await limiter.close()


async def gathered(url: str, deadline: float) -> Answers:
    async with AsyncLimiter(url, deadline=deadline) as limiter:
        answers = list(await asyncio.gather(*[ask_later(limiter) for _ in range(CALLS)]))
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:  # what `close` has cancelled ends soon
        _, others = await asyncio.wait(others, timeout=5)
    assert not others, f"tasks are left: {others}"
    return answers


def in_asyncio(url: str, deadline: float) -> Answers:
    return asyncio.run(gathered(url, deadline))


def in_uvloop(url: str, deadline: float) -> Answers:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(gathered(url, deadline))


def eager(url: str, deadline: float) -> Answers:
    async def main() -> Answers:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        return await gathered(url, deadline)

    return asyncio.run(main())


def runs(url: str, deadline: float) -> Answers:
    """A limiter of a module, and `asyncio.run` for each call, as in a task queue."""
    limiter = AsyncLimiter(url, deadline=deadline)

    async def once() -> Answer:
        try:
            return await ask_later(limiter)
        finally:
            await close(limiter, url)

    return [asyncio.run(once()) for _ in range(CALLS)]


def two_loops(url: str, deadline: float) -> Answers:
    """One limiter, and two loops in two threads."""
    limiter = AsyncLimiter(url, deadline=deadline)

    async def half() -> Answers:
        answers = list(await asyncio.gather(*[ask_later(limiter) for _ in range(CALLS // 2)]))
        await close(limiter, url)
        return answers

    with ThreadPoolExecutor(2) as pool:
        return [each for part in pool.map(lambda _: asyncio.run(half()), range(2)) for each in part]


def in_trio(url: str, deadline: float) -> Answers:
    import trio

    async def main() -> Answers:
        answers: Answers = []
        limiter = AsyncLimiter(url, deadline=deadline)

        async def one() -> None:
            answers.append(await ask_later(limiter))

        async with trio.open_nursery() as nursery:
            for _ in range(CALLS):
                nursery.start_soon(one)
        await limiter.close()
        return answers

    return trio.run(main)


_LIMITER: Limiter | None = None


def _ask_some(given: tuple[str, float]) -> Answers:
    """In a worker. A forked worker has the limiter of its parent."""
    global _LIMITER  # noqa: PLW0603 - as an application's module has it
    _LIMITER = _LIMITER or Limiter(given[0], deadline=given[1])
    return [ask(_LIMITER) for _ in range(CALLS // WORKERS)]


def _put_some(queue: Any, given: tuple[str, float]) -> None:
    queue.put(_ask_some(given))


def _processes(method: str) -> Callable[[str, float], Answers]:
    def run(url: str, deadline: float) -> Answers:
        context: Any = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        workers = [context.Process(target=_put_some, args=(queue, (url, deadline))) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        answers = [each for _ in workers for each in queue.get()]
        for worker in workers:
            worker.join()
            worker.close()
        queue.close()
        return answers

    return run


def prefork(url: str, deadline: float) -> Answers:
    """As Celery does: the master has used the limiter, has busy threads, and forks workers again and again."""
    global _LIMITER  # noqa: PLW0603 - as an application's module has it
    _LIMITER = Limiter(url, deadline=deadline)
    _LIMITER.hit("1000000/day", "master")
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            _LIMITER.hit("1000000/day", "master")

    busy = [threading.Thread(target=work) for _ in range(2)]
    for thread in busy:
        thread.start()
    answers: Answers = []
    try:
        for _ in range(WORKERS):
            reads, writes = os.pipe()
            if (pid := os.fork()) == 0:
                os.write(writes, json.dumps(_ask_some((url, deadline))).encode())
                os._exit(0)
            os.close(writes)
            with os.fdopen(reads) as pipe:
                answers += json.load(pipe)
            os.waitpid(pid, 0)
    finally:
        over.set()
        for thread in busy:
            thread.join()
        _LIMITER.close()
    return answers


RUNTIMES: dict[str, Callable[[str, float], Answers]] = {
    "threads": threads,
    "gevent": greenlets,
    "asyncio": in_asyncio,
    "uvloop": in_uvloop,
    "eager": eager,
    "asyncio.run": runs,
    "two loops": two_loops,
    "trio": in_trio,
    "fork": _processes("fork"),
    "forkserver": _processes("forkserver"),
    "spawn": _processes("spawn"),
    "prefork": prefork,
}


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


def main(name: str, url: str, deadline: float) -> dict[str, Any]:
    runtime = RUNTIMES[name]
    runtime("memory://", deadline)  # imports, and what the runtime itself keeps open
    before = descriptors(), threading.active_count()
    answers = runtime(url, deadline)
    for _ in range(100):  # a probe of the breaker ends within its deadline
        if (descriptors(), threading.active_count()) == before:
            break
        threading.Event().wait(0.1)
    return {
        "allowed": sum(allowed for allowed, _, _ in answers),
        "degraded": sum(degraded for _, degraded, _ in answers),
        "calls": len(answers),
        "longest": max(seconds for _, _, seconds in answers),
        "left": [descriptors() - before[0], threading.active_count() - before[1]],
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
