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
from sluicegate.stores.redis.scan import Scan
from sluicegate.stores.redis.steps import Address, NoReplyError, Pause, Reconnect, Send, Steps

T = TypeVar("T")
_SHORT: Final = 0.25  # of the deadline: a server that had less time than this is not blamed for its silence


class Driver(ABC):
    """Takes steps in a thread."""

    @abstractmethod
    def until(self) -> float:
        """Return the deadline of a call that begins now."""

    @abstractmethod
    def send(self, step: Send, until: float) -> Any:
        """Send a command. Return the reply, or a NoReplyError."""

    @abstractmethod
    def retire(self, address: Address) -> None:
        """Stop using the open connections to an address."""

    def drive(self, steps: Steps[T], until: float) -> T:
        """Take all steps before the deadline `until`. Returns the result of the operation."""
        took = self.until() - until  # seconds of the last step; at first, of one before this call
        reply: Any = None
        try:
            while True:
                step = steps.throw(reply) if isinstance(reply, NoReplyError) else steps.send(reply)
                reply = None
                if isinstance(step, Send):
                    begun = monotonic()
                    reply = _too_late(step) if until - begun < took else self.send(step, until)
                    took = 0.0 if isinstance(reply, NoReplyError) else monotonic() - begun
                    if timed_out(reply) and until - begun < _SHORT * (self.until() - monotonic()):
                        reply.concerns = "plan"  # the steps before this one took the time
                elif isinstance(step, Reconnect):
                    self.retire(step.address)
                elif isinstance(step, Pause):
                    sleep(max(0.0, min(step.seconds, until - monotonic())))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def scan(self, scan: Scan[T]) -> T:
        """Run a scan. Each of its operations has a separate deadline."""
        reply: Any = None
        try:
            while True:
                reply = self.drive(scan.send(reply), self.until())
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class AsyncDriver(ABC):
    """Takes steps in an event loop."""

    @abstractmethod
    def until(self) -> float:
        """Return the deadline of a call that begins now, by the running loop's time."""

    @abstractmethod
    def send(self, step: Send, until: float) -> Awaitable[Any]:
        """Send a command. Return the reply, or a NoReplyError."""

    @abstractmethod
    def retire(self, address: Address) -> None:
        """Stop using the open connections to an address."""

    async def drive(self, steps: Steps[T], until: float) -> T:
        now = asyncio.get_running_loop().time
        took = self.until() - until  # seconds of the last step; at first, of one before this call
        reply: Any = None
        try:
            while True:
                step = steps.throw(reply) if isinstance(reply, NoReplyError) else steps.send(reply)
                reply = None
                if isinstance(step, Send):
                    begun = now()
                    reply = _too_late(step) if until - begun < took else await self.send(step, until)
                    took = 0.0 if isinstance(reply, NoReplyError) else now() - begun
                    if timed_out(reply) and until - begun < _SHORT * (self.until() - now()):
                        reply.concerns = "plan"  # the steps before this one took the time
                elif isinstance(step, Reconnect):
                    self.retire(step.address)
                elif isinstance(step, Pause):
                    await asyncio.sleep(max(0.0, min(step.seconds, until - now())))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def scan(self, scan: Scan[T]) -> T:
        reply: Any = None
        try:
            while True:
                reply = await self.drive(scan.send(reply), self.until())
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def _too_late(step: Send) -> NoReplyError:
    """Return the failure of a step that has less time left than the last one took. To send it would cost the connection
    and what is known of the server. The next operation begins with this step.
    """
    return NoReplyError(step.address, TimeoutError("too little time is left"), sent=False, concerns="plan")
