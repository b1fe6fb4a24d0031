"""The start of a thread: of a probe, a watch or an opening."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Thread


def start_thread(name: str, work: Callable[[], object]) -> Thread:
    """Start a daemon thread. Raises RuntimeError if there are too many threads, or if the interpreter ends.

    A finalizer may release a slot at the end of the interpreter. Python 3.11 then waits for ever for the new thread.
    Later versions raise RuntimeError themselves.
    """
    if sys.is_finalizing():
        raise RuntimeError("the interpreter ends")
    thread = Thread(target=work, name=f"sluicegate-{name}", daemon=True)
    thread.start()
    return thread
