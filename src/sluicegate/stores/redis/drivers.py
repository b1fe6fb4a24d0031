"""Drivers: who takes the steps of the routes, one for each colour. They differ by their awaits.

A driver's own part is `ask`, which answers a LinkError where there is no reply, and `leave`. This module knows steps;
no connection and no client.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from time import sleep
from typing import Any, TypeVar

from sluicegate.clock import monotonic
from sluicegate.stores.redis.asks import Address, Ask, Leave, LinkError, Pause, Steps
from sluicegate.stores.redis.walk import Walk

T = TypeVar("T")


class Driver(ABC):
    """Takes steps in a thread."""

    @abstractmethod
    def until(self) -> float:
        """When a call that begins now must be over."""

    @abstractmethod
    def ask(self, ask: Ask, until: float) -> Any:
        """The reply, or the LinkError there is instead."""

    @abstractmethod
    def leave(self, address: Address) -> None:
        """Use no connection to this address again that is open now."""

    def drive(self, steps: Steps[T], until: float) -> T:
        """Ask what the steps ask for, all before that time."""
        reply: Any = None
        try:
            while True:
                step = steps.throw(reply) if isinstance(reply, LinkError) else steps.send(reply)
                reply = None
                if isinstance(step, Ask):
                    reply = self.ask(step, step.limit(until, monotonic()) if step.share < 1 else until)
                elif isinstance(step, Leave):
                    self.leave(step.address)
                elif isinstance(step, Pause):
                    sleep(max(0.0, min(step.seconds, until - monotonic())))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def walk(self, walk: Walk[T]) -> T:
        """Take a walk, each of its steps with a deadline of its own."""
        reply: Any = None
        try:
            while True:
                reply = self.drive(walk.send(reply), self.until())
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class AsyncDriver(ABC):
    """Takes steps in an event loop."""

    @abstractmethod
    def until(self) -> float:
        """When a call that begins now must be over, by the running loop's time."""

    @abstractmethod
    def ask(self, ask: Ask, until: float) -> Awaitable[Any]:
        """The reply, or the LinkError there is instead."""

    @abstractmethod
    def leave(self, address: Address) -> None:
        """Use no connection to this address again that is open now."""

    async def drive(self, steps: Steps[T], until: float) -> T:
        """Ask what the steps ask for, all before that time."""
        now = asyncio.get_running_loop().time
        reply: Any = None
        try:
            while True:
                step = steps.throw(reply) if isinstance(reply, LinkError) else steps.send(reply)
                reply = None
                if isinstance(step, Ask):
                    reply = await self.ask(step, step.limit(until, now()) if step.share < 1 else until)
                elif isinstance(step, Leave):
                    self.leave(step.address)
                elif isinstance(step, Pause):
                    await asyncio.sleep(max(0.0, min(step.seconds, until - now())))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def walk(self, walk: Walk[T]) -> T:
        """Take a walk, each of its steps with a deadline of its own."""
        reply: Any = None
        try:
            while True:
                reply = await self.drive(walk.send(reply), self.until())
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
