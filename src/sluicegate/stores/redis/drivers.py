"""The drivers that take the steps of an operation: one for threads, one for asyncio. They differ by their awaits.

A subclass adds `send`, which returns a NoReplyError if there is no reply, and `retire`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from time import sleep
from typing import Final, TypeVar

from sluicegate.clock import monotonic
from sluicegate.stores.redis.failures import timed_out
from sluicegate.stores.redis.patience import Patience
from sluicegate.stores.redis.steps import Address, NewDeadline, NoReplyError, Pause, Reconnect, Send, Steps

T = TypeVar("T")
_SHORT: Final = 0.25  # of the deadline: if a step had less, its timeout concerns the plan and not the server

_Waits = Generator[tuple[Send, float] | float, object, T]
"""What a driver waits for: the reply to a command, which it sends in, within so many looks; or so many seconds."""


class _Driver(ABC):
    """What the drivers share: everything but the waiting."""

    patience: Patience

    @abstractmethod
    def retire(self, address: Address) -> None:
        """Stop using the open connections to an address."""

    def _take(self, steps: Steps[T], now: Callable[[], float]) -> _Waits[T]:
        """Take all steps while patience is left. Returns the result of the operation.

        Silence costs looks of the deadline. A step that was answered costs none of them: the server is there. So an
        operation whose steps are all answered goes on, at most `longest`.
        """
        patience, left, longest = self.patience, self.patience.looks, self.patience.longest
        reply: object = None
        try:
            while True:
                step = steps.send(reply)
                reply, begun = None, now()
                if isinstance(step, Reconnect):
                    self.retire(step.address)
                elif isinstance(step, NewDeadline):
                    left, longest = patience.looks, patience.longest
                elif isinstance(step, Pause):
                    yield step.seconds
                    left -= patience.cost(now() - begun, most=patience.looks)
                    reply = left > 0
                elif left <= 0 or longest <= 0:  # the next operation begins with this step
                    cause = TimeoutError("too little time is left")
                    reply = NoReplyError(step.address, cause, sent=False, concerns="plan")
                else:
                    looks = left * step.part
                    reply = yield step, looks
                    if not isinstance(reply, NoReplyError):
                        longest -= patience.cost(now() - begun, most=patience.looks)
                        continue
                    left -= patience.cost(now() - begun, most=looks)
                    if timed_out(reply) and looks < _SHORT * patience.looks:
                        reply.concerns = "plan"  # the steps before this one took the time
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class Driver(_Driver):
    """Takes steps in a thread."""

    @abstractmethod
    def send(self, step: Send, looks: float) -> object:
        """Send a command. Return the reply, or a NoReplyError if so many looks found none."""

    def drive(self, steps: Steps[T]) -> T:
        """Take all steps while patience is left. Returns the result of the operation."""
        waits, reply = self._take(steps, monotonic), None
        try:
            while True:
                wait = waits.send(reply)
                if isinstance(wait, tuple):
                    reply = self.send(*wait)
                else:
                    sleep(wait)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class AsyncDriver(_Driver):
    """Takes steps in an event loop."""

    @abstractmethod
    def send(self, step: Send, looks: float) -> Awaitable[object]:
        """Send a command. Return the reply, or a NoReplyError if so many looks found none."""

    async def drive(self, steps: Steps[T]) -> T:
        waits, reply = self._take(steps, asyncio.get_running_loop().time), None
        try:
            while True:
                wait = waits.send(reply)
                if isinstance(wait, tuple):
                    reply = await self.send(*wait)
                else:
                    await asyncio.sleep(wait)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
