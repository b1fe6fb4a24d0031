"""For tests: exams that an algorithm, a store or an adapter takes, and stores that answer as a test wants.

`OpenStore`, `ShutStore` and `BrokenStore` need nothing but sluicegate; with ManualClock they make an application's own
tests quick and certain. The exams need pytest and hypothesis; subclass one, say how to make what is examined, and
pytest runs the laws:

    from sluicegate.testing import StoreExam

    class TestMyStore(StoreExam):
        def make_store(self, clock):
            return MyStore(clock=clock)

Names are loaded when they are first asked for. An exam lives in a module of its own; its row below makes it public.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sluicegate.stores.awaited import Awaited
from sluicegate.testing.stores import BrokenStore, OpenStore, ShutStore

if TYPE_CHECKING:
    from sluicegate.testing.adapter import AdapterExam as AdapterExam
    from sluicegate.testing.algorithm import AlgorithmExam as AlgorithmExam
    from sluicegate.testing.store import StoreExam as StoreExam

_EXAMS: Final = {  # name → module
    "AdapterExam": "sluicegate.testing.adapter",
    "AlgorithmExam": "sluicegate.testing.algorithm",
    "StoreExam": "sluicegate.testing.store",
}

_PARTS: Final = tuple(f"sluicegate.testing.{part}" for part in ("after", "functions", "held", "shadow"))  # of the exams

if "pytest" in sys.modules:
    # So that a failed law shows its numbers.
    sys.modules["pytest"].register_assert_rewrite(*_EXAMS.values(), *_PARTS)

__all__ = ["AdapterExam", "AlgorithmExam", "Awaited", "BrokenStore", "OpenStore", "ShutStore", "StoreExam"]


def __getattr__(name: str) -> Any:
    if name not in _EXAMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXAMS[name]), name)
