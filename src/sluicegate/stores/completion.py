"""Completion, on asyncio: work in a store ends also if its caller is cancelled, and is undone if it is not needed.

A charge may be made as soon as its command was sent. It is finished or undone like this:

- **Cancellation**: the caller ends at once. The work goes on in a task of its own. A slot or a reservation is refunded
  when its reply comes. A renewal keeps its new stamp, and a release waits for it.
  A `hit` is not undone, because a client that disconnects early keeps its charge, and it needs no task.
- **Close**: `AsyncLimiter.close` waits for such work, at most `CLOSING` seconds, and then closes the connections.
- **End of the loop**: `asyncio.run` cancels all tasks and waits for them. A task of this module ignores that, so the
  loop ends after the reply or the deadline. If the loop is closed without `asyncio.run`, the work is lost and asyncio
  logs a pending task. The charge expires: a slot with its lease, any other with its window.
- **Fork**: tasks and open charges belong to the parent. The child settles none of them (see `sluicegate.runtime.fork`).
- **Threads and greenlets**: the thread itself owns what it sent, and no one finishes its work. If an exception of any
  kind comes after the charge, `Limiter.hold` and `Limiter.reserve` refund it. If a greenlet is killed, or a signal
  raises, while the reply is awaited, the connection is closed and the reply is lost. Then the charge expires, as it
  does when the thread or process dies.

Without asyncio's loop (trio) there are no such tasks. There only stores in memory work, and they never wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final, Generic, Never, ParamSpec, TypeVar

from sluicegate.errors import StoreError

T = TypeVar("T")
P = ParamSpec("P")

CLOSING: Final = 1.0  # seconds that `close` waits for work that cancelled callers have left
# Work that need not wait then ends in the same turn of the loop.
_EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}

_UNDER_WAY: Final[set[_Work[Any]]] = set()  # an event loop keeps only weak references to its tasks


class _Work(asyncio.Task[T]):
    """A task that refuses to be cancelled, except by a timer of its loop: the deadlines inside the work.

    `asyncio.run` cancels all tasks while the loop does not run, and applications do it from another task.
    """

    left: bool = False  # True: nobody waits for the result any more

    def cancel(self, msg: object | None = None) -> bool:
        loop = self.get_loop()
        if loop.is_running() and asyncio.current_task(loop) is None:
            return super().cancel(msg)
        return False


def start(work: Coroutine[object, Never, T]) -> _Work[T]:
    """Start work that ends although the caller is cancelled. Needs a running loop of asyncio."""
    task = _Work(work, loop=asyncio.get_running_loop(), **_EAGER)
    if not task.done():
        _UNDER_WAY.add(task)
        task.add_done_callback(_UNDER_WAY.discard)
    return task


async def complete(work: Coroutine[object, Never, T], undo: Callable[[T], Awaitable[object]] | None = None) -> T:
    """Await the work. If the caller is cancelled meanwhile, the work goes on, and then `undo` gets its result."""
    if running_loop() is None:
        return await work
    abandoned = False

    async def whole() -> T:
        try:
            result = await work
        except StoreError:
            if abandoned:
                return None  # type: ignore[return-value]  # nobody reads it
            raise
        if abandoned and undo is not None:
            with suppress(StoreError):  # it expires
                await undo(result)
        return result

    task = start(whole())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        abandoned = task.left = True  # before anything else: the work may end in the next turn, and reads it
        if undo is not None and task.done() and not task.cancelled() and task.exception() is None:
            # The reply came first, and the cancellation before the caller's turn.
            await complete(_undone(undo, task.result()))
        raise


async def _undone(undo: Callable[[T], Awaitable[object]], result: T) -> None:
    with suppress(StoreError):
        await undo(result)


class Steps(Generic[T]):
    """Steps of one charge: each begins when the one before has ended, whatever happens to their callers."""

    def __init__(self) -> None:
        self._last: asyncio.Task[T] | None = None

    async def do(self, step: Callable[[], Awaitable[T]]) -> T:
        """Await a step. It ends although the caller is cancelled."""
        if running_loop() is None:
            return await step()
        task = self.start(step)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.left = True
            raise

    def start(self, step: Callable[[], Awaitable[T]]) -> _Work[T]:
        """Start a step."""
        task = start(_after(self._last, step))
        if not task.done():
            self._last = task
            task.add_done_callback(self._drop)
        return task

    def _drop(self, task: asyncio.Task[T]) -> None:
        """Drop a task that has ended: it refers to the context of a request."""
        if self._last is task:
            self._last = None


async def _after(task: asyncio.Task[T] | None, step: Callable[[], Awaitable[T]]) -> T:
    if task is not None and not task.done():
        await asyncio.wait([task])
    return await step()


async def wait_for_the_rest() -> None:
    """Wait for the work of this loop whose callers were cancelled, at most `CLOSING` seconds."""
    loop = running_loop()
    rest = [task for task in _UNDER_WAY if task.left and task.get_loop() is loop]
    if rest:
        await asyncio.wait(rest, timeout=CLOSING)


async def got(found: Any) -> Any:
    """Return the result of a call of a store. A store in memory returns it at once."""
    return await found if isawaitable(found) else found


async def apart(work: Callable[P, T], *given: P.args, **options: P.kwargs) -> T:
    """Do long work in a thread, so that the loop goes on meanwhile."""
    return work(*given, **options) if running_loop() is None else await asyncio.to_thread(work, *given, **options)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop of asyncio, or None: the caller is in a thread, or on trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
