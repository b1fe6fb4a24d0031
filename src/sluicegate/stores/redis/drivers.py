"""The drivers that take the steps of an operation: one for threads, one for asyncio. They differ by their awaits.

A subclass adds `send`, which returns a NoReplyError if there is no reply, and `retire`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from time import sleep
from typing import Any, Final, TypeVar

from sluicegate.clock import monotonic
from sluicegate.stores.redis.failures import timed_out
from sluicegate.stores.redis.patience import Patience
from sluicegate.stores.redis.scan import Scan
from sluicegate.stores.redis.steps import Address, NoReplyError, Pause, Reconnect, Send, Steps

T = TypeVar("T")
_SHORT: Final = 0.25  # of the deadline: if a step had less, its timeout concerns the plan and not the server


class Left:
    """The patience that is left of one operation, in looks.

    Silence costs looks of the deadline. A step that was answered costs none of them: the server is there. So an
    operation whose steps are all answered goes on, at most `longest`.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._looks, self._longest = patience.looks, patience.longest

    def for_step(self, step: Send) -> float:
        """Return the looks that this step has; 0.0: it is not sent."""
        return self._looks * step.part if self._longest > 0 else 0.0

    def take(self, reply: Any, seconds: float, *, looks: float) -> Any:
        """Count a step that had so many looks and took so many seconds. Return its reply."""
        if not isinstance(reply, NoReplyError):
            self._longest -= self._patience.cost(seconds, most=self._patience.looks)
            return reply
        self._looks -= self._patience.cost(seconds, most=looks)
        if timed_out(reply) and looks < _SHORT * self._patience.looks:
            reply.concerns = "plan"  # the steps before this one took the time
        return reply

    def pause(self, seconds: float) -> bool:
        """Count a pause. Return whether another step may follow."""
        self._looks -= self._patience.cost(seconds, most=self._patience.looks)
        return self._looks > 0


class Driver(ABC):
    """Takes steps in a thread."""

    patience: Patience

    @abstractmethod
    def send(self, step: Send, looks: float) -> Any:
        """Send a command. Return the reply, or a NoReplyError if so many looks found none."""

    @abstractmethod
    def retire(self, address: Address) -> None:
        """Stop using the open connections to an address."""

    def drive(self, steps: Steps[T]) -> T:
        """Take all steps while patience is left. Returns the result of the operation."""
        left = Left(self.patience)
        reply: Any = None
        try:
            while True:
                step = steps.throw(reply) if isinstance(reply, NoReplyError) else steps.send(reply)
                reply = None
                if isinstance(step, Send):
                    begun, looks = monotonic(), left.for_step(step)
                    reply = self.send(step, looks) if looks > 0 else _too_late(step)
                    reply = left.take(reply, monotonic() - begun, looks=looks)
                elif isinstance(step, Reconnect):
                    self.retire(step.address)
                elif isinstance(step, Pause):
                    sleep(step.seconds)
                    reply = left.pause(step.seconds)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def scan(self, scan: Scan[T]) -> T:
        """Run a scan. Each of its operations has a separate deadline."""
        reply: Any = None
        try:
            while True:
                reply = self.drive(scan.send(reply))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class AsyncDriver(ABC):
    """Takes steps in an event loop."""

    patience: Patience

    @abstractmethod
    def send(self, step: Send, looks: float) -> Awaitable[Any]:
        """Send a command. Return the reply, or a NoReplyError if so many looks found none."""

    @abstractmethod
    def retire(self, address: Address) -> None:
        """Stop using the open connections to an address."""

    async def drive(self, steps: Steps[T]) -> T:
        now = asyncio.get_running_loop().time
        left = Left(self.patience)
        reply: Any = None
        try:
            while True:
                step = steps.throw(reply) if isinstance(reply, NoReplyError) else steps.send(reply)
                reply = None
                if isinstance(step, Send):
                    begun, looks = now(), left.for_step(step)
                    reply = await self.send(step, looks) if looks > 0 else _too_late(step)
                    reply = left.take(reply, now() - begun, looks=looks)
                elif isinstance(step, Reconnect):
                    self.retire(step.address)
                elif isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    reply = left.pause(step.seconds)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def scan(self, scan: Scan[T]) -> T:
        reply: Any = None
        try:
            while True:
                reply = await self.drive(scan.send(reply))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def _too_late(step: Send) -> NoReplyError:
    """Return the failure of a step without patience left. The next operation begins with this step."""
    return NoReplyError(step.address, TimeoutError("too little time is left"), sent=False, concerns="plan")
