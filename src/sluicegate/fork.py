"""The fork of a process: what the objects of this library do before and after it. No other module registers with `os`.

A child of `fork()` has one thread, and a copy of all objects. A lock that another thread of the parent held is held in
the child for ever. An object registers itself here, weakly, and chooses one of two ways:

- **Renewed**: `after_fork` is called in the child. It makes new locks and drops what belongs to the parent:
  connections, probes under way. Nearly all objects do only this. Each step of their state is one assignment,
  or the state is a cache that the child begins empty, or it is dropped.
- **Held** as well: the forking thread takes the object's lock before the fork, so that no other thread is in the middle
  of a change. The memory store and the local fallback need this: a charge changes several parts of a table, and the
  child goes on with its copy of that table. The outer lock is taken before the inner one, as in the code that uses
  both. The wait for a lock is bounded (`PATIENCE`): the forking thread may hold the lock itself, in a signal handler or
  a finalizer. Then the fork goes on without it.

Not every lock is held through the fork. A lock that is held while user code runs or modules are imported could make the
fork wait for an import, and the import for the fork.

Who owns what in the child: connections, and charges in a shared store belong to the parent. A slot
or reservation that was open at the fork is settled by the parent. The same object does nothing in the child
(`generation`), because two refunds of one charge would let a client exceed its limit.
"""

from __future__ import annotations

import os
import threading
from itertools import takewhile
from operator import methodcaller
from typing import Any, Final, Protocol
from weakref import WeakSet

PATIENCE: Final = 1.0  # seconds that a fork waits for a lock


class Renewed(Protocol):
    """An object with a lock, or with something that belongs to one process."""

    def after_fork(self) -> None:
        """Make new locks, and drop what belongs to the parent. Called in the child, which has one thread."""
        ...


class Held(Renewed, Protocol):
    """An object whose state must be whole in the child."""

    def fork_lock(self) -> Any:
        """Return the lock to hold during a fork."""
        ...


class _Registry:
    """The registered objects of this process."""

    def __init__(self) -> None:
        self.generation = 0
        self.outer: WeakSet[Held] = WeakSet()
        self.inner: WeakSet[Held] = WeakSet()
        self.renewed: WeakSet[Renewed] = WeakSet()
        self.kept: list[object] = []
        self.taken = threading.local()  # the locks that a forking thread holds
        self.lock = threading.RLock()  # a finalizer may register an object in a thread that holds it

    def before(self) -> None:
        """Take the locks, in the forking thread. Two forks at a time wait for each other.

        A signal handler may raise between any two calls, so functions of C take a lock and note it. The fork waits
        once, however many locks are held: after the first that is held too long, it takes those that are free.
        """
        taken = self.taken.locks = []
        locks = self._locks(taken)
        taken.extend(takewhile(methodcaller("acquire", timeout=PATIENCE), locks))
        taken.extend(filter(methodcaller("acquire", blocking=False), locks))

    def _locks(self, taken: list[Any]) -> Any:
        yield self.lock
        if taken:
            yield from [owner.fork_lock() for owner in (*self.outer, *self.inner)]

    def in_parent(self) -> None:
        """Release the locks that this thread has taken."""
        list(map(methodcaller("release"), reversed(self.taken.locks)))
        self.taken.locks = []

    def in_child(self) -> None:
        """Renew all objects."""
        self.generation += 1
        self.taken, self.lock = threading.local(), threading.RLock()
        for owner in (*self.outer, *self.inner, *self.renewed):
            owner.after_fork()


_REGISTRY: Final = _Registry()


def renew(owner: Renewed) -> None:
    """Call `owner.after_fork()` in the child of each fork from now on, as long as the object exists."""
    with _REGISTRY.lock:
        _REGISTRY.renewed.add(owner)


def hold(owner: Held, *, outer: bool = False) -> None:
    """Do the same, and hold the object's lock during each fork. An `outer` lock is held by code that takes others."""
    with _REGISTRY.lock:
        (_REGISTRY.outer if outer else _REGISTRY.inner).add(owner)


def keep(given: object) -> None:
    """Keep an object of the parent until this process ends, so that no finalizer runs.

    An event loop's transports would tell the poll object of the kernel, which the parent shares, to forget a socket.
    """
    _REGISTRY.kept.append(given)


def generation() -> int:
    """Return how many forks are between this process and the first one."""
    return _REGISTRY.generation


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_REGISTRY.before, after_in_parent=_REGISTRY.in_parent, after_in_child=_REGISTRY.in_child)
