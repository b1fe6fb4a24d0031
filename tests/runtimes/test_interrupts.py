"""Signals in the middle of a call: a handler that raises, and a handler that calls the same limiter.

The interpreter runs the handler of a signal when a function of C has returned, and when a function of Python begins. A
profiler is called at the same moments. So each test runs an operation once for each such moment.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import Event
from types import FrameType
from typing import Any

import pytest

from sluicegate import Limiter, StoreError
from sluicegate.stores import Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import BrokenStore
from tests.hostile.growth import untraced
from tests.servers import Server

PATIENCE = 20.0  # seconds that a thread may take on a busy machine
WHERE = ("sluicegate", "threading.py")  # where the operations are interrupted


class Interrupted(BaseException):
    """The exception of a signal handler."""


@pytest.fixture(autouse=True)
def _untraced() -> Iterator[None]:
    with untraced():
        yield


def interrupt(operation: Callable[[], object], *, at: int, handler: Callable[[], object]) -> bool:
    """Call the operation, and at one of its moments the handler. False if the operation has no such moment."""
    left = at

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event in {"call", "c_return"} and any(part in frame.f_code.co_filename for part in WHERE):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                handler()

    sys.setprofile(profile)
    try:
        operation()
    except Interrupted:
        pass
    finally:
        sys.setprofile(None)
    return left <= 0


def raising() -> None:
    raise Interrupted


def in_a_thread(work: Callable[[], Any]) -> list[Any]:
    """Return the result of the work in a thread, or nothing if it hangs."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return found


def hold(limiter: Limiter) -> None:
    with limiter.hold("5 at once", "alice"):
        pass


def hit(limiter: Limiter) -> None:
    limiter.hit("5/minute; 100/hour", "alice")


def reserve(limiter: Limiter) -> None:
    limiter.reserve("100/minute", "alice", cost=2).settle(1)


OPERATIONS = pytest.mark.parametrize("operation", [hold, hit, reserve])
STORES: dict[str, Callable[[], Store]] = {
    "memory": MemoryStore,
    "full memory": lambda: MemoryStore(max_keys=2),
    "fallback": BrokenStore,
}
IN_MEMORY = pytest.mark.parametrize("store", list(STORES))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised where a generator is closed
@OPERATIONS
@IN_MEMORY
def test_an_interrupt_leaves_no_lock_taken(store: str, operation: Callable[[Limiter], None]) -> None:
    limiter = Limiter(STORES[store]())
    at = 1
    while interrupt(lambda: operation(limiter), at=at, handler=raising):
        assert in_a_thread(lambda: limiter.hit("5/minute", "bob").limit) == [5], f"hangs after an interrupt at {at}"
        at += 1
    assert at > 20


@OPERATIONS
@IN_MEMORY
def test_a_signal_handler_may_call_the_limiter_that_it_interrupts(
    store: str, operation: Callable[[Limiter], None]
) -> None:
    def run() -> int:
        limiter = Limiter(STORES[store]())
        at = 1
        while interrupt(lambda: operation(limiter), at=at, handler=lambda: operation(limiter)):
            at += 1
        return at

    found = in_a_thread(run)
    assert found, "a call in a signal handler hangs"
    assert found[0] > 20


@pytest.mark.parametrize("handler", ["raises", "calls"])
def test_an_interrupted_wait_for_a_connection_leaves_the_pool_whole(handler: str, valkey: Server) -> None:
    """The first call waits for a connection that another thread opens. An opening that was interrupted in
    `Thread.start` of the standard library may never end: then another begins a second later.
    """
    at = 1
    while True:
        with Limiter(valkey.url) as limiter:
            handle = raising if handler == "raises" else partial(hit, limiter)
            more = interrupt(partial(hit, limiter), at=at, handler=handle)
            assert in_a_thread(partial(until_exact, limiter)), f"hangs after an interrupt at {at}"
        if not more:
            break
        at += 1
    assert at > 20


def until_exact(limiter: Limiter) -> bool:
    """Hit until the store decides."""
    while limiter.hit("1000000/minute", "bob").degraded:
        Event().wait(0.01)
    return True


def test_a_refused_connection_can_be_interrupted() -> None:
    limiter = Limiter("redis://127.0.0.1:1/0", on_store_failure="raise", deadline=PATIENCE)
    for at in range(1, 200):
        with suppress(StoreError):
            interrupt(lambda: hit(limiter), at=at, handler=raising)
    with pytest.raises(StoreError):
        limiter.hit("5/minute", "alice")
    limiter.close()
