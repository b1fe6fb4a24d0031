"""The fork of a process: what the objects of this library do in the child. No other module registers with `os`.

A child of `fork()` has one thread, and a copy of all objects. A lock that another thread of the parent held is held in
the child for ever, and what that thread was changing is half changed. So an object with a lock, or with something that
belongs to one process, registers itself here, weakly. In the child `after_fork` makes new locks, and drops what belongs
to the parent or may be half changed: connections, probes under way, the budgets of a memory store. Any other state
changes in one assignment. A fork takes no lock, so it waits for no thread.

A charge in a shared store belongs to the parent. A slot or reservation that was open at the fork is settled by the
parent. The same object does nothing in the child (`generation`), because two refunds of one charge would let a client
exceed its limit.
"""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakSet


class Renewed(Protocol):
    """An object with a lock, or with something that belongs to one process."""

    def after_fork(self) -> None:
        """Make new locks, and drop what belongs to the parent. Called in the child, which has one thread."""
        ...


class _Process:
    """The registered objects of this process."""

    generation = 0
    owners: Final[WeakSet[Renewed]] = WeakSet()
    kept: Final[list[object]] = []

    @classmethod
    def in_child(cls) -> None:
        """Renew all objects."""
        cls.generation += 1
        for owner in list(cls.owners):
            owner.after_fork()


def renew(owner: Renewed) -> None:
    """Call `owner.after_fork()` in the child of each fork from now on, as long as the object exists."""
    _Process.owners.add(owner)


def keep(given: object) -> None:
    """Keep an object of the parent until this process ends, so that no finalizer runs.

    An event loop's transports would tell the poll object of the kernel, which the parent shares, to forget a socket.
    """
    _Process.kept.append(given)


def generation() -> int:
    """Return how many forks are between this process and the first one."""
    return _Process.generation


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.in_child)
