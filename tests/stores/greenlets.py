"""A program for the tests: a Redis store under greenlets. `python -m tests.stores.greenlets gevent <story> <url> …`.

It patches the standard library first, as the gunicorn workers of gevent and eventlet do. Each story prints its results.
"""

from __future__ import annotations

import sys

if sys.argv[1] == "gevent":
    from gevent import monkey

    monkey.patch_all()
else:
    import eventlet

    eventlet.monkey_patch()

import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

from sluicegate import StoreError
from sluicegate.plan import Check, Plan
from sluicegate.quota import Quota
from sluicegate.rules.terms import make_terms
from sluicegate.stores import open_store

DEADLINE = 1.0
(RULE,) = make_terms("greenlets", (Quota.parse("1000000/day"),), algorithm="fixed-window")
PLAN = Plan((Check(RULE, "alice", 1),))


def wait(seconds: float) -> None:
    """Let other greenlets run."""
    threading.Event().wait(seconds)


def spawn(work: Callable[[], object]) -> Any:
    """Start a greenlet of the library. It can be killed."""
    return importlib.import_module(sys.argv[1]).spawn(work)


def outcome(store: Any) -> str:
    """The units left, or the error, and whether it came in time."""
    began = time.monotonic()
    try:
        result = str(store.run(PLAN)[0].remaining)
    except StoreError as error:
        result = f"error {error}"
    return result if time.monotonic() - began < 4 * DEADLINE else f"late {result}"


def together(number: int, work: Callable[[], str]) -> list[str]:
    """The results of so many threads at the same time, which are greenlets."""
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(work())) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def hung(url: str) -> None:
    """A server that hangs after the first command."""
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        while True:
            wait(0.01)
            ticks += 1

    store = open_store(url, prefix="greenlets", deadline=DEADLINE)
    while outcome(store).startswith("error"):  # a busy machine
        pass
    print("answered", flush=True)
    sys.stdin.readline()  # now it hangs
    ticking = spawn(tick)
    for _ in range(3):
        print(outcome(store))
    ticking.kill()
    print("others ran" if ticks > 10 else "others were blocked")
    store.close()


def many(url: str) -> None:
    """Many greenlets with few connections."""
    store = open_store(f"{url}?max_connections=3", prefix="greenlets", deadline=10 * DEADLINE)
    results = together(50, lambda: outcome(store))
    print(sorted(map(int, results)) == list(range(999_950, 1_000_000)) or results)
    store.close()


def killed(url: str) -> None:
    """Greenlets that are killed while they wait for a reply or for a connection, and then one that is not."""
    store = open_store(f"{url}?max_connections=2", prefix="greenlets", deadline=DEADLINE)
    for _ in range(5):
        waiting = [spawn(lambda: store.run(PLAN)) for _ in range(6)]
        wait(0.02)
        for each in waiting:
            each.kill()
        wait(0.02)
    print("killed", flush=True)
    sys.stdin.readline()  # the server is healthy again
    print(outcome(store))
    store.close()


def killed_late(url: str) -> None:
    """Greenlets that are killed while their replies are on their way. Another greenlet sends a request at once."""
    store = open_store(f"{url}?max_connections=1", prefix="greenlets", deadline=20 * DEADLINE)
    bob = Plan((Check(RULE, "bob", 1000),))
    store.run(bob)
    print("answered", flush=True)
    sys.stdin.readline()  # now replies come late
    for _ in range(5):
        waiting = spawn(lambda: store.run(PLAN))
        wait(0.05)
        waiting.kill()
        print(store.run(bob)[0].remaining)
    store.close()


def timed_out(url: str) -> None:
    """A time-out of the caller, shorter than the deadline."""
    library = importlib.import_module(sys.argv[1])
    store = open_store(f"{url}?max_connections=1", prefix="greenlets", deadline=20 * DEADLINE)
    for _ in range(3):
        try:
            with library.Timeout(0.1):
                store.run(PLAN)
        except library.Timeout:
            print("timeout", flush=True)
    sys.stdin.readline()
    print(outcome(store))
    store.close()


def stalled(url: str) -> None:
    """A greenlet that computes for longer than the deadline, while the reply of another one arrives."""
    store = open_store(url, prefix="greenlets", deadline=DEADLINE)
    store.run(PLAN)

    def compute() -> None:
        wait(0.02)  # the command of the other greenlet is on its way
        ends = time.monotonic() + 1.5 * DEADLINE
        while time.monotonic() < ends:
            pass

    spawn(compute)
    print(outcome(store))
    store.close()


if __name__ == "__main__":
    stories = (hung, many, killed, killed_late, timed_out, stalled)
    {story.__name__: story for story in stories}[sys.argv[2]](*sys.argv[3:])
