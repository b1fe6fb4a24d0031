"""A fork under load: every object that has a lock works in the child, and waits for nobody."""

from __future__ import annotations

import ast
import asyncio
import gc
import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar

import pytest

from sluicegate import AsyncLimiter, Limiter, ManualClock
from sluicegate.errors import StoreError
from sluicegate.plan import Plan
from sluicegate.runtime import fork
from sluicegate.stores.breaker import Breaker
from sluicegate.stores.deny_cache import Refusals
from sluicegate.stores.local_fallback import LocalFallback
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import BrokenStore
from tests.hostile.growth import untraced
from tests.servers import Server
from tests.stores.breakable import check
from tests.stores.guards import cached
from tests.test_house import SOURCE, Module, callee

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

FORKS = 20
BUSY = 2  # threads
PATIENCE = 20.0  # seconds that a child may take on a busy machine


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No log and no tracer: a fork copies the lock of the file that pytest's handler writes to, and the lock of a
    coverage run, and neither is renewed in the child.
    """
    logging.disable()
    with untraced():
        yield
    logging.disable(logging.NOTSET)


@contextmanager
def load(work: Callable[[], object]) -> Iterator[None]:
    """Threads that do the work until the block ends."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            work()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(BUSY)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE)


def in_child(use: Callable[[], object]) -> bytes:
    """What `use` returns in a forked child: its repr. A child that hangs is killed, and the answer is b"hung"."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b"failed"
        try:
            answer = repr(use()).encode()
        except BaseException as error:  # noqa: BLE001 - the child must not return into pytest
            answer = repr(error).encode()
        finally:
            os.write(writes, answer[:4000])
            os._exit(0)
    os.close(writes)
    try:
        ready, _, _ = select.select([reads], [], [], PATIENCE)
        return os.read(reads, 4000) if ready else b"hung"
    finally:
        os.close(reads)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def plan(identity: str = "alice", quota: str = "1000000/day", **options: Any) -> Plan:
    return Plan((check(quota, identity, **options),))


def memory() -> tuple[Callable[[], object], Callable[[], object]]:
    """Busy threads add and evict identities, in several rules at a time. The child does so too, and then counts."""
    store = MemoryStore(max_keys=50)
    numbers = iter(range(10**9))

    def work() -> None:
        number = next(numbers)
        found = Plan((check("5/minute", f"user {number}"), check("1000000/day", f"user {number % 7}")))
        store.refund(found, store.run(found))
        store.forget(found.checks[0].terms.rule_id, f"user {number - 20}")

    def use() -> list[bool]:
        for _ in range(200):
            work()
        return [store.run(plan("carol", "2/minute"))[0].allowed for _ in range(3)]

    return work, use


def local_fallback() -> tuple[Callable[[], object], Callable[[], object]]:
    fallback, error = LocalFallback(policy="local"), StoreError("none", "it is down")
    inside = MemoryStore()

    def work() -> None:
        found = plan(str(threading.get_ident()))
        fallback.note(found.checks, inside.run(found))
        fallback.renew(found, fallback.answer(found, error))

    return work, lambda: [fallback.answer(plan("carol", "2/minute"), error)[0].allowed for _ in range(3)]


def breaker() -> tuple[Callable[[], object], Callable[[], object]]:
    breaker, error = Breaker(deadline=0.1), StoreError("none", "it is down")

    def work() -> None:
        breaker.failed(error, closed=breaker.closed)
        breaker.probe()
        breaker.recovered()

    def use() -> list[bool]:
        breaker.failed(error, closed=breaker.closed)
        breaker.recovered()
        return [bool(breaker.closed), True, False]

    return work, use


def refusals() -> tuple[Callable[[], object], Callable[[], object]]:
    cache = cached(MemoryStore(), Refusals(staleness=1.0, size=5))
    numbers = iter(range(10**9))

    def work() -> None:
        number = next(numbers)
        for _ in range(2):
            cache.run(plan(f"user {number % 9}", "1/minute"))
        cache.forget(plan(quota="1/minute").checks[0].terms.rule_id, f"user {number % 9}")

    def use() -> list[bool]:
        for _ in range(50):
            work()
        return [cache.run(plan("carol", "2/minute"))[0].allowed for _ in range(3)]

    return work, use


def manual_clock() -> tuple[Callable[[], object], Callable[[], object]]:
    clock = ManualClock()
    limiter = Limiter(clock=clock)

    def use() -> list[bool]:
        clock.advance(1)
        return [limiter.hit("2/minute", "carol").allowed for _ in range(3)]

    return lambda: clock.advance_us(1), use


def flask_routes() -> tuple[Callable[[], object], Callable[[], object]]:
    from flask import Flask

    from sluicegate.flask.routes import AppRoutes
    from sluicegate.web.gate import Gate
    from sluicegate.web.settings import Settings

    app = Flask("board")
    app.add_url_rule("/", "home", lambda: "home")
    routes = AppRoutes(lambda: app, Gate(Settings(default_limits=["5/minute"])), owns_marks=True)

    def work() -> None:
        routes._ready = False
        routes.find(None, "GET")

    def use() -> list[bool]:
        work()
        return [True, True, not routes.find(None, "GET").bounds]

    return work, use


def django_gates() -> tuple[Callable[[], object], Callable[[], object]]:
    import tests.adapters.django_app  # noqa: F401 - it configures Django
    from sluicegate.django import conf

    def work() -> None:
        conf.reload(setting="SLUICEGATE")
        conf.sync_gate()

    def use() -> list[bool]:
        work()
        return [conf.sync_gate() is conf.sync_gate(), True, False]

    return work, use


OBJECTS = [
    memory, local_fallback, breaker, refusals, manual_clock, flask_routes, django_gates,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("make", OBJECTS, ids=lambda make: make.__name__)
def test_an_object_with_a_lock_works_in_a_child_that_was_forked_under_load(make: Callable[[], Any]) -> None:
    work, use = make()
    with load(work):
        answers = [in_child(use) for _ in range(FORKS)]
    assert answers == [b"[True, True, False]"] * FORKS


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_limiters_work_in_a_child_that_was_forked_under_load(valkey: Server) -> None:
    """The pool has two connections, so threads wait for them. The child has connections of its own."""
    valkey.flush()
    with closing(Limiter(f"{valkey.url}?max_connections=2", deadline=PATIENCE)) as limiter:
        with load(lambda: limiter.hit("1000000/day", "bob")):
            answers = [
                in_child(lambda n=n: [limiter.hit("2/minute", f"carol {n}").allowed for _ in range(3)])  # type: ignore[misc]
                for n in range(FORKS)
            ]
        assert answers == [b"[True, True, False]"] * FORKS
        assert not limiter.hit("1000000/day", "bob").degraded


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_fork_takes_no_connection_from_the_parent_s_event_loop(valkey: Server) -> None:
    """The child shares the poll object of the kernel: a finalizer there could end the parent's connection."""
    valkey.flush()

    async def main() -> None:
        async with AsyncLimiter(valkey.url, deadline=PATIENCE) as limiter:
            await limiter.hit("10/minute", "alice")

            def use() -> list[int | None]:
                async def hit() -> int | None:
                    return (await limiter.hit("10/minute", "alice")).remaining

                found = [asyncio.run(hit()) for _ in range(2)]
                gc.collect()
                return found

            assert in_child(use) == b"[8, 7]"
            opened = valkey.command("INFO stats").partition("total_connections_received:")[2].split()[0]
            decision = await limiter.hit("10/minute", "alice")
            assert (decision.remaining, decision.degraded) == (6, False)
            again = valkey.command("INFO stats").partition("total_connections_received:")[2].split()[0]
            assert int(again) == int(opened) + 1, "the second INFO; the parent has kept its connection"

    asyncio.run(main())


# The child begins with an empty memory, and its parent's charges in a shared store.
@pytest.mark.parametrize(("where", "left_in_child"), [("memory", b"[100, 1]"), ("valkey", b"[40, 0]")])
def test_what_was_open_at_the_fork_is_settled_by_the_parent(where: str, left_in_child: bytes, valkey: Server) -> None:
    valkey.flush()
    with closing(Limiter("memory://" if where == "memory" else valkey.url, deadline=PATIENCE)) as limiter:
        tokens = limiter.reserve("100/minute", "alice", cost=60, algorithm="fixed-window")
        with limiter.hold("1 at once", "alice") as slot:

            def use() -> list[int | None]:
                tokens.cancel()
                slot.release()
                left = limiter.peek("100/minute", "alice", cost=0, algorithm="fixed-window").remaining
                return [left, limiter.peek("1 at once", "alice", cost=0).remaining]

            assert in_child(use) == left_in_child
        tokens.cancel()
        assert limiter.peek("100/minute", "alice", cost=0, algorithm="fixed-window").remaining == 100
        assert limiter.peek("1 at once", "alice", cost=0).remaining == 1


def test_a_fork_in_a_thread_that_holds_the_lock_goes_on() -> None:
    """As a signal handler or a finalizer may do in the middle of a charge."""

    class Forking:
        answers: ClassVar[list[bytes]] = []

        def now_us(self) -> int:
            if not self.answers:
                self.answers.append(b"")
                self.answers.append(in_child(lambda: limiter.hit("2/minute", "alice").allowed))
            return 0

    limiter = Limiter()
    limiter.store = MemoryStore(clock=Forking())  # its constructor reads the clock once
    Forking.answers.clear()
    assert [limiter.hit("2/minute", "alice").allowed for _ in range(3)] == [True, True, False]
    assert Forking.answers == [b"", b"True"]


def registered() -> int:
    return len(fork._Process.owners)


@pytest.mark.slow
def test_objects_are_registered_weakly() -> None:
    gc.collect()
    before = registered()
    limiters = [Limiter(BrokenStore()) for _ in range(10)]
    after = registered()
    assert after >= before + 40
    del limiters
    gc.collect()
    assert registered() <= before


LOCKS = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier"}


def classes_with_locks(module: Module) -> Iterator[tuple[str, set[str]]]:
    """(class, names that the class calls or defines) for each class that makes a lock."""
    # A class of ours may have the name of a lock: an Event of the replay is a request.
    shadowed = {name.rpartition(".")[2] for _, name in module.imports if name.startswith("sluicegate.")}
    shadowed |= {node.name for node in module.all(ast.ClassDef) if isinstance(node, ast.ClassDef)}
    for node in module.all(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        called = {callee(call) for call in ast.walk(node) if isinstance(call, ast.Call)}
        defined = {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef)}
        if called & LOCKS - shadowed:
            yield node.name, called | defined


# Why a class with a lock need not renew it.
NOT_RENEWED = {
    "_Estimate": "nobody waits for the lock, and the child settles nothing",
    "_Pool": "Connections drops its pools",
}


@pytest.mark.slow
def test_every_class_with_a_lock_renews_it() -> None:
    found = {name: names for module in SOURCE for name, names in classes_with_locks(module)}
    assert {name for name, names in found.items() if "after_fork" not in names} == set(NOT_RENEWED)
    outside = [
        f"{module.path}:{node.lineno}"
        for module in SOURCE
        for node in module.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and callee(call) in {"Lock", "RLock", "Condition"}
    ]
    assert not outside, "a lock of a module has no object that could renew it"


@pytest.mark.slow
def test_one_module_registers_with_os() -> None:
    found = [
        module.name
        for module in SOURCE
        for call in module.all(ast.Call)
        if isinstance(call, ast.Call) and callee(call) == "register_at_fork"
    ]
    assert found == ["runtime.fork"]
