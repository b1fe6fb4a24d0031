"""A store whose replies a test decides, and the drivers that hold calls of a limiter while they wait for that store.

A call of the limiter is a `Flight`. It runs in a thread of its own or in a task of an event loop. A driver lets one of
them run at a time, until it has ended or waits in the store. So a story is the same each time it is told.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from sluicegate import ManualClock
from sluicegate.plan import BAN, Outcomes, Plan
from sluicegate.stores.memory import MemoryStore
from tests.stores.scripted import ManualLoop

Budget = tuple[str, str]  # the rule's id, and the identity

_FLIGHT: ContextVar[Flight | None] = ContextVar("flight", default=None)


class Interrupt(BaseException):
    """An exception that is no Exception: what a signal raises in a thread that waits for the store."""


@dataclass(eq=False)
class Call:
    """One call of the store, and what the store does with it."""

    what: str  # the name of the method
    given: tuple[Any, ...]
    flight: Flight | None  # None: a probe, which belongs to no call of the limiter
    sent_us: int
    sent: int = 0  # its place among all events of the story
    closing: int = 0  # which closing of the circuit it was sent in; 0: the circuit was open
    attempt: bool = False  # whether the circuit waits for its result
    trial: bool = False  # whether its success closes the circuit
    ran: bool = False  # whether the server has run it
    ran_us: int = 0
    answer: Any = None
    error: BaseException | None = None  # instead of the answer
    ended: bool = False
    ended_us: int = 0
    go: Any = None  # releases the caller
    thread: threading.Thread | None = None

    @property
    def plan(self) -> Plan:
        plan: Plan = self.given[0]
        return plan

    @property
    def charges(self) -> bool:
        return self.what == "run" and self.plan.charge

    @property
    def budgets(self) -> set[Budget]:
        """What it may change."""
        if self.what == "forget":
            return {(self.given[0], self.given[1])}
        if self.what == "run" and not self.plan.charge:
            return set()
        return {check.budget for check in self.plan.checks if check.cost or check.terms.algorithm == BAN}


@dataclass(eq=False)
class Flight:
    """One call of the limiter."""

    what: str
    closed: int  # which closing of the circuit it began in
    given: Any = None
    half: bool = False  # whether the store had answered a probe then
    due: bool = False  # whether an attempt was certainly due then
    calls: list[Call] = field(default_factory=list)
    done: bool = False
    cancelled: bool = False
    judged: bool = False
    result: Any = None
    error: BaseException | None = None
    idle: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    task: asyncio.Task[None] | None = None


class Server:
    """What every kind of scripted store shares: the budgets as they are, and the calls that have come."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock: ManualClock = clock
        self.budgets = MemoryStore(clock=clock)
        self.arrived: list[Call] = []  # since the test looked
        self.waiting: list[Call] = []
        self.free = False  # at the end of a story: every call is run at once

    def run_now(self, call: Call) -> None:
        """Run a call on the server. Its reply may come later, or never."""
        if not call.ran:
            call.answer = getattr(self.budgets, call.what)(*call.given)
            call.ran, call.ran_us = True, self.clock.now_us()

    def come(self, what: str, given: tuple[Any, ...], flight: Flight | None, go: Any) -> Call:
        call = Call(what, given, flight, self.clock.now_us(), go=go)
        if flight is not None:
            flight.calls.append(call)
        self.waiting.append(call)
        self.arrived.append(call)
        return call

    def end(self, call: Call) -> Any:
        """What the caller gets, when it may go on."""
        call.ended, call.ended_us = True, self.clock.now_us()
        if call in self.waiting:
            self.waiting.remove(call)
        if call.error is not None:
            raise call.error
        return call.answer


class Driver(Protocol):
    """Starts calls of a limiter, and lets them go on one at a time."""

    server: Server
    store: Any
    is_async: bool

    def fly(self, flight: Flight, call: Callable[[], Any]) -> None:
        """Begin a call of the limiter. It runs until it has ended or waits for the store."""

    def release(self, call: Call) -> None:
        """Let the caller of the store go on, until it has ended or waits again."""

    def cancel(self, flight: Flight) -> None:
        """Cancel a call of the limiter while it waits."""

    def end(self) -> None: ...


class ThreadDriver:
    """The driver of a Limiter: each flight is a thread."""

    is_async = False

    def __init__(self, clock: ManualClock) -> None:
        self.server = Server(clock)
        self.store: Any = ScriptedStore(self)
        self._mine: dict[threading.Thread, Flight] = {}
        self._parked: set[threading.Thread] = set()
        self._before = set(threading.enumerate())

    def fly(self, flight: Flight, call: Callable[[], Any]) -> None:
        def main() -> None:
            try:
                flight.result = call()
            except BaseException as error:  # noqa: BLE001  # the test looks at it
                flight.error = error
            flight.done = True
            flight.idle.release()

        thread = threading.Thread(target=main, daemon=True)
        self._mine[thread] = flight
        thread.start()
        flight.idle.acquire()
        self._wait_for_probes()

    def wait(self, what: str, *given: Any) -> Any:
        """Stop a thread in the store until the test releases it."""
        thread, go = threading.current_thread(), threading.Semaphore(0)
        flight = self._mine.get(thread)
        call = self.server.come(what, given, flight, go)
        call.thread = thread
        if self.server.free:
            self.server.run_now(call)
        else:
            self._parked.add(thread)
            if flight is not None:
                flight.idle.release()
            go.acquire()
        return self.server.end(call)

    def release(self, call: Call) -> None:
        assert call.thread is not None
        self._parked.discard(call.thread)  # before it goes on: else it would seem to wait still
        call.go.release()
        if call.flight is not None:
            call.flight.idle.acquire()
        self._wait_for_probes()

    def cancel(self, flight: Flight) -> None:
        """Raise in the thread: while it waits for the store nothing else can stop it."""
        [call] = [each for each in flight.calls if not each.ended]
        call.error = Interrupt()
        self.release(call)

    def _wait_for_probes(self) -> None:
        """Wait until each thread that the limiter itself has started waits in the store, or has ended."""
        for thread in set(threading.enumerate()) - self._before - set(self._mine):
            while thread.is_alive() and thread not in self._parked:
                thread.join(0.001)

    def end(self) -> None:
        self.server.free = True
        for call in list(self.server.waiting):
            self.server.run_now(call)
            call.go.release()
        for thread in set(threading.enumerate()) - self._before:
            thread.join()


class LoopDriver:
    """The driver of an AsyncLimiter: each flight is a task. The event loop runs only while the test lets it."""

    is_async = True

    def __init__(self, clock: ManualClock) -> None:
        self.server = Server(clock)
        self.loop = ManualLoop()
        self.store: Any = AsyncScriptedStore(self)

    def fly(self, flight: Flight, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        async def main() -> None:
            _FLIGHT.set(flight)
            try:
                flight.result = await call()
            except BaseException as error:  # noqa: BLE001  # the test looks at it
                flight.error = error
            flight.done = True

        flight.task = self.loop.do(lambda: self.loop.create_task(main(), context=Context()))
        self.loop.settle()

    def come(self, what: str, *given: Any) -> Call:
        return self.server.come(what, given, _FLIGHT.get(), self.loop.create_future())

    async def wait(self, call: Call) -> Any:
        """Stop a task in the store until the test releases it."""
        if self.server.free:
            self.server.run_now(call)
        else:
            try:
                await call.go
            except asyncio.CancelledError as error:
                call.error = error
        return self.server.end(call)

    def release(self, call: Call) -> None:
        self.loop.do(lambda: call.go.done() or call.go.set_result(None))
        self.loop.settle()

    def cancel(self, flight: Flight) -> None:
        task = flight.task
        assert task is not None
        self.loop.do(task.cancel)
        self.loop.settle()

    def end(self) -> None:
        self.server.free = True
        for call in list(self.server.waiting):
            self.server.run_now(call)
            self.release(call)
        self.loop.end()


class ScriptedStore:
    """The least that a user's store has: the five calls."""

    def __init__(self, driver: ThreadDriver) -> None:
        self.clock = driver.server.clock
        self._driver = driver

    def run(self, plan: Plan) -> Outcomes:
        outcomes: Outcomes = self._driver.wait("run", plan)
        return outcomes

    def refund(self, plan: Plan, outcomes: Outcomes) -> None:
        self._driver.wait("refund", plan, outcomes)

    def renew(self, plan: Plan, outcomes: Outcomes) -> Outcomes:
        renewed: Outcomes = self._driver.wait("renew", plan, outcomes)
        return renewed

    def forget(self, rule_id: str, identity: str) -> None:
        self._driver.wait("forget", rule_id, identity)

    def close(self) -> None: ...


class AsyncScriptedStore:
    """A ScriptedStore for asynchronous code."""

    def __init__(self, driver: LoopDriver) -> None:
        self.clock = driver.server.clock
        self._driver = driver

    async def run(self, plan: Plan) -> Outcomes:
        outcomes: Outcomes = await self._driver.wait(self._driver.come("run", plan))
        return outcomes

    async def refund(self, plan: Plan, outcomes: Outcomes) -> None:
        await self._driver.wait(self._driver.come("refund", plan, outcomes))

    async def renew(self, plan: Plan, outcomes: Outcomes) -> Outcomes:
        renewed: Outcomes = await self._driver.wait(self._driver.come("renew", plan, outcomes))
        return renewed

    async def forget(self, rule_id: str, identity: str) -> None:
        await self._driver.wait(self._driver.come("forget", rule_id, identity))

    async def close(self) -> None: ...
